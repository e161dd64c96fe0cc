"""Steps of optimisers (ai.onnx.preview.training); the inputs are rate, step count, then groups of tensors."""

from __future__ import annotations

from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.values import Value


def _groups(call: Call, count: int) -> list[list[Value]]:
    """Return the tensors as `count` lists of equal length: weights, gradients, and so on."""
    tensors = [call.input(index) for index in range(2, len(call.inputs))]
    each, rest = divmod(len(tensors), count)
    if rest or not each:
        call.fail(f"it has {len(tensors)} tensors, which don't make {count} groups")
    return [tensors[place * each : (place + 1) * each] for place in range(count)]


def _regularised(call: Call, weight: Value, gradient: Value) -> Value:
    b = call.builder
    norm = b.scalar(call.number("norm_coefficient", 0.0), weight.type)
    return b.binary("add", b.binary("mul", norm, weight), gradient)


def _mixed(call: Call, share: float, old: Value, new: Value) -> Value:
    """Return share · old + (1 − share) · new."""
    b = call.builder
    kept = b.binary("mul", b.scalar(share, old.type), old)
    return b.binary("add", kept, b.binary("mul", b.scalar(1 - share, new.type), new))


def _adagrad(call: Call) -> tuple[Value, ...]:
    b, rate, step = call.builder, call.input(0), call.input(1)
    weights, gradients, squares = _groups(call, 3)
    decay, epsilon = call.number("decay_factor", 0.0), call.number("epsilon", 1e-6)
    new_weights, new_squares = [], []
    for x, g, h in zip(weights, gradients, squares, strict=True):
        slower = b.binary("mul", b.cast(step, x.type), b.scalar(decay, x.type))
        own = b.binary("div", b.cast(rate, x.type), b.binary("add", b.scalar(1, x.type), slower))
        g = _regularised(call, x, g)
        h = b.binary("add", h, b.binary("mul", g, g))
        scale = b.binary("add", b.unary("sqrt", h), b.scalar(epsilon, x.type))
        new_weights.append(b.binary("sub", x, b.binary("div", b.binary("mul", own, g), scale)))
        new_squares.append(h)
    return *new_weights, *new_squares


def _adam(call: Call) -> tuple[Value, ...]:
    b, rate, step = call.builder, call.input(0), call.input(1)
    weights, gradients, means, squares = _groups(call, 4)
    alpha, beta = call.number("alpha", 0.9), call.number("beta", 0.999)
    epsilon, after = call.number("epsilon", 1e-6), call.number("norm_coefficient_post", 0.0)
    outputs: list[list[Value]] = [[], [], []]
    for x, g, v, h in zip(weights, gradients, means, squares, strict=True):
        one, count = b.scalar(1, x.type), b.cast(step, x.type)
        g = _regularised(call, x, g)
        v, h = _mixed(call, alpha, v, g), _mixed(call, beta, h, b.binary("mul", g, g))
        unbiased = [
            b.binary("sub", one, b.binary("pow", b.scalar(share, x.type), count)) for share in (beta, alpha)
        ]
        corrected = b.binary("div", b.unary("sqrt", unbiased[0]), unbiased[1])
        begun = b.binary("lt", b.scalar(0, x.type), count)
        own = b.binary("mul", b.cast(rate, x.type), b.where(begun, corrected, one))
        scale = b.binary("add", b.unary("sqrt", h), b.scalar(epsilon, x.type))
        x = b.binary("sub", x, b.binary("div", b.binary("mul", own, v), scale))
        outputs[0].append(b.binary("mul", x, b.scalar(1 - after, x.type)))
        outputs[1].append(v)
        outputs[2].append(h)
    return tuple(value for group in outputs for value in group)


def _momentum(call: Call) -> tuple[Value, ...]:
    b, rate, step = call.builder, call.input(0), call.input(1)
    weights, gradients, speeds = _groups(call, 3)
    nesterov = call.text("mode", "standard", ("standard", "nesterov")) == "nesterov"
    new_weights, new_speeds = [], []
    for x, g, v in zip(weights, gradients, speeds, strict=True):
        alpha, beta = (b.scalar(call.number(name, 0.0), x.type) for name in ("alpha", "beta"))
        begun = b.binary("lt", b.scalar(0, x.type), b.cast(step, x.type))
        g = _regularised(call, x, g)
        share = b.where(begun, beta, b.scalar(1, x.type))
        v = b.binary("add", b.binary("mul", alpha, v), b.binary("mul", share, g))
        way = b.binary("add", g, b.binary("mul", alpha, v)) if nesterov else v
        new_weights.append(b.binary("sub", x, b.binary("mul", b.cast(rate, x.type), way)))
        new_speeds.append(v)
    return *new_weights, *new_speeds


OPERATORS = (
    Operator("ai.onnx.preview.training:Adagrad", "composite", _adagrad, 1),
    Operator("ai.onnx.preview.training:Adam", "composite", _adam, 1),
    Operator("ai.onnx.preview.training:Momentum", "composite", _momentum, 1),
)
