"""Random nodes of control flow, sequences and strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, helper

from services.engine.testing_graphs.elementwise import axis_of
from services.engine.testing_graphs.sketch import FLOATS, Item, Sketch, port

_MOST_DEPTH = 2


def _depth(s: Sketch) -> int:
    return 0 if s.parent is None else 1 + _depth(s.parent)


def _inner(s: Sketch, nodes: Sequence[Callable[[Sketch], list[Item]]], items: Sequence[Item] = ()) -> Sketch:
    """Return a body with a few nodes."""
    body = Sketch(s.draw, s.opset, s, list(items))
    for _ in range(s.draw.integer(1, 3)):
        s.draw.choice(nodes)(body)
    return body


def _graph(body: Sketch, inputs: Sequence[Any], outputs: Sequence[str]) -> GraphProto:
    """Return a body as a graph; each output has a node of its own, since it may be one from outside."""
    nodes, names = list(body.nodes), []
    for name in outputs:
        copy = body.name()
        nodes.append(helper.make_node("Identity", [name], [copy]))
        names.append(copy)
    made = [helper.make_empty_tensor_value_info(name) for name in names]
    return helper.make_graph(nodes, body.name(), list(inputs), made)


def branches(nodes: Sequence[Callable[[Sketch], list[Item]]]) -> Callable[[Sketch], list[Item]]:
    """Return If, of bodies with nodes of these kinds."""

    def choose(s: Sketch) -> list[Item]:
        if _depth(s) >= _MOST_DEPTH:
            return []
        condition = s.pick(
            ("bool",), 0, 1, where=lambda item: item.value.size == 1, new=lambda: s.draw.array((), "bool")
        )
        bodies = [_inner(s, nodes) for _ in range(2)]
        first = s.draw.choice(
            [item for item in bodies[0].visible() if isinstance(item.value, np.ndarray)] or [None]
        )
        if first is None:
            return []
        alike = [
            item
            for item in bodies[1].visible()
            if isinstance(item.value, np.ndarray) and (item.dtype, item.rank) == (first.dtype, first.rank)
        ]
        second = s.draw.choice(alike) if alike else s.like(first)
        graphs = [_graph(body, (), [item.name]) for body, item in zip(bodies, (first, second), strict=True)]
        return s.apply(
            "If",
            [condition],
            exact=first.exact and second.exact,
            then_branch=graphs[0],
            else_branch=graphs[1],
        )

    return choose


def loops(nodes: Sequence[Callable[[Sketch], list[Item]]]) -> Callable[[Sketch], list[Item]]:
    """Return Loop, of a body with nodes of these kinds: one value carried, one collected."""

    def repeat(s: Sketch) -> list[Item]:
        if _depth(s) >= _MOST_DEPTH:
            return []
        d = s.draw
        start = s.pick((*FLOATS, "int64"), 0, 3)
        number = Item(s.name(), np.array(0, np.int64), exact=True)
        going = Item(s.name(), np.array(True), exact=True)
        state = Item(s.name(), start.value, start.exact)
        body = _inner(s, nodes, [number, going, state])
        alike = [
            item
            for item in body.items
            if isinstance(item.value, np.ndarray) and (item.dtype, item.shape) == (state.dtype, state.shape)
        ]
        after = d.choice(alike[::-1])
        collected = d.choice([item for item in body.items if isinstance(item.value, np.ndarray)][::-1])
        stop = going
        if d.boolean():
            limit = s.fresh(np.array(d.integer(0, 3)), constant=True)
            found = body.apply("Less", [number, limit], exact=True)
            stop = found[0] if found else going
        inputs = [port(item.name, item.value) for item in (number, going)]
        inputs.append(
            helper.make_tensor_value_info(
                state.name, helper.np_dtype_to_tensor_dtype(state.value.dtype), None
            )
        )
        graph = _graph(body, inputs, [stop.name, after.name, collected.name])
        trips = s.number(d.integer(0 if d.chance(5) else 1, 4), constant=d.boolean())
        return s.apply("Loop", [trips, None, start], 2, exact=after.exact and collected.exact, body=graph)

    return repeat


def scans(nodes: Sequence[Callable[[Sketch], list[Item]]]) -> Callable[[Sketch], list[Item]]:
    """Return Scan, of a body with nodes of these kinds: no state but a sum, one input."""

    def scan(s: Sketch) -> list[Item]:
        if _depth(s) >= _MOST_DEPTH:
            return []
        d = s.draw
        x = s.pick((*FLOATS, "int64"), 1, 3)
        axis = d.integer(0, x.rank - 1)
        row = Item(s.name(), np.take(x.value, 0, axis), x.exact)
        start = s.fresh(np.zeros_like(row.value))
        state = Item(s.name(), start.value, exact=True)
        body = _inner(s, nodes, [state, row])
        total = body.apply("Add", [state, row], exact=True)
        if not total:
            return []
        collected = d.choice([item for item in body.items if isinstance(item.value, np.ndarray)])
        graph = _graph(
            body, [port(each.name, each.value) for each in (state, row)], [total[0].name, collected.name]
        )
        how = {"scan_input_axes": [axis], "scan_input_directions": [d.integer(0, 1)]}
        how["scan_output_directions"] = [d.integer(0, 1)]
        return s.apply("Scan", [start, x], 2, exact=collected.exact, body=graph, num_scan_inputs=1, **how)

    return scan


def sequence(s: Sketch) -> list[Item]:
    """Sequences: made, changed, read."""
    d = s.draw
    x = s.pick(("float32", "int64", "object"), 1, 3)
    if d.chance(3):
        axis = axis_of(s, x.rank)
        # Where the pieces' size is given, ONNX Runtime lets the axis go although it mustn't.
        how = {"keepdims": d.integer(0, 1)} if d.boolean() else {}
        pieces = None if how else s.number(d.integer(1, 2))
        made = s.apply("SplitToSequence", [x, pieces], exact=True, axis=axis, **how)
    else:
        parts = [
            x,
            *(s.like(x, d.shape(x.rank, x.rank, 3)) if d.boolean() else x for _ in range(d.integer(0, 2))),
        ]
        made = s.apply("SequenceConstruct", parts, exact=True)
    if not made:
        return []
    length = len(made[0].value)
    if d.boolean():
        # Behind the last item, the evaluator inserts elsewhere.
        place = [s.number(d.integer(-length, length - 1))] if d.boolean() else []
        made = s.apply("SequenceInsert", [*made, x, *place], exact=True) or made
    if d.chance(3):
        made = s.apply("SequenceErase", [*made, s.number(d.integer(-length, length - 1))], exact=True) or made
    if not made[0].value:
        return made
    length = len(made[0].value)
    match d.integer(0, 2):
        case 0:
            return s.apply("SequenceAt", [*made, s.number(d.integer(-length, length - 1))], exact=True)
        case 1:
            return s.apply("SequenceLength", made, exact=True)
        case _:
            axis = axis_of(s, made[0].value[0].ndim or 1)
            return s.apply("ConcatFromSequence", made, exact=True, axis=axis, new_axis=d.integer(0, 1))


def strings(s: Sketch) -> list[Item]:
    """Words."""
    d = s.draw
    x = s.pick(("object",), 0, 2)
    if s.opset < 20:
        return []
    match d.integer(0, 2):
        case 0:
            return s.apply("StringConcat", [x, s.like(x)], exact=True)
        case 1:
            return s.apply("RegexFullMatch", [x], exact=True, pattern=d.choice(("a.*", "[a-b]+", "")))
        case _:
            how: dict[str, Any] = {"delimiter": d.choice(("a", " ", ","))} if d.boolean() else {}
            if d.boolean():
                how["maxsplit"] = 1
            return s.apply("StringSplit", [x], 2, exact=True, **how)


NODES = (sequence, strings)
