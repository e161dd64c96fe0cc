"""Recurrent layers: what doesn't depend on the round is one product over all of them, the rest a loop.

Names follow ONNX's descriptions of RNN, GRU and LSTM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.activation import bent_by
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.held_types import Thing
from services.engine.domain.values import Move, Value

ONE, ZERO = Extent.of(1), Extent.of(0)

Activation = Callable[[Value], Value]
State = Sequence[Value]
Cell = Callable[[Value, State], State]
"""Takes the input's share of the gates, and the state; gives the state after it, the hidden one first."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """What the three operators have in common."""

    call: Call
    x: Value
    """[rounds, batch, input]"""
    w: Value
    """[directions, gates·hidden, input]"""
    r: Value
    """[directions, gates·hidden, hidden]"""
    bias: Value | None
    """[directions, 2·gates·hidden]"""
    lengths: Value | None
    """[batch], int64"""
    hidden: Extent
    reverse: tuple[bool, ...]
    """Of each direction."""
    batch_first: bool
    activations: tuple[tuple[Activation, ...], ...]
    """Of each direction."""

    @property
    def b(self) -> Builder:
        return self.call.builder

    @property
    def batch(self) -> Extent:
        return self.x.shape[1]


_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _layer(call: Call, gates: int, defaults: Sequence[str]) -> _Layer:
    b, x, w, r = call.builder, call.input(0), call.input(1), call.input(2)
    if x.rank != 3 or w.rank != 3 or r.rank != 3:
        call.fail(f"inputs {x}, {w} and {r} must have 3 axes each")
    reverse = _DIRECTIONS[call.text("direction", "forward", tuple(_DIRECTIONS))]
    if call.flag("layout"):
        x = b.transpose(x, (1, 0, 2))
    hidden = r.shape[2]
    if (declared := call.integer("hidden_size", -1)) >= 0:
        b.equal(Extent.of(declared), hidden)
    for value, last in ((w, x.shape[2]), (r, hidden)):
        for size, wanted in zip(value.shape, (Extent.of(len(reverse)), hidden * gates, last), strict=True):
            b.equal(size, wanted)
    lengths = call.optional(4)
    return _Layer(
        call,
        x,
        w,
        r,
        call.optional(3),
        None if lengths is None else b.cast(lengths, DataType.INT64),
        hidden,
        reverse,
        call.flag("layout"),
        _activations(call, defaults, len(reverse)),
    )


def _activations(call: Call, defaults: Sequence[str], directions: int) -> tuple[tuple[Activation, ...], ...]:
    given = call.node.attributes.get("activations", ())
    names = tuple(given) if isinstance(given, tuple) else ()
    if not names:
        names = tuple(defaults) * directions
    if len(names) != len(defaults) * directions:
        call.fail(f"attribute 'activations' has {len(names)} entries, not {len(defaults) * directions}")
    alphas, betas = _numbers(call, "activation_alpha"), _numbers(call, "activation_beta")
    limit = call.number("clip", 0.0)
    made = [_bent(call, str(name), alphas, betas, limit) for name in names]
    count = len(defaults)
    return tuple(tuple(made[first : first + count]) for first in range(0, len(made), count))


def _numbers(call: Call, name: str) -> Iterator[float]:
    given = call.node.attributes.get(name, ())
    return iter([float(item) for item in given] if isinstance(given, tuple) else [])


def _bent(call: Call, name: str, alphas: Iterator[float], betas: Iterator[float], limit: float) -> Activation:
    bend = bent_by(call, name, alphas, betas)

    def activation(x: Value) -> Value:
        b = call.builder
        if limit > 0:
            x = b.binary("max", b.binary("min", x, b.scalar(limit, x.type)), b.scalar(-limit, x.type))
        return bend(x)

    return activation


def _row(b: Builder, value: Value, first: Extent, count: Extent) -> Value:
    """Return `count` of the last axis of a matrix or vector, from `first` on."""
    shape = (*value.shape[:-1], count)
    return b.move(value, shape, contiguous_strides(value.shape), first)


def _gates(layer: _Layer, value: Value, count: int) -> list[Value]:
    return [_row(layer.b, value, layer.hidden * place, layer.hidden) for place in range(count)]


def _direction(layer: _Layer, value: Value, number: int) -> Value:
    """Return the slice of one direction of what has one for each along axis 0."""
    inner = value.shape[1:]
    start = contiguous_strides(value.shape)[0] * number
    return layer.b.move(value, inner, contiguous_strides(inner), start)


