"""Random numbers, made of random bits: the same in every call where the node has a seed."""

from __future__ import annotations

import math

import numpy as np

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.casting import onnx_type
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.extents import Extent
from services.engine.domain.values import Shape, Value

_WIDE = DataType.FLOAT64


def uniform(b: Builder, shape: Shape, seed: float | None) -> Value:
    """Return float64 numbers, evenly distributed over (0, 1): neither end comes."""
    # The bits of the seed as a float32, so that seeds that differ a little are other seeds.
    integers = [] if seed is None else [int(np.float32(seed).view(np.int32))]
    (bits,) = b.host("random_bits", [b.integers(shape)], [(DataType.UINT32, shape)], integers=integers)
    assert isinstance(bits, Value)
    middle = b.binary("add", b.cast(bits, _WIDE), b.scalar(0.5, _WIDE))
    return b.binary("mul", middle, b.scalar(2.0**-32, _WIDE))


def _normal(b: Builder, shape: Shape, seed: float | None) -> Value:
    """Return float64 numbers of the standard normal distribution, by the method of Box and Muller (1958)."""
    both = uniform(b, (Extent.of(2), *shape), seed)
    first, second = (b.gather(both, b.integer(place), 0) for place in range(2))
    radius = b.unary("sqrt", b.binary("mul", b.unary("log", first), b.scalar(-2, _WIDE)))
    return b.binary("mul", radius, b.unary("cos", b.binary("mul", second, b.scalar(2 * math.pi, _WIDE))))


def _seed(call: Call) -> float | None:
    return call.number("seed", 0.0) if "seed" in call.node.attributes else None


def _shape(call: Call) -> tuple[Shape, DataType]:
    if call.inputs:
        x = call.input(0)
        number = call.integer("dtype", 0)
        return x.shape, onnx_type(call, number) if number else x.type
    sizes = call.integers("shape") or ()
    return tuple(map(Extent.of, sizes)), onnx_type(call, call.integer("dtype", 1))


def _scaled(call: Call, numbers: Value, scale: float, shift: float, type_: DataType) -> Value:
    b = call.builder
    wide = b.binary("add", b.binary("mul", numbers, b.scalar(scale, _WIDE)), b.scalar(shift, _WIDE))
    return b.cast(wide, type_)


def _random_uniform(call: Call) -> Value:
    shape, type_ = _shape(call)
    low, high = call.number("low", 0.0), call.number("high", 1.0)
    return _scaled(call, uniform(call.builder, shape, _seed(call)), high - low, low, type_)


def _random_normal(call: Call) -> Value:
    shape, type_ = _shape(call)
    mean, scale = call.number("mean", 0.0), call.number("scale", 1.0)
    return _scaled(call, _normal(call.builder, shape, _seed(call)), scale, mean, type_)


def _bernoulli(call: Call) -> Value:
    x, b = call.floats(call.input(0)), call.builder
    drawn = b.binary("lt", uniform(b, x.shape, _seed(call)), b.cast(x, _WIDE))
    number = call.integer("dtype", 0)
    return b.cast(drawn, onnx_type(call, number) if number else x.type)


def _multinomial(call: Call) -> Value:
    """Draw classes by their unnormalised logarithms: the largest of each with Gumbel noise."""
    x, b = call.floats(call.input(0)), call.builder
    if x.rank != 2:
        call.fail(f"its input is {x}, not [batch, classes]")
    shape = (x.shape[0], Extent.of(call.integer("sample_size", 1)), x.shape[1])
    noise = b.unary("neg", b.unary("log", b.unary("neg", b.unary("log", uniform(b, shape, _seed(call))))))
    scores = b.reshape(b.cast(x, _WIDE), (x.shape[0], Extent.of(1), x.shape[1]))
    found = b.arg_max(b.binary("add", scores, noise), 2)
    return b.cast(found, onnx_type(call, call.integer("dtype", 6)))


def _dropout(call: Call) -> tuple[Value, ...]:
    """Drop elements in training, and scale up the others; for inference nothing is dropped."""
    x, b = call.input(0), call.builder
    training = call.optional(2)
    everything = b.broadcast(b.constant(np.array(True)), x.shape, fold=False)
    if training is None or (training.known is not None and not training.known.any()):
        # Before opset 10 the mask has the data's type.
        mask = b.cast(everything, x.type) if call.opset < 10 else everything
        return (x, mask) if call.wants(1) else (x,)
    given = call.optional(1)
    ratio = b.scalar(0.5, _WIDE) if given is None else b.cast(b.reshape(given, ()), _WIDE)
    drops = b.where(b.reshape(training, ()), ratio, b.scalar(0, _WIDE))
    kept = b.binary("le", drops, uniform(b, x.shape, _seed(call)))
    scale = b.binary("div", b.scalar(1, _WIDE), b.binary("sub", b.scalar(1, _WIDE), drops))
    scaled = b.binary("mul", x, b.cast(scale, x.type))
    return b.where(kept, scaled, b.scalar(0, x.type)), kept


OPERATORS = (
    Operator("Dropout", "composite", _dropout),
    Operator("Bernoulli", "composite", _bernoulli, 15, keeps=True),
    Operator("Multinomial", "composite", _multinomial),
    Operator("RandomNormal", "composite", _random_normal),
    Operator("RandomNormalLike", "composite", _random_normal, keeps=True),
    Operator("RandomUniform", "composite", _random_uniform),
    Operator("RandomUniformLike", "composite", _random_uniform, keeps=True),
)
