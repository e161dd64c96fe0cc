"""Control flow: branches and loops, over bodies that are graphs of their own."""

from __future__ import annotations

from collections.abc import Sequence

from libs.runtime.plan import DataType
from services.engine.domain.decompose.operator import Call, Operator, Scope
from services.engine.domain.extents import Extent
from services.engine.domain.graph import SequenceOf
from services.engine.domain.held_types import Thing
from services.engine.domain.loops import Round
from services.engine.domain.values import Held, Value

ONE = Extent.of(1)


def single(call: Call, value: Value) -> Value:
    """Return a tensor of one element as a scalar: a call refuses others."""
    if any(size.constant not in (None, 1) for size in value.shape):
        call.fail(f"{value} is not one element")
    for size in value.shape:
        call.builder.equal(size, ONE)
    return call.builder.reshape(value, ())


def _if(call: Call) -> tuple[Thing, ...]:
    then, otherwise = call.body("then_branch"), call.body("else_branch")
    condition = single(call, call.input(0))
    return tuple(call.builder.branch(condition, lambda: then.run(()), lambda: otherwise.run(())))


def _declared(b_scope: Scope, place: int, call: Call, value: Thing) -> Thing:
    """Return a scalar as a vector of one where the body says so."""
    declared = b_scope.body.inputs[place].declared
    rank = getattr(declared, "rank", None)
    return call.builder.reshape(value, (ONE,)) if rank == 1 and isinstance(value, Value) else value


def _loop(call: Call) -> tuple[Thing, ...]:
    b, scope = call.builder, call.body("body")
    trips, condition = call.optional(0), call.optional(1)
    carried = [call.thing(index) for index in range(2, len(call.inputs))]

    def body(number: Value, going: Value, state: list[Thing]) -> Round:
        first = [_declared(scope, 0, call, number), _declared(scope, 1, call, going)]
        condition_out, *results = scope.run([*first, *state])
        if not isinstance(condition_out, Value) or condition_out.type is not DataType.BOOL:
            call.fail(f"its body's condition is {condition_out}, not a boolean")
        same = condition_out is first[1]
        after = going if same else single(call, condition_out)
        return Round(after, results[: len(state)], [_tensor(call, each) for each in results[len(state) :]])

    finals, collected = b.loop(
        None if trips is None else single(call, trips),
        None if condition is None else single(call, condition),
        carried,
        body,
    )
    return *finals, *collected


def _tensor(call: Call, thing: Thing) -> Value:
    if isinstance(thing, Held):
        call.fail(f"its body collects {thing}, which isn't a tensor of known rank")
    return thing


def _picked(call: Call, x: Value, axis: int, number: Value, backwards: bool) -> Value:
    """Return slice `number` along an axis, counted from the end if `backwards`; the axis goes."""
    b = call.builder
    if backwards:
        number = b.binary("sub", b.extent(x.shape[axis] - 1, DataType.INT64), number)
    return b.gather(x, number, axis)


def _directions(call: Call, name: str, count: int) -> tuple[int, ...]:
    given = call.integers(name) or (0,) * count
    if len(given) != count or not set(given) <= {0, 1}:
        call.fail(f"attribute {name!r} is {list(given)}; it needs {count} numbers, 0 or 1")
    return given


def _scan(call: Call) -> tuple[Thing, ...]:
    if call.opset < 9:
        return _batched_scan(call)
    scanned = call.integer("num_scan_inputs")
    count = len(call.inputs) - scanned
    if not 1 <= scanned <= len(call.inputs):
        call.fail(f"attribute 'num_scan_inputs' is {scanned} for {len(call.inputs)} inputs")
    inputs = [call.input(count + index) for index in range(scanned)]
    axes = call.integers("scan_input_axes") or (0,) * scanned
    axes = tuple(call.axis(axis, x.rank) for axis, x in zip(axes, inputs, strict=True))
    backwards = _directions(call, "scan_input_directions", scanned)
    scope = call.body("body")
    finals, collected = _scanned(
        call, scope, [call.thing(index) for index in range(count)], inputs, axes, backwards
    )
    out_axes = call.integers("scan_output_axes") or (0,) * len(collected)
    turned = _directions(call, "scan_output_directions", len(collected))
    stacks = []
    for stack, axis, back in zip(collected, out_axes, turned, strict=True):
        place = call.axis(axis, stack.rank)
        order = [*range(1, place + 1), 0, *range(place + 1, stack.rank)]
        stacks.append(call.builder.transpose(call.builder.flip(stack, 0) if back else stack, order))
    return *finals, *stacks


