"""numpy's `linalg`, in part."""

from __future__ import annotations

from typing import Any

from libs.common.errors import Invalid
from libs.compute.axes import flag_of
from libs.compute.matrix import products, shaping
from libs.compute.matrix.linear import (
    cholesky,
    cond,
    det,
    inv,
    matrix_power,
    multi_dot,
    norm,
    qr,
    slogdet,
    solve,
)
from libs.compute.matrix.products import matmul, tensordot, vecdot
from libs.compute.matrix.shaping import matrix_transpose
from libs.compute.tensor import Tensor, asarray

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "qr",
    "slogdet",
    "solve",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


def diagonal(x: Any, /, *, offset: int = 0) -> Tensor:
    """Return the `offset`-th diagonals of the matrices of the last two axes."""
    return shaping.diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: object = None) -> Tensor:
    """Return the sums of the `offset`-th diagonals of the matrices of the last two axes."""
    return products.trace(x, offset, -2, -1, dtype)


def outer(x1: Any, x2: Any, /) -> Tensor:
    """Return the products of all elements of a vector, along rows, with all of another."""
    for each in (x1, x2):
        if asarray(each).ndim != 1:
            raise Invalid(f"linalg.outer takes vectors, not arrays of {asarray(each).ndim} axes")
    return products.outer(x1, x2)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Tensor:
    """Return the vectors of three coordinates that are at right angles to two each."""
    return products.cross(x1, x2, axis=axis)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """Return norms of the matrices of the last two axes."""
    if asarray(x).ndim < 2:
        raise Invalid(f"linalg.matrix_norm takes arrays of 2 axes or more, not {asarray(x).ndim}")
    return norm(x, ord, (-2, -1), flag_of(keepdims, "matrix_norm", "keepdims"))


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Tensor:
    """Return norms of the vectors along axes; None: of all elements as one vector."""
    tensor, keepdims = asarray(x), flag_of(keepdims, "vector_norm", "keepdims")
    if axis is None or isinstance(axis, tuple):
        axes = tuple(range(tensor.ndim)) if axis is None else axis
        kept = [place for place in range(tensor.ndim) if place not in {each % tensor.ndim for each in axes}]
        moved = shaping.moveaxis(tensor, list(axes), list(range(len(axes))))
        flat = moved.reshape(-1, *(tensor.shape[place] for place in kept))
        found = norm(flat, ord, 0)
        return shaping.expand_dims(found, tuple(axes)) if keepdims else found
    return norm(tensor, ord, axis, keepdims)
