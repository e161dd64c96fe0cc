"""Convolution: windows laid out as columns by one raster, then a matrix product."""

from __future__ import annotations

from services.engine.domain.builder import Builder
from services.engine.domain.decompose.linear import shifted
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.decompose.windows import Window, box, pad, read_windows
from services.engine.domain.extents import Extent, contiguous_strides, product
from services.engine.domain.values import Move, Shape, Value, static

ONE = Extent.of(1)


def kernel_of(call: Call, x: Value, weights: Value) -> tuple[int, ...]:
    """Return the kernel's spatial sizes; refuses what isn't a convolution of 1 to 3 axes."""
    if not 3 <= x.rank <= 5 or weights.rank != x.rank:
        call.fail(f"inputs {x} and {weights} are not of a convolution along 1 to 3 axes")
    kernel = static(weights.shape[2:])
    if kernel is None or static(weights.shape[:2]) is None:
        call.fail(f"the shape of the weights, {weights}, must not depend on dimensions")
    declared = call.integers("kernel_shape")
    if declared is not None and declared != kernel:
        call.fail(f"attribute 'kernel_shape' is {list(declared)}, the weights are {weights}")
    return kernel


def read_groups(call: Call, channels: Extent, outputs: Extent, each: Extent) -> int:
    """Return attribute `group`; refuses channels that don't make so many groups."""
    groups = call.integer("group", 1)
    if groups < 1 or channels != each * groups or outputs.exact_quotient(groups) is None:
        call.fail(f"{channels} channels in, {outputs} out don't make {groups} groups of {each} channels each")
    return groups


def convolve(b: Builder, x: Value, weights: Value, windows: tuple[Window, ...], groups: int) -> Value:
    """Return x (N, C, …) * weights (M, C / groups, …) as (N, M, …); windows say how they slide.

    im2col: Chellapilla, Puri, Simard, "High performance convolutional neural networks" (2006).
    """
    padded = pad(b, x, windows, 0)
    batch, channels = x.shape[0], x.shape[1]
    strides = contiguous_strides(padded.shape)
    (kernel, inside), (spatial, steps) = box(windows, strides[2:])
    sizes: Shape = (batch, channels, *kernel, *spatial)
    outputs = weights.shape[0]
    depth, places = weights.shape[1] * product(kernel), product(spatial)
    split = () if groups == 1 else (Extent.of(groups),)
    shape: Shape = (batch, *split, depth, places)
    if all(window.kernel == window.stride == 1 for window in windows):
        columns = b.reshape(padded, shape)
    else:
        move = Move(
            padded,
            sizes,
            (*strides[:2], *inside, *steps),
            Extent.of(0),
            contiguous_strides(sizes),
            Extent.of(0),
        )
        columns = b.raster(x.type, shape, [move])
    matrix = b.reshape(weights, (*split, outputs // groups, depth))
    return b.reshape(b.matmul(matrix, columns), (batch, outputs, *spatial))


def biased(call: Call, result: Value, bias: Value | None) -> Value:
    """Return (N, M, …) with one number added for each of M channels."""
    if bias is None:
        return result
    if bias.shape != result.shape[1:2]:
        call.fail(f"the bias is {bias}; it needs {result.shape[1]} elements")
    return call.builder.binary(
        "add", result, call.builder.reshape(bias, (*bias.shape, *[ONE] * (result.rank - 2)))
    )


def _conv(call: Call) -> Value:
    x, weights = call.floats(call.input(0)), call.input(1)
    windows = read_windows(call, x.shape[2:], kernel_of(call, x, weights))
    groups = read_groups(call, x.shape[1], weights.shape[0], weights.shape[1])
    return biased(call, convolve(call.builder, x, weights, windows, groups), call.optional(2))


def _conv_integer(call: Call) -> Value:
    b = call.builder
    x, weights = call.input(0), call.input(1)
    windows = read_windows(call, x.shape[2:], kernel_of(call, x, weights))
    groups = read_groups(call, x.shape[1], weights.shape[0], weights.shape[1])
    # The zero point is taken off first, so that padding with 0 is padding with it.
    return convolve(
        b, shifted(b, x, call.optional(2)), shifted(b, weights, call.optional(3), 0), windows, groups
    )


OPERATORS = (
    Operator("Conv", "composite", _conv),
    Operator("ConvInteger", "composite", _conv_integer, 10),
)