def _scanned(
    call: Call,
    scope: Scope,
    state: Sequence[Thing],
    inputs: Sequence[Value],
    axes: Sequence[int],
    backwards: Sequence[int],
) -> tuple[list[Thing], list[Value]]:
    b = call.builder
    lengths = [x.shape[axis] for x, axis in zip(inputs, axes, strict=True)]
    for length in lengths[1:]:
        b.equal(lengths[0], length)

    def body(number: Value, carried: list[Thing]) -> tuple[Sequence[Thing], Sequence[Value]]:
        slices = [
            _picked(call, x, axis, number, bool(back))
            for x, axis, back in zip(inputs, axes, backwards, strict=True)
        ]
        results = scope.run([*carried, *slices])
        return results[: len(carried)], [_tensor(call, each) for each in results[len(carried) :]]

    return b.repeat(lengths[0], state, body)


def _batched_scan(call: Call) -> tuple[Thing, ...]:
    """Opset 8: everything has a first axis, the batch; lengths of its members aren't supported."""
    if call.optional(0) is not None:
        call.fail("lengths for each member of the batch (input 0) are not supported; convert it to opset 9")
    b, scanned = call.builder, call.integer("num_scan_inputs")
    values = [call.input(index) for index in range(1, len(call.inputs))]
    count = len(values) - scanned
    backwards = _directions(call, "directions", scanned)
    scope = call.body("body")

    def member(number: Value, _: list[Thing]) -> tuple[Sequence[Thing], Sequence[Value]]:
        own = [b.gather(value, number, 0) for value in values]
        finals, stacks = _scanned(call, scope, own[:count], own[count:], (0,) * scanned, backwards)
        return (), [*(_tensor(call, final) for final in finals), *stacks]

    _, stacks = b.repeat(values[0].shape[0], (), member)
    return tuple(stacks)


def _sequence_map(call: Call) -> tuple[Thing, ...]:
    b, scope = call.builder, call.body("body")
    first = call.thing(0)
    if not isinstance(first, Held) or not isinstance(first.type, SequenceOf):
        call.fail(f"input 0 is {first}, not a sequence")
    inputs = [call.thing(index) for index in range(len(call.inputs))]
    lists = [isinstance(thing, Held) and isinstance(thing.type, SequenceOf) for thing in inputs]

    def results(number: Value) -> list[Thing]:
        return scope.run(
            [b.at(thing, number) if listed else thing for thing, listed in zip(inputs, lists, strict=True)]
        )

    if first.items is not None:
        rows = [results(b.scalar(place, DataType.INT64)) for place in range(len(first.items))]
        if rows:
            return tuple(b.sequence(column) for column in zip(*rows, strict=True))
    empty: list[Thing] = [Held(SequenceOf(None), ()) for _ in scope.body.outputs]

    def body(number: Value, _: Value, state: list[Thing]) -> Round:
        return Round(None, [b.inserted(seq, item) for seq, item in zip(state, results(number), strict=True)])

    finals, _ = b.loop(b.length(first), None, empty, body)
    return tuple(finals)


OPERATORS = (
    Operator("If", "control", _if),
    Operator("Loop", "control", _loop),
    Operator("Scan", "control", _scan, 8),
    Operator("SequenceMap", "control", _sequence_map, 17),
)
