"""Linear algebra: numpy's `linalg`, in part. Stacks of matrices are worked on together."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from libs.common.errors import Invalid
from libs.compute import linear
from libs.compute.axes import axes_of, axis_of, flag_of, listed, naming, one_of, shown, whole_of
from libs.compute.backend import Backend, Shape, Size, Value, int_or_none, product
from libs.compute.promotion import FLOATS
from libs.compute.tensor import Tensor, asarray, matmul, tensors_of
from libs.runtime.plan import DataType

__all__ = [
    "cholesky",
    "cond",
    "det",
    "inv",
    "matrix_power",
    "multi_dot",
    "norm",
    "qr",
    "slogdet",
    "solve",
]

MOST_POWER = 1 << 20
_MOST_ORD, _LEAST_ORD = 1 << 10, 1e-6


class Factors(NamedTuple):
    """What `qr` gives."""

    Q: Tensor
    R: Tensor


class SignAndLogarithm(NamedTuple):
    """What `slogdet` gives."""

    sign: Tensor
    logabsdet: Tensor


def _floats(thing: Any, what: str) -> Tensor:
    tensor = asarray(thing)
    if tensor.type is DataType.FLOAT16:
        raise Invalid(f"{what} doesn't take elements of type float16; convert them to float32")
    return tensor if tensor.type in FLOATS else tensor.astype(DataType.FLOAT64)


def _stack(tensor: Tensor, what: str) -> tuple[Backend, Value, Shape]:
    """Return matrices as one value [batch, rows, columns], and the axes in front of them."""
    shape = tensor.shape
    if len(shape) < 2:
        raise Invalid(f"{what} takes matrices, arrays of 2 axes or more, not of {len(shape)}")
    b = tensor.backend
    return b, b.reshape(tensor.value, (product(shape[:-2]), *shape[-2:])), shape[:-2]


def _square(thing: Any, what: str) -> tuple[Backend, Value, Shape]:
    tensor = _floats(thing, what)
    b, value, leading = _stack(tensor, what)
    _, rows, columns = b.shape(value)
    if int_or_none(rows) is not None and int_or_none(columns) is not None and rows != columns:
        raise Invalid(f"{what} takes square matrices, not {rows} by {columns}")
    b.equal(rows, columns)
    return b, value, leading


def _restored(b: Backend, value: Value, leading: Shape, rank: int = 2) -> Tensor:
    shape = b.shape(value)
    return Tensor(b, b.reshape(value, (*leading, *shape[len(shape) - rank :])))


def _common(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return two tensors of floats in one type and backend."""
    x, y = tensors_of(x, y)
    wide = DataType.FLOAT64 if DataType.FLOAT64 in (x.type, y.type) else DataType.FLOAT32
    return x.astype(wide), y.astype(wide)


def det(a: Any) -> Tensor:
    """Return the determinant of square matrices."""
    b, value, leading = _square(a, "det")
    diagonal, sign = linear.pivots(b, value)
    size = b.reduce("reduce_prod", diagonal, (1,), keep=False)
    return _restored(b, linear.product_of(b, size, sign), leading, 0)


def slogdet(a: Any) -> SignAndLogarithm:
    """Return the sign of the determinant of square matrices, and the logarithm of its size."""
    b, value, leading = _square(a, "slogdet")
    diagonal, sign = linear.pivots(b, value)
    type_ = b.type(value)
    zero, one = b.scalar(0, type_), b.scalar(1, type_)
    signs = b.where(b.elementwise("lt", diagonal, zero), b.scalar(-1, type_), one)
    signs = b.where(b.elementwise("eq", diagonal, zero), zero, signs)
    sign = linear.product_of(b, sign, b.reduce("reduce_prod", signs, (1,), keep=False))
    logarithm = b.reduce("reduce_sum", b.elementwise("log", b.elementwise("abs", diagonal)), (1,), keep=False)
    return SignAndLogarithm(_restored(b, sign, leading, 0), _restored(b, logarithm, leading, 0))


