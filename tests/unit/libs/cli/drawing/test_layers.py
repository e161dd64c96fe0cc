"""Where boxes of a graph are put: above what reads them, apart from one another, near their neighbours."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.cli.drawing import layers
from libs.cli.drawing.layers import GAP, Placed, isotonic, placed


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[list[int]], list[float]]:
    count = draw(st.integers(0, 30))
    reads = [draw(st.lists(st.integers(0, box - 1), max_size=4)) if box else [] for box in range(count)]
    widths = [float(draw(st.integers(10, 200))) for _ in range(count)]
    return reads, widths


def rows(found: Placed) -> list[list[int]]:
    """Return the boxes of each layer, from the left."""
    by_layer: dict[int, list[int]] = {}
    for box, layer in enumerate(found.layers):
        by_layer.setdefault(layer, []).append(box)
    return [sorted(row, key=found.centres.__getitem__) for row in by_layer.values()]


@given(graphs())
def test_boxes_are_below_what_they_read_and_never_overlap(graph: tuple[list[list[int]], list[float]]) -> None:
    reads, widths = graph
    found = placed(reads, widths)
    for box, before in enumerate(reads):
        assert all(found.layers[read] < found.layers[box] for read in before)
    assert {(edge.source, edge.target) for edge in found.edges} == {
        (read, box) for box, before in enumerate(reads) for read in before
    }
    for edge in found.edges:
        crossed = [layer for _, layer in edge.bends]
        assert crossed == list(range(found.layers[edge.source] + 1, found.layers[edge.target]))
    for row in rows(found):
        for left, right in pairwise(row):
            apart = found.centres[right] - widths[right] / 2 - found.centres[left] - widths[left] / 2
            assert apart >= GAP - 1e-6
    for box, x in enumerate(found.centres):
        assert x - widths[box] / 2 >= -1e-6
        assert x + widths[box] / 2 <= found.width + 1e-6
    assert found.depth == max(found.layers, default=-1) + 1


def test_a_chain_is_straight() -> None:
    found = placed([[], [0], [1], [2]], [40, 90, 10, 60])
    assert len({round(x, 3) for x in found.centres}) == 1
    assert found.layers == (0, 1, 2, 3)


def test_what_reads_nothing_stands_above_its_first_reader() -> None:
    # Number 3 is read by 4 alone, which comes late.
    assert placed([[], [0], [1], [], [2, 3]], [10] * 5).layers == (0, 1, 2, 2, 3)


def test_crossings_that_can_be_avoided_are() -> None:
    # 2 reads 1, and 3 reads 0: in this order they would cross.
    found = placed([[], [], [1], [0]], [50] * 4)
    sides = [found.centres[0] < found.centres[1], found.centres[3] < found.centres[2]]
    assert sides[0] == sides[1]


def test_edges_to_later_boxes_are_left_out() -> None:
    found = placed([[0, 1, 7, -1], [0]], [10, 10])
    assert [(edge.source, edge.target) for edge in found.edges] == [(0, 1)]


def test_very_long_edges_go_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [[box - 1] if box else [] for box in range(60)]
    chain[-1].append(0)
    assert [edge.bends for edge in placed(chain, [10] * 60).edges if edge.source == 0][-1] == ()
    monkeypatch.setattr(layers, "_MOST_BENDS", 3)
    short = [[], [0], [1], [2], [3, 0]]
    assert next(edge.bends for edge in placed(short, [10] * 5).edges if edge.target == 4) != ()
    monkeypatch.setattr(layers, "_MOST_BENDS", 2)
    assert all(edge.bends == () for edge in placed(short, [10] * 5).edges)


@given(st.lists(st.floats(-100, 100), max_size=20))
def test_the_nearest_ascending_list(values: list[float]) -> None:
    found = isotonic(values)
    assert len(found) == len(values)
    assert all(left <= right + 1e-9 for left, right in pairwise(found))
    assert sum(found) == pytest.approx(sum(values), abs=1e-6)
    # It is its own nearest.
    assert isotonic(found) == pytest.approx(found, abs=1e-6)


def test_pools_have_their_mean() -> None:
    assert isotonic([1, 3, 2, 4]) == [1, 2.5, 2.5, 4]
    assert isotonic([3, 2, 1]) == [2, 2, 2]
