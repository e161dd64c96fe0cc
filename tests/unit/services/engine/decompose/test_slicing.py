"""Slices and paddings: of sizes and by numbers that are constants, or only known when data are there."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from libs.common.errors import Invalid
from services.engine.domain.decompose.walk import decompose
from services.engine.domain.graph import Node
from services.engine.domain.program import Program, RasterInstruction
from services.engine.domain.reference_blocks import interpret_blocks
from services.engine.testing import applied, graph_of, host, model_of

F32 = np.float32
X = np.random.default_rng(3).standard_normal((2, 4, 6, 5)).astype(F32)
FAR = np.iinfo(np.int64)
WAYS = ["constants", "inputs", "inputs of open sizes"]


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def ways(way: str, arrays: list[Any]) -> dict[str, Any]:
    """Return which inputs the model holds, and which have names for sizes."""
    rest = tuple(index for index in range(1, len(arrays)) if arrays[index] is not None)
    return {"constants": {"constants": rest}, "inputs": {}, WAYS[2]: {"symbolic": (0,)}}[way]


def one(operator: str, arrays: list[Any], way: str, opset: int = 19, **attributes: Any) -> Any:
    (found,) = applied(operator, arrays, [1], opset=opset, **ways(way, arrays), **attributes)
    return found


def runtime(operator: str, arrays: list[Any], opset: int = 19, **attributes: Any) -> Any:
    model = model_of(operator, arrays, [1], opset=opset, **attributes)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {f"i{index}": array for index, array in enumerate(map(np.asarray, arrays))}
    return session.run(None, feed)[0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "numbers",
    [
        [i64(-1, 0), i64(-100, 3), i64(1, -1), i64(-1, 2)],
        [i64(5), i64(2), i64(2)],
        [i64(FAR.max), i64(FAR.min), i64(3), i64(-3)],
        [i64(FAR.max, 0), i64(FAR.min, FAR.max), i64(3, 2), i64(FAR.min, FAR.max)],
        [i64(1, 1), i64(2, -1)],
        [np.array([-2], np.int32), np.array([9], np.int32), np.array([-2], np.int32)],
    ],
    ids=["steps", "none", "far", "far steps", "no axes", "int32"],
)
def test_slices(numbers: list[Any], way: str) -> None:
    axes = numbers[2] if len(numbers) > 2 else range(len(numbers[0]))
    steps = numbers[3] if len(numbers) > 3 else [1] * len(numbers[0])
    wanted: Any = X
    for start, end, axis, step in zip(numbers[0], numbers[1], axes, steps, strict=True):
        index = [slice(None)] * X.ndim
        # Python's slices hold numbers of any size.
        index[axis] = slice(int(start), int(end), int(step))
        wanted = wanted[tuple(index)]
    np.testing.assert_array_equal(one("Slice", [X, *numbers], way), wanted)


@pytest.mark.parametrize("n", [1, 4, 9])
def test_a_start_that_counts_from_either_end(n: int) -> None:
    """n - 4 counts from the end where n is below 4; which it is can't be told when the plan is made."""
    nodes = [
        Node("", "Shape", ("x",), ("s",), {}),
        Node("", "Gather", ("s", "zero"), ("n",), {}),
        Node("", "Sub", ("n", "four"), ("start",), {}),
        Node("", "Slice", ("x", "start", "end", "zero"), ("y",), {}),
    ]
    constants = {"zero": i64(0), "four": i64(4), "end": i64(FAR.max)}
    x = np.arange(n, dtype=F32)
    composed = decompose(graph_of(nodes, {"x": ("n",)}, ["y"], constants))
    assert not isinstance(composed, Program)  # its size depends on which it is
    (found,) = interpret_blocks(composed, {"x": x}, host(composed)).values()
    np.testing.assert_array_equal(found, x[n - 4 :])


