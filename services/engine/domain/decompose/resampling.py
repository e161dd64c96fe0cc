"""Resizing: along each axis a gather of the nearest, or a product with a constant matrix of weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.engine.domain.builder import Builder
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.reference import numpy_type
from services.engine.domain.values import Move, Value

LONGEST_AXIS = 1 << 14
"""Of an axis that is resized by weights: they are a matrix."""

Reals = npt.NDArray[np.float64]

_POSITIONS = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric")
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True, slots=True)
class _Settings:
    mode: str
    position: str
    rounding: str
    cubic: float
    exclude: bool


def _resize(call: Call) -> Value:
    old = call.opset < 11
    settings = _Settings(
        call.text("mode", "nearest", ("nearest", "linear") if old else ("nearest", "linear", "cubic")),
        "asymmetric" if old else call.text("coordinate_transformation_mode", "half_pixel", _POSITIONS),
        "floor" if old else call.text("nearest_mode", "round_prefer_floor", _ROUNDINGS),
        call.number("cubic_coeff_a", -0.75),
        call.flag("exclude_outside"),
    )
    if call.flag("antialias"):
        call.fail("attribute 'antialias' = 1 is not supported")
    call.text("keep_aspect_ratio_policy", "stretch", ("stretch",))
    x = call.input(0)
    scales = call.optional(1 if old else 2)
    axes = tuple(range(x.rank))
    if (given := call.integers("axes")) is not None:
        axes = call.axes(given, x.rank)
    if scales is not None and scales.shape != (Extent.of(0),):
        return _resized(call, x, settings, axes, _numbers(call, scales), None)
    if old or call.optional(3) is None:
        call.fail("it needs its scales or sizes")
    return _resized(call, x, settings, axes, None, call.extents(3))


def _upsample(call: Call) -> Value:
    settings = _Settings(
        call.text("mode", "nearest", ("nearest", "linear")), "asymmetric", "floor", 0.0, False
    )
    x = call.input(0)
    if call.opset >= 9:
        return _resized(call, x, settings, tuple(range(x.rank)), _numbers(call, call.input(1)), None)
    given = call.node.attributes.get("scales")
    if not isinstance(given, tuple) or not all(isinstance(scale, float) for scale in given):
        call.fail("attribute 'scales' is missing")
    factors = [float(scale) for scale in given if not isinstance(scale, str)]
    return _resized(call, x, settings, tuple(range(x.rank)), factors, None)


def _numbers(call: Call, value: Value) -> list[float]:
    if value.known is None or value.rank != 1:
        call.fail("its scales must be a constant list")
    return [float(number) for number in value.known]


def _resized(
    call: Call,
    x: Value,
    settings: _Settings,
    axes: tuple[int, ...],
    scales: Sequence[float] | None,
    sizes: Sequence[Extent] | None,
) -> Value:
    if len(axes) != len(scales if scales is not None else sizes or ()):
        call.fail(f"it needs a scale or size for each of {len(axes)} axes")
    for position, axis in enumerate(axes):
        size = x.shape[axis]
        if scales is not None:
            scale = scales[position]
            if not 0 < scale < 1 << 20:
                call.fail(f"scale {scale} is not in 0 to {1 << 20}")
            wanted = _scaled(call, size, scale)
        elif sizes is not None:
            wanted, scale = sizes[position], 0.0
        if wanted != size or (scales is not None and scale != 1):
            x = _along(call, x, axis, wanted, scale, settings)
    return x


def _scaled(call: Call, size: Extent, scale: float) -> Extent:
    if size.constant is not None:
        return Extent.of(math.floor(size.constant * scale))
    if not scale.is_integer():
        call.fail(f"an axis of size {size} can only be resized by a whole number, not {scale}")
    return size * int(scale)


def _along(call: Call, x: Value, axis: int, wanted: Extent, scale: float, settings: _Settings) -> Value:
    size, target = x.shape[axis].constant, wanted.constant
    if size is None or target is None:
        times = wanted.exact_quotient(x.shape[axis])
        repeats = settings.mode == "nearest" and settings.position != "align_corners"
        same = (settings.position == "asymmetric") == (settings.rounding == "floor")
        if times is None or times.constant is None or not repeats or not same:
            call.fail(
                f"an axis of size {x.shape[axis]} can only be resized to {wanted} by repeating elements "
                "(nearest; asymmetric and floor, or half_pixel and rounded); fix the dimension by bounds"
            )
        return _repeated(call.builder, x, axis, times)
    if size < 1 or not 1 <= target <= LONGEST_AXIS:
        call.fail(f"an axis of size {size} can't be resized to {target}; 1 to {LONGEST_AXIS} are supported")
    places = _places(np.arange(target, dtype=np.float64), size, target, scale or target / size, settings)
    if settings.mode == "nearest":
        return call.builder.gather(x, call.builder.constant(_nearest(places, size, settings)), axis)
    if size > LONGEST_AXIS:
        call.fail(f"an axis of size {size} is too long to be resized; at most {LONGEST_AXIS} are supported")
    weights = (_linear if settings.mode == "linear" else _cubic)(places, size, settings)
    return _weighted(call.builder, call.floats(x), axis, weights)


def _places(index: Reals, size: int, target: int, scale: float, settings: _Settings) -> Reals:
    """Return where each element of the result lies in the input."""
    match settings.position:
        case "asymmetric":
            return np.asarray(index / scale)
        case "align_corners":
            # By the specification the length is scale · size, even where that isn't a whole number.
            length = scale * size
            return np.asarray(index * (size - 1) / (length - 1)) if target > 1 else np.zeros(1)
        case "pytorch_half_pixel" if target == 1:
            return np.zeros(1)
        case "half_pixel_symmetric":
            adjusted = target / (scale * size)
            offset = size / 2 * (1 - adjusted)
            return np.asarray(offset + (index + 0.5) / scale - 0.5)
    return np.asarray((index + 0.5) / scale - 0.5)


def _nearest(places: Reals, size: int, settings: _Settings) -> npt.NDArray[np.int64]:
    rounded = {
        "round_prefer_floor": lambda: np.ceil(places - 0.5),
        "round_prefer_ceil": lambda: np.floor(places + 0.5),
        "floor": lambda: np.floor(places),
        "ceil": lambda: np.ceil(places),
    }[settings.rounding]()
    return np.asarray(np.clip(rounded, 0, size - 1).astype(np.int64))


def _matrix(taps: Sequence[tuple[Reals, Reals]], size: int, exclude: bool) -> Reals:
    """Return (size, target) weights: of each result the taps' places and weights, clamped to the input."""
    target = len(taps[0][0])
    matrix = np.zeros((size, target))
    for places, weights in taps:
        inside = (places >= 0) & (places < size)
        kept = np.where(inside, weights, 0) if exclude else weights
        np.add.at(matrix, (np.clip(places, 0, size - 1).astype(np.int64), np.arange(target)), kept)
    return np.asarray(matrix / matrix.sum(axis=0)) if exclude else matrix


