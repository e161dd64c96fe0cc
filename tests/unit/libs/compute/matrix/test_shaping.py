"""The same elements in other shapes and orders, against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from libs.common.errors import Invalid
from libs.compute import matrix
from libs.compute.testing import assert_same

X = np.arange(24).reshape(2, 3, 4)


@settings(max_examples=60, deadline=None)
@given(array_shapes(min_dims=2, max_dims=4, max_side=3), st.data())
def test_axes_of_any_array(shape: tuple[int, ...], data: st.DataObject) -> None:
    x = np.arange(np.prod(shape)).reshape(shape)
    axis = st.integers(-x.ndim, x.ndim - 1)
    one, other = data.draw(axis), data.draw(axis)
    assert_same(matrix.swapaxes(x, one, other), np.swapaxes(x, one, other))
    assert_same(matrix.moveaxis(x, one, other), np.moveaxis(x, one, other))
    assert_same(matrix.rollaxis(x, one, data.draw(st.just(other))), np.rollaxis(x, one, other))
    assert_same(matrix.flip(x, one), np.flip(x, one))
    assert_same(matrix.roll(x, 5, one), np.roll(x, 5, one))
    assert_same(matrix.expand_dims(x, one), np.expand_dims(x, one))
    order = data.draw(st.permutations(range(x.ndim)))
    assert_same(matrix.transpose(x, order), np.transpose(x, order))
    if one % x.ndim != other % x.ndim:
        turns = data.draw(st.integers(-5, 5))
        assert_same(matrix.rot90(x, turns, (one, other)), np.rot90(x, turns, (one, other)))
        offset = data.draw(st.integers(-4, 4))
        assert_same(matrix.diagonal(x, offset, one, other), np.diagonal(x, offset, one, other))


@pytest.mark.parametrize("shape", [(24,), -1, (4, -1), (2, 2, 6), [3, 8], (-1, 24), np.int64(24)])
def test_reshape(shape: Any) -> None:
    assert_same(matrix.reshape(X, shape), np.reshape(X, shape))


@pytest.mark.parametrize(("shift", "axis"), [(3, None), (-30, None), ((1, 2), (0, 2)), (1, (0, 1)), (0, 1)])
def test_roll(shift: Any, axis: Any) -> None:
    assert_same(matrix.roll(X, shift, axis), np.roll(X, shift, axis))
    assert_same(matrix.roll(X[:, :0], shift, axis), np.roll(X[:, :0], shift, axis))


def test_least_axes() -> None:
    for name in ("atleast_1d", "atleast_2d", "atleast_3d"):
        for x in (np.array(5), X[0, 0], X[0], X):
            assert_same(getattr(matrix, name)(x), getattr(np, name)(x))
    assert_same(matrix.atleast_2d(1, [2]), np.atleast_2d(1, [2]))


def test_squeeze_and_broadcast() -> None:
    x = X[:1, :, :1]
    for axis in (None, 0, -1, (0, 2)):
        assert_same(matrix.squeeze(x, axis), np.squeeze(x, axis))
    assert_same(matrix.broadcast_to(x, (2, 3, 4)), np.broadcast_to(x, (2, 3, 4)))
    assert_same(matrix.broadcast_arrays(X, [[1], [2], [3]]), np.broadcast_arrays(X, [[1], [2], [3]]))
    assert matrix.broadcast_shapes((3, 1), 4) == np.broadcast_shapes((3, 1), 4)
    assert matrix.shape(X) == (2, 3, 4)
    assert (matrix.ndim(X), matrix.size(X), matrix.size(X, (0, -1))) == (3, 24, 8)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: matrix.reshape(X, (5, 5)), "24 elements"),
        (lambda: matrix.reshape(X, (-1, -1)), "more than one size"),
        (lambda: matrix.reshape(X, (7, -1)), "can't be given the shape"),
        (lambda: matrix.reshape([], (0, -1)), "a size is 0"),
        (lambda: matrix.transpose(X, (0, 1)), "no order of 3 axes"),
        (lambda: matrix.transpose(X, (0, 1, 1)), "transpose: axes .* name one twice"),
        (lambda: matrix.moveaxis(X, (0, 1), 2), "2 axes are moved to 1"),
        (lambda: matrix.swapaxes(X, 0, 3), "axis 3 is out of range"),
        (lambda: matrix.swapaxes(X, 0, 1.5), "no integer"),
        (lambda: matrix.rollaxis(X, 0, 9), "start 9 is out of range"),
        (lambda: matrix.squeeze(X, 0), "has size 2, not 1"),
        (lambda: matrix.expand_dims(X, (0, 0)), "name one twice"),
        (lambda: matrix.expand_dims(X, tuple(range(6))), "at most 8"),
        (lambda: matrix.broadcast_to(X, (3, 4)), "doesn't broadcast"),
        (lambda: matrix.rot90(X, 1, (0, 1, 2)), "two axes, not of 3"),
        (lambda: matrix.roll(X, (1, 2), (0, 1, 2)), "2 shifts for 3 axes"),
        (lambda: matrix.diagonal(X[0, 0]), "2 axes or more"),
        (lambda: matrix.diagonal(X, 0, 1, -2), "are the same"),
        (lambda: matrix.matrix_transpose([1]), "2 axes or more"),
        (lambda: matrix.astype(X, "float23"), "did you mean 'float32'"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()
