"""Signals: Fourier transforms as products with matrices of sines and cosines, frames, mel weights.

A transform of length n along an axis takes n² calculations for each row: fine for the frames of speech and
sensors, too slow for long signals.
"""

from __future__ import annotations

import math

import numpy as np

from libs.runtime.plan import DataType
from services.engine.domain import symbolic
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.axes import around, axis_of, with_size
from services.engine.domain.decompose.casting import onnx_type
from services.engine.domain.decompose.control import single
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.values import Value

ONE, ZERO = Extent.of(1), Extent.of(0)


def _waves(b: Builder, rows: Extent, columns: Extent, length: Extent, type_: DataType) -> tuple[Value, Value]:
    """Return cos and sin of 2π·i·k / length as [rows, columns]; i·k modulo length, so that it stays exact."""
    i = b.reshape(arange(b, rows), (rows, ONE))
    turns = b.binary("mod", b.binary("mul", i, arange(b, columns)), b.extent(length, DataType.INT64))
    share = b.binary(
        "div", b.cast(turns, DataType.FLOAT64), b.cast(b.extent(length, DataType.INT64), DataType.FLOAT64)
    )
    angle = b.binary("mul", share, b.scalar(2 * math.pi, DataType.FLOAT64))
    return b.cast(b.unary("cos", angle), type_), b.cast(b.unary("sin", angle), type_)


def _parts(call: Call, x: Value) -> tuple[Value, Value | None]:
    """Return the real and imaginary part of an array whose last axis has one or both."""
    b, inner = call.builder, x.shape[:-1]
    if x.shape[-1].constant == 1:
        return b.reshape(x, inner), None
    if x.shape[-1].constant != 2:
        call.fail(f"{x} must end in an axis of 1 (real) or 2 (real and imaginary part)")
    strides = contiguous_strides(x.shape)[:-1]
    return b.move(x, inner, strides), b.move(x, inner, strides, 1)


def _head(b: Builder, x: Value, count: Extent) -> Value:
    """Return the first `count` of the last axis."""
    return b.move(x, (*x.shape[:-1], count), contiguous_strides(x.shape))


def _pair(b: Builder, real: Value, imaginary: Value) -> Value:
    """Return [..., 2]."""
    stacked = b.stack([real, imaginary])
    return b.transpose(stacked, (*range(1, stacked.rank), 0))


def _product(b: Builder, x: Value, matrix: Value) -> Value:
    if x.rank == 1:
        row = b.matmul(b.reshape(x, (ONE, *x.shape)), matrix)
        return b.reshape(row, (row.shape[1],))
    return b.matmul(x, matrix)


def transformed(
    call: Call, real: Value, imaginary: Value | None, length: Extent, *, inverse: bool, onesided: bool
) -> Value:
    """Return the discrete Fourier transform along the last axis: [..., bins, 2], or [..., n, 1] of reals."""
    b, type_ = call.builder, real.type
    half = length // 2 + 1
    given = half if inverse and onesided else length
    rows = symbolic.minimum(real.shape[-1], given, b.bounds)
    real = _head(b, real, rows)
    imaginary = None if imaginary is None else _head(b, imaginary, rows)
    columns = half if onesided and not inverse else length
    cos, sin = _waves(b, rows, columns, length, type_)
    if inverse and onesided:
        return _real_inverse(b, real, imaginary, length, cos, sin)
    sign = -1 if inverse else 1
    over = _product(b, real, cos)
    under = b.binary("mul", _product(b, real, sin), b.scalar(-sign, type_))
    if imaginary is not None:
        over = b.binary("add", over, b.binary("mul", _product(b, imaginary, sin), b.scalar(sign, type_)))
        under = b.binary("add", under, _product(b, imaginary, cos))
    if inverse:
        scale = b.extent(length, type_)
        over, under = b.binary("div", over, scale), b.binary("div", under, scale)
    return _pair(b, over, under)


