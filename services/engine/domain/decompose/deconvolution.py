"""Transposed convolution: zeros put between the elements, a convolution with the kernel turned, a crop."""

from __future__ import annotations

from services.engine.domain import symbolic
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.convolution import biased, convolve, kernel_of
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.decompose.windows import Window, integers_of
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.values import Move, Value

ZERO = Extent.of(0)


def _transposed(call: Call) -> Value:
    b, x, weights = call.builder, call.floats(call.input(0)), call.input(1)
    kernel = kernel_of(call, x, weights)
    groups = call.integer("group", 1)
    if groups < 1 or x.shape[1] != weights.shape[0] or weights.shape[0].exact_quotient(groups) is None:
        call.fail(f"inputs {x} and {weights} don't make {groups} groups of channels")
    length = len(kernel)
    strides = integers_of(call, "strides", length, 1, 1)
    dilations = integers_of(call, "dilations", length, 1, 1)
    extra = integers_of(call, "output_padding", length, 0, 0)
    if any(more >= max(step, gap) for more, step, gap in zip(extra, strides, dilations, strict=True)):
        call.fail(
            f"attribute 'output_padding' is {list(extra)}; it must be less than the strides or dilations"
        )
    reaches = [(size - 1) * gap + 1 for size, gap in zip(kernel, dilations, strict=True)]
    full = [
        (size - 1) * stride + reach + more
        for size, stride, reach, more in zip(x.shape[2:], strides, reaches, extra, strict=True)
    ]
    before, sizes = _crops(call, x, full, strides)
    # Where more is wanted than there is, zeros follow.
    full = [
        symbolic.maximum(whole, low + size, b.bounds)
        for whole, low, size in zip(full, before, sizes, strict=True)
    ]
    stuffed = _stuffed(b, x, strides, reaches, full)
    windows = tuple(
        Window(size, 1, gap, ZERO, ZERO, wide)
        for size, gap, wide in zip(kernel, dilations, stuffed.shape[2:], strict=True)
    )
    result = convolve(b, stuffed, _turned(b, weights, groups), windows, groups)
    steps = contiguous_strides(result.shape)
    offset = sum((cut * step for cut, step in zip(before, steps[2:], strict=True)), ZERO)
    shape = (*result.shape[:2], *sizes)
    if shape != result.shape:
        result = b.move(result, shape, steps, offset)
    return biased(call, result, call.optional(2))


def _crops(
    call: Call, x: Value, full: list[Extent], strides: tuple[int, ...]
) -> tuple[list[Extent], list[Extent]]:
    """Return how much is cut off in front, and the sizes that are left."""
    length = len(full)
    pads = integers_of(call, "pads", 2 * length, 0, 0)
    mode = call.text("auto_pad", "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    wanted = call.integers("output_shape")
    if wanted is not None and len(wanted) != length:
        call.fail(f"attribute 'output_shape' is {list(wanted)}; it needs {length} values")
    if wanted is None and not mode.startswith("SAME"):
        begin = [Extent.of(pad) for pad in pads[:length]]
        ends = [size - low - high for size, low, high in zip(full, begin, pads[length:], strict=True)]
        return begin, ends
    sizes = [size * stride for size, stride in zip(x.shape[2:], strides, strict=True)]
    if wanted is not None:
        sizes = [Extent.of(size) for size in wanted]
    before = []
    for whole, size in zip(full, sizes, strict=True):
        total = symbolic.maximum(whole - size, ZERO, call.builder.bounds)
        half = total // 2
        before.append(half if mode == "SAME_UPPER" else total - half)
    return before, sizes


def _stuffed(b: Builder, x: Value, strides: tuple[int, ...], reaches: list[int], full: list[Extent]) -> Value:
    """Return `x` with zeros between its elements, and as many around as the kernel reaches."""
    shape = (*x.shape[:2], *(size + reach - 1 for size, reach in zip(full, reaches, strict=True)))
    dense = contiguous_strides(shape)
    offset = sum((step * (reach - 1) for step, reach in zip(dense[2:], reaches, strict=True)), ZERO)
    apart = tuple(step * stride for step, stride in zip(dense[2:], strides, strict=True))
    move = Move(x, x.shape, contiguous_strides(x.shape), ZERO, (*dense[:2], *apart), offset)
    return b.raster(x.type, shape, [move], fill=0)


def _turned(b: Builder, weights: Value, groups: int) -> Value:
    """Return weights (C, M / groups, …) as a convolution's (M, C / groups, …), each kernel reversed."""
    channels, outputs, *kernel = weights.shape
    strides = contiguous_strides(weights.shape)
    each = channels // groups
    offset = sum(((size - 1) * step for size, step in zip(kernel, strides[2:], strict=True)), ZERO)
    split = (Extent.of(groups), outputs, each, *kernel)
    steps = (each * strides[0], strides[1], strides[0], *(-step for step in strides[2:]))
    return b.reshape(b.move(weights, split, steps, offset), (outputs * groups, each, *kernel))


OPERATORS = (Operator("ConvTranspose", "composite", _transposed),)
