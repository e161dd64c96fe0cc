"""Movement by shapes, axes and counts that come with the data, and by divisions that hold at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T

from libs.common.errors import Invalid
from services.engine.testing import applied

F32 = np.float32
X = np.arange(2 * 3 * 4, dtype=F32).reshape(2, 3, 4)


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def every_way(operator: str, arrays: list[Any], outputs: int = 1, **options: Any) -> list[list[Any]]:
    """Return what comes of constants, of inputs, and of inputs with data of open sizes."""
    rest = tuple(range(1, len(arrays)))
    types = [T.FLOAT] * outputs
    return [
        applied(operator, arrays, types, constants=constants, symbolic=symbolic, **options)
        for constants, symbolic in ((rest, ()), ((), ()), ((), (0,)))
    ]


@pytest.mark.parametrize(
    ("shape", "allow", "wanted"),
    [
        ((4, 6), 0, (4, 6)),
        ((0, -1), 0, (2, 12)),
        ((0, 0, 2, -1), 0, (2, 3, 2, 2)),
        ((-1,), 0, (24,)),
        ((24, 1, 1), 1, (24, 1, 1)),
    ],
)
def test_reshapes(shape: tuple[int, ...], allow: int, wanted: tuple[int, ...]) -> None:
    for (found,) in every_way("Reshape", [X, i64(*shape)], opset=14, allowzero=allow):
        np.testing.assert_array_equal(found, X.reshape(wanted))


@pytest.mark.parametrize("shape", [(5, 5), (-1, -1), (-2, 12), (0, 0, 0, 0), (0, -1, 0)])
@pytest.mark.parametrize("constants", [(1,), ()])
def test_shapes_that_dont_fit_are_refused(shape: tuple[int, ...], constants: tuple[int, ...]) -> None:
    x = X[:, :0] if shape == (0, -1, 0) else X
    with pytest.raises(Invalid, match=r"the_Reshape \(Reshape\)"):
        applied("Reshape", [x, i64(*shape)], [T.FLOAT], opset=14, constants=constants, allowzero=x is not X)


def test_a_list_of_no_axes_names_all_of_size_1() -> None:
    for constants in ((), (1,)):
        (found,) = applied("Squeeze", [X[:, None, :, None], i64()], [T.FLOAT], opset=13, constants=constants)
        np.testing.assert_array_equal(found, X)


def test_axes_of_size_1() -> None:
    x = X[:, None, :, None]
    for axes in ((1, 3), (-2, 1), (1,), (3,)):
        for (found,) in every_way("Squeeze", [x, i64(*axes)], opset=13):
            np.testing.assert_array_equal(found, np.squeeze(x, axes))
        for (found,) in every_way("Unsqueeze", [X, i64(*axes)], opset=13):
            np.testing.assert_array_equal(found, np.expand_dims(X, axes))
    for constants in ((1,), ()):
        for operator, axes in (
            ("Squeeze", (0,)),
            ("Squeeze", (1, 1)),
            ("Unsqueeze", (0, 0)),
            ("Unsqueeze", (9,)),
        ):
            with pytest.raises(Invalid, match=rf"\({operator}\)"):
                applied(operator, [x, i64(*axes)], [T.FLOAT], opset=13, constants=constants)


@pytest.mark.parametrize("repeats", [(1, 2, 3), (2, 0, 1), (1, 1, 1)])
def test_tiles(repeats: tuple[int, ...]) -> None:
    for (found,) in every_way("Tile", [X, i64(*repeats)], opset=13):
        np.testing.assert_array_equal(found, np.tile(X, repeats))


@pytest.mark.parametrize("shape", [(3, 4), (2, 1, 1), (5, 1, 1, 4), (1,)])
def test_expansions(shape: tuple[int, ...]) -> None:
    x = X[:, :, :1]
    for (found,) in every_way("Expand", [x, i64(*shape)], opset=13):
        np.testing.assert_array_equal(found, np.broadcast_to(x, np.broadcast_shapes(x.shape, shape)))


def test_splits() -> None:
    for sizes in ((1, 3), (4, 0)):
        for found in every_way("Split", [X, i64(*sizes)], 2, opset=18, axis=-1):
            for one, other in zip(found, np.split(X, [sizes[0]], -1), strict=True):
                np.testing.assert_array_equal(one, other)
    # The last is smaller, or nothing is left for it.
    for number, sizes in ((3, [2, 2, 0]), (4, [1, 1, 1, 1]), (5, [1, 1, 1, 1, 0])):
        for found in every_way("Split", [X], number, opset=18, axis=2, num_outputs=number):
            assert [one.shape[2] for one in found] == sizes
            np.testing.assert_array_equal(np.concatenate(found, 2), X)
    for constants in ((1,), ()):
        with pytest.raises(Invalid, match=r"\(Split\)"):
            applied("Split", [X, i64(1, 2)], [T.FLOAT] * 2, opset=18, axis=2, constants=constants)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("symbolic", [(), (0,)])
def test_depth_and_space(mode: str, symbolic: tuple[int, ...]) -> None:
    x = np.arange(2 * 8 * 2 * 3, dtype=F32).reshape(2, 8, 2, 3)
    (wide,) = applied("DepthToSpace", [x], [T.FLOAT], opset=13, symbolic=symbolic, blocksize=2, mode=mode)
    parts = x.reshape((2, 2, 2, 2, 2, 3))
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    np.testing.assert_array_equal(wide, parts.transpose(order).reshape(2, 2, 4, 6))
    if mode == "DCR":
        (back,) = applied("SpaceToDepth", [wide], [T.FLOAT], opset=13, symbolic=symbolic, blocksize=2)
        np.testing.assert_array_equal(back, x)
    for operator, shape in (("DepthToSpace", (1, 6, 2, 2)), ("SpaceToDepth", (1, 1, 2, 3))):
        with pytest.raises(Invalid, match=rf"\({operator}\)"):
            applied(operator, [np.zeros(shape, F32)], [T.FLOAT], opset=13, symbolic=symbolic, blocksize=2)


def test_axes_that_may_be_1_arent_dropped_by_chance() -> None:
    (found,) = applied("Squeeze", [X[None]], [T.FLOAT], opset=13)
    np.testing.assert_array_equal(found, X)
    with pytest.raises(Invalid, match="it names no axes, and axis 0 of size i0_0 goes where that is 1"):
        applied("Squeeze", [X], [T.FLOAT], opset=13, symbolic=True)
