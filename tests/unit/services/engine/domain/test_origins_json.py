"""What workers tell of models: it comes back as it was; what is malformed is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.domain.explanation import MOST_NODES, Figures, NodeText, Origins
from services.engine.domain.origins_json import MOST_NODES_BYTES, origins_from_json, origins_to_json

counts = st.integers(0, 2**64 - 1)
operators = st.dictionaries(st.text(max_size=8), counts, max_size=4)
figures = st.builds(Figures, operators, *[counts] * 7)


@st.composite
def several(draw: st.DrawFn) -> Origins:
    nodes = tuple(
        NodeText(
            draw(st.text(max_size=8)),
            draw(st.text(max_size=8)),
            tuple(draw(st.lists(st.integers(0, place - 1), max_size=3))) if place else (),
            draw(counts),
            draw(st.none() | st.integers(0, place - 1)) if place else None,
        )
        for place in range(draw(st.integers(0, 5)))
    )
    return Origins(draw(operators), draw(counts), draw(st.none() | figures), nodes)


@given(several())
def test_origins_come_back(origins: Origins) -> None:
    assert origins_from_json(json.loads(json.dumps(origins_to_json(origins)))) == origins


def test_of_many_nodes_the_first_are_told() -> None:
    nodes = tuple(NodeText("é" * 100, "Add", (), 1) for _ in range(MOST_NODES))
    fields = origins_to_json(Origins({}, 0, None, nodes))
    assert 500 < len(fields["nodes"]) < MOST_NODES
    assert len(json.dumps(fields)) < MOST_NODES_BYTES + 1000
    large = Figures({}, *[2**70] * 7)
    assert origins_from_json(origins_to_json(Origins({}, 0, large))).before == Figures({}, *[2**64 - 1] * 7)


SOUND = {"operators": {"Add": 1}, "rasters": 0, "before": None, "nodes": [["a", "Add", [], 1, None]]}


@pytest.mark.parametrize(
    "change",
    [
        {"operators": None},
        {"operators": {"Add": -1}},
        {"operators": {"Add": 1.0}},
        {"rasters": True},
        {"rasters": 2**64},
        {"before": {}},
        {"before": 3},
        {"nodes": {}},
        {"nodes": [["a", "Add", [], 1]]},
        {"nodes": [["a", 3, [], 1, None]]},
        {"nodes": [["a" * 5000, "Add", [], 1, None]]},
        {"nodes": [["a", "Add", [0], 1, None]]},
        {"nodes": [["a", "Add", [], 1, 0]]},
        {"nodes": [["a", "Add", 3, 1, None]]},
        {"nodes": [["a", "Add", [], 1, None]] * (MOST_NODES + 1)},
    ],
)
def test_what_is_malformed_is_refused(change: dict) -> None:
    assert origins_from_json(SOUND).operators == {"Add": 1}
    with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
        origins_from_json(SOUND | change)
