"""NonMaxSuppression: each round picks the best box that is left, for all batches and classes at once."""

from __future__ import annotations

import math

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.control import single
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.decompose.ordering import chosen
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.held_types import Thing
from services.engine.domain.loops import Round
from services.engine.domain.values import Value

ONE = Extent.of(1)


def _corners(b: Builder, boxes: Value, centred: bool) -> tuple[Value, ...]:
    """Return the lower and upper ends of boxes [batch, n, 4] along both axes, each [batch, n]."""
    shape, strides = boxes.shape[:2], contiguous_strides(boxes.shape)[:2]
    a, c, d, e = (b.move(boxes, shape, strides, place) for place in range(4))
    if not centred:
        return b.binary("min", a, d), b.binary("max", a, d), b.binary("min", c, e), b.binary("max", c, e)
    half = b.scalar(0.5, boxes.type)
    width, height = b.binary("mul", d, half), b.binary("mul", e, half)
    return (
        b.binary("sub", a, width),
        b.binary("add", a, width),
        b.binary("sub", c, height),
        b.binary("add", c, height),
    )


def _number(call: Call, index: int, default: float, type_: DataType) -> Value:
    given = call.optional(index)
    return call.builder.scalar(default, type_) if given is None else single(call, given)


def _suppress(call: Call) -> Value:
    boxes, scores, b = call.input(0), call.input(1), call.builder
    if boxes.rank != 3 or scores.rank != 3 or boxes.shape[2].constant != 4:
        call.fail(
            f"boxes are {boxes} and scores {scores}; they must be [batch, n, 4] and [batch, classes, n]"
        )
    batch, classes, count = scores.shape
    b.equal(batch, boxes.shape[0])
    b.equal(count, boxes.shape[1])
    most = b.cast(_number(call, 2, 0, DataType.INT64), DataType.INT64)
    limit, least = _number(call, 3, 0.0, boxes.type), _number(call, 4, -math.inf, scores.type)
    shape = (batch, classes, count)
    rows = (batch * classes, count)
    ends = [
        b.reshape(b.broadcast(b.reshape(end, (batch, ONE, count)), shape, fold=False), rows)
        for end in _corners(b, boxes, call.flag("center_point_box"))
    ]
    area = b.binary("mul", b.binary("sub", ends[1], ends[0]), b.binary("sub", ends[3], ends[2]))
    flat = b.reshape(scores, rows)
    lowest = b.scalar(-math.inf, scores.type)
    left = flat if call.optional(4) is None else b.where(b.binary("lt", least, flat), flat, lowest)
    number_of_row = b.reshape(arange(b, rows[0]), (rows[0], ONE))

    def of_best(values: Value, best: Value) -> Value:
        places = b.binary("add", b.binary("mul", number_of_row, b.extent(count, DataType.INT64)), best)
        return b.gather(b.reshape(values, (rows[0] * count,)), places, 0)

    def body(number: Value, going: Value, state: list[Thing]) -> Round:
        (remaining,) = state
        assert isinstance(remaining, Value)
        best = b.reshape(b.arg_max(remaining, 1), (rows[0], ONE))
        found = b.binary("lt", lowest, of_best(remaining, best))
        sides = []
        for low, high in ((ends[0], ends[1]), (ends[2], ends[3])):
            upper = b.binary("min", high, of_best(high, best))
            lower = b.binary("max", low, of_best(low, best))
            sides.append(b.binary("max", b.binary("sub", upper, lower), b.scalar(0, boxes.type)))
        common = b.binary("mul", *sides)
        union = b.binary("sub", b.binary("add", area, of_best(area, best)), common)
        # Boxes without an area, or with less, overlap with nothing.
        over = b.binary("lt", b.binary("mul", limit, union), common)
        over = b.binary("and", over, b.binary("lt", b.scalar(0, boxes.type), common))
        itself = b.binary("eq", arange(b, count), best)
        gone = b.binary("or", over, itself)
        after = b.where(gone, lowest, remaining)
        any_left = b.reduce("reduce_max", b.cast(found, DataType.INT64), (0, 1), keep=False)
        return Round(
            b.cast(any_left, DataType.BOOL),
            [after],
            [b.reshape(best, (rows[0],)), b.reshape(found, (rows[0],))],
        )

    trips = b.binary("min", b.binary("max", most, b.integer(0)), b.extent(count, DataType.INT64))
    _, (best, found) = b.loop(trips, None, [left], body)
    # [rounds, rows] → in the order of rows, then rounds.
    rounds = best.shape[0]
    best = b.reshape(b.transpose(best, (1, 0)), (rounds * rows[0],))
    found = b.reshape(b.transpose(b.resized(found, (rounds, rows[0])), (1, 0)), (rounds * rows[0],))
    picked, _ = chosen(b, found)
    row = b.binary("div", picked, b.extent(rounds, DataType.INT64))
    width = b.extent(classes, DataType.INT64)
    columns = [b.binary("div", row, width), b.binary("mod", row, width), b.gather(best, picked, 0)]
    return b.transpose(b.stack(columns), (1, 0))


OPERATORS = (Operator("NonMaxSuppression", "composite", _suppress, 10),)
