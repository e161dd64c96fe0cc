"""Normalisation of the last axes, after adding what a residual connection skips."""

from __future__ import annotations

from services.engine.reading.contrib.definition import Definition
from services.engine.reading.contrib.operator import Contrib

_EPSILON = 1e-12


def root_mean_square(d: Definition, x: str, scale: str, axes: list[int], epsilon: float) -> tuple[str, str]:
    """Return x over its root mean square, times scale, and the inverse of the former; x is float32 or 64."""
    square = d.mean(d("Mul", x, x), axes)
    inverse = d("Reciprocal", d("Sqrt", d("Add", square, d.scalar(epsilon, x))))
    return d("Mul", d("Mul", x, inverse), scale), inverse


def layer(
    d: Definition, x: str, scale: str, bias: str | None, axes: list[int], epsilon: float
) -> tuple[str, str, str]:
    """Return x of mean 0 and variance 1, times scale and moved by bias, the mean, the inverse deviation."""
    mean = d.mean(x, axes)
    centred = d("Sub", x, mean)
    variance = d.mean(d("Mul", centred, centred), axes)
    inverse = d("Reciprocal", d("Sqrt", d("Add", variance, d.scalar(epsilon, x))))
    return d.sum(d("Mul", d("Mul", centred, inverse), scale), bias), mean, inverse


def _trailing(d: Definition) -> list[int]:
    """Return the axes from the one that an attribute names."""
    rank, axis = d.rank(d.input(0)), d.integer("axis")
    if not -rank <= axis < rank:
        d.fail(f"axis {axis} is outside of {-rank} to {rank - 1}, the axes of its input")
    return list(range(axis % rank, rank))


def _simplified(d: Definition) -> tuple[str, str]:
    x, scale = d.input(0), d.input(1)
    result, inverse = root_mean_square(d, d.wide(x), d.wide(scale), _trailing(d), d.number("epsilon"))
    return d.cast(result, d.type(scale)), inverse


def _layer(d: Definition) -> tuple[str, ...]:
    x, scale, bias = d.input(0), d.input(1), d.optional(2)
    moved = None if bias is None else d.wide(bias)
    result, mean, inverse = layer(d, d.wide(x), d.wide(scale), moved, _trailing(d), d.number("epsilon"))
    return d.cast(result, d.type(scale)), mean, inverse


def _skip(d: Definition, *, simplified: bool) -> tuple[str | None, ...]:
    x, skip, scale = (d.input(index) for index in range(3))
    bias = d.optional(3 if simplified else 4)
    beta = None if simplified else d.optional(3)
    # Axes are counted from the end since opset 11.
    type_, axes = d.type(scale), [-1 if d.opset >= 11 else d.rank(x) - 1]
    whole = d.sum(*(None if each is None else d.wide(each) for each in (x, skip, bias)))
    wide, epsilon = d.wide(scale), d.number("epsilon")
    mean = None
    if simplified:
        result, inverse = root_mean_square(d, whole, wide, axes, epsilon)
    else:
        moved = None if beta is None else d.wide(beta)
        result, mean, inverse = layer(d, whole, wide, moved, axes, epsilon)
    return d.cast(result, type_), mean, inverse, d.cast(whole, type_)


_OF_LAYERS = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}

OPERATORS = (
    Contrib(
        "LayerNormalization",
        "x scale bias?",
        "y mean? inverse?",
        _layer,
        attributes=_OF_LAYERS,
        domain="",
        before=17,
    ),
    Contrib(
        "SimplifiedLayerNormalization", "x scale", "y inverse?", _simplified, attributes=_OF_LAYERS, domain=""
    ),
    Contrib(
        "SkipLayerNormalization",
        "input skip gamma beta? bias?",
        "output mean? inverse? sum?",
        lambda d: _skip(d, simplified=False),
        attributes={"epsilon": _EPSILON},
    ),
    Contrib(
        "SkipSimplifiedLayerNormalization",
        "input skip gamma bias?",
        "output mean? inverse? sum?",
        lambda d: _skip(d, simplified=True),
        attributes={"epsilon": _EPSILON},
    ),
)
