"""Activations, some with a bias that is added first."""

from __future__ import annotations

from math import pi, sqrt

from services.engine.reading.contrib.definition import Definition
from services.engine.reading.contrib.operator import Contrib


def _gelu(d: Definition, x: str) -> str:
    """Return x · Φ(x)."""
    wide = d.wide(x)
    inner = d("Erf", d("Mul", wide, d.scalar(sqrt(0.5), wide)))
    grown = d("Mul", wide, d("Add", inner, d.scalar(1, wide)))
    return _back(d, d("Mul", grown, d.scalar(0.5, wide)), x)


def _back(d: Definition, result: str, x: str) -> str:
    return d.cast(result, d.type(x))


def _fast_gelu(d: Definition) -> tuple[str]:
    x = d.input(0)
    wide, bias = d.wide(x), d.optional(1)
    wide = d.sum(wide, None if bias is None else d.wide(bias))
    cube = d("Mul", d("Mul", wide, wide), wide)
    inner = d("Add", wide, d("Mul", cube, d.scalar(0.044715, wide)))
    bent = d("Tanh", d("Mul", inner, d.scalar(sqrt(2 / pi), wide)))
    halved = d("Mul", wide, d.scalar(0.5, wide))
    return (_back(d, d("Mul", halved, d("Add", bent, d.scalar(1, wide))), x),)


def _quick_gelu(d: Definition) -> tuple[str]:
    x = d.input(0)
    wide = d.wide(x)
    gate = d("Sigmoid", d("Mul", wide, d.scalar(d.number("alpha"), wide)))
    return (_back(d, d("Mul", wide, gate), x),)


def _bias_split(d: Definition) -> tuple[str]:
    x = d("Add", d.input(0), d.input(1))
    left, right = d.halves(x, d.rank(d.input(0)) - 1)
    return (d("Mul", left, _gelu(d, right)),)


OPERATORS = (
    Contrib("BiasGelu", "a b", "c", lambda d: (_gelu(d, d("Add", d.input(0), d.input(1))),), 9),
    Contrib("BiasSplitGelu", "x bias", "y", _bias_split, 9, agreement="not compared: it has no kernel there"),
    Contrib("FastGelu", "x bias?", "y", _fast_gelu),
    Contrib("Gelu", "x", "y", lambda d: (_gelu(d, d.input(0)),), 9),
    Contrib("QuickGelu", "x", "y", _quick_gelu, attributes={"alpha": 1.702}),
)