def solve(a: Any, b: Any) -> Tensor:
    """Return x of a·x = b; a `b` of one axis is a vector. Raises Invalid for singular matrices."""
    left, right = _common(_floats(a, "solve"), _floats(b, "solve"))
    if not right.ndim:
        raise Invalid("solve takes a vector or matrices on the right, not a single number")
    vector = right.ndim == 1
    if vector:
        right = right.reshape(*right.shape, 1)
    backend, matrix, _ = _square(left, "solve")
    size, width = backend.shape(matrix)[-1], right.shape[-1]
    if int_or_none(size) is not None and int_or_none(right.shape[-2]) not in (None, size):
        raise Invalid(f"solve: {right.shape[-2]} rows on the right don't fit {size} equations")
    leading = backend.common_shape(left.shape[:-2], right.shape[:-2])
    matrix = backend.broadcast(left.value, (*leading, size, size))
    known = backend.broadcast(right.value, (*leading, size, width))
    count = product(leading)
    found = linear.solved(
        backend, backend.reshape(matrix, (count, size, size)), backend.reshape(known, (count, size, width))
    )
    result = _restored(backend, found, leading)
    return result.reshape(*leading, size) if vector else result


def inv(a: Any) -> Tensor:
    """Return the inverse of square matrices. Raises Invalid for singular ones."""
    b, value, leading = _square(a, "inv")
    _, size, _ = b.shape(value)
    return _restored(
        b, linear.solved(b, value, b.broadcast(_identity(b, size, b.type(value)), b.shape(value))), leading
    )


def _identity(b: Backend, size: Size, type_: DataType) -> Value:
    counted = b.arange(size)
    same = b.elementwise("eq", b.reshape(counted, (size, 1)), counted)
    return b.cast(same, type_)


def cholesky(a: Any) -> Tensor:
    """Return the lower triangles L with L·Lᵀ = a; only the lower triangles of `a` are read.

    Raises Invalid for matrices that aren't positive definite.
    """
    b, value, leading = _square(a, "cholesky")
    return _restored(b, linear.cholesky(b, value), leading)


def qr(a: Any, mode: str = "reduced") -> Factors | Tensor:
    """Return Q, whose columns are orthogonal, and upper triangles R, with Q·R = a.

    `mode`: "reduced" (as many columns of Q as `a` has rows or columns, whichever are fewer), "complete" (a
    square Q), or "r" for R alone.
    """
    one_of(mode, ("reduced", "complete", "r"), "qr", "mode")
    b, value, leading = _stack(_floats(a, "qr"), "qr")
    q, r = linear.orthogonal(b, value)
    if mode != "complete":
        rows, columns = (int(size) for size in b.shape(value)[1:])
        kept = min(rows, columns)
        q, r = linear.part(b, q, 2, 0, kept), linear.part(b, r, 1, 0, kept)
    upper = _restored(b, r, leading)
    return upper if mode == "r" else Factors(_restored(b, q, leading), upper)


def matrix_power(a: Any, n: int) -> Tensor:
    """Return square matrices multiplied by themselves n times; their inverse for n = -1, and so on."""
    power = whole_of(n, "matrix_power", "n")
    if abs(power) > MOST_POWER:
        raise Invalid(f"matrix_power takes powers up to {MOST_POWER}, not {power}")
    base = inv(a) if power < 0 else asarray(a)
    b, value, leading = _stack(base, "matrix_power")
    _, rows, columns = b.shape(value)
    with naming("matrix_power"):
        b.equal(rows, columns)
    result: Tensor | None = None
    rest = abs(power)
    if not rest:
        return Tensor(b, b.broadcast(_identity(b, rows, base.type), (*leading, rows, columns)))
    while rest:
        if rest & 1:
            result = base if result is None else matmul(result, base)
        rest >>= 1
        base = matmul(base, base) if rest else base
    assert result is not None
    return result


