"""Operators on integers with a scale and a zero point: in whole numbers, or by way of real ones and back.

ONNX Runtime rounds once zero points are added, which decides ties, where its kernels compute with ratios of
scales; by way of real numbers it rounds before, as QuantizeLinear does. Definitions follow it in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.engine.reading.contrib.definition import FLOAT32, INT32, RANGES, Definition
from services.engine.reading.contrib.operator import INT, INTS, Contrib

_EXACT = "exactly"
_STEP = "within 1 step, where floats fall beside a tie"


# ---- helpers ----
def _zero(d: Definition, index: int, like: str) -> str:
    """Return a zero point, 0 where it is left out."""
    found = d.optional(index)
    return d.constant(0, _small(d, like)) if found is None else _scalar(d, found)


def _scalar(d: Definition, x: str) -> str:
    """Return a value of one element without axes."""
    return d.reshape(x)


def _real(d: Definition, x: str, scale: str, zero: str | None) -> str:
    """Return what integers stand for."""
    away = d.cast(x, INT32)
    if zero is not None:
        away = d("Sub", away, d.cast(zero, INT32))
    return d("Mul", d.cast(away, FLOAT32), scale)


def _kept(d: Definition, x: str, type_: int) -> str:
    """Return whole floats as integers of a type, those beyond its ends as these."""
    low, high = (d.constant(end, FLOAT32) for end in RANGES[type_])
    return d.cast(d.cast(d("Min", d("Max", x, low), high), INT32), type_)


def _moved(d: Definition, x: str, zero: str) -> str:
    """Return floats as integers, rounded once the zero point is added."""
    return _kept(d, d("Round", d("Add", x, d.cast(zero, FLOAT32))), _small(d, zero))


def _rounded(d: Definition, x: str, zero: str) -> str:
    """Return floats as integers, rounded before the zero point is added."""
    return _kept(d, d("Add", d("Round", x), d.cast(zero, FLOAT32)), _small(d, zero))


def _quantised(d: Definition, x: str, scale: str, zero: str) -> str:
    """Return what integers stand for as such of another scale."""
    return _rounded(d, d("Div", x, scale), zero)


def _small(d: Definition, x: str) -> int:
    type_ = d.type(x)
    if type_ not in RANGES:
        d.fail("values and zero points must be of int8 or uint8")
    return type_


# ---- elementwise ----
def _two(d: Definition) -> tuple[str, str, str, str, str, str, str, str]:
    a, b = d.input(0), d.input(3)
    zeros = _zero(d, 2, a), _zero(d, 5, b), _zero(d, 7, a)
    scales = [_scalar(d, d.input(index)) for index in (1, 4, 6)]
    return a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2]


def _add(d: Definition) -> tuple[str]:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = _two(d)
    ratios = d("Div", a_scale, scale), d("Div", b_scale, scale)
    parts = [
        d("Mul", d.cast(d("Sub", d.cast(x, INT32), d.cast(away, INT32)), FLOAT32), ratio)
        for x, away, ratio in ((a, a_zero, ratios[0]), (b, b_zero, ratios[1]))
    ]
    return (_moved(d, d("Add", *parts), zero),)


def _mul(d: Definition) -> tuple[str]:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = _two(d)
    left, right = (d("Sub", d.cast(x, INT32), d.cast(away, INT32)) for x, away in ((a, a_zero), (b, b_zero)))
    ratio = d("Div", d("Mul", a_scale, b_scale), scale)
    return (_moved(d, d("Mul", d.cast(d("Mul", left, right), FLOAT32), ratio), zero),)


def _by_reals(function: Callable[[Definition, str], str]) -> Callable[[Definition], tuple[str]]:
    """Return what defines a function of real numbers on integers."""

    def define(d: Definition) -> tuple[str]:
        x = d.input(0)
        real = _real(d, x, _scalar(d, d.input(1)), _zero(d, 2, x))
        return (_quantised(d, function(d, real), _scalar(d, d.input(3)), _zero(d, 4, x)),)

    return define


def _where(d: Definition) -> tuple[str]:
    scale, zero = _scalar(d, d.input(7)), _zero(d, 8, d.input(1))
    sides = [
        _quantised(
            d, _real(d, d.input(at), _scalar(d, d.input(at + 1)), _scalar(d, d.input(at + 2))), scale, zero
        )
        for at in (1, 4)
    ]
    return (d("Where", d.input(0), *sides),)


def _concatenated(d: Definition) -> tuple[str]:
    scale, zero = _scalar(d, d.input(0)), _scalar(d, d.input(1))
    given = d.inputs(2)
    if not given or len(given) % 3:
        d.fail(f"it has {len(given)} inputs after the first two; each value has a scale and a zero point")
    parts = [
        _quantised(d, _real(d, x, _scalar(d, each), _scalar(d, away)), scale, zero)
        for x, each, away in zip(given[::3], given[1::3], given[2::3], strict=True)
    ]
    return (d("Concat", *parts, axis=d.integer("axis")),)


# ---- pooling and softmax ----
def _last(d: Definition, x: str, rank: int) -> str:
    """Return channels on the last axis, from the second."""
    return d.transpose(x, 0, *range(2, rank), 1)


def _second(d: Definition, x: str, rank: int) -> str:
    """Return channels on the second axis, from the last."""
    return d.transpose(x, 0, rank - 1, *range(1, rank - 1))


_WINDOWS = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _average(d: Definition, real: str) -> str:
    given = d.given(*_WINDOWS)
    if not given["ceil_mode"]:
        del given["ceil_mode"]  # which older versions don't have
    elif d.opset < 10:
        d.fail("attribute 'ceil_mode' is new in opset 10")
    if not d.integer("channels_last"):
        return d("AveragePool", real, **given)
    rank = d.rank(d.input(0))
    return _last(d, d("AveragePool", _second(d, real, rank), **given), rank)


def _global_average(d: Definition) -> tuple[str]:
    x, scale, zero = d.input(0), _scalar(d, d.input(3)), _scalar(d, d.input(4))
    rank, last = d.rank(x), d.integer("channels_last")
    if rank < 3:
        d.fail(f"its input has {rank} axes; at least 3 are needed")
    axes = list(range(1, rank - 1) if last else range(2, rank))
    away = d("Sub", d.cast(x, INT32), d.cast(_scalar(d, d.input(2)), INT32))
    mean = d.mean(d.cast(away, FLOAT32), axes)
    return (_moved(d, d("Mul", mean, d("Div", _scalar(d, d.input(1)), scale)), zero),)


def _quantised_softmax(d: Definition) -> tuple[str]:
    x, zero = d.input(0), _scalar(d, d.input(4))
    found = _softmax(d, _real(d, x, _scalar(d, d.input(1)), _zero(d, 2, x)))
    # ONNX Runtime counts whole steps of the scale in 1, and rounds halves up.
    steps = d("Floor", d("Div", d.constant(1.0, FLOAT32), _scalar(d, d.input(3))))
    whole = d("Floor", d("Add", d("Mul", found, steps), d.constant(0.5, FLOAT32)))
    return (_kept(d, d("Add", whole, d.cast(zero, FLOAT32)), _small(d, zero)),)


def _softmax(d: Definition, real: str) -> str:
    sizes, axis = d.sizes(d.input(0)), d.integer("axis")
    rank = len(sizes)
    if not -rank <= axis < rank:
        d.fail(f"axis {axis} is outside of {-rank} to {rank - 1}, the axes of its input")
    axis %= rank
    if d.integer("opset") < 13:
        if axis < rank - 1:
            # All axes from this one on are one.
            flat = d.reshape(d("Flatten", real, axis=axis), 0, -1)
            return d("Reshape", d.softmax(flat, 2), d("Shape", real))
        return d.softmax(real, rank)
    if axis == rank - 1:
        return d.softmax(real, rank)
    order = [*range(axis), *range(axis + 1, rank), axis]
    back = [order.index(each) for each in range(rank)]
    return d.transpose(d.softmax(d.transpose(real, *order), rank), *back)


# ---- to and from real numbers ----
def _axis(d: Definition) -> dict[str, int]:
    """Return the axis of scales; older versions have one scale for all."""
    if d.opset < 13:
        rank = d.rank(d.input(1))
        if rank and d.sizes(d.input(1)) != (1,):
            d.fail(f"scales along an axis need opset 13; the model has opset {d.opset}")
        return {}
    return {"axis": d.integer("axis", 1)}


def _quantise(d: Definition) -> tuple[str]:
    return (d("QuantizeLinear", *map(d.optional, range(3)), **_axis(d)),)


def _dequantise(d: Definition) -> tuple[str]:
    return (d("DequantizeLinear", *map(d.optional, range(3)), **_axis(d)),)


# ---- products ----
def _scaled(d: Definition, product: str, scales: Sequence[str], bias: str | None) -> str:
    factor = d("Mul", *scales)
    result = d("Mul", d.cast(product, FLOAT32), d.wide(factor))
    return d.cast(d.sum(result, None if bias is None else d.wide(bias)), d.type(scales[0]))


def _to_float(d: Definition) -> tuple[str]:
    a, b, a_zero, b_zero = d.input(0), d.input(1), d.optional(4), d.optional(5)
    if a_zero is None and b_zero is not None:
        a_zero = d.constant(0, d.type(a))
    product = d("MatMulInteger", a, b, a_zero, b_zero)
    return (_scaled(d, product, (d.input(2), d.input(3)), d.optional(6)),)


def _dynamic(d: Definition) -> tuple[str]:
    whole, scale, zero = d.several("DynamicQuantizeLinear", 3, d.input(0))
    product = d("MatMulInteger", whole, d.input(1), zero, d.optional(3))
    factor = d("Mul", scale, d.input(2))
    return (d.sum(d("Mul", d.cast(product, FLOAT32), factor), d.optional(4)),)


def _gemm(d: Definition) -> tuple[str]:
    a, b = d.input(0), d.input(3)
    left, right = (
        d.transpose(x, 1, 0) if d.integer(f"trans{letter}") else x for x, letter in ((a, "A"), (b, "B"))
    )
    product = d.sum(d("MatMulInteger", left, right, _scalar(d, d.input(2)), d.input(5)), d.optional(6))
    factor = d("Mul", _scalar(d, d.input(1)), d.input(4))
    if d.number("alpha") != 1:
        factor = d("Mul", factor, d.constant(d.number("alpha"), FLOAT32))
    real = d.cast(product, FLOAT32)
    scale = d.optional(7)
    if scale is None:
        return (d("Mul", real, factor),)
    return (_rounded(d, d("Mul", real, d("Div", factor, _scalar(d, scale))), _scalar(d, d.input(8))),)


_PAIR = "a a_scale a_zero_point? b b_scale b_zero_point? c_scale c_zero_point?"
_ONE = "x x_scale x_zero_point? y_scale y_zero_point?"

OPERATORS = (
    Contrib(
        "DequantizeLinear", "x x_scale x_zero_point?", "y", _dequantise, 10, {"axis": INT}, agreement=_EXACT
    ),
    Contrib("DynamicQuantizeMatMul", "a b b_scale b_zero_point? bias?", "y", _dynamic, 11),
    Contrib(
        "MatMulIntegerToFloat",
        "a b a_scale b_scale a_zero_point? b_zero_point? bias?",
        "y",
        _to_float,
        10,
    ),
    Contrib(
        "QGemm",
        "a a_scale a_zero_point b b_scale b_zero_point c? y_scale? y_zero_point?",
        "y",
        _gemm,
        11,
        {"alpha": 1.0, "transA": 0, "transB": 0},
        agreement=_STEP,
    ),
    Contrib("QLinearAdd", _PAIR, "c", _add, 11, agreement=_STEP),
    Contrib(
        "QLinearAveragePool",
        _ONE,
        "y",
        _by_reals(_average),
        11,
        {
            "auto_pad": "NOTSET",
            "ceil_mode": 0,
            "channels_last": 0,
            "count_include_pad": 0,
            "kernel_shape": INTS,
            "pads": INTS,
            "strides": INTS,
        },
        required=("kernel_shape",),
        agreement=_STEP,
    ),
    Contrib(
        "QLinearConcat",
        "y_scale y_zero_point inputs*",
        "y",
        _concatenated,
        11,
        {"axis": INT},
        ("axis",),
        agreement=_EXACT,
    ),
    Contrib(
        "QLinearGlobalAveragePool",
        "x x_scale x_zero_point y_scale y_zero_point",
        "y",
        _global_average,
        11,
        {"channels_last": 0},
        agreement=_STEP,
    ),
    Contrib(
        "QLinearLeakyRelu",
        _ONE,
        "y",
        _by_reals(lambda d, x: d("LeakyRelu", x, alpha=d.number("alpha"))),
        11,
        {"alpha": 0.01},
        agreement=_EXACT,
    ),
    Contrib("QLinearMul", _PAIR, "c", _mul, 11, agreement=_EXACT),
    Contrib("QLinearSigmoid", _ONE, "y", _by_reals(lambda d, x: d("Sigmoid", x)), 11, agreement=_STEP),
    Contrib(
        "QLinearSoftmax",
        "x x_scale x_zero_point? y_scale y_zero_point",
        "y",
        _quantised_softmax,
        11,
        {"axis": -1, "opset": INT},
        ("opset",),
        agreement=_STEP,
    ),
    Contrib(
        "QLinearWhere",
        "condition x x_scale x_zero_point y y_scale y_zero_point z_scale z_zero_point",
        "z",
        _where,
        11,
        agreement=_EXACT,
    ),
    Contrib("QuantizeLinear", "x y_scale y_zero_point?", "y", _quantise, 10, {"axis": INT}, agreement=_EXACT),
)