def _real_inverse(
    b: Builder, real: Value, imaginary: Value | None, length: Extent, cos: Value, sin: Value
) -> Value:
    """Bins that have a mirror image count twice: all but the first, and the middle one of an even length."""
    type_, rows = real.type, real.shape[-1]
    bins = arange(b, rows)
    twice = b.binary("mul", bins, b.integer(2))
    alone = b.binary(
        "or", b.binary("eq", bins, b.integer(0)), b.binary("eq", twice, b.extent(length, DataType.INT64))
    )
    weights = b.where(alone, b.scalar(1, type_), b.scalar(2, type_))
    total = _product(b, b.binary("mul", real, weights), cos)
    if imaginary is not None:
        total = b.binary("sub", total, _product(b, b.binary("mul", imaginary, weights), sin))
    total = b.binary("div", total, b.extent(length, type_))
    return b.reshape(total, (*total.shape, ONE))


def _dft(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    if x.rank < 2:
        call.fail(f"its input is {x}; it needs an axis to transform and one for the real and imaginary part")
    inverse, onesided = call.flag("inverse"), call.flag("onesided")
    if call.opset >= 20 and call.optional(2) is not None and call.input(2).known is None:
        return _along_any(call, x, inverse, onesided)
    place = call.integer("axis", 1) if call.opset < 20 else -2
    if call.opset >= 20 and call.optional(2) is not None:
        place = call.static_integer(2)
    axis = call.axis(place, x.rank)
    if axis == x.rank - 1:
        call.fail(f"axis {place} is the one of real and imaginary parts")
    real, imaginary = _parts(call, x)
    order = (*(other for other in range(real.rank) if other != axis), axis)
    back = [*range(axis), real.rank - 1, *range(axis, real.rank - 1), real.rank]
    turned = b.transpose(real, order), None if imaginary is None else b.transpose(imaginary, order)
    return b.transpose(_dft_of(call, *turned, x.shape[axis], inverse, onesided), back)


def _dft_of(
    call: Call, real: Value, imaginary: Value | None, size: Extent, inverse: bool, onesided: bool
) -> Value:
    """Transform along the last axis, which has `size`."""
    if onesided and not inverse and imaginary is not None:
        call.fail("a one-sided transform is of real signals; the input has imaginary parts")
    length = (size - 1) * 2 if inverse and onesided else size
    if call.optional(1) is not None:
        length = call.size(1)
    return transformed(call, real, imaginary, length, inverse=inverse, onesided=onesided)


def _along_any(call: Call, x: Value, inverse: bool, onesided: bool) -> Value:
    """Transform along an axis that data decide: seen as [before, axis, after]."""
    b, axis = call.builder, axis_of(call, 2, x.rank)
    before, size, after = around(b, x.shape[:-1], axis)
    parts = [
        None if part is None else b.transpose(b.reshape(part, (before, size, after)), (0, 2, 1))
        for part in _parts(call, x)
    ]
    assert parts[0] is not None
    result = b.transpose(_dft_of(call, parts[0], parts[1], size, inverse, onesided), (0, 2, 1, 3))
    shape = with_size(b, x.shape[:-1], axis, result.shape[1])
    return b.reshape(result, (*shape, result.shape[3]))


def _stft(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    if x.rank != 3:
        call.fail(f"its signal is {x}, not [batch, length, 1 or 2]")
    step = call.size(1)
    window, onesided = call.optional(2), call.flag("onesided", True)
    if call.optional(3) is not None:
        length = call.size(3)
    elif window is not None:
        length = window.shape[0]
    else:
        length = x.shape[1]
    frames = (x.shape[1] - length) // step + 1
    real, imaginary = _parts(call, x)

    def framed(part: Value) -> Value:
        cut = b.move(part, (x.shape[0], frames, length), (x.shape[1], step, ONE))
        return cut if window is None else b.binary("mul", cut, window)

    other = None if imaginary is None else framed(imaginary)
    onesided = onesided and imaginary is None
    return transformed(call, framed(real), other, length, inverse=False, onesided=onesided)


def _mel_weights(call: Call) -> Value:
    """Triangles over frequencies that are evenly spaced on the mel scale."""
    b, wide = call.builder, DataType.FLOAT64
    bands, length = call.size(0), call.size(1)
    low, high = (b.cast(single(call, call.input(index)), wide) for index in (3, 4))
    rate = b.cast(single(call, call.input(2)), wide)

    def number(value: float) -> Value:
        return b.scalar(value, wide)

    def mel(hertz: Value) -> Value:
        ratio = b.binary("add", b.binary("div", hertz, number(700)), number(1))
        return b.binary("mul", b.unary("log", ratio), number(2595 / math.log(10)))

    low_mel = mel(low)
    points = b.cast(arange(b, bands + 2), wide)
    step = b.binary("div", b.binary("sub", mel(high), low_mel), b.extent(bands + 2, wide))
    mels = b.binary("add", b.binary("mul", points, step), low_mel)
    powers = b.unary("exp", b.binary("mul", mels, number(math.log(10) / 2595)))
    hertz = b.binary("mul", b.binary("sub", powers, number(1)), number(700))
    place = b.binary("div", b.binary("mul", hertz, b.extent(length + 1, wide)), rate)
    edges = b.unary("floor", place)
    first, centre, last = (b.move(edges, (bands,), (ONE,), shift) for shift in range(3))
    rows = length // 2 + 1
    row = b.reshape(b.cast(arange(b, rows), wide), (rows, ONE))
    up, down = b.binary("sub", centre, first), b.binary("sub", last, centre)
    none, one = number(0), number(1)

    def ramp(distance: Value, width: Value) -> Value:
        return b.binary("div", distance, b.binary("max", width, one))

    rising = b.binary("and", b.binary("le", first, row), b.binary("le", row, centre))
    left = b.where(rising, ramp(b.binary("sub", row, first), up), none)
    peak = b.cast(b.binary("eq", row, centre), wide)
    left = b.where(b.binary("eq", up, none), peak, left)
    falling = b.binary("and", b.binary("le", centre, row), b.binary("lt", row, last))
    weights = b.where(falling, ramp(b.binary("sub", last, row), down), left)
    return b.cast(weights, onnx_type(call, call.integer("output_datatype", 1)))


_WINDOWS = {
    "BlackmanWindow": (0.42, 0.5, 0.08),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "HannWindow": (0.5, 0.5, 0.0),
}


def _window(call: Call) -> Value:
    """a0 − a1·cos(2πi/n) + a2·cos(4πi/n), with n the size, or one less where it isn't periodic."""
    b, wide = call.builder, DataType.FLOAT64
    size = call.size(0)
    first, second, third = (b.scalar(each, wide) for each in _WINDOWS[call.node.operator])
    span = size if call.flag("periodic", True) else size - 1
    share = b.binary("div", b.cast(arange(b, size), wide), b.extent(span, wide))
    angle = b.binary("mul", share, b.scalar(2 * np.pi, wide))
    once = b.binary("mul", second, b.unary("cos", angle))
    twice = b.binary("mul", third, b.unary("cos", b.binary("mul", angle, b.scalar(2, wide))))
    result = b.binary("add", b.binary("sub", first, once), twice)
    return b.cast(result, onnx_type(call, call.integer("output_datatype", 1)))


OPERATORS = (
    Operator("BlackmanWindow", "composite", _window, 17),
    Operator("DFT", "composite", _dft, 17),
    Operator("HammingWindow", "composite", _window, 17),
    Operator("HannWindow", "composite", _window, 17),
    Operator("MelWeightMatrix", "composite", _mel_weights, 17),
    Operator("STFT", "composite", _stft, 17),
)
