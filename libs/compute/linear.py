"""Systems of equations and factors of matrices, on values [batch, rows, columns] of floats.

They go column by column, so the number of columns has to be known when a function is traced, and large
matrices are for the cloud.
"""

from __future__ import annotations

import numpy as np

from libs.common.errors import Invalid
from libs.compute.backend import Backend, Move, Shape, Size, Value, contiguous_strides, int_or_none
from libs.runtime.plan import DataType

MOST_COLUMNS = 512


def columns_of(size: Size, what: str) -> int:
    """Return a number of columns; raises Invalid where it isn't known, or too large."""
    known = int_or_none(size)
    if known is None:
        raise Invalid(f"{what} goes column by column: {size} columns must be known when it is traced")
    if known > MOST_COLUMNS:
        raise Invalid(f"{what} takes matrices of at most {MOST_COLUMNS} columns, not {known}")
    return known


def part(b: Backend, x: Value, axis: int, start: int, count: int) -> Value:
    """Return `count` places of an axis of a value [batch, rows, columns] from `start`."""
    shape: list[Size] = list(b.shape(x))
    strides = (shape[1] * shape[2], shape[2], 1)
    shape[axis] = count
    return b.move(x, tuple(shape), strides, strides[axis] * start)


def product_of(b: Backend, x: Value, y: Value) -> Value:
    """Return x·y, element by element."""
    return b.elementwise("mul", x, y)


def _rows(b: Backend, count: int) -> Value:
    return b.constant(np.arange(count).reshape(1, count, 1))


def _masked(b: Backend, keep: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], x: Value) -> Value:
    """Return `x` [batch, rows, …] where rows are kept, 0 elsewhere."""
    return b.where(b.constant(keep.reshape(1, -1, 1)), x, b.scalar(0, b.type(x)))


def _swapped(b: Backend, x: Value, column: int, rows: int) -> tuple[Value, Value]:
    """Return `x` with the row of the largest element of a column, from the diagonal on, at the diagonal.

    Then which row that was, [batch, 1, 1].
    """
    batch, _, width = b.shape(x)
    sizes = b.elementwise("abs", part(b, x, 2, column, 1))
    below = b.constant((np.arange(rows) >= column).reshape(1, rows, 1))
    sizes = b.where(below, sizes, b.scalar(-1, b.type(x)))
    found = b.reshape(b.arg_max(sizes, 1), (batch, 1, 1))
    here, counted = b.scalar(column, DataType.INT64), _rows(b, rows)
    from_row = b.where(b.elementwise("eq", counted, found), here, counted)
    from_row = b.where(b.elementwise("eq", counted, here), found, from_row)
    start = b.elementwise("mul", b.reshape(b.arange(batch), (batch, 1, 1)), b.scalar(rows, DataType.INT64))
    places = b.reshape(b.elementwise("add", from_row, start), (batch * rows,))
    moved = b.gather(b.reshape(x, (batch * rows, width)), places, 0)
    return b.reshape(moved, (batch, rows, width)), found


def _known_any(b: Backend, condition: Value) -> bool:
    known = b.known(condition)
    return known is not None and bool(known.any())


def solved(b: Backend, matrix: Value, right: Value) -> Value:
    """Return x of matrix·x = right, by elimination with the largest element of each column.

    Raises Invalid for a singular matrix; in a plan the result is infinite or NaN then.
    """
    size = columns_of(b.shape(matrix)[2], "a system of equations")
    width = b.shape(right)[2]
    state = beside(b, matrix, right)
    for column in range(size):
        state, _ = _swapped(b, state, column, size)
        row = part(b, state, 1, column, 1)
        pivot = part(b, row, 2, column, 1)
        if _known_any(b, b.elementwise("eq", pivot, b.scalar(0, b.type(matrix)))):
            raise Invalid("the matrix is singular: its rows depend on one another")
        row = b.elementwise("div", row, pivot)
        others = _masked(b, np.arange(size) != column, part(b, state, 2, column, 1))
        cleared = b.elementwise("sub", state, product_of(b, others, row))
        state = b.where(b.constant((np.arange(size) == column).reshape(1, size, 1)), row, cleared)
    return part(b, state, 2, size, width)


def beside(b: Backend, left: Value, right: Value) -> Value:
    """Return two values [batch, rows, …] of one type side by side."""
    batch, rows, first = b.shape(left)
    second = b.shape(right)[2]
    shape: Shape = (batch, rows, first + second)
    steps = contiguous_strides(shape)
    moves = [
        Move(left, b.shape(left), contiguous_strides(b.shape(left)), 0, steps, 0),
        Move(right, b.shape(right), contiguous_strides(b.shape(right)), 0, steps, first),
    ]
    return b.raster(b.type(left), shape, moves)


