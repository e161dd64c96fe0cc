"""Einstein sums: operands in pairs, each pair a matrix product."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from services.engine.domain.builder import Builder
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides, product
from services.engine.domain.values import Shape, Value, broadcast_shapes

Labels = tuple[str, ...]

_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


@dataclass(frozen=True, slots=True)
class _Operand:
    value: Value
    labels: Labels
    """One for each axis, none twice; axes of an ellipsis are "0", "1", … counted from the last."""

    def sizes(self, labels: Sequence[str]) -> Shape:
        return tuple(self.value.shape[self.labels.index(label)] for label in labels)


def _einsum(call: Call) -> Value:
    b = call.builder
    values = [call.input(index) for index in range(call.count)]
    terms, output = _parsed(call, len(values))
    operands = [_operand(call, term, value) for term, value in zip(terms, values, strict=True)]
    operands = _broadcast(call, operands)
    wanted = _output(call, output, terms, operands)
    total = operands[0]
    for position, operand in enumerate(operands[1:], 1):
        later = {label for other in operands[position + 1 :] for label in other.labels}
        total = _contracted(b, total, operand, later | set(wanted))
    total = _summed(b, total, set(wanted))
    return b.transpose(total.value, [total.labels.index(label) for label in wanted])


def _parsed(call: Call, count: int) -> tuple[list[str], str | None]:
    equation = call.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(equation) > 1000 or not all(_TERM.fullmatch(term) for term in [*terms, right]):
        call.fail(f"attribute 'equation' is {equation[:80]!r}; it needs letters, commas, '...' and '->'")
    if len(terms) != count:
        call.fail(f"equation {equation!r} has {len(terms)} terms for {count} inputs")
    return terms, right if arrow else None


def _expanded(term: str, missing: int) -> Labels:
    before, dots, after = term.partition("...")
    middle = tuple(str(position) for position in reversed(range(missing))) if dots else ()
    return (*before, *middle, *after)


def _operand(call: Call, term: str, value: Value) -> _Operand:
    letters = len(term.replace("...", ""))
    if letters > value.rank or ("..." not in term and letters != value.rank):
        call.fail(f"term {term!r} doesn't fit {value}")
    labels = _expanded(term, value.rank - letters)
    if len(set(labels)) == len(labels):
        return _Operand(value, labels)
    kept = tuple(dict.fromkeys(labels))  # a letter that comes twice means the diagonal
    strides, shape = [], []
    for label in kept:
        places = [axis for axis, other in enumerate(labels) if other == label]
        sizes = {value.shape[axis] for axis in places}
        if len(sizes) > 1:
            call.fail(f"axes {label!r} of {value} have different sizes")
        shape.append(value.shape[places[0]])
        dense = contiguous_strides(value.shape)
        strides.append(sum((dense[axis] for axis in places), Extent.of(0)))
    return _Operand(call.builder.move(value, tuple(shape), tuple(strides)), kept)


def _broadcast(call: Call, operands: list[_Operand]) -> list[_Operand]:
    """Give each label one size in all operands that have it."""
    sizes: dict[str, Extent] = {}
    for operand in operands:
        for label, size in zip(operand.labels, operand.value.shape, strict=True):
            (sizes[label],) = broadcast_shapes((sizes.get(label, size),), (size,))
    return [
        _Operand(
            call.builder.broadcast(
                operand.value, tuple(sizes[label] for label in operand.labels), fold=False
            ),
            operand.labels,
        )
        for operand in operands
    ]


def _output(call: Call, output: str | None, terms: list[str], operands: list[_Operand]) -> Labels:
    known = dict.fromkeys(label for operand in operands for label in operand.labels)
    dotted = sorted((label for label in known if label.isdigit()), key=int, reverse=True)
    if output is None:
        letters = "".join(terms).replace(".", "")
        return (*dotted, *sorted(letter for letter in known if letters.count(letter) == 1))
    labels = _expanded(output, len(dotted))
    if len(set(labels)) != len(labels) or not set(labels) <= known.keys():
        call.fail(f"output {output!r} of the equation names an axis twice, or one that no input has")
    return labels


def _summed(b: Builder, operand: _Operand, kept: set[str]) -> _Operand:
    axes = tuple(axis for axis, label in enumerate(operand.labels) if label not in kept)
    labels = tuple(label for label in operand.labels if label in kept)
    return _Operand(b.reduce("reduce_sum", operand.value, axes, keep=False), labels)


def _contracted(b: Builder, left: _Operand, right: _Operand, kept: set[str]) -> _Operand:
    """Return the product of two operands, summed over what both have and nobody wants any more."""
    left, right = _summed(b, left, kept | set(right.labels)), _summed(b, right, kept | set(left.labels))
    shared = [label for label in left.labels if label in right.labels]
    batch = [label for label in shared if label in kept]
    inner = [label for label in shared if label not in kept]
    rows = [label for label in left.labels if label not in shared]
    columns = [label for label in right.labels if label not in shared]
    sizes = left.sizes(batch)
    depth = product(left.sizes(inner))
    first = b.transpose(left.value, [left.labels.index(label) for label in (*batch, *rows, *inner)])
    second = b.transpose(right.value, [right.labels.index(label) for label in (*batch, *inner, *columns)])
    high, wide = left.sizes(rows), right.sizes(columns)
    result = b.matmul(
        b.reshape(first, (*sizes, product(high), depth)), b.reshape(second, (*sizes, depth, product(wide)))
    )
    return _Operand(b.reshape(result, (*sizes, *high, *wide)), (*batch, *rows, *columns))


OPERATORS = (Operator("Einsum", "composite", _einsum, 12),)
