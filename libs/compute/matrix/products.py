"""Products: of vectors, matrices and arrays of more axes, sums over pairs of axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from libs.common.errors import Invalid
from libs.compute.axes import axes_of, is_listed, listed, shown, whole_of
from libs.compute.backend import (
    MOST_AXES,
    Backend,
    Shape,
    Size,
    Value,
    contiguous_strides,
    int_or_none,
    product,
)
from libs.compute.matrix.shaping import diagonal, expand_dims, moveaxis
from libs.compute.promotion import COMPUTED, UNSIGNED, name_of, type_named
from libs.compute.tensor import Tensor, asarray, binary, matmul, together
from libs.runtime.plan import DataType

__all__ = [
    "cross",
    "dot",
    "einsum",
    "inner",
    "kron",
    "matmul",
    "matvec",
    "outer",
    "tensordot",
    "trace",
    "vdot",
    "vecdot",
    "vecmat",
]

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _pair(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Return two arrays in their common type."""
    b, (one, other), _ = together(x, y)
    return Tensor(b, one), Tensor(b, other)


def _dot(call: str, one: Tensor, other: Tensor) -> Tensor:
    return _contracted(call, one, other, [one.ndim - 1], [max(other.ndim - 2, 0)])


def dot(a: Any, b: Any) -> Tensor:
    """Multiply numbers; vectors to one number; others over the last axis and the one before the last."""
    one, other = _pair(a, b)
    if not one.ndim or not other.ndim:
        return binary("multiply", one, other)
    return _dot("dot", one, other)


def vdot(a: Any, b: Any) -> Tensor:
    """Return the inner product of all elements of two arrays."""
    one, other = _pair(a, b)
    return _dot("vdot", one.ravel(), other.ravel())


def inner(a: Any, b: Any) -> Tensor:
    """Return the inner products over the last axes."""
    one, other = _pair(a, b)
    if not one.ndim or not other.ndim:
        return binary("multiply", one, other)
    return _contracted("inner", one, other, [one.ndim - 1], [other.ndim - 1])


def outer(a: Any, b: Any) -> Tensor:
    """Return the product of each element of one array with each of another, as a matrix."""
    one, other = _pair(a, b)
    return binary("multiply", one.reshape(one.size, 1), other.ravel())


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Tensor:
    """Return the inner products of vectors along an axis; other axes broadcast."""
    one, other = (moveaxis(each, axis, -1) for each in _pair(x1, x2))
    product_ = matmul(expand_dims(one, -2), expand_dims(other, -1))
    return product_[..., 0, 0]


def matvec(x1: Any, x2: Any, /) -> Tensor:
    """Multiply matrices by vectors; the axes in front broadcast."""
    one, other = _pair(x1, x2)
    if one.ndim < 2 or not other.ndim:
        raise Invalid(f"matvec takes matrices and vectors, not arrays of {one.ndim} and {other.ndim} axes")
    return matmul(one, expand_dims(other, -1))[..., 0]


def vecmat(x1: Any, x2: Any, /) -> Tensor:
    """Multiply vectors by matrices; the axes in front broadcast."""
    one, other = _pair(x1, x2)
    if not one.ndim or other.ndim < 2:
        raise Invalid(f"vecmat takes vectors and matrices, not arrays of {one.ndim} and {other.ndim} axes")
    return matmul(expand_dims(one, -2), other)[..., 0, :]


def tensordot(a: Any, b: Any, axes: Any = 2) -> Tensor:
    """Return the sums of products over axes of one array and as many of another.

    `axes`: how many, the last ones of `a` and the first ones of `b`; or a pair of axes, or of lists of them.
    """
    one, other = _pair(a, b)
    return _contracted("tensordot", one, other, *_paired_axes(axes, one.ndim, other.ndim))


def _contracted(call: str, one: Tensor, other: Tensor, left: list[int], right: list[int]) -> Tensor:
    for first, second in zip(left, right, strict=True):
        sizes = one.shape[first], other.shape[second]
        if None not in map(int_or_none, sizes) and sizes[0] != sizes[1]:
            raise Invalid(
                f"{call}: axis {first} of a, of size {sizes[0]}, "
                f"doesn't fit axis {second} of b, of size {sizes[1]}"
            )
        one.backend.equal(*sizes)
    kept = [axis for axis in range(one.ndim) if axis not in left]
    others = [axis for axis in range(other.ndim) if axis not in right]
    rows, columns = (tuple(one.shape[axis] for axis in kept), tuple(other.shape[axis] for axis in others))
    summed = product([one.shape[axis] for axis in left])
    first_matrix = one.transpose([*kept, *left]).reshape(product(rows), summed)
    second_matrix = other.transpose([*right, *others]).reshape(summed, product(columns))
    return matmul(first_matrix, second_matrix).reshape((*rows, *columns))