def pivots(b: Backend, matrix: Value) -> tuple[Value, Value]:
    """Return the diagonal that elimination leaves, [batch, n], and the sign of the rows' order, [batch]."""
    size = columns_of(b.shape(matrix)[2], "a determinant")
    batch, type_ = b.shape(matrix)[0], b.type(matrix)
    zero, one = b.scalar(0, type_), b.scalar(1, type_)
    sign = b.broadcast(one, (batch,))
    for column in range(size):
        matrix, found = _swapped(b, matrix, column, size)
        stayed = b.elementwise("eq", b.reshape(found, (batch,)), b.scalar(column, DataType.INT64))
        sign = b.elementwise("mul", sign, b.where(stayed, one, b.scalar(-1, type_)))
        row = part(b, matrix, 1, column, 1)
        pivot = part(b, row, 2, column, 1)
        # Below a pivot of 0 there are zeros already.
        divisor = b.where(b.elementwise("eq", pivot, zero), one, pivot)
        factor = b.elementwise("div", part(b, matrix, 2, column, 1), divisor)
        factor = _masked(b, np.arange(size) > column, factor)
        matrix = b.elementwise("sub", matrix, product_of(b, factor, row))
    return b.move(matrix, (batch, size), (size * size, size + 1)), sign


def cholesky(b: Backend, matrix: Value) -> Value:
    """Return the lower triangle L with L·Lᵀ = matrix; only its lower triangle is read.

    Raises Invalid for a matrix that isn't positive definite; in a plan the result has NaN then.
    """
    size = columns_of(b.shape(matrix)[2], "a Cholesky factor")
    batch = b.shape(matrix)[0]
    zero = b.scalar(0, b.type(matrix))
    factor = b.broadcast(zero, (batch, size, size))
    for column in range(size):
        own = part(b, matrix, 2, column, 1)
        diagonal = part(b, own, 1, column, 1)
        positive = b.elementwise("lt", zero, diagonal)
        if _known_any(b, b.elementwise("not", positive)):
            raise Invalid("the matrix is not positive definite")
        own = _masked(
            b, np.arange(size) >= column, b.elementwise("div", own, b.elementwise("sqrt", diagonal))
        )
        matrix = b.elementwise("sub", matrix, product_of(b, own, b.transpose(own, (0, 2, 1))))
        here = b.constant((np.arange(size) == column).reshape(1, 1, size))
        factor = b.where(here, own, factor)
    return factor


def orthogonal(b: Backend, matrix: Value) -> tuple[Value, Value]:
    """Return Q [batch, m, m] and R [batch, m, n] by Householder's reflections: Q·R = matrix.

    Signs are as LAPACK's: the diagonal of R has the sign that isn't the column's.
    """
    batch, height, width = b.shape(matrix)
    rows = columns_of(height, "a QR factor")
    columns = columns_of(width, "a QR factor")
    type_ = b.type(matrix)
    zero, one = b.scalar(0, type_), b.scalar(1, type_)
    q = b.broadcast(b.constant(np.eye(rows)[None].astype(type_.name.lower())), (batch, rows, rows))
    for column in range(min(rows, columns)):
        own = _masked(b, np.arange(rows) >= column, part(b, matrix, 2, column, 1))
        head = part(b, own, 1, column, 1)
        rest = _masked(b, np.arange(rows) > column, own)
        below = b.reduce("reduce_sum", product_of(b, rest, rest), (1,), keep=True)
        length = b.elementwise("sqrt", b.elementwise("add", product_of(b, head, head), below))
        flat = b.elementwise("eq", below, zero)
        negative = b.elementwise("lt", head, zero)
        target = b.where(negative, length, b.elementwise("neg", length))
        gap = b.where(flat, one, b.elementwise("sub", head, target))
        here = b.constant((np.arange(rows) == column).reshape(1, rows, 1))
        mirror = b.where(here, one, b.elementwise("div", rest, gap))
        scale = b.elementwise("div", b.elementwise("neg", gap), b.where(flat, one, target))
        scale = b.where(flat, zero, scale)
        image = b.matmul(b.transpose(mirror, (0, 2, 1)), matrix)
        matrix = b.elementwise("sub", matrix, product_of(b, product_of(b, scale, mirror), image))
        seen = b.matmul(q, mirror)
        q = b.elementwise("sub", q, product_of(b, product_of(b, seen, scale), b.transpose(mirror, (0, 2, 1))))
    upper = np.triu(np.ones((rows, columns), np.bool_))[None]
    return q, b.where(b.constant(upper), matrix, zero)