def _initial(layer: _Layer, index: int, number: int) -> Value:
    """Return the initial state of a direction, [batch, hidden]: zeros where it is left out."""
    b, shape, given = layer.b, (layer.batch, layer.hidden), layer.call.optional(index)
    if given is None:
        return b.broadcast(b.scalar(0, layer.x.type), shape, fold=False)
    if layer.batch_first:
        given = b.transpose(given, (1, 0, 2))
    for size, wanted in zip(given.shape, (Extent.of(len(layer.reverse)), *shape), strict=True):
        b.equal(size, wanted)
    return b.reshape(_direction(layer, given, number), shape)


def _share(layer: _Layer, number: int, gates: int, *, recurrent_bias: int) -> Value:
    """Return the input's share of the gates in all rounds, [rounds, batch, gates·hidden].

    It has the input's bias, and the recurrent one of the first `recurrent_bias` gates.
    """
    b, width = layer.b, layer.hidden * gates
    weights = b.transpose(_direction(layer, layer.w, number), (1, 0))
    share = b.matmul(b.reshape(layer.x, (layer.x.shape[0] * layer.batch, layer.x.shape[2])), weights)
    if layer.bias is not None:
        bias = _direction(layer, layer.bias, number)
        share = b.binary("add", share, _row(b, bias, ZERO, width))
        if recurrent_bias:
            recurrent = _row(b, bias, width, layer.hidden * recurrent_bias)
            if recurrent_bias < gates:
                rest = b.broadcast(b.scalar(0, share.type), (layer.hidden * (gates - recurrent_bias),))
                recurrent = _beside(b, recurrent, rest)
            share = b.binary("add", share, recurrent)
    return b.reshape(share, (layer.x.shape[0], layer.batch, width))


def _beside(b: Builder, x: Value, y: Value) -> Value:
    moves = [
        Move(x, x.shape, (ONE,), ZERO, (ONE,), ZERO),
        Move(y, y.shape, (ONE,), ZERO, (ONE,), x.shape[0]),
    ]
    return b.raster(x.type, (x.shape[0] + y.shape[0],), moves)


def _reversed(layer: _Layer, value: Value) -> Value:
    """Return [rounds, batch, …] with each member's rounds in reverse; those beyond its length stay."""
    b = layer.b
    if layer.lengths is None:
        return b.flip(value, 0)
    return reversed_by_length(b, value, layer.lengths)


def reversed_by_length(b: Builder, value: Value, lengths: Value) -> Value:
    """Return [rounds, batch, …] with the first `lengths[i]` rounds of member i in reverse."""
    rounds, batch = value.shape[0], value.shape[1]
    b.equal(lengths.shape[0], batch)
    number = b.reshape(arange(b, rounds), (rounds, ONE))
    back = b.binary("sub", b.binary("sub", lengths, b.integer(1)), number)
    places = b.where(b.binary("lt", number, lengths), back, number)
    flat = b.binary("add", b.binary("mul", places, b.extent(batch, DataType.INT64)), arange(b, batch))
    rest = value.shape[2:]
    rows = b.reshape(value, (rounds * batch, *rest))
    return b.gather(rows, flat, 0)


def _run(layer: _Layer, number: int, share: Value, initial: State, cell: Cell) -> tuple[Value, list[Value]]:
    """Return what the hidden state is after each round, [rounds, batch, hidden], and the last state."""
    b, lengths = layer.b, layer.lengths
    if layer.reverse[number]:
        share = _reversed(layer, share)

    def body(place: Value, carried: list[Thing]) -> tuple[Sequence[Thing], Sequence[Value]]:
        state = [thing for thing in carried if isinstance(thing, Value)]
        after = list(cell(b.gather(share, place, 0), state))
        if lengths is None:
            return after, after[:1]
        runs = b.reshape(b.binary("lt", place, lengths), (layer.batch, ONE))
        kept = [b.where(runs, new, old) for new, old in zip(after, state, strict=True)]
        return kept, [b.where(runs, after[0], b.scalar(0, after[0].type))]

    last, (hidden,) = b.repeat(share.shape[0], list(initial), body)
    if layer.reverse[number]:
        hidden = _reversed(layer, hidden)
    states = [thing for thing in last if isinstance(thing, Value)]
    if lengths is not None:
        # ONNX doesn't say what is left of members without rounds; ONNX Runtime leaves zeros.
        ran = b.reshape(b.binary("lt", b.integer(0), lengths), (layer.batch, ONE))
        states = [b.where(ran, state, b.scalar(0, state.type)) for state in states]
    return hidden, states


def _outputs(layer: _Layer, runs: Sequence[tuple[Value, list[Value]]]) -> tuple[Value, ...]:
    b = layer.b
    hidden = b.transpose(b.stack([hidden for hidden, _ in runs]), (1, 0, 2, 3))
    states = [b.stack(states) for states in zip(*(state for _, state in runs), strict=True)]
    if layer.batch_first:
        hidden = b.transpose(hidden, (2, 0, 1, 3))
        states = [b.transpose(state, (1, 0, 2)) for state in states]
    return hidden, *states


