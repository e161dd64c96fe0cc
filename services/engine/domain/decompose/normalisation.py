"""Normalisations, at inference."""

from __future__ import annotations

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.decompose.reduction import mean
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.values import Move, Shape, Value


def _along_channels(b: Builder, vector: Value, rank: int) -> Value:
    """Return a vector of channels so that it broadcasts along axis 1."""
    if vector.rank != 1:
        return vector
    return b.reshape(vector, (*vector.shape, *[Extent.of(1)] * (rank - 2)))


def _standardised(b: Builder, x: Value, axes: tuple[int, ...], epsilon: float) -> tuple[Value, Value, Value]:
    """Return (x − mean) / √(variance + ε) over axes, the mean, and 1 / √(variance + ε), these kept."""
    average = mean(b, x, axes, True)
    centred = b.binary("sub", x, average)
    variance = mean(b, b.binary("mul", centred, centred), axes, True)
    spread = b.unary("sqrt", b.binary("add", variance, b.scalar(epsilon, x.type)))
    inverse = b.binary("div", b.scalar(1, x.type), spread)
    return b.binary("mul", centred, inverse), average, inverse


def _batch_in_training(call: Call, x: Value) -> tuple[Value, ...]:
    """Normalise by the batch's own mean and variance, and mix these into the running ones."""
    b, axes = call.builder, (0, *range(2, x.rank))
    scale, bias, average, variance = (call.input(index) for index in range(1, 5))
    own = mean(b, x, axes, False)
    away = b.binary("sub", x, _along_channels(b, own, x.rank))
    spread = mean(b, b.binary("mul", away, away), axes, False)
    epsilon = b.scalar(call.number("epsilon", 1e-5), x.type)
    factor = b.binary("div", b.cast(scale, x.type), b.unary("sqrt", b.binary("add", spread, epsilon)))
    scaled = b.binary("mul", away, _along_channels(b, factor, x.rank))
    result = b.binary("add", scaled, _along_channels(b, b.cast(bias, x.type), x.rank))
    momentum = call.number("momentum", 0.9)
    running = [
        b.binary(
            "add",
            b.binary("mul", old, b.scalar(momentum, old.type)),
            b.binary("mul", b.cast(new, old.type), b.scalar(1 - momentum, old.type)),
        )
        for old, new in ((average, own), (variance, spread))
    ]
    return result, *running


def _batch(call: Call) -> Value | tuple[Value, ...]:
    x, b = call.floats(call.input(0)), call.builder
    if call.flag("training_mode"):
        return _batch_in_training(call, x)
    if call.wants(1):
        call.fail("it is in training mode; export the model for inference")
    if call.opset < 9 and not call.flag("spatial", True):
        call.fail("attribute 'spatial' = 0 is not supported")
    scale, bias, average, variance = (b.cast(call.input(index), x.type) for index in (1, 2, 3, 4))
    spread = b.unary("sqrt", b.binary("add", variance, b.scalar(call.number("epsilon", 1e-5), x.type)))
    factor = b.binary("div", scale, spread)
    shift = b.binary("sub", bias, b.binary("mul", average, factor))
    scaled = b.binary("mul", x, _along_channels(b, factor, x.rank))
    return b.binary("add", scaled, _along_channels(b, shift, x.rank))


def _affine(b: Builder, x: Value, scale: Value, bias: Value | None) -> Value:
    scaled = b.binary("mul", x, scale)
    return scaled if bias is None else b.binary("add", scaled, bias)


