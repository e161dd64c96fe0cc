"""Products against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from libs.common.errors import Invalid
from libs.compute.matrix import polynomials, products, running

DTYPES = ["bool", "int8", "int32", "uint64", "float32", "float64"]


def numbers(*shape: int, dtype: str = "float64", seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 5, shape).astype(dtype)


def close(ours: Any, theirs: Any) -> None:
    theirs, found = np.asarray(theirs), np.asarray(ours)
    assert found.dtype == theirs.dtype
    assert found.shape == theirs.shape
    np.testing.assert_allclose(found, theirs, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("a", "b"),
    [((), (3,)), ((3,), (3,)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (4, 3, 2)), ((0,), (0,))],
)
def test_dot(a: tuple[int, ...], b: tuple[int, ...], dtype: str) -> None:
    x, y = numbers(*a, dtype=dtype), numbers(*b, dtype=dtype, seed=1)
    close(products.dot(x, y), np.dot(x, y))


def test_products_of_vectors() -> None:
    a, b = numbers(4), numbers(4, seed=1)
    close(products.vdot(numbers(2, 2), numbers(4)), np.vdot(numbers(2, 2), numbers(4)))
    close(products.inner(a, b), np.inner(a, b))
    close(products.inner(numbers(2, 3), numbers(5, 4, 3)), np.inner(numbers(2, 3), numbers(5, 4, 3)))
    close(products.inner(2, a), np.inner(2, a))
    close(products.outer(numbers(2, 2), b), np.outer(numbers(2, 2), b))
    close(products.vecdot(numbers(3, 1, 4), numbers(2, 4)), np.vecdot(numbers(3, 1, 4), numbers(2, 4)))
    close(
        products.vecdot(numbers(3, 4), numbers(3, 4), axis=0), np.vecdot(numbers(3, 4), numbers(3, 4), axis=0)
    )
    close(products.matvec(numbers(5, 2, 3), numbers(3)), np.matvec(numbers(5, 2, 3), numbers(3)))
    close(products.vecmat(numbers(5, 2), numbers(2, 3)), np.vecmat(numbers(5, 2), numbers(2, 3)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul(dtype: str) -> None:
    for a, b in (((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((5, 1, 2, 3), (4, 3, 2)), ((2, 0), (0, 3))):
        x, y = numbers(*a, dtype=dtype), numbers(*b, dtype=dtype, seed=1)
        close(products.matmul(x, y), np.matmul(x, y))


@pytest.mark.parametrize("axes", [0, 1, 2, ([1, 0], [0, 1]), (-1, 0), ([0], [1])])
def test_tensordot(axes: Any) -> None:
    a, b = numbers(3, 3, dtype="int32"), numbers(3, 3, 2, dtype="int32", seed=1)
    close(products.tensordot(a, b, axes), np.tensordot(a, b, axes))


@pytest.mark.parametrize(
    ("a", "b"), [((2,), (3,)), ((2, 3), (2, 2)), ((2,), (3, 2)), ((2, 1, 2), (3,)), ((), (2,))]
)
def test_kron(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    close(products.kron(numbers(*a), numbers(*b, seed=1)), np.kron(numbers(*a), numbers(*b, seed=1)))


def test_cross() -> None:
    a, b = numbers(4, 3), numbers(4, 3, seed=1)
    close(products.cross(a, b), np.cross(a, b))
    close(products.cross(a[0], b), np.cross(a[0], b))
    close(products.cross(a.T, b, axisa=0, axisc=0), np.cross(a.T, b, axisa=0, axisc=0))
    close(products.cross(a.T, b.T, axis=0), np.cross(a.T, b.T, axis=0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_trace(dtype: str) -> None:
    a = numbers(3, 4, 2, dtype=dtype)
    close(products.trace(a), np.trace(a))
    close(products.trace(a, 1, 0, 2), np.trace(a, 1, 0, 2))
    close(products.trace(a, dtype="float32"), np.trace(a, dtype=np.float32))


def test_polyval() -> None:
    close(polynomials.polyval([1, -2, 3], [[0, 1], [2, 3]]), np.polyval([1, -2, 3], [[0, 1], [2, 3]]))
    close(polynomials.polyval([0.5, 2.0], 3), np.polyval([0.5, 2.0], 3))


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize(("a", "v"), [(7, 3), (3, 7), (4, 4), (1, 1), (5, 2), (2, 5), (1, 4)])
def test_convolutions(a: int, v: int, mode: Any) -> None:
    x, y = numbers(a), numbers(v, seed=1)
    close(running.convolve(x, y, mode), np.convolve(x, y, mode))
    close(running.correlate(x, y, mode), np.correlate(x, y, mode))


EINSUMS = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ba,cb", [(2, 3), (3, 2)]),
    ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("iij->ji", [(3, 3, 2)]),
    ("ij->", [(2, 3)]),
    ("ij->ji", [(2, 3)]),
    ("i,j->ij", [(2,), (3,)]),
    ("i,i", [(3,), (3,)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    ("bij,bjk->ik", [(2, 3, 4), (2, 4, 5)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
    ("...i,i", [(2, 3), (3,)]),
    ("i...->...", [(3, 2)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    ("ij,ij,ij->j", [(2, 3), (2, 3), (2, 3)]),
    ("ij,jk->ik", [(2, 1), (3, 4)]),
    ("a,b,a->b", [(2,), (3,), (2,)]),
    (" i j -> j i ", [(2, 3)]),
]


@pytest.mark.parametrize(("text", "shapes"), EINSUMS)
def test_einsum(text: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [numbers(*shape, seed=place) for place, shape in enumerate(shapes)]
    close(products.einsum(text, *operands), np.einsum(text, *operands))


@pytest.mark.parametrize("dtype", DTYPES)
def test_einsum_of_types(dtype: str) -> None:
    a, b = numbers(2, 3, dtype=dtype), numbers(3, 2, dtype=dtype, seed=1)
    close(products.einsum("ij,jk->ik", a, b), np.einsum("ij,jk->ik", a, b))
    close(products.einsum("ij->i", a), np.einsum("ij->i", a))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: products.dot([1, 2], [1, 2, 3]),
            "axis 0 of a, of size 2, doesn't fit axis 0 of b, of size 3",
        ),
        (lambda: products.tensordot(np.eye(2), np.eye(2), 3), "3 axes can't be paired"),
        (lambda: products.tensordot(np.eye(2), np.eye(2), ([0], [0, 1])), "1 axes of one array"),
        (lambda: products.cross([1, 2], [3, 4]), "vectors of 3, not of 2"),
        (lambda: running.convolve([], [1]), "an element or more"),
        (lambda: running.convolve([[1]], [1]), "vectors"),
        (lambda: running.convolve([1], [1], "half"), "'half'"),
        (lambda: products.einsum("ij->ik", np.eye(2)), "'k' of the result"),
        (lambda: products.einsum("ij,jk", np.eye(2)), "for 2 operands, not 1"),
        (lambda: products.einsum("i", np.eye(2)), "1 axes, its operand 2"),
        (lambda: products.einsum("i1", np.eye(2)), "has '1'"),
        (lambda: products.einsum("ij,jk", np.eye(2), np.eye(3)), "don't broadcast"),
        (lambda: products.einsum("...->", np.eye(2)), "leaves out"),
        (lambda: products.kron(np.ones((1,) * 5), [1]), "at most 4 axes"),
        (lambda: products.matvec([1], [1]), "matrices and vectors"),
        (lambda: polynomials.polyval([[1]], 2), "the coefficients are a vector"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()