def multi_dot(arrays: Any) -> Tensor:
    """Multiply two or more matrices one after the other; the first and the last may be vectors."""
    given = [asarray(each) for each in listed(arrays, "multi_dot", "arrays")]
    if len(given) < 2:
        raise Invalid(f"multi_dot takes two arrays or more, not {len(given)}")
    result = given[0]
    for each in given[1:]:
        result = matmul(result, each)
    return result


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the norm of vectors, or of matrices where there are two axes.

    `ord` of vectors: None or 2, inf, -inf, 0, or any number p; of matrices: None or "fro", 1, -1, inf, -inf.
    Those that need singular values (2, -2, "nuc") aren't there.
    """
    tensor, keepdims = asarray(x), flag_of(keepdims, "norm", "keepdims")
    tensor = tensor if tensor.type in FLOATS else tensor.astype(DataType.FLOAT64)
    if axis is None:
        if ord is None:
            flat = _sum_of_powers(tensor.reshape(-1), (0,), 2.0)
            return flat.reshape(*[1] * tensor.ndim) if keepdims else flat
        axes = tuple(range(tensor.ndim))
    else:
        axes = axes_of(axis, tensor.ndim, "norm")
    if len(axes) not in (1, 2):
        raise Invalid(f"norm: it goes along one axis or two, not {len(axes)}; say which by axis")
    if isinstance(axis, int | None) and len(axes) == 1 and axis is not None:
        axes = (axis_of(axis, tensor.ndim, "norm"),)
    found = (
        _vector_norm("norm", tensor, ord, axes) if len(axes) == 1 else _matrix_norm("norm", tensor, ord, axes)
    )
    if not keepdims:
        return found
    return found.reshape(*(1 if place in axes else size for place, size in enumerate(tensor.shape)))


def _reduced(tensor: Tensor, operator: str, axes: tuple[int, ...]) -> Tensor:
    b = tensor.backend
    return Tensor(b, b.reduce(operator, tensor.value, axes, keep=False))


def _sum_of_powers(tensor: Tensor, axes: tuple[int, ...], power: float) -> Tensor:
    """Return (Σ |x|^p)^(1/p)."""
    b = tensor.backend
    if power == 2:
        total = _reduced(tensor * tensor, "reduce_sum", axes)
        return Tensor(b, b.elementwise("sqrt", total.value))
    total = _reduced(abs(tensor) ** power, "reduce_sum", axes)
    return total ** (1 / power)


def _vector_norm(call: str, tensor: Tensor, ord: Any, axes: tuple[int, ...]) -> Tensor:
    if ord is None:
        return _sum_of_powers(tensor, axes, 2.0)
    wanted = isinstance(ord, int | float | np.integer | np.floating)
    if not wanted or not (math.isinf(ord) or abs(ord) <= _MOST_ORD):
        raise Invalid(f"{call}: ord is {shown(ord)}; vectors have numbers to {_MOST_ORD}, inf or -inf")
    if ord == 0:
        return _reduced((tensor != 0).astype(tensor.type), "reduce_sum", axes)
    if math.isinf(ord):
        return _reduced(abs(tensor), "reduce_max" if ord > 0 else "reduce_min", axes)
    if abs(ord) < _LEAST_ORD:
        raise Invalid(f"{call}: ord is {shown(ord)}; it is too near to 0")
    return _sum_of_powers(tensor, axes, float(ord))


def _matrix_norm(call: str, tensor: Tensor, ord: Any, axes: tuple[int, ...]) -> Tensor:
    if ord is None or (isinstance(ord, str) and ord == "fro"):
        return _sum_of_powers(tensor, axes, 2.0)
    if not isinstance(ord, int | float | np.integer | np.floating) or ord not in (1, -1, math.inf, -math.inf):
        raise Invalid(f"{call}: ord is {shown(ord)}; matrices have the norms 'fro', 1, -1, inf and -inf")
    summed, other = axes if abs(ord) == 1 else axes[::-1]
    sums = _reduced(abs(tensor), "reduce_sum", (summed,))
    return _reduced(sums, "reduce_max" if ord > 0 else "reduce_min", (other - (other > summed),))


def cond(x: Any, p: Any = "fro") -> Tensor:
    """Return the condition number of square matrices, |x|·|x⁻¹|, by one of their norms."""
    tensor = _floats(x, "cond")
    inverse, axes = inv(tensor), (tensor.ndim - 2, tensor.ndim - 1)
    if p is not None and not isinstance(p, str | int | float | np.integer | np.floating):
        raise Invalid(f"cond: p is {shown(p)}; matrices have the norms 'fro', 1, -1, inf and -inf")
    return _matrix_norm("cond: p", tensor, p, axes) * _matrix_norm("cond: p", inverse, p, axes)
