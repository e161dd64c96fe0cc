"""Activations, softmax among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.elementwise import log_of_1_and
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent, product
from services.engine.domain.values import FLOATS, Value


def _relu(call: Call) -> Value:
    x = call.input(0)
    return call.builder.binary("max", x, call.builder.scalar(0, x.type))


def _parts(b: Builder, x: Value) -> tuple[Value, Value]:
    """Return max(x, 0) and min(x, 0)."""
    zero = b.scalar(0, x.type)
    return b.binary("max", x, zero), b.binary("min", x, zero)


def _leaky_of(b: Builder, x: Value, alpha: float) -> Value:
    above, below = _parts(b, x)
    return b.binary("add", above, b.binary("mul", below, b.scalar(alpha, x.type)))


def _leaky(call: Call) -> Value:
    return _leaky_of(call.builder, call.floats(call.input(0)), call.number("alpha", 0.01))


def _prelu(call: Call) -> Value:
    x, slope, b = call.input(0), call.input(1), call.builder
    above, below = _parts(b, x)
    return b.binary("add", above, b.binary("mul", below, slope))


def _exponential(b: Builder, x: Value, alpha: float, divisor: float = 1.0) -> Value:
    """Return max(x, 0) + alpha · (exp(min(x, 0) / divisor) − 1): it never overflows."""
    above, below = _parts(b, x)
    if divisor != 1:
        below = b.binary("div", below, b.scalar(divisor, x.type))
    bent = b.binary("sub", b.unary("exp", below), b.scalar(1, x.type))
    return b.binary("add", above, b.binary("mul", bent, b.scalar(alpha, x.type)))


def _elu(call: Call) -> Value:
    return _exponential(call.builder, call.floats(call.input(0)), call.number("alpha", 1.0))


def _celu(call: Call) -> Value:
    alpha = call.number("alpha", 1.0)
    if alpha == 0:
        call.fail("attribute 'alpha' is 0; it must be another number")
    return _exponential(call.builder, call.floats(call.input(0)), alpha, alpha)


def _selu(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    alpha, gamma = call.number("alpha", 1.6732632423543772), call.number("gamma", 1.0507009873554805)
    return b.binary("mul", _exponential(b, x, alpha), b.scalar(gamma, x.type))


def _thresholded_of(b: Builder, x: Value, alpha: float) -> Value:
    passes = b.binary("lt", b.scalar(alpha, x.type), x)
    return b.where(passes, x, b.scalar(0, x.type))


def _thresholded(call: Call) -> Value:
    return _thresholded_of(call.builder, call.floats(call.input(0)), call.number("alpha", 1.0))


def _shrink(call: Call) -> Value:
    x, b = call.input(0), call.builder
    limit, bias = call.number("lambd", 0.5), call.number("bias", 0.0)
    if x.type in FLOATS:
        return _shrunk(b, x, -limit, limit, bias)
    if x.type is DataType.UINT64 or not (bias.is_integer() and max(abs(bias), abs(limit)) < _MOST):
        return b.cast(_shrunk(b, b.cast(x, DataType.FLOAT64), -limit, limit, bias), x.type)
    # Of whole numbers those below −λ are those below its ceiling.
    whole = b.cast(x, DataType.INT64)
    return b.cast(_shrunk(b, whole, math.ceil(-limit), math.floor(limit), int(bias)), x.type)


_MOST = 2.0**62
"""What comes near the ends of 64 bits is computed with in floats."""


def _shrunk(b: Builder, x: Value, low: float, high: float, bias: float) -> Value:
    """Return x + bias where x is below `low`, x − bias where it is above `high`, else 0."""
    zero, added = b.scalar(0, x.type), b.scalar(bias, x.type)
    below, above = b.binary("lt", x, b.scalar(low, x.type)), b.binary("lt", b.scalar(high, x.type), x)
    inner = b.where(above, b.binary("sub", x, added), zero)
    return b.where(below, b.binary("add", x, added), inner)


def sigmoid(b: Builder, x: Value) -> Value:
    """Return 1 / (1 + exp(−x)); where exp overflows, the result is 0, as it should be."""
    one = b.scalar(1, x.type)
    return b.binary("div", one, b.binary("add", one, b.unary("exp", b.unary("neg", x))))


def _sigmoid(call: Call) -> Value:
    return sigmoid(call.builder, call.floats(call.input(0)))


def _swish(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    alpha = call.number("alpha", 1.0)
    scaled = x if alpha == 1 else b.binary("mul", x, b.scalar(alpha, x.type))
    return b.binary("mul", x, sigmoid(b, scaled))


def _hard_gate(b: Builder, x: Value, alpha: float, beta: float) -> Value:
    line = b.binary("add", b.binary("mul", x, b.scalar(alpha, x.type)), b.scalar(beta, x.type))
    return b.binary("max", b.binary("min", line, b.scalar(1, x.type)), b.scalar(0, x.type))


def _hard_sigmoid(call: Call) -> Value:
    x = call.floats(call.input(0))
    return _hard_gate(call.builder, x, call.number("alpha", 0.2), call.number("beta", 0.5))


def _hard_swish(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    return b.binary("mul", x, _hard_gate(b, x, 1 / 6, 0.5))


def _softplus_of(b: Builder, x: Value) -> Value:
    """Return max(x, 0) + log(1 + exp(−|x|)), which never overflows."""
    tail = log_of_1_and(b, b.unary("exp", b.unary("neg", b.unary("abs", x))))
    return b.binary("add", b.binary("max", x, b.scalar(0, x.type)), tail)


def _softplus(call: Call) -> Value:
    return _softplus_of(call.builder, call.floats(call.input(0)))


def _softsign_of(b: Builder, x: Value) -> Value:
    return b.binary("div", x, b.binary("add", b.scalar(1, x.type), b.unary("abs", x)))


def _softsign(call: Call) -> Value:
    return _softsign_of(call.builder, call.floats(call.input(0)))


def _mish(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    return b.binary("mul", x, b.unary("tanh", _softplus_of(b, x)))


def _gelu(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    if call.text("approximate", "none", ("none", "tanh")) == "none":
        bent = b.unary("erf", b.binary("mul", x, b.scalar(math.sqrt(0.5), x.type)))
    else:
        cube = b.binary("mul", b.binary("mul", b.binary("mul", x, x), x), b.scalar(0.044715, x.type))
        bent = b.unary(
            "tanh", b.binary("mul", b.binary("add", x, cube), b.scalar(math.sqrt(2 / math.pi), x.type))
        )
    half = b.binary("mul", x, b.scalar(0.5, x.type))
    return b.binary("mul", half, b.binary("add", bent, b.scalar(1, x.type)))


def _clip(call: Call) -> Value:
    x, b = call.input(0), call.builder
    if call.opset < 11:
        lowest, highest = call.number("min", -math.inf), call.number("max", math.inf)
        low = None if math.isinf(lowest) else b.scalar(lowest, x.type)
        high = None if math.isinf(highest) else b.scalar(highest, x.type)
    else:
        low, high = call.optional(1), call.optional(2)
    for operator, limit in (("max", low), ("min", high)):
        if limit is not None:
            if limit.rank > 0 and limit.shape != (Extent.of(1),):
                call.fail(f"a limit is {limit}, not a scalar")
            x = b.binary(operator, x, b.reshape(limit, ()))
    return x


def _softmax_axes(call: Call, x: Value) -> tuple[int, ...]:
    """Return the axes that are normalised over: before opset 13, `axis` and all that follow."""
    if call.opset < 13:
        return tuple(range(call.axis(call.integer("axis", 1), x.rank), x.rank))
    return (call.axis(call.integer("axis", -1), x.rank),)


def _shifted(b: Builder, x: Value, axes: tuple[int, ...]) -> tuple[Value, Value, Value]:
    """Return x − max x, its exponentials, and their sum along the axes, kept with size 1."""
    shifted = b.binary("sub", x, b.reduce("reduce_max", x, axes, keep=True))
    powers = b.unary("exp", shifted)
    return shifted, powers, b.reduce("reduce_sum", powers, axes, keep=True)


def softmax(b: Builder, x: Value, axes: tuple[int, ...]) -> Value:
    """Return exp(x − max x) / Σ of it along the axes."""
    _, powers, total = _shifted(b, x, axes)
    return b.binary("div", powers, total)


def _softmax(call: Call) -> Value:
    x = call.floats(call.input(0))
    return softmax(call.builder, x, _softmax_axes(call, x))


def _log_softmax(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    shifted, _, total = _shifted(b, x, _softmax_axes(call, x))
    return b.binary("sub", shifted, b.unary("log", total))


def _hardmax(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    axes = _softmax_axes(call, x)
    size = product(x.shape[axis] for axis in axes)
    # Before opset 13 all that follow the axis are one; now it is one alone.
    flat = b.reshape(x, (*x.shape[: axes[0]], size, *x.shape[axes[-1] + 1 :]))
    axis = axes[0]
    largest = b.arg_max(flat, axis)
    lifted = b.reshape(largest, (*flat.shape[:axis], Extent.of(1), *flat.shape[axis + 1 :]))
    places = b.reshape(arange(b, size), (size, *[Extent.of(1)] * (flat.rank - 1 - axis)))
    return b.reshape(b.cast(b.binary("eq", lifted, places), x.type), x.shape)


def bent_by(
    call: Call, name: str, alphas: Iterator[float], betas: Iterator[float]
) -> Callable[[Value], Value]:
    """Return the activation of a recurrent layer; it takes its numbers from `alphas` and `betas`.

    Raises Invalid for a name that ONNX doesn't have.
    """
    b = call.builder

    def number(given: Iterator[float], default: float) -> float:
        return next(given, default)

    match name.casefold():
        case "relu":
            return lambda x: b.binary("max", x, b.scalar(0, x.type))
        case "tanh":
            return lambda x: b.unary("tanh", x)
        case "sigmoid":
            return lambda x: sigmoid(b, x)
        case "affine":
            alpha, beta = number(alphas, 1.0), number(betas, 0.0)
            return lambda x: b.binary(
                "add", b.binary("mul", x, b.scalar(alpha, x.type)), b.scalar(beta, x.type)
            )
        case "leakyrelu":
            alpha = number(alphas, 0.01)
            return lambda x: _leaky_of(b, x, alpha)
        case "thresholdedrelu":
            alpha = number(alphas, 1.0)
            return lambda x: _thresholded_of(b, x, alpha)
        case "scaledtanh":
            alpha, beta = number(alphas, 1.0), number(betas, 1.0)
            return lambda x: b.binary(
                "mul", b.unary("tanh", b.binary("mul", x, b.scalar(beta, x.type))), b.scalar(alpha, x.type)
            )
        case "hardsigmoid":
            alpha, beta = number(alphas, 0.2), number(betas, 0.5)
            return lambda x: _hard_gate(b, x, alpha, beta)
        case "elu":
            alpha = number(alphas, 1.0)
            return lambda x: _exponential(b, x, alpha)
        case "softsign":
            return lambda x: _softsign_of(b, x)
        case "softplus":
            return lambda x: _softplus_of(b, x)
    known = "Relu, Tanh, Sigmoid, Affine, LeakyRelu, ThresholdedRelu, ScaledTanh, HardSigmoid, Elu, Softsign"
    call.fail(f"activation {name[:80]!r} is not supported; use one of {known}, Softplus")


OPERATORS = (
    Operator("Celu", "composite", _celu, 12),
    Operator("Clip", "composite", _clip),
    Operator("Elu", "composite", _elu),
    Operator("Gelu", "composite", _gelu, 20),
    Operator("HardSigmoid", "composite", _hard_sigmoid),
    Operator("HardSwish", "composite", _hard_swish, 14),
    Operator("Hardmax", "composite", _hardmax),
    Operator("LeakyRelu", "composite", _leaky),
    Operator("LogSoftmax", "composite", _log_softmax),
    Operator("Mish", "composite", _mish, 18),
    Operator("PRelu", "composite", _prelu),
    Operator("Relu", "atomic", _relu),
    Operator("Selu", "composite", _selu),
    Operator("Shrink", "composite", _shrink, 9),
    Operator("Sigmoid", "composite", _sigmoid),
    Operator("Softmax", "composite", _softmax),
    Operator("Softplus", "composite", _softplus),
    Operator("Softsign", "composite", _softsign),
    Operator("Swish", "composite", _swish, 24),
    Operator("ThresholdedRelu", "composite", _thresholded, 10),
)
