"""Resizing: along each axis a gather of the nearest, or of the few around a place, which are weighted.

Places, weights and sizes are computed by the same operators whether they are known when the plan is made
(then they are constants of it) or only when data are there.
"""

from __future__ import annotations

from dataclasses import dataclass

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, contiguous_strides, product
from services.engine.domain.values import INTEGERS, Move, Value, extreme

ONE = Extent.of(1)

_POSITIONS = (
    "half_pixel",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_POLICIES = ("stretch", "not_larger", "not_smaller")
_WIDE = DataType.FLOAT64
LARGEST_SCALE = 1 << 20
_FINEST_RATIO = 1 << 10
"""Scales like 1.5 or 0.125 times a size are exact in floating point, so that a formula gives the same."""


@dataclass(frozen=True, slots=True)
class _Settings:
    mode: str
    position: str = "asymmetric"
    rounding: str = "floor"
    cubic: float = -0.75
    exclude: bool = False
    antialias: bool = False
    extrapolation: float = 0.0


@dataclass(frozen=True, slots=True)
class _Axis:
    """What is wanted of an axis."""

    axis: int
    size: Extent
    target: Extent
    scale: Value
    """A float64 scalar."""
    start: Value | None = None
    end: Value | None = None
    """The part that is taken, of tf_crop_and_resize."""


def _resize(call: Call) -> Value:
    old = call.opset < 11
    settings = _Settings(
        call.text("mode", "nearest", ("nearest", "linear") if old else ("nearest", "linear", "cubic")),
        "asymmetric" if old else call.text("coordinate_transformation_mode", "half_pixel", _POSITIONS),
        "floor" if old else call.text("nearest_mode", "round_prefer_floor", _ROUNDINGS),
        call.number("cubic_coeff_a", -0.75),
        call.flag("exclude_outside"),
        call.flag("antialias"),
        call.number("extrapolation_value", 0.0),
    )
    x = call.input(0)
    axes = tuple(range(x.rank))
    if (given := call.integers("axes")) is not None:
        axes = call.axes(given, x.rank)
    scales = call.optional(1 if old else 2)
    if scales is not None and scales.shape != (Extent.of(0),):
        wanted = _by_scales(call, x, axes, scales)
    elif not old and call.optional(3) is not None:
        wanted = _by_sizes(call, x, axes)
    else:
        call.fail("it needs its scales or sizes")
    if settings.position == "tf_crop_and_resize":
        wanted = _cropped(call, wanted)
    return _resized(call, x, wanted, settings)


def _upsample(call: Call) -> Value:
    settings = _Settings(call.text("mode", "nearest", ("nearest", "linear")))
    x, b = call.input(0), call.builder
    axes = tuple(range(x.rank))
    if call.opset >= 9:
        wanted = _by_scales(call, x, axes, call.input(1))
    else:
        given = call.node.attributes.get("scales")
        if not isinstance(given, tuple) or not all(isinstance(scale, float) for scale in given):
            call.fail("attribute 'scales' is missing")
        factors = [b.scalar(float(scale), DataType.FLOAT32) for scale in given]
        wanted = _by_scales(call, x, axes, b.stack(factors))
    return _resized(call, x, wanted, settings)


def _resized(call: Call, x: Value, wanted: list[_Axis], settings: _Settings) -> Value:
    wide = x if settings.mode == "nearest" else _widened(call, x)
    resized = wide
    for each in wanted:
        resized = _along(call, resized, each, settings)
    return x if resized is wide else _narrowed(call.builder, resized, x.type)


def _by_scales(call: Call, x: Value, axes: tuple[int, ...], scales: Value) -> list[_Axis]:
    b, wanted = call.builder, []
    if scales.rank != 1 or scales.shape[0].constant != len(axes):
        call.fail(f"its scales are {scales}; it needs one for each of {len(axes)} axes")
    for place, axis in enumerate(axes):
        scale = b.gather(scales, b.integer(place), 0)
        size = x.shape[axis]
        if scale.known is not None and not 0 < float(scale.known) < LARGEST_SCALE:
            call.fail(f"scale {float(scale.known)} is not in 0 to {LARGEST_SCALE}")
        if scale.known is not None and (ratio := float(scale.known).as_integer_ratio())[1] <= _FINEST_RATIO:
            target = size * ratio[0] // ratio[1]
        else:
            # In the scales' own precision: 10 · 0.7 is 7 there, and less in a wider one.
            scaled = b.binary("mul", b.extent(size, scale.type), scale)
            # A scale that isn't above 0 gives -1, which is no size.
            positive = b.binary("lt", b.scalar(0, scale.type), scale)
            whole = b.where(positive, b.unary("floor", scaled), b.scalar(-1, scale.type))
            target = b.size(b.cast(whole, DataType.INT64))
        wanted.append(_Axis(axis, size, target, b.cast(scale, _WIDE)))
    return wanted


def _by_sizes(call: Call, x: Value, axes: tuple[int, ...]) -> list[_Axis]:
    b, sizes = call.builder, call.sizes(3)
    if len(sizes) != len(axes):
        call.fail(f"it needs a size for each of {len(axes)} axes, not {len(sizes)}")
    policy = call.text("keep_aspect_ratio_policy", "stretch", _POLICIES)
    scales = [
        b.binary("div", b.extent(target, _WIDE), b.extent(x.shape[axis], _WIDE))
        for target, axis in zip(sizes, axes, strict=True)
    ]
    if policy == "stretch":
        return [
            _Axis(axis, x.shape[axis], target, scale)
            for axis, target, scale in zip(axes, sizes, scales, strict=True)
        ]
    common = scales[0]
    for scale in scales[1:]:
        common = b.binary("min" if policy == "not_larger" else "max", common, scale)
    wanted = []
    for axis in axes:
        exact = b.binary("mul", b.extent(x.shape[axis], _WIDE), common)
        rounded = b.unary("floor", b.binary("add", exact, b.scalar(0.5, _WIDE)))
        wanted.append(_Axis(axis, x.shape[axis], b.size(b.cast(rounded, DataType.INT64)), common))
    return wanted


def _cropped(call: Call, wanted: list[_Axis]) -> list[_Axis]:
    b, roi = call.builder, call.input(1)
    count = len(wanted)
    if roi.rank != 1 or roi.shape[0].constant != 2 * count:
        call.fail(f"its region of interest is {roi}; it needs a start and an end for each of {count} axes")

    def part(place: int) -> Value:
        return b.cast(b.gather(roi, b.integer(place), 0), _WIDE)

    return [
        _Axis(each.axis, each.size, each.target, each.scale, part(place), part(count + place))
        for place, each in enumerate(wanted)
    ]


def _along(call: Call, x: Value, each: _Axis, settings: _Settings) -> Value:
    b, axis = call.builder, each.axis
    scale = each.scale.known
    if each.start is None and each.target == each.size and (scale is None or float(scale) == 1):
        return x
    repeats = settings.mode == "nearest" and settings.position not in ("align_corners", "tf_crop_and_resize")
    times = each.target.exact_quotient(each.size) if each.size.constant is None else None
    rounded = settings.rounding in ("round_prefer_floor", "round_prefer_ceil")
    same = settings.rounding == "floor" if settings.position == "asymmetric" else rounded
    if repeats and same and times is not None and times.constant is not None:
        return _repeated(b, x, axis, times)
    places = _places(b, each, settings)
    if settings.mode == "nearest":
        resized = b.gather(x, _nearest(b, places, each.size, settings), axis)
    else:
        resized = _weighted(b, x, each, places, settings)
    if each.start is None:
        return resized
    last = b.extent(each.size - 1, _WIDE)
    outside = b.binary("or", b.binary("lt", places, b.scalar(0, _WIDE)), b.binary("lt", last, places))
    lifted = b.reshape(outside, (each.target, *[Extent.of(1)] * (x.rank - 1 - axis)))
    return b.where(lifted, b.scalar(settings.extrapolation, x.type), resized)


def _places(b: Builder, each: _Axis, settings: _Settings) -> Value:
    """Return where each element of the result lies in the input, [target] of float64."""

    def number(value: float) -> Value:
        return b.scalar(value, _WIDE)

    index = b.cast(arange(b, each.target), _WIDE)
    size, target = b.extent(each.size, _WIDE), b.extent(each.target, _WIDE)
    # By the specification the length is scale · size, even where that isn't a whole number.
    length = b.binary("mul", each.scale, size)
    single = b.binary("eq", length, number(1))
    safe = b.where(single, number(1), b.binary("sub", length, number(1)))
    inner = b.binary("sub", size, number(1))
    half = b.binary("sub", b.binary("div", b.binary("add", index, number(0.5)), each.scale), number(0.5))
    match settings.position:
        case "asymmetric":
            return b.binary("div", index, each.scale)
        case "align_corners":
            place = b.binary("div", b.binary("mul", index, inner), safe)
            return b.where(single, number(0), place)
        case "tf_crop_and_resize":
            assert each.start is not None
            assert each.end is not None
            span = b.binary("mul", b.binary("sub", each.end, each.start), inner)
            place = b.binary("div", b.binary("mul", index, span), safe)
            middle = b.binary("mul", span, number(0.5))
            return b.binary("add", b.where(single, middle, place), b.binary("mul", each.start, inner))
        case "pytorch_half_pixel":
            return b.where(b.binary("eq", target, number(1)), number(0), half)
        case "half_pixel_symmetric":
            rest = b.binary("sub", number(1), b.binary("div", target, length))
            return b.binary("add", b.binary("mul", b.binary("mul", size, number(0.5)), rest), half)
    return half


def _nearest(b: Builder, places: Value, size: Extent, settings: _Settings) -> Value:
    half = b.scalar(0.5, _WIDE)
    match settings.rounding:
        case "round_prefer_floor":
            rounded = b.ceil(b.binary("sub", places, half))
        case "round_prefer_ceil":
            rounded = b.unary("floor", b.binary("add", places, half))
        case "floor":
            rounded = b.unary("floor", places)
        case _:
            rounded = b.ceil(places)
    last = b.extent(size - 1, _WIDE)
    return b.cast(b.binary("max", b.binary("min", rounded, last), b.scalar(0, _WIDE)), DataType.INT64)


def _widened(call: Call, x: Value) -> Value:
    """Return numbers as floats that take what is computed with them."""
    if x.type in (DataType.BOOL, DataType.INT64, DataType.UINT64, DataType.STRING):
        call.fail(f"{x} has elements that are only taken as they are; use the mode 'nearest', or cast it")
    wide = _WIDE if x.type in (DataType.INT32, DataType.UINT32) else DataType.FLOAT32
    return x if x.type in (DataType.FLOAT32, DataType.FLOAT64) else call.builder.cast(x, wide)


def _narrowed(b: Builder, x: Value, type_: DataType) -> Value:
    """Return numbers in the type that they had; integers lose their fraction, not their range."""
    if x.type is type_:
        return x
    if type_ in INTEGERS:
        low, high = (b.scalar(extreme(type_, end), x.type) for end in (-1, 1))
        x = b.binary("min", b.binary("max", x, low), high)
    return b.cast(x, type_)


def _weighted(b: Builder, x: Value, each: _Axis, places: Value, settings: _Settings) -> Value:
    """Add up what is around each place, by weights that fall with the distance.

    What lies beside the input is the element at its edge, or, excluded, nothing.
    """

    def number(value: float) -> Value:
        return b.scalar(value, _WIDE)

    reach: Value = number(1 if settings.mode == "linear" else 2)
    narrowing: Value | None = None
    if settings.antialias:
        narrowing = b.binary("min", each.scale, number(1))
        reach = b.ceil(b.binary("div", reach, narrowing))
    half = b.size(b.cast(reach, DataType.INT64))
    taps = half * 2
    steps = b.binary("sub", b.cast(arange(b, taps), _WIDE), b.extent(half - 1, _WIDE))
    index = b.binary("add", b.unary("floor", places), b.reshape(steps, (taps, ONE)))
    gap = b.unary("abs", b.binary("sub", index, places))
    if narrowing is not None:
        gap = b.binary("mul", gap, narrowing)
    weights = _triangle(b, gap) if settings.mode == "linear" else _keys(b, gap, settings.cubic)
    none, last = number(0), b.extent(each.size - 1, _WIDE)
    if settings.exclude:
        outside = b.binary("or", b.binary("lt", index, none), b.binary("lt", last, index))
        weights = b.where(outside, none, weights)
    if settings.exclude or settings.antialias:
        total = b.reduce("reduce_sum", weights, (0,), keep=True)
        weights = b.binary("div", weights, b.where(b.binary("eq", total, none), number(1), total))
    inside = b.cast(b.binary("max", b.binary("min", index, last), none), DataType.INT64)
    outer, inner = (product(sizes) for sizes in (x.shape[: each.axis], x.shape[each.axis + 1 :]))
    around = b.gather(b.reshape(x, (outer, each.size, inner)), inside, 1)
    shares = b.reshape(b.cast(weights, x.type), (taps, each.target, ONE))
    parts = b.binary("mul", around, shares)
    if shares.known is None or not shares.known.all():
        # Nothing of what is infinite is nothing.
        zero = b.scalar(0, x.type)
        parts = b.where(b.binary("eq", shares, zero), zero, parts)
    summed = b.reduce("reduce_sum", parts, (1,), keep=False)
    return b.reshape(summed, (*x.shape[: each.axis], each.target, *x.shape[each.axis + 1 :]))


def _triangle(b: Builder, gap: Value) -> Value:
    return b.binary("max", b.binary("sub", b.scalar(1, _WIDE), gap), b.scalar(0, _WIDE))


def _keys(b: Builder, gap: Value, a: float) -> Value:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981), parameter a."""

    def polynomial(*coefficients: float) -> Value:
        value = b.scalar(coefficients[0], _WIDE)
        for coefficient in coefficients[1:]:
            value = b.binary("add", b.binary("mul", value, gap), b.scalar(coefficient, _WIDE))
        return value

    near, far = polynomial(a + 2, -(a + 3), 0.0, 1.0), polynomial(a, -5 * a, 8 * a, -4 * a)
    outer = b.where(b.binary("lt", gap, b.scalar(2, _WIDE)), far, b.scalar(0, _WIDE))
    return b.where(b.binary("le", gap, b.scalar(1, _WIDE)), near, outer)


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
