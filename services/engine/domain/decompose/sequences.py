"""Sequences and optionals."""

from __future__ import annotations

import numpy as np

from libs.runtime.plan import DataType
from services.engine.domain.decompose.casting import onnx_type
from services.engine.domain.decompose.control import single
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.graph import LooseTensor, OptionalOf, SequenceOf
from services.engine.domain.held_types import Thing
from services.engine.domain.loops import Round
from services.engine.domain.values import Held, Value

ONE, ZERO = Extent.of(1), Extent.of(0)


def _position(call: Call, index: int) -> Value | None:
    position = call.optional(index)
    return None if position is None else call.builder.cast(single(call, position), DataType.INT64)


def _empty(call: Call) -> Held:
    return Held(SequenceOf(LooseTensor(onnx_type(call, call.integer("dtype", 1)))), ())


def _construct(call: Call) -> Held:
    return call.builder.sequence([call.thing(index) for index in range(len(call.inputs))])


def _insert(call: Call) -> Held:
    return call.builder.inserted(call.thing(0), call.thing(1), _position(call, 2))


def _erase(call: Call) -> Held:
    return call.builder.erased(call.thing(0), _position(call, 1))


def _at(call: Call) -> Thing:
    position = _position(call, 1)
    if position is None:
        call.fail("input 1, the position, is missing")
    return call.builder.at(call.thing(0), position)


def _length(call: Call) -> Value:
    return call.builder.length(call.thing(0))


def _concat(call: Call) -> Thing:
    b, held = call.builder, call.thing(0)
    axis, stacked = call.integer("axis"), call.flag("new_axis")
    if isinstance(held, Held) and held.items and all(isinstance(item, Value) for item in held.items):
        values = [item for item in held.items if isinstance(item, Value)]
        if stacked:
            place = call.axis(axis, values[0].rank + 1)
            values = [b.reshape(each, (*each.shape[:place], ONE, *each.shape[place:])) for each in values]
            return b.joined(values, place)
        return b.joined(values, call.axis(axis, values[0].rank))
    return b.concatenated(held, axis, stacked)


def _split(call: Call) -> Held:
    b, x = call.builder, call.input(0)
    axis = call.axis(call.integer("axis", 0), x.rank)
    size, given = x.shape[axis], call.optional(1)
    if given is None:
        return _pieces(call, x, axis, ONE, drop=not call.flag("keepdims", True))
    if given.rank > 1:
        call.fail(f"its lengths are {given}; they must be a scalar or a vector")
    if given.rank == 0 or given.known is None:
        if given.rank:
            return _by_lengths(call, x, axis, given)
        return _pieces(call, x, axis, b.size(given), drop=False)
    sizes = [Extent.of(int(each)) for each in given.known.reshape(-1)]
    b.equal(sum(sizes, ZERO), size)
    return _cut(call, x, axis, sizes, drop=False)


def _cut(call: Call, x: Value, axis: int, sizes: list[Extent], *, drop: bool) -> Held:
    strides, start, items = contiguous_strides(x.shape), ZERO, []
    for size in sizes:
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        piece = call.builder.move(x, shape, strides, start * strides[axis])
        start = start + size
        items.append(call.builder.reshape(piece, (*shape[:axis], *shape[axis + 1 :])) if drop else piece)
    return call.builder.sequence(items, LooseTensor(x.type, x.rank - int(drop)))


def _pieces(call: Call, x: Value, axis: int, chunk: Extent, *, drop: bool) -> Held:
    """Cut into pieces of one size, the last of which may be smaller."""
    size = x.shape[axis]
    if size.constant is not None and chunk.constant is not None and size.constant <= 256 * chunk.constant:
        starts = range(0, size.constant, max(chunk.constant, 1))
        sizes = [Extent.of(min(chunk.constant, size.constant - start)) for start in starts]
        return _cut(call, x, axis, sizes, drop=drop)
    b = call.builder
    number = -((-size) // chunk)
    length = b.extent(chunk, DataType.INT64)
    whole = b.extent(size, DataType.INT64)

    def body(place: Value, _: Value, state: list[Thing]) -> Round:
        start = b.binary("mul", place, length)
        rest = b.binary("min", length, b.binary("sub", whole, start))
        piece = _taken(call, x, axis, start, ONE if drop else b.size(rest))
        if drop:
            piece = b.reshape(piece, (*x.shape[:axis], *x.shape[axis + 1 :]))
        return Round(None, [b.inserted(state[0], piece)])

    empty = Held(SequenceOf(LooseTensor(x.type, x.rank - int(drop))), ())
    (pieces,), _ = b.loop(number, None, [empty], body)
    assert isinstance(pieces, Held)
    return pieces


def _by_lengths(call: Call, x: Value, axis: int, lengths: Value) -> Held:
    b = call.builder
    lengths = b.cast(lengths, DataType.INT64)
    b.equal(b.size(b.reduce("reduce_sum", lengths, (0,), keep=False)), x.shape[axis])

    def body(place: Value, _: Value, state: list[Thing]) -> Round:
        start, pieces = state
        length = b.gather(lengths, place, 0)
        assert isinstance(start, Value)
        piece = _taken(call, x, axis, start, b.size(length))
        return Round(None, [b.binary("add", start, length), b.inserted(pieces, piece)])

    empty = Held(SequenceOf(LooseTensor(x.type, x.rank)), ())
    (_, pieces), _ = b.loop(lengths.shape[0], None, [b.integer(0), empty], body)
    assert isinstance(pieces, Held)
    return pieces


def _taken(call: Call, x: Value, axis: int, start: Value, size: Extent) -> Value:
    """Return `size` slices from `start` on."""
    b = call.builder
    return b.gather(x, b.binary("add", arange(b, size), start), axis)


def _optional(call: Call) -> Held:
    item = call.inputs[0] if call.inputs else None
    declared = call.node.attributes.get("type")
    element = declared if isinstance(declared, LooseTensor | SequenceOf) else None
    return call.builder.optional(item, element)


def _has_element(call: Call) -> Value:
    thing = call.inputs[0] if call.inputs else None
    b = call.builder
    if thing is None:
        return b.constant(np.array(False))
    if isinstance(thing, Held) and isinstance(thing.type, OptionalOf):
        return b.binary("lt", b.integer(0), b.length(thing))
    return b.constant(np.array(True))


def _get_element(call: Call) -> Thing:
    thing = call.thing(0)
    if isinstance(thing, Held) and isinstance(thing.type, OptionalOf):
        return call.builder.at(thing, call.builder.integer(0))
    return thing


OPERATORS = (
    Operator("ConcatFromSequence", "control", _concat, 11),
    Operator("Optional", "control", _optional, 15),
    Operator("OptionalGetElement", "control", _get_element, 15),
    Operator("OptionalHasElement", "control", _has_element, 15),
    Operator("SequenceAt", "control", _at, 11),
    Operator("SequenceConstruct", "control", _construct, 11),
    Operator("SequenceEmpty", "control", _empty, 11),
    Operator("SequenceErase", "control", _erase, 11),
    Operator("SequenceInsert", "control", _insert, 11),
    Operator("SequenceLength", "control", _length, 11),
    Operator("SplitToSequence", "control", _split, 11),
)
