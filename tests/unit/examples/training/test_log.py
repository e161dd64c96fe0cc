"""Windows of the past hold the past, and nothing else."""

from pathlib import Path

import numpy as np
import pytest

from examples.training.click_model.log import WINDOW, WINDOW_S, BadLog, read_items, read_shown

Files = tuple[Path, Path]


def rewrite(path: Path, rows: list[tuple[str, str, float, float, float]], fill: int = 1000) -> None:
    """Write rows, and others of another user far before them so that there are enough."""
    others = [("filler", "1", float(number), float(number), 3.0) for number in range(fill)]
    lines = [",".join(str(cell) for cell in row) for row in [*others, *rows]]
    path.write_text("user,item,shown_s,rated_s,rating\n" + "\n".join(lines) + "\n", "utf-8")


def test_what_was_on_the_screen_together_isnt_in_the_past_of_each_other(files: Files) -> None:
    ratings, items = files
    start = 1e6
    rows = [
        ("u", "7", start, start + 5, 4.0),
        ("u", "8", start, start + 5, 1.0),
        ("u", "9", start + 10, start + 12, 5.0),
    ]
    rewrite(ratings, rows)
    shown = read_shown(ratings, read_items(items))
    assert shown.history[-3:, :3].tolist() == [[0, 0, 0], [0, 0, 0], [7, 8, 0]]
    assert shown.ratings[-1, :3].tolist() == [4.0, 1.0, 0.0]
    assert shown.clicked[-3:].tolist() == [1.0, 0.0, 1.0]


def test_the_future_changes_nothing_before_it(files: Files) -> None:
    ratings, items = files
    whole = read_shown(ratings, read_items(items))
    lines = ratings.read_text("utf-8").splitlines()
    cut = 1200
    changed = [line.rsplit(",", 1)[0] + ",1" for line in lines[cut + 1 :]]
    ratings.write_text("\n".join([*lines[: cut + 1], *changed]) + "\n", "utf-8")
    again = read_shown(ratings, read_items(items))
    assert np.array_equal(whole.history[:cut], again.history[:cut])
    assert np.array_equal(whole.ratings[:cut], again.ratings[:cut])
    assert not np.array_equal(whole.clicked[cut:], again.clicked[cut:])


def test_the_window_keeps_the_latest_of_the_last_days(files: Files) -> None:
    ratings, items = files
    last = 1e7
    old = ("u", "1", last - WINDOW_S - 30, last - WINDOW_S - 1, 5.0)
    recent = [("u", "2", last - 100 + n, last - 100 + n, 3.0) for n in range(WINDOW - 2)]
    rewrite(ratings, [old, *recent, ("u", "3", last, last + 1, 4.0)])
    shown = read_shown(ratings, read_items(items))
    assert np.count_nonzero(shown.history[-1]) == WINDOW - 2
    assert set(shown.history[-1, : WINDOW - 2].tolist()) == {2}
    more = [("u", "4", last - 40 + n * 0.5, last - 40 + n * 0.5, 2.0) for n in range(WINDOW)]
    rewrite(ratings, [old, *recent, *more, ("u", "3", last, last + 1, 4.0)])
    window = read_shown(ratings, read_items(items)).history[-1].tolist()
    assert len(window) == WINDOW
    assert window[-1] in (2, 4)
    assert 1 not in window


def test_the_parts_are_cut_by_time(files: Files) -> None:
    shown = read_shown(files[0], read_items(files[1]))
    validation, test = shown.parts()
    assert shown.shown_s[:validation].max() < shown.shown_s[validation:test].min()
    assert shown.shown_s[validation:test].max() < shown.shown_s[test:].min()
    assert (validation, test) == (1050, 1200)


def test_an_unknown_film_is_number_0_but_its_rating_counts(files: Files) -> None:
    ratings, items = files
    rewrite(ratings, [("u", "nowhere", 1e6, 1e6, 2.0), ("u", "5", 1e6 + 9, 1e6 + 10, 4.0)])
    shown = read_shown(ratings, read_items(items))
    assert shown.item[-2:].tolist() == [0, 5]
    assert shown.history[-1, 0] == 0
    assert shown.ratings[-1, :2].tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("user,item,shown_s,rating\n", "'rated_s' is missing"),
        ("user,item,shown_s,rated_s,rating\nu,1,x,2,3\n", "line 2: could not convert"),
        ("user,item,shown_s,rated_s,rating\nu,1,1,nan,3\n", "line 2: shown_s <= rated_s"),
        ("user,item,shown_s,rated_s,rating\nu,1,1,2,9\n", "line 2: shown_s <= rated_s"),
        ("user,item,shown_s,rated_s,rating\nu,1,3,2,4\n", "line 2: shown_s <= rated_s"),
        ("user,item,shown_s,rated_s,rating\nu,1\n", "line 2"),
        ("user,item,shown_s,rated_s,rating\nu,1,1,2,3\n", "at least 1,000"),
    ],
)
def test_a_broken_log_is_told_with_its_line(files: Files, text: str, what: str) -> None:
    files[0].write_text(text, "utf-8")
    with pytest.raises(BadLog, match=what):
        read_shown(files[0], read_items(files[1]))


@pytest.mark.parametrize(
    ("text", "what"),
    [("item,year\n", "'genres' is missing"), ("item,year,genres\n1,,A\n1,,B\n", "line 3: item '1'")],
)
def test_broken_films_are_told_with_their_line(files: Files, text: str, what: str) -> None:
    files[1].write_text(text, "utf-8")
    with pytest.raises(BadLog, match=what):
        read_items(files[1])
