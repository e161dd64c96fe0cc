"""Arrays from nothing, against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.compute import matrix
from libs.compute.testing import assert_same


@settings(max_examples=80, deadline=None)
@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-5, 5).filter(bool))
def test_arange_of_whole_numbers(start: int, stop: int, step: int) -> None:
    assert_same(matrix.arange(start, stop, step), np.arange(start, stop, step))


@pytest.mark.parametrize(
    "args",
    [(5,), (-3,), (2.5,), (1, 2.5), (0, 1, 0.1), (1.0, -1.0, -0.3), (0.0, 3, 1), (np.int32(2), 7)],
)
def test_arange(args: Any) -> None:
    assert_same(matrix.arange(*args), np.arange(*args))
    assert_same(matrix.arange(*args, dtype="float32"), np.arange(*args, dtype="float32"))


@pytest.mark.parametrize("num", [0, 1, 2, 7])
@pytest.mark.parametrize("endpoint", [True, False])
def test_evenly_spaced(num: int, endpoint: bool) -> None:
    for start, stop in ((0, 1), (2.0, -3.0), (1, 1), ([1.0, 2.0], [3.0, 9.0]), (np.float32(1), 3)):
        ours, theirs = matrix.linspace(start, stop, num, endpoint), np.linspace(start, stop, num, endpoint)
        assert_same(ours, theirs, rtol=1e-14, atol=1e-15)
    assert_same(matrix.linspace(0, 7, num, dtype="int8"), np.linspace(0, 7, num, dtype="int8"))
    assert_same(matrix.logspace(0, 3, num, endpoint), np.logspace(0, 3, num, endpoint))
    assert_same(matrix.logspace(0, 3, num, endpoint, 2), np.logspace(0, 3, num, endpoint, 2))
    assert_same(matrix.geomspace(1, 1000, num, endpoint), np.geomspace(1, 1000, num, endpoint))


@pytest.mark.parametrize("k", [-5, -1, 0, 2, 9])
def test_diagonals(k: int) -> None:
    x = np.arange(12.0).reshape(3, 4)
    assert_same(matrix.eye(3, 4, k), np.eye(3, 4, k))
    assert_same(matrix.tri(3, 5, k), np.tri(3, 5, k))
    for each in (x, np.arange(3), np.arange(24).reshape(2, 3, 4)):
        assert_same(matrix.tril(each, k), np.tril(each, k))
        assert_same(matrix.triu(each, k), np.triu(each, k))
    assert_same(matrix.diag([1, 2, 3], k), np.diag([1, 2, 3], k))
    assert_same(matrix.diag(x, k), np.diag(x, k))
    assert_same(matrix.diagflat(x, k), np.diagflat(x, k))
    assert_same(matrix.tril_indices(3, k, 4), np.tril_indices(3, k, 4))
    assert_same(matrix.triu_indices(3, k, 4), np.triu_indices(3, k, 4))


def test_filled() -> None:
    for shape in (3, (2, 3), (), (0, 2), [2]):
        assert_same(matrix.zeros(shape), np.zeros(shape))
        assert_same(matrix.ones(shape, int), np.ones(shape, int))
        assert_same(matrix.full(shape, 7), np.full(shape, 7))
        assert_same(matrix.full(shape, 1.5, "float32"), np.full(shape, 1.5, "float32"))
    assert_same(matrix.full((2, 3), [1, 2, 3]), np.full((2, 3), [1, 2, 3]))
    x = np.ones((2, 3), np.int16)
    assert_same(matrix.full_like(x, 2.5), np.full_like(x, 2.5))
    assert_same(matrix.zeros_like(x, float, shape=(4,)), np.zeros_like(x, float, shape=(4,)))
    assert matrix.empty((2,)).tolist() == [0, 0]


def test_grids_and_windows() -> None:
    x, y, z = np.arange(3), np.arange(2.0), np.arange(4)
    for indexing in ("xy", "ij"):
        for sparse in (False, True):
            ours = matrix.meshgrid(x, y, z, indexing=indexing, sparse=sparse)
            assert_same(ours, np.meshgrid(x, y, z, indexing=indexing, sparse=sparse))  # type: ignore[call-overload]
    assert_same(matrix.meshgrid(x), np.meshgrid(x))
    assert_same(matrix.indices((2, 3)), np.indices((2, 3)))
    assert_same(matrix.indices((2, 3), sparse=True), np.indices((2, 3), sparse=True))
    for points in (0, 1, 2, 9):
        for name in ("hanning", "hamming", "blackman", "bartlett"):
            assert_same(getattr(matrix, name)(points), getattr(np, name)(points), rtol=1e-9, atol=1e-15)
    for options in ({}, {"N": 2}, {"N": 5, "increasing": True}):
        assert_same(matrix.vander([1, 2, 3], **options), np.vander([1, 2, 3], **options))


def test_copies_are_their_own() -> None:
    x = np.zeros(3)
    shared, own = matrix.asarray(x), matrix.array(x)
    x[0] = 5
    assert shared.tolist() == [5, 0, 0]
    assert own.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: matrix.arange(0, 5, 0), "step is 0"),
        (lambda: matrix.arange(np.inf), "can't count"),
        (lambda: matrix.arange("a"), "no number"),
        (lambda: matrix.linspace(0, 1, -1), "linspace: num is -1"),
        (lambda: matrix.geomspace(0, 1), "at 0"),
        (lambda: matrix.zeros(-1), "below 0"),
        (lambda: matrix.zeros("ab"), "isn't known|no integer"),
        (lambda: matrix.zeros((2,) * 9), "at most 8"),
        (lambda: matrix.ones(3, "float33"), "did you mean"),
        (lambda: matrix.diag(np.ones((2, 2, 2))), "not 3 axes"),
        (lambda: matrix.tril(5), "not of a single number"),
        (lambda: matrix.vander([[1]]), "takes a vector"),
        (lambda: matrix.meshgrid([1], indexing="yx"), "meshgrid: indexing is 'yx'"),
        (lambda: matrix.meshgrid(*[[1]] * 9), "at most 8"),
        (lambda: matrix.array([1, 300], "uint8"), "don't hold 300"),
        (lambda: matrix.array([[1], [1, 2]]), "no regular array"),
        (lambda: matrix.array(["a"]), "not supported|no numbers"),
        (lambda: matrix.array([10**30]), "more than 64 bits"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()


def test_too_much_memory_is_refused() -> None:
    from libs.common.errors import Exhausted

    with pytest.raises(Exhausted, match="more than"):
        matrix.zeros((1 << 40,))