def _instance(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    if x.rank < 3:
        call.fail(f"its input is {x}; at least 3 axes are needed")
    normal, _, _ = _standardised(b, x, tuple(range(2, x.rank)), call.number("epsilon", 1e-5))
    scale, bias = (_along_channels(b, call.input(index), x.rank) for index in (1, 2))
    return _affine(b, normal, scale, bias)


def _group(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    groups = call.integer("num_groups")
    if x.rank < 2 or groups < 1 or (channels := x.shape[1].exact_quotient(groups)) is None:
        call.fail(f"{x} can't be divided into {groups} groups of channels")
    work = _wider(call, x)
    split: Shape = (x.shape[0], Extent.of(groups), channels, *x.shape[2:])
    normal, _, _ = _standardised(
        b, b.reshape(work, split), tuple(range(2, len(split))), call.number("epsilon", 1e-5)
    )
    scale, bias = b.cast(call.input(1), work.type), b.cast(call.input(2), work.type)
    if call.opset < 21:  # one scale for each group
        per_group = (Extent.of(groups), *[Extent.of(1)] * (len(split) - 2))
        scaled = _affine(b, normal, b.reshape(scale, per_group), b.reshape(bias, per_group))
        return b.cast(b.reshape(scaled, x.shape), x.type)
    flat = b.reshape(normal, x.shape)
    scaled = _affine(b, flat, _along_channels(b, scale, x.rank), _along_channels(b, bias, x.rank))
    return b.cast(scaled, x.type)


def _wider(call: Call, x: Value) -> Value:
    """Return `x` in the type of the statistics: float32 for half precision, unless told not to."""
    narrow = x.type is DataType.FLOAT16 and call.integer("stash_type", 1) == 1
    return call.builder.cast(x, DataType.FLOAT32) if narrow else x


def _trailing(call: Call, x: Value) -> tuple[int, ...]:
    return tuple(range(call.axis(call.integer("axis", -1), x.rank), x.rank))


def _layer(call: Call) -> tuple[Value, ...]:
    x, b = call.floats(call.input(0)), call.builder
    normal, average, inverse = _standardised(
        b, _wider(call, x), _trailing(call, x), call.number("epsilon", 1e-5)
    )
    scaled = _affine(b, b.cast(normal, x.type), call.input(1), call.optional(2))
    return scaled, average, inverse


def _root_mean_square(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    work = _wider(call, x)
    square = mean(b, b.binary("mul", work, work), _trailing(call, x), True)
    spread = b.unary("sqrt", b.binary("add", square, b.scalar(call.number("epsilon", 1e-5), work.type)))
    normal, scale = b.cast(b.binary("div", work, spread), x.type), call.input(1)
    return b.binary("mul", b.cast(normal, scale.type), scale)


def _mean_variance(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    axes = call.axes(call.integers("axes") or (0, 2, 3), x.rank)
    normal, _, _ = _standardised(b, x, axes, 1e-9)
    return normal


def _lp(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    axis, order = call.axis(call.integer("axis", -1), x.rank), call.integer("p", 2)
    if order not in (1, 2):
        call.fail(f"attribute 'p' is {order}; use 1 or 2")
    powers = b.unary("abs", x) if order == 1 else b.binary("mul", x, x)
    norm = b.reduce("reduce_sum", powers, (axis,), keep=True)
    norm = norm if order == 1 else b.unary("sqrt", norm)
    zero = b.scalar(0, x.type)
    safe = b.where(b.binary("eq", norm, zero), b.scalar(1, x.type), norm)
    return b.binary("div", x, safe)


def _local_response(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    size = call.integer("size")
    if x.rank < 2 or not 1 <= size <= 1024:
        call.fail(f"attribute 'size' is {size}, its input {x}; use 1 to 1024, and at least 2 axes")
    squares = b.binary("mul", x, x)
    rest = Extent.of(1)
    for extent in x.shape[2:]:
        rest = rest * extent
    sums = b.reduce("reduce_sum", _channel_windows(b, squares, size, rest), (2,), keep=False)
    factor = b.scalar(call.number("alpha", 1e-4) / size, x.type)
    base = b.binary("add", b.binary("mul", sums, factor), b.scalar(call.number("bias", 1.0), x.type))
    divisor = b.binary("pow", base, b.scalar(call.number("beta", 0.75), x.type))
    return b.binary("div", x, b.reshape(divisor, x.shape))


def _channel_windows(b: Builder, x: Value, size: int, rest: Extent) -> Value:
    """Return (batch, channels, size, rest): the neighbours of each channel, 0 beyond the first and last."""
    batch, channels = x.shape[0], x.shape[1]
    padded: Shape = (batch, channels + size - 1, rest)
    strides = contiguous_strides(padded)
    zero = Extent.of(0)
    source = contiguous_strides((batch, channels, rest))
    before = strides[1] * ((size - 1) // 2)
    wide = b.raster(x.type, padded, [Move(x, (batch, channels, rest), source, zero, strides, before)], fill=0)
    windows: Shape = (batch, channels, Extent.of(size), rest)
    return b.move(wide, windows, (strides[0], strides[1], strides[1], strides[2]))


OPERATORS = (
    Operator("BatchNormalization", "composite", _batch),
    Operator("GroupNormalization", "composite", _group, 18),
    Operator("InstanceNormalization", "composite", _instance),
    Operator("LRN", "composite", _local_response),
    Operator("LayerNormalization", "composite", _layer, 17),
    Operator("LpNormalization", "composite", _lp),
    Operator("MeanVarianceNormalization", "composite", _mean_variance, 9),
    Operator("RMSNormalization", "composite", _root_mean_square, 23),
)