def _paired_axes(axes: Any, rank: int, other: int) -> tuple[list[int], list[int]]:
    if is_listed(axes):
        given = listed(axes, "tensordot", "axes")
        if len(given) != 2:
            raise Invalid(f"tensordot: axes are a number, or those of each array, not {shown(axes)}")
        first, second = (
            axes_of(listed(each, "tensordot", "axes") if is_listed(each) else each, count, "tensordot")
            for each, count in zip(given, (rank, other), strict=True)
        )
        if len(first) != len(second):
            raise Invalid(
                f"tensordot: {len(first)} axes of one array don't go with {len(second)} of the other"
            )
        return list(first), list(second)
    number = whole_of(axes, "tensordot", "axes")
    if not 0 <= number <= min(rank, other):
        raise Invalid(f"tensordot: {number} axes can't be paired: the arrays have {rank} and {other}")
    return list(range(rank - number, rank)), list(range(number))


def kron(a: Any, b: Any) -> Tensor:
    """Return one array with each element replaced by its product with the other."""
    one, other = _pair(a, b)
    rank = max(one.ndim, other.ndim)
    shapes = [(*[1] * (rank - each.ndim), *each.shape) for each in (one, other)]
    if 2 * rank > MOST_AXES:
        raise Invalid(f"kron takes arrays of at most {MOST_AXES // 2} axes, not {rank}")
    first = one.reshape([size for each in shapes[0] for size in (each, 1)])
    second = other.reshape([size for each in shapes[1] for size in (1, each)])
    sizes = [mine * theirs for mine, theirs in zip(*shapes, strict=True)]
    return binary("multiply", first, second).reshape(sizes)


def cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Tensor:
    """Return the cross products of vectors of 3 along axes of each array; `axis` stands for all three."""
    first, second, last = (axisa, axisb, axisc) if axis is None else (axis, axis, axis)
    one, other = _pair(a, b)
    if not one.ndim or not other.ndim:
        raise Invalid("cross takes vectors of 3")
    one, other = moveaxis(one, first, -1), moveaxis(other, second, -1)
    for each in (one, other):
        if int_or_none(each.shape[-1]) not in (None, 3):
            raise Invalid(f"cross takes vectors of 3, not of {each.shape[-1]}")
        each.backend.equal(each.shape[-1], 3)
    turned = [[each[..., [1, 2, 0]], each[..., [2, 0, 1]]] for each in (one, other)]
    ahead = binary("multiply", turned[0][0], turned[1][1])
    return moveaxis(binary("subtract", ahead, binary("multiply", turned[0][1], turned[1][0])), -1, last)


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: object = None) -> Tensor:
    """Return the sum of a diagonal."""
    found = diagonal(a, offset, axis1, axis2)
    b = found.backend
    type_ = found.type if dtype is None else type_named(dtype)
    if dtype is None and type_ in UNSIGNED:
        type_ = DataType.UINT64
    elif dtype is None and (type_ is DataType.BOOL or type_ < DataType.INT64):
        type_ = DataType.INT64
    value = found.astype(type_).value
    return Tensor(b, b.reduce("reduce_sum", value, (found.ndim - 1,), keep=False))


# Sums by names of axes


class _Term:
    """An operand of einsum, and the names of its axes."""

    def __init__(self, value: Value, labels: str) -> None:
        self.value = value
        self.labels = labels


def einsum(subscripts: str, *operands: Any) -> Tensor:
    """Return sums of products, written with a letter for each axis: "ij,jk->ik" multiplies matrices.

    A letter that isn't in the result is summed over; without "->", those that come once are in it, in their
    order. A letter that comes twice in one operand is its diagonal; "..." are the axes that have no letter,
    which broadcast.
    """
    if not isinstance(subscripts, str):
        raise Invalid("einsum takes its subscripts as text, such as 'ij,jk->ik'")
    given, result = _labels(subscripts.replace(" ", ""), [asarray(each).ndim for each in operands])
    b, values, type_ = together(*(asarray(each) for each in operands))
    if type_ not in COMPUTED:
        raise Invalid(f"einsum doesn't take elements of type {name_of(type_)}: convert them with astype")
    if type_ is DataType.BOOL:
        values = [b.cast(value, DataType.INT32) for value in values]
    terms = [_diagonal(b, value, labels) for value, labels in zip(values, given, strict=True)]
    sizes = _sizes(b, terms)
    terms = [_widened(b, term, sizes) for term in terms]
    while len(terms) > 1:
        first, second, *rest = terms
        needed = set(result).union(*(term.labels for term in rest))
        terms = [_multiplied(b, first, second, needed), *rest]
    found = _summed(b, terms[0], set(result))
    ordered = b.transpose(found.value, [found.labels.index(label) for label in result])
    return Tensor(b, b.cast(ordered, type_))


