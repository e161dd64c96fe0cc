"""Pictures as files: sound XML without anything from elsewhere, all boxes, frames and figures in it."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.cli.drawing import charts, columns
from libs.cli.drawing.canvas import fitted
from libs.cli.drawing.charts import Pair, Series
from libs.cli.drawing.columns import BOX_HEIGHT, Box, Column, Frame
from libs.cli.drawing.picture import Picture, draw

ROOT = Frame("", "", None, 0)
SVG = "{http://www.w3.org/2000/svg}"


def parsed(picture: Picture) -> ElementTree.Element:
    text = draw(picture)
    # Nothing is fetched, and nothing runs.
    assert not re.search(r"<script|href|url\(|@import|http://(?!www\.w3\.org/2000/svg)|https:", text)
    assert "prefers-color-scheme:dark" in text
    return ElementTree.fromstring(text)


def boxes(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [
        each
        for each in root.iter(f"{SVG}rect")
        if each.get("class", "").split(" ")[0] == kind and each.get("height") == f"{BOX_HEIGHT:.0f}"
    ]


def texts(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def place(element: ElementTree.Element) -> tuple[float, float, float, float]:
    return tuple(float(element.get(name, "nan")) for name in ("x", "y", "width", "height"))  # type: ignore[return-value]


def test_boxes_have_texts_tooltips_and_edges() -> None:
    column = Column(
        "steps",
        (
            Box("raster", "0 · float32[3]", "moves it", "raster", bar=1.0),
            Box("add", "1 · float32[3]", "adds", "compute", (0,), bar=0.5),
            Box("gone", "g", "nothing left", "node", (1,), faded=True),
        ),
        (ROOT,),
        3,
    )
    root = parsed(Picture("a model", "at batch = 1", columns=(column,)))
    (raster,), (add,), (gone,) = (boxes(root, kind) for kind in ("raster", "compute", "node"))
    assert [each.findtext(f"{SVG}title") for each in (raster, add, gone)] == [
        "moves it",
        "adds",
        "nothing left",
    ]
    # Rasters are round, and what leaves nothing behind is marked.
    assert float(raster.get("rx", 0)) > float(add.get("rx", 0))
    assert gone.get("class") == "node nothing"
    assert {"raster", "0 · float32[3]", "steps", "a model", "at batch = 1"} <= set(texts(root))
    assert place(raster)[1] < place(add)[1] < place(gone)[1]
    edges = [each for each in root.iter(f"{SVG}path") if each.get("class") == "edge"]
    assert len(edges) == 2
    bars = {each.get("class"): float(each.get("width", 0)) for each in root.iter(f"{SVG}rect")}
    assert bars["bar raster"] == place(raster)[2]
    assert bars["bar"] == pytest.approx(place(add)[2] / 2, abs=0.1)


def test_frames_hold_their_boxes_and_branches_stand_side_by_side() -> None:
    frames = (
        ROOT,
        Frame("branch", "from an If", 0, 1, sideways=True),
        Frame("then", "", 1, 1),
        Frame("else", "", 1, 2),
        Frame("loop × 3 rounds", "", 0, 3),
    )
    column = Column(
        "after",
        (
            Box("first", "", "", "compute"),
            Box("yes", "", "", "compute", (0,), frame=2),
            Box("no", "", "", "compute", (0,), frame=3),
            Box("turn", "", "", "host", (1, 2), frame=4),
            Box("last", "", "", "compute", (3,)),
        ),
        frames,
        5,
    )
    root = parsed(Picture("m", "", columns=(column,)))
    branch, then, other, loop = [
        place(each) for each in root.iter(f"{SVG}rect") if each.get("class") == "frame"
    ]
    assert branch[0] < then[0]
    assert then[0] + then[2] < other[0]
    assert then[1] == other[1] > branch[1]
    assert branch[1] + branch[3] >= max(then[1] + then[3], other[1] + other[3])
    assert loop[1] > branch[1] + branch[3]
    first, yes, no, last = map(place, boxes(root, "compute"))
    (turn,) = map(place, boxes(root, "host"))
    for inner, outer in ((yes, then), (no, other), (turn, loop)):
        assert outer[0] <= inner[0]
        assert inner[0] + inner[2] <= outer[0] + outer[2]
        assert outer[1] <= inner[1]
        assert inner[1] + inner[3] <= outer[1] + outer[3]
    assert first[1] < branch[1]
    assert last[1] > loop[1] + loop[3]
    # What crosses frames is drawn too, and told apart.
    assert len([each for each in root.iter(f"{SVG}path") if each.get("class") == "far"]) == 5
    assert "loop × 3 rounds" in texts(root)


def test_of_very_many_boxes_the_first_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MOST_BOXES", 5)
    many = tuple(Box("op", str(number), "", "node", (number - 1,) if number else ()) for number in range(9))
    frames = (ROOT, Frame("late", "", 0, 7))
    root = parsed(Picture("m", "", columns=(Column("all", many, frames, 20),)))
    assert len(boxes(root, "node")) == 5
    assert "… and 15 more" in texts(root)


def test_figures_are_bars_before_and_after() -> None:
    pairs = (
        Pair("bytes", 100, 25, ("100 B", "25 B")),
        Pair("regions", None, 7, ("-", "7")),
        Pair("none", 0, 0, ("0", "0")),
    )
    root = parsed(Picture("m", "", pairs))
    before = [place(each)[2] for each in root.iter(f"{SVG}rect") if each.get("class") == "bar before"]
    after = [place(each)[2] for each in root.iter(f"{SVG}rect") if each.get("class") == "bar"]
    assert after[0] == pytest.approx(before[0] / 4, abs=0.1)
    assert (len(before), len(after)) == (2, 3)
    assert {"100 B → 25 B", "7"} <= set(texts(root))


def test_the_largest_step_is_marked() -> None:
    values = (10, 40, 20)
    series = Series("memory", values, (False, True, False), ("a", "b", "c"), "peak 40 B")
    root = parsed(Picture("m", "", moved=series, memory=series))
    (dot,) = root.iter(f"{SVG}circle")
    assert dot.findtext(f"{SVG}title") == "b"
    assert "peak 40 B" in texts(root)
    bars = [each for each in root.iter(f"{SVG}rect") if each.get("class", "").startswith("bar")]
    assert [each.get("class") for each in bars] == ["bar", "bar raster", "bar"]
    assert [place(each)[3] / place(bars[1])[3] for each in bars] == pytest.approx([0.25, 1, 0.5], abs=0.01)


def test_charts_of_many_steps_keep_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "_MOST_POINTS", 4)
    values = tuple([1] * 30 + [99] + [1] * 9)
    texts_ = tuple(map(str, range(40)))
    root = parsed(Picture("m", "", memory=Series("memory", values, (False,) * 40, texts_, "peak")))
    (dot,) = root.iter(f"{SVG}circle")
    assert dot.findtext(f"{SVG}title") == "30"


def test_nothing_to_draw_is_drawn() -> None:
    empty = Series("memory", (), (), (), "")
    root = parsed(Picture("m", "", moved=empty, memory=empty, columns=(Column("none", (), (ROOT,), 0),)))
    assert "none" in texts(root)


@given(st.text(max_size=60))
def test_any_name_is_sound_xml(name: str) -> None:
    column = Column(name, (Box(name, name, name, "node"),), (ROOT, Frame(name, name, 0, 1)), 1)
    root = parsed(Picture(name, name, (Pair(name, 1, 1, (name, name)),), (column,)))
    assert len(boxes(root, "node")) == 1


def test_long_texts_are_cut() -> None:
    assert fitted("short", 100) == "short"
    assert fitted("a" * 100, 64) == "a" * 9 + "…"
    assert fitted("abc", 0) == "…"
