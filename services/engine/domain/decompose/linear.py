"""Matrix products."""

from __future__ import annotations

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent
from services.engine.domain.held_types import Thing
from services.engine.domain.values import Value, count

ONE = Extent.of(1)


def product(b: Builder, x: Value, y: Value) -> Value:
    """Multiply as numpy's matmul does: vectors are a row on the left, a column on the right."""
    if x.rank == 0 or y.rank == 0:
        raise Invalid("a scalar can't be multiplied as a matrix")
    left = b.reshape(x, (ONE, *x.shape)) if x.rank == 1 else x
    right = b.reshape(y, (*y.shape, ONE)) if y.rank == 1 else y
    result = b.matmul(left, right)
    shape = result.shape[:-2]
    shape += () if x.rank == 1 else (result.shape[-2],)
    shape += () if y.rank == 1 else (result.shape[-1],)
    return b.reshape(result, shape)


def _matmul(call: Call) -> Value:
    return product(call.builder, call.input(0), call.input(1))


def _gemm(call: Call) -> Value:
    x, y, z, b = call.input(0), call.input(1), call.optional(2), call.builder
    if x.rank != 2 or y.rank != 2:
        call.fail(f"inputs {x} and {y} are not matrices")
    left = b.transpose(x, (1, 0)) if call.flag("transA") else x
    right = b.transpose(y, (1, 0)) if call.flag("transB") else y
    result = b.matmul(left, right)
    if (alpha := call.number("alpha", 1.0)) != 1:
        result = b.binary("mul", result, b.scalar(alpha, x.type))
    beta = call.number("beta", 1.0)
    if z is None or beta == 0:
        return result
    if beta != 1:
        z = b.binary("mul", z, b.scalar(beta, x.type))
    return b.binary("add", result, b.broadcast(z, result.shape, fold=False))


def shifted(b: Builder, x: Value, zero: Value | None, axis: int | None = None) -> Value:
    """Return small integers less their zero point as int32; a vector of zero points goes along `axis`."""
    wide = b.cast(x, DataType.INT32)
    if zero is None:
        return wide
    if zero.rank == 1 and axis is not None and zero.shape[0] != ONE:
        zero = b.reshape(zero, (*zero.shape, *[ONE] * (x.rank - 1 - axis)))
    return b.binary("sub", wide, b.cast(zero, DataType.INT32))


def _matmul_integer(call: Call) -> Value:
    b, x, y = call.builder, call.input(0), call.input(1)
    left = shifted(b, x, call.optional(2), max(x.rank - 2, 0))
    right = shifted(b, y, call.optional(3), max(y.rank - 1, 0))
    return product(b, left, right)


def _determinant(call: Call) -> Value:
    """Eliminate column by column, the largest element of each as pivot; the determinant is their product."""
    x, b = call.floats(call.input(0)), call.builder
    if x.rank < 2:
        call.fail(f"its input is {x}, not matrices")
    size, batch = x.shape[-1], count(x.shape[:-2])
    b.equal(size, x.shape[-2])
    places, zero, one = arange(b, size), b.scalar(0, x.type), b.scalar(1, x.type)
    rows = b.reshape(places, (size, ONE))

    def body(number: Value, state: list[Thing]) -> tuple[list[Value], list[Value]]:
        left, total = (thing for thing in state if isinstance(thing, Value))
        column = b.gather(left, number, 2)
        # Rows that are done are out of the way.
        open_ = b.binary("le", number, places)
        best = b.arg_max(b.where(open_, b.unary("abs", column), b.scalar(-1, x.type)), 1)
        best = b.reshape(best, (batch, ONE, ONE))
        chosen = b.reduce("reduce_sum", b.where(b.binary("eq", rows, best), left, zero), (1,), keep=True)
        here = b.reshape(b.gather(left, number, 1), (batch, ONE, size))
        swapped = b.where(b.binary("eq", rows, best), here, left)
        swapped = b.where(b.binary("eq", rows, number), chosen, swapped)
        pivot = b.gather(chosen, number, 2)
        moved = b.binary("eq", b.reshape(best, (batch,)), number)
        sign = b.where(moved, one, b.scalar(-1, x.type))
        total = b.binary("mul", b.binary("mul", total, sign), b.reshape(pivot, (batch,)))
        safe = b.where(b.binary("eq", pivot, zero), one, pivot)
        shares = b.binary("div", b.gather(swapped, number, 2), safe)
        below = b.where(b.binary("lt", number, places), shares, zero)
        outer = b.binary("mul", b.reshape(below, (batch, size, ONE)), chosen)
        return [b.binary("sub", swapped, outer), total], []

    start = b.broadcast(one, (batch,), fold=False)
    (_, total), _ = b.repeat(size, [b.reshape(x, (batch, size, size)), start], body)
    assert isinstance(total, Value)
    return b.reshape(total, x.shape[:-2])


OPERATORS = (
    Operator("Det", "composite", _determinant, 11),
    Operator("Gemm", "composite", _gemm),
    Operator("MatMul", "atomic", _matmul),
    Operator("MatMulInteger", "composite", _matmul_integer, 10),
)