def _labels(text: str, ranks: list[int]) -> tuple[list[str], str]:
    """Return the letters of each operand's axes and of the result's; axes of "..." get unused letters."""
    left, arrow, right = text.partition("->")
    given = left.split(",")
    if len(given) != len(ranks):
        raise Invalid(f"einsum: {text!r} is for {len(given)} operands, not {len(ranks)}")
    for part in (*given, right):
        letters = part.replace("...", "", 1)
        strange = [letter for letter in letters if letter not in _LETTERS]
        if strange:
            raise Invalid(f"einsum: {text!r} has {strange[0]!r}; axes have letters, others are '...'")
    free = [letter for letter in _LETTERS if letter not in text]
    hidden = [rank - len(part.replace("...", "")) for part, rank in zip(given, ranks, strict=True)]
    for part, rank, more in zip(given, ranks, hidden, strict=True):
        if more < 0 or (more and "..." not in part):
            raise Invalid(f"einsum: {part!r} has {rank - more} axes, its operand {rank}")
    most = max((more for part, more in zip(given, hidden, strict=True) if "..." in part), default=0)
    if most > len(free):
        raise Invalid(f"einsum: {text!r} has too many axes")
    broadcast = "".join(free[:most])
    named = [part.replace("...", broadcast[most - more :]) for part, more in zip(given, hidden, strict=True)]
    if arrow:
        result = right.replace("...", broadcast)
        if most and "..." not in right:
            raise Invalid(f"einsum: the result of {text!r} leaves out '...'")
    else:
        counts = Counter(letter for part in given for letter in part.replace("...", ""))
        result = broadcast + "".join(sorted(letter for letter, count in counts.items() if count == 1))
    for letter in result:
        if result.count(letter) > 1 or not any(letter in part for part in named):
            raise Invalid(f"einsum: axis {letter!r} of the result comes twice, or in no operand")
    return named, result


def _diagonal(b: Backend, value: Value, labels: str) -> _Term:
    """Return an operand with each letter once: axes of one letter are walked together."""
    if len(set(labels)) == len(labels):
        return _Term(value, labels)
    strides: dict[str, Size] = {}
    sizes: dict[str, Size] = {}
    shape = b.shape(value)
    for label, size, stride in zip(labels, shape, contiguous_strides(shape), strict=True):
        if label in sizes:
            b.equal(sizes[label], size)
        sizes.setdefault(label, size)
        strides[label] = strides.get(label, 0) + stride
    return _Term(b.move(value, tuple(sizes.values()), tuple(strides.values())), "".join(sizes))


def _sizes(b: Backend, terms: Iterable[_Term]) -> dict[str, Size]:
    sizes: dict[str, Size] = {}
    for term in terms:
        for label, size in zip(term.labels, b.shape(term.value), strict=True):
            (sizes[label],) = b.common_shape((sizes.get(label, 1),), (size,))
    return sizes


def _widened(b: Backend, term: _Term, sizes: dict[str, Size]) -> _Term:
    return _Term(b.broadcast(term.value, tuple(sizes[label] for label in term.labels)), term.labels)


def _summed(b: Backend, term: _Term, needed: set[str]) -> _Term:
    axes = [place for place, label in enumerate(term.labels) if label not in needed]
    value = b.reduce("reduce_sum", term.value, axes, keep=False)
    return _Term(value, "".join(label for label in term.labels if label in needed))


def _multiplied(b: Backend, left: _Term, right: _Term, needed: set[str]) -> _Term:
    """Return the product of two operands as one of matrices, summed over letters that nothing else needs."""
    left = _summed(b, left, needed | set(right.labels))
    right = _summed(b, right, needed | set(left.labels))
    both = [label for label in left.labels if label in right.labels]
    batch, summed = [each for each in both if each in needed], [each for each in both if each not in needed]
    rows = [label for label in left.labels if label not in both]
    columns = [label for label in right.labels if label not in both]
    sizes = dict(zip(left.labels, b.shape(left.value), strict=True))
    sizes |= dict(zip(right.labels, b.shape(right.value), strict=True))

    def matrix(term: _Term, first: list[str], second: list[str]) -> Value:
        ordered = b.transpose(term.value, [term.labels.index(each) for each in (*batch, *first, *second)])
        return b.reshape(ordered, tuple(product([sizes[x] for x in part]) for part in (batch, first, second)))

    found = b.matmul(matrix(left, rows, summed), matrix(right, summed, columns))
    labels = [*batch, *rows, *columns]
    shape: Shape = tuple(sizes[label] for label in labels)
    return _Term(b.reshape(found, shape), "".join(labels))