def _simple(call: Call) -> tuple[Value, ...]:
    layer, b, runs = _layer(call, 1, ["Tanh"]), call.builder, []
    for number, (f,) in enumerate(layer.activations):
        r = b.transpose(_direction(layer, layer.r, number), (1, 0))

        def cell(share: Value, state: State, r: Value = r, f: Activation = f) -> State:
            return [f(b.binary("add", share, b.matmul(state[0], r)))]

        share = _share(layer, number, 1, recurrent_bias=1)
        runs.append(_run(layer, number, share, [_initial(layer, 5, number)], cell))
    return _outputs(layer, runs)


def _gated(call: Call) -> tuple[Value, ...]:
    layer, b, runs = _layer(call, 3, ["Sigmoid", "Tanh"]), call.builder, []
    width = layer.hidden
    after_reset = call.flag("linear_before_reset")
    for number, (f, g) in enumerate(layer.activations):
        r = b.transpose(_direction(layer, layer.r, number), (1, 0))
        first, last = _row(b, r, ZERO, width * 2), _row(b, r, width * 2, width)
        tail = None
        if after_reset and layer.bias is not None:
            tail = _row(b, _direction(layer, layer.bias, number), width * 5, width)

        def cell(
            share: Value,
            state: State,
            first: Value = first,
            last: Value = last,
            tail: Value | None = tail,
            f: Activation = f,
            g: Activation = g,
        ) -> State:
            (hidden,) = state
            both = f(b.binary("add", _row(b, share, ZERO, width * 2), b.matmul(hidden, first)))
            update, reset = _row(b, both, ZERO, width), _row(b, both, width, width)
            if after_reset:
                inner = b.matmul(hidden, last)
                inner = b.binary("mul", reset, inner if tail is None else b.binary("add", inner, tail))
            else:
                inner = b.matmul(b.binary("mul", reset, hidden), last)
            new = g(b.binary("add", _row(b, share, width * 2, width), inner))
            rest = b.binary("sub", b.scalar(1, update.type), update)
            return [b.binary("add", b.binary("mul", rest, new), b.binary("mul", update, hidden))]

        share = _share(layer, number, 3, recurrent_bias=2 if after_reset else 3)
        runs.append(_run(layer, number, share, [_initial(layer, 5, number)], cell))
    return _outputs(layer, runs)


def _long_short(call: Call) -> tuple[Value, ...]:
    layer, b, runs = _layer(call, 4, ["Sigmoid", "Tanh", "Tanh"]), call.builder, []
    peepholes, coupled = call.optional(7), call.flag("input_forget")
    for number, (f, g, h) in enumerate(layer.activations):
        r = b.transpose(_direction(layer, layer.r, number), (1, 0))
        peep = None if peepholes is None else _gates(layer, _direction(layer, peepholes, number), 3)

        def cell(
            share: Value,
            state: State,
            r: Value = r,
            peep: list[Value] | None = peep,
            f: Activation = f,
            g: Activation = g,
            h: Activation = h,
        ) -> State:
            hidden, memory = state
            i, o, forget, c = _gates(layer, b.binary("add", share, b.matmul(hidden, r)), 4)
            if peep is not None:
                i = b.binary("add", i, b.binary("mul", peep[0], memory))
                forget = b.binary("add", forget, b.binary("mul", peep[2], memory))
            i = f(i)
            forget = b.binary("sub", b.scalar(1, i.type), i) if coupled else f(forget)
            memory = b.binary("add", b.binary("mul", forget, memory), b.binary("mul", i, g(c)))
            if peep is not None:
                o = b.binary("add", o, b.binary("mul", peep[1], memory))
            return [b.binary("mul", f(o), h(memory)), memory]

        share = _share(layer, number, 4, recurrent_bias=4)
        initial = [_initial(layer, 5, number), _initial(layer, 6, number)]
        runs.append(_run(layer, number, share, initial, cell))
    return _outputs(layer, runs)


def _reverse_sequence(call: Call) -> Value:
    x, lengths, b = call.input(0), call.input(1), call.builder
    batch, time = call.integer("batch_axis", 1), call.integer("time_axis", 0)
    if x.rank < 2 or {batch, time} != {0, 1} or lengths.rank != 1:
        call.fail(f"it has batch_axis {batch} and time_axis {time} for {x} and {lengths}; they are 0 and 1")
    order = (time, batch, *range(2, x.rank))
    turned = reversed_by_length(b, b.transpose(x, order), b.cast(lengths, DataType.INT64))
    return b.transpose(turned, order)


OPERATORS = (
    Operator("GRU", "composite", _gated),
    Operator("LSTM", "composite", _long_short),
    Operator("RNN", "composite", _simple),
    Operator("ReverseSequence", "composite", _reverse_sequence, 10, keeps=True),
)