@pytest.mark.parametrize("way", WAYS[1:])
def test_axes_that_are_named_twice_are_refused(way: str) -> None:
    with pytest.raises(Invalid, match=r"the_Slice \(Slice\).*must be equal"):
        one("Slice", [X, i64(0, 0), i64(1, 1), i64(1, -3)], way)
    with pytest.raises(Invalid, match=r"the_Slice \(Slice\).*divided by 0"):
        one("Slice", [X, i64(0), i64(1), i64(1), i64(0)], way)


MODES = ["constant", "reflect", "edge", "wrap"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "pads", [i64(0, 0, 1, 2, 0, 0, 3, 1), i64(0, 0, 0, -1, 0, 0, 0, 3)], ids=["wider", "cut in front"]
)
def test_paddings(pads: Any, mode: str, way: str) -> None:
    """What is taken away goes first: what is repeated is of the rest."""
    wanted = runtime("Pad", [X, pads], mode=mode)
    np.testing.assert_array_equal(one("Pad", [X, pads], way, mode=mode), wanted)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_paddings_wider_than_the_axis(mode: str, way: str) -> None:
    """They go to and fro, or round and round, as numpy's do."""
    pads = [(0, 0), (0, 0), (11, 3), (0, 14)]
    numbers = i64(*(front for front, _ in pads), *(back for _, back in pads))
    found = one("Pad", [X, numbers], way, mode=mode)
    np.testing.assert_array_equal(found, np.pad(X, pads, mode=mode))  # type: ignore[call-overload]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_filled_in_and_where(way: str) -> None:
    arrays = [X, i64(1, 2), F32(3), i64(-1)]
    np.testing.assert_array_equal(one("Pad", arrays, way), runtime("Pad", arrays))
    np.testing.assert_array_equal(
        one("Pad", [X[0, 0], i64(1, 0, 0, 2), F32(np.inf)], way, 11),
        np.pad(X[0, 0], [(1, 0), (0, 2)], constant_values=np.inf),
    )


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_an_axis_of_nothing_has_nothing_to_repeat(mode: str) -> None:
    with pytest.raises(Invalid, match=r"\(Pad\)"):
        one("Pad", [np.zeros((2, 0), F32), i64(0, 1, 0, 1)], "inputs", mode=mode)
    found = one("Pad", [np.zeros((2, 0), F32), i64(0, 1, 0, 1)], "inputs")
    np.testing.assert_array_equal(found, np.zeros((2, 2), F32))


def test_a_padding_that_fits_is_one_raster() -> None:
    node = Node("", "Pad", ("x", "k"), ("y",), {"mode": "reflect"})
    known = {"k": i64(0, 2, 0, 2)}
    program = decompose(graph_of([node], {"x": ("n", 3)}, ["y"], known))
    assert isinstance(program, Program)
    assert [type(each) for each in program.instructions] == [RasterInstruction]
    # Where it may be too short, places are computed: sizes need no bounds.
    wide = decompose(graph_of([node], {"x": ("n", "n")}, ["y"], known))
    assert isinstance(wide, Program)
    assert len(wide.instructions) > 1


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ([X, i64(1, 2, 3)], "paddings int64.3. are given for float32.2, 4, 6, 5., axes None"),
        ([X, i64(1, 2), None, i64(0, 1)], "there must be two for each axis"),
        ([X, i64(0, 0, 0, -9, 0, 0, 0, 0)], "negative"),
    ],
)
def test_paddings_that_dont_fit_are_refused(arrays: list[Any], text: str) -> None:
    with pytest.raises(Invalid, match=rf"the_Pad \(Pad\).*{text}"):
        one("Pad", arrays, "constants")


@pytest.mark.parametrize("mode", MODES)
def test_no_more_is_taken_away_than_there_is(mode: str) -> None:
    with pytest.raises(Invalid, match=r"\(Pad\)"):
        one("Pad", [np.zeros((1, 2), F32), i64(0, 5, 0, -4)], "inputs", mode=mode)


def test_strings_are_padded() -> None:
    x = np.array([["a", "b"]], np.object_)
    (found,) = applied("Pad", [x, i64(0, 1, 1, 0), np.array("-", np.object_)], [8], opset=19, mode="constant")
    assert found.tolist() == [["-", "a", "b"], ["-", "-", "-"]]
