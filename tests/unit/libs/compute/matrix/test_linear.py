"""Linear algebra against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.compute.matrix import linear

SHAPES = [(1, 1), (2, 2), (5, 5), (3, 4, 4), (2, 1, 3, 3), (0, 3, 3), (0, 0)]


def matrices(shape: tuple[int, ...], dtype: str = "float64", seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def close(ours: Any, theirs: Any, tolerance: float = 1e-9) -> None:
    ours = np.asarray(ours)
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["det", "inv"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_of_square_matrices(name: str, shape: tuple[int, ...], dtype: str) -> None:
    a = matrices(shape, dtype)
    close(getattr(linear, name)(a), getattr(np.linalg, name)(a), 1e-9 if dtype == "float64" else 2e-3)


def test_the_determinant_of_whole_numbers_and_of_singular_matrices() -> None:
    close(linear.det([[1, 2], [3, 4]]), np.linalg.det([[1, 2], [3, 4]]))
    assert linear.det([[0.0, 0.0], [0.0, 3.0]]).item() == 0
    assert linear.det([[0.0, 1.0], [1.0, 0.0]]).item() == -1


@pytest.mark.parametrize("shape", SHAPES)
def test_slogdet(shape: tuple[int, ...]) -> None:
    ours, theirs = linear.slogdet(matrices(shape)), np.linalg.slogdet(matrices(shape))
    close(ours.sign, np.asarray(theirs.sign))
    close(ours.logabsdet, np.asarray(theirs.logabsdet))


def test_slogdet_of_a_singular_matrix() -> None:
    ours = linear.slogdet([[1.0, 2.0], [2.0, 4.0]])
    assert ours.sign.item() == 0
    assert ours.logabsdet.item() == -np.inf


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 3), (3,)), ((3, 3), (3, 2)), ((2, 3, 3), (3, 2)), ((2, 1, 4, 4), (5, 4, 1)), ((0, 0), (0,))],
)
def test_solve(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    left, right = matrices(a), matrices(b, seed=1)
    close(linear.solve(left, right), np.linalg.solve(left, right))


def test_a_row_of_zeros_in_front_is_no_obstacle() -> None:
    a = np.array([[0.0, 2.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 5.0]])
    close(linear.solve(a, [1.0, 2.0, 3.0]), np.linalg.solve(a, [1.0, 2.0, 3.0]))


@pytest.mark.parametrize("shape", SHAPES)
def test_cholesky_reads_the_lower_triangle(shape: tuple[int, ...]) -> None:
    a = matrices(shape)
    a = a @ np.swapaxes(a, -1, -2) + np.eye(shape[-1])
    wrong_above = a + np.triu(np.full(shape, 7.0), 1)
    close(linear.cholesky(wrong_above), np.linalg.cholesky(a))


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 4, 3), (1, 1), (6, 1)])
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr(shape: tuple[int, ...], mode: str) -> None:
    a = matrices(shape)
    ours, theirs = linear.qr(a, mode), np.linalg.qr(a, mode)  # type: ignore[call-overload]
    if mode == "r":
        close(ours, theirs)
        return
    assert isinstance(ours, linear.Factors)
    close(ours.Q, theirs.Q)
    close(ours.R, theirs.R)


def test_qr_of_a_triangle_changes_no_sign() -> None:
    a = np.array([[1.0, 2.0], [0.0, 3.0]])
    ours = linear.qr(a)
    assert isinstance(ours, linear.Factors)
    close(ours.R, np.linalg.qr(a).R)


@pytest.mark.parametrize("n", [0, 1, 2, 5, -1, -3])
def test_matrix_power(n: int) -> None:
    close(linear.matrix_power(matrices((2, 3, 3)), n), np.linalg.matrix_power(matrices((2, 3, 3)), n), 1e-6)


def test_matrix_power_of_whole_numbers_stays_whole() -> None:
    a = np.array([[1, 1], [1, 0]])
    close(linear.matrix_power(a, 10), np.linalg.matrix_power(a, 10))


def test_multi_dot() -> None:
    arrays = [matrices(shape) for shape in ((4,), (4, 3), (3, 5), (5,))]
    close(linear.multi_dot(arrays), np.asarray(np.linalg.multi_dot(arrays)))


@pytest.mark.parametrize("ord", [None, 0, 1, 2, 3, -1, 0.5, np.inf, -np.inf])
@pytest.mark.parametrize("keepdims", [False, True])
def test_norms_of_vectors(ord: Any, keepdims: bool) -> None:
    a = matrices((3, 4))
    for axis in (0, -1):
        close(linear.norm(a, ord, axis, keepdims), np.linalg.norm(a, ord, axis, keepdims))
    close(linear.norm(a[0], ord), np.asarray(np.linalg.norm(a[0], ord)))


@pytest.mark.parametrize("ord", [None, "fro", 1, -1, np.inf, -np.inf])
def test_norms_of_matrices(ord: Any) -> None:
    a = matrices((3, 4, 5))
    for axis in ((0, 1), (2, 0), (-1, -2)):
        close(linear.norm(a, ord, axis), np.linalg.norm(a, ord, axis))
        close(linear.norm(a, ord, axis, True), np.linalg.norm(a, ord, axis, True))
    close(linear.norm(a[0], ord), np.asarray(np.linalg.norm(a[0], ord)))


def test_the_norm_of_all_there_is() -> None:
    close(linear.norm(np.arange(24).reshape(2, 3, 4)), np.asarray(np.linalg.norm(np.arange(24.0))))


@pytest.mark.parametrize("p", ["fro", 1, -1, np.inf, -np.inf])
def test_cond(p: Any) -> None:
    close(linear.cond(matrices((2, 3, 3)), p), np.linalg.cond(matrices((2, 3, 3)), p))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(0, 1000))
def test_a_solution_solves(size: int, seed: int) -> None:
    a, x = matrices((size, size), seed=seed) + 3 * np.eye(size), matrices((size, 2), seed=seed + 1)
    np.testing.assert_allclose(a @ np.asarray(linear.solve(a, a @ x)), a @ x, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: linear.inv([[1.0, 2.0], [2.0, 4.0]]), "singular"),
        (lambda: linear.solve(np.zeros((2, 2)), [1.0, 1.0]), "singular"),
        (lambda: linear.solve(np.eye(2), [1.0, 1.0, 1.0]), "3 rows on the right don't fit 2"),
        (lambda: linear.solve(np.eye(2), 1.0), "single number"),
        (lambda: linear.cholesky([[1.0, 2.0], [2.0, 1.0]]), "not positive definite"),
        (lambda: linear.det([1.0]), "arrays of 2 axes or more, not of 1"),
        (lambda: linear.inv(np.ones((2, 3))), "square matrices, not 2 by 3"),
        (lambda: linear.det(np.ones((2, 2), np.float16)), "float16; convert"),
        (lambda: linear.qr(np.eye(2), "raw"), "'raw'"),
        (lambda: linear.det(np.ones((600, 600))), "at most 512 columns, not 600"),
        (lambda: linear.matrix_power(np.eye(2), 1 << 30), "up to"),
        (lambda: linear.multi_dot([np.eye(2)]), "two arrays or more"),
        (lambda: linear.norm(np.ones((2, 2, 2)), 1), "one axis or two, not 3"),
        (lambda: linear.norm(np.ones((2, 2)), 2), "norm: ord is 2; matrices have"),
        (lambda: linear.norm(np.ones(2), "fro"), "norm: ord is .*; vectors have"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()