def _linear(places: Reals, size: int, settings: _Settings) -> Reals:
    low = np.floor(places)
    share = places - low
    return _matrix([(low, 1 - share), (low + 1, share)], size, settings.exclude)


def _cubic(places: Reals, size: int, settings: _Settings) -> Reals:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981), parameter a."""
    a, low = settings.cubic, np.floor(places)
    taps = []
    for step in (-1, 0, 1, 2):
        gap = np.abs(places - (low + step))
        near = ((a + 2) * gap - (a + 3)) * gap * gap + 1
        far = ((a * gap - 5 * a) * gap + 8 * a) * gap - 4 * a
        taps.append((low + step, np.where(gap <= 1, near, far)))
    return _matrix(taps, size, settings.exclude)


def _weighted(b: Builder, x: Value, axis: int, weights: Reals) -> Value:
    """Multiply along an axis by (size, target)."""
    order = [*(other for other in range(x.rank) if other != axis), axis]
    matrix: npt.NDArray[Any] = weights.astype(numpy_type(x.type))
    turned = b.transpose(x, order)
    if x.rank == 1:
        turned = b.reshape(turned, (Extent.of(1), *x.shape))
    result = b.matmul(turned, b.constant(matrix))
    if x.rank == 1:
        return b.reshape(result, (result.shape[-1],))
    return b.transpose(result, [order.index(position) for position in range(x.rank)])


def _repeated(b: Builder, x: Value, axis: int, times: Extent) -> Value:
    """Repeat each element along an axis."""
    strides = contiguous_strides(x.shape)
    sizes = (*x.shape[: axis + 1], times, *x.shape[axis + 1 :])
    steps = (*strides[: axis + 1], Extent.of(0), *strides[axis + 1 :])
    shape = (*x.shape[:axis], x.shape[axis] * times, *x.shape[axis + 1 :])
    zero = Extent.of(0)
    return b.raster(x.type, shape, [Move(x, sizes, steps, zero, contiguous_strides(sizes), zero)])


OPERATORS = (
    Operator("Resize", "composite", _resize, 10),
    Operator("Upsample", "composite", _upsample),
)
