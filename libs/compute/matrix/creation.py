"""Arrays from nothing: filled ones, matrices with ones in certain places, grids."""

from __future__ import annotations

import operator as operators
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np

from libs.common.errors import Invalid
from libs.compute.axes import flag_of, one_of, shown, whole_of
from libs.compute.backend import MOST_AXES, Backend, Move, Shape, Size, int_or_none, product
from libs.compute.eager import EAGER
from libs.compute.matrix.joining import stack
from libs.compute.matrix.shaping import diagonal
from libs.compute.promotion import common_type
from libs.compute.tensor import Tensor, array, asarray, tensors_of

__all__ = [
    "array",
    "asanyarray",
    "asarray",
    "ascontiguousarray",
    "copy",
    "diag",
    "diag_indices",
    "diagflat",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "identity",
    "indices",
    "meshgrid",
    "ones",
    "ones_like",
    "tri",
    "tril",
    "tril_indices",
    "triu",
    "triu_indices",
    "vander",
    "zeros",
    "zeros_like",
]


def asanyarray(a: Any, dtype: object = None) -> Tensor:
    """Return a tensor of what may be one already; the same as `asarray`."""
    return asarray(a, dtype)


def ascontiguousarray(a: Any, dtype: object = None) -> Tensor:
    """Return a tensor of at least one axis; all tensors are contiguous."""
    found = asarray(a, dtype)
    return found if found.ndim else found.reshape(1)


def copy(a: Any) -> Tensor:
    """Return a tensor of elements that are its own."""
    return array(a)


def full(shape: Any, fill_value: Any, dtype: object = None, *, like: Any = None) -> Tensor:
    """Return an array of a shape, filled with a value that broadcasts to it.

    `like`: an array of the function that is traced; needed where `shape` has sizes that aren't known yet.
    """
    tensors = tensors_of(fill_value, *([] if like is None else [like]))
    filling = tensors[0] if dtype is None else tensors[0].astype(dtype)
    sizes = shape_of(shape, filling.backend)
    return Tensor(filling.backend, filling.backend.broadcast(filling.value, sizes))


def zeros(shape: Any, dtype: object = "float64", *, like: Any = None) -> Tensor:
    """Return an array of zeros."""
    return full(shape, 0, dtype, like=like)


def ones(shape: Any, dtype: object = "float64", *, like: Any = None) -> Tensor:
    """Return an array of ones."""
    return full(shape, 1, dtype, like=like)


def empty(shape: Any, dtype: object = "float64", *, like: Any = None) -> Tensor:
    """Return an array of zeros: nothing that was never written is ever read."""
    return full(shape, 0, dtype, like=like)


def full_like(a: Any, fill_value: Any, dtype: object = None, *, shape: Any = None) -> Tensor:
    """Return an array of the shape and type of another one, filled with a value."""
    other = asarray(a)
    return full(
        other.shape if shape is None else shape,
        fill_value,
        other.type if dtype is None else dtype,
        like=other,
    )


def zeros_like(a: Any, dtype: object = None, *, shape: Any = None) -> Tensor:
    """Return zeros of the shape and type of another array."""
    return full_like(a, 0, dtype, shape=shape)


def ones_like(a: Any, dtype: object = None, *, shape: Any = None) -> Tensor:
    """Return ones of the shape and type of another array."""
    return full_like(a, 1, dtype, shape=shape)


def empty_like(prototype: Any, dtype: object = None, *, shape: Any = None) -> Tensor:
    """Return zeros of the shape and type of another array."""
    return full_like(prototype, 0, dtype, shape=shape)


def eye(N: int, M: int | None = None, k: int = 0, dtype: object = "float64") -> Tensor:  # noqa: N803
    """Return a matrix with ones on its `k`-th diagonal, zeros elsewhere."""
    rows, columns = _side(N, "eye", "N"), _side(N if M is None else M, "eye", "M")
    found: Tensor = _columns(columns) - _rows(rows) == whole_of(k, "eye", "k")
    return found.astype(dtype)


def identity(n: int, dtype: object = "float64") -> Tensor:
    """Return a square matrix with ones on its diagonal."""
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: object = "float64") -> Tensor:  # noqa: N803
    """Return a matrix with ones at and below its `k`-th diagonal."""
    rows, columns = _side(N, "tri", "N"), _side(N if M is None else M, "tri", "M")
    return (_columns(columns) - _rows(rows) <= whole_of(k, "tri", "k")).astype(dtype)


def _side(size: Any, call: str, name: str) -> int:
    return max(whole_of(size, call, name), 0)


def _rows(size: Size, b: Backend = EAGER) -> Tensor:
    return Tensor(b, b.reshape(b.arange(size), (size, 1)))


def _columns(size: Size, b: Backend = EAGER) -> Tensor:
    return Tensor(b, b.arange(size))


def tril(m: Any, k: int = 0) -> Tensor:
    """Return matrices with zeros above the `k`-th diagonal."""
    return _triangle(m, k, upper=False)


def triu(m: Any, k: int = 0) -> Tensor:
    """Return matrices with zeros below the `k`-th diagonal."""
    return _triangle(m, k, upper=True)


def _triangle(m: Any, k: int, *, upper: bool) -> Tensor:
    x = asarray(m)
    b = x.backend
    if x.ndim == 1:
        x = Tensor(b, b.broadcast(x.value, (x.shape[0], x.shape[0])))
    if x.ndim < 2:
        raise Invalid("a triangle is that of a matrix, not of a single number")
    distance = _columns(x.shape[-1], b) - _rows(x.shape[-2], b)
    kept = distance >= k if upper else distance <= k
    return Tensor(b, b.where(kept.value, x.value, b.scalar(0, x.type)))


def diag(v: Any, k: int = 0) -> Tensor:
    """Return a matrix with a vector on its `k`-th diagonal; of a matrix, that diagonal."""
    x = asarray(v)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise Invalid(f"diag takes a vector or a matrix, not {x.ndim} axes")
    b, k = x.backend, whole_of(k, "diag", "k")
    size = x.shape[0] + abs(k)
    wide = _columns(size, b) - _rows(size, b) == k
    # The vector along rows or columns, moved by k.
    padded = Tensor(b, b.scalar(0, x.type)) + _shifted(x, size, max(k, 0))
    return Tensor(b, b.where(wide.value, padded.value, b.scalar(0, x.type)))


def _shifted(x: Tensor, size: Size, offset: int) -> Tensor:
    """Return a vector of `size` with `x` from `offset` on, zeros elsewhere."""
    b = x.backend
    move = Move(x.value, x.shape, (1,), 0, (1,), offset)
    return Tensor(b, b.raster(x.type, (size,), [move], 0))


def diagflat(v: Any, k: int = 0) -> Tensor:
    """Return a matrix with the elements of an array on its `k`-th diagonal."""
    return diag(asarray(v).reshape(-1), k)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Tensor:  # noqa: N803
    """Return a matrix whose columns are powers of a vector, the highest first unless `increasing`."""
    values = asarray(x)
    if values.ndim != 1:
        raise Invalid(f"vander takes a vector, not {values.ndim} axes")
    increasing = flag_of(increasing, "vander", "increasing")
    count = values.shape[0] if N is None else whole_of(N, "vander", "N")
    type_ = common_type(values.type, 1)
    powers = Tensor(values.backend, values.backend.arange(count))
    base = values.astype(type_).reshape(-1, 1)
    columns = base ** powers.astype(type_)
    return columns if increasing else columns[:, ::-1]


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Return coordinate arrays of vectors; "xy": the first runs along columns, "ij": along rows."""
    one_of(indexing, ("xy", "ij"), "meshgrid", "indexing")
    sparse = flag_of(sparse, "meshgrid", "sparse")
    tensors = [each.reshape(-1) for each in tensors_of(*xi)]
    rank = len(tensors)
    if rank > MOST_AXES:
        raise Invalid(f"meshgrid: {rank} vectors would make arrays of as many axes; at most {MOST_AXES}")
    places = list(range(rank))
    if indexing == "xy" and rank > 1:
        places[:2] = [1, 0]
    shaped = [
        tensor.reshape(*[-1 if axis == place else 1 for axis in range(rank)])
        for tensor, place in zip(tensors, places, strict=True)
    ]
    if sparse or not shaped:
        return tuple(shaped)
    b = shaped[0].backend
    shape = b.common_shape(*(each.shape for each in shaped))
    return tuple(Tensor(b, b.broadcast(each.value, shape)) for each in shaped)


def indices(dimensions: Sequence[int], dtype: object = "int64", sparse: bool = False) -> Any:
    """Return for each axis of a shape the places along it, as one array or, `sparse`, as a tuple."""
    sizes, sparse = shape_of(dimensions, EAGER), flag_of(sparse, "indices", "sparse")
    rank = len(sizes)
    found = [
        _columns(size).reshape(*[-1 if axis == place else 1 for axis in range(rank)]).astype(dtype)
        for place, size in enumerate(sizes)
    ]
    if sparse:
        return tuple(found)
    if not found:
        return zeros((0,), dtype)
    return stack([Tensor(EAGER, EAGER.broadcast(each.value, sizes)) for each in found])


def diag_indices(n: int, ndim: int = 2) -> tuple[Tensor, ...]:
    """Return the indices of the main diagonal of an array of `ndim` axes of size `n`."""
    return (Tensor(EAGER, EAGER.arange(_side(n, "diag_indices", "n"))),) * whole_of(
        ndim, "diag_indices", "ndim", 0, MOST_AXES
    )


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the indices of the lower triangle of an n×m matrix."""
    return _where_true(tri(n, m, k, dtype=bool))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the indices of the upper triangle of an n×m matrix."""
    return _where_true(~tri(n, m, whole_of(k, "triu_indices", "k") - 1, dtype=bool))


def _where_true(mask: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = np.nonzero(mask.numpy())
    return asarray(rows), asarray(columns)


def shape_of(shape: Any, b: Backend) -> Shape:
    """Return a shape that a caller gave: one size, or several. Raises Invalid for one below 0."""
    given = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if isinstance(shape, Tensor | np.ndarray) and shape.ndim:
        given = tuple(asarray(shape).tolist())
    try:
        sizes = tuple(operators.index(size) if isinstance(size, SupportsIndex) else size for size in given)
    except TypeError:
        raise Invalid(f"shape {shown(shape)} holds what is no integer") from None
    for size in sizes:
        known = int_or_none(size)
        if known is None and b is EAGER:
            raise Invalid(
                f"the size {str(size)[:80]} isn't known until the plan runs, or no integer; name an array of "
                "the traced function: zeros(shape, like=x)"
            )
        if known is not None and known < 0:
            raise Invalid(f"shape {list(sizes)} has a size below 0")
    if int_or_none(product(sizes)) is None and b is EAGER:
        raise Invalid(f"shape {list(sizes)} isn't known")
    return sizes
