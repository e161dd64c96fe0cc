"""Activations as ONNX Runtime has them."""

from __future__ import annotations

from dataclasses import replace
from math import erf, sqrt

import numpy as np

from tests.unit.services.engine.reading.contrib.cases import Case, check, named, normal, planned

X = 3 * normal(2, 3, 8)
BIAS = normal(8)
CASES = {
    "gelu": Case("Gelu", [X]),
    "gelu of any size": Case("Gelu", [X], symbolic=True),
    "gelu in an old opset": Case("Gelu", [X], opset=9),
    "gelu in a new opset": Case("Gelu", [X], opset=22),
    "bias gelu": Case("BiasGelu", [X, BIAS]),
    "bias gelu of any size": Case("BiasGelu", [X, BIAS], symbolic=[0]),
    "fast gelu": Case("FastGelu", [X]),
    "fast gelu with a bias": Case("FastGelu", [X, BIAS]),
    "fast gelu of any size": Case("FastGelu", [X, BIAS], symbolic=[0], opset=7),
    "fast gelu of halves": Case("FastGelu", [X.astype(np.float16), BIAS.astype(np.float16)]),
    "quick gelu": Case("QuickGelu", [X]),
    "quick gelu that is steep": Case("QuickGelu", [X], {"alpha": 3.0}, opset=7),
    "quick gelu of any size": Case("QuickGelu", [X], symbolic=True),
}


def test_the_right_half_is_the_gate() -> None:
    # ONNX Runtime has no kernel of it for processors.
    case = Case("BiasSplitGelu", [X, BIAS], symbolic=[0], opset=18)
    left, right = np.split(X + BIAS, 2, axis=-1)
    gate = np.vectorize(lambda value: value * (1 + erf(value / sqrt(2))) / 2)(right)
    for opset in (9, 13, 18):
        found = planned(replace(case, opset=opset).model(), case.feed())["y0"]
        np.testing.assert_allclose(found, left * gate, rtol=1e-5, atol=1e-6)


@named(CASES)
def test_it_agrees(case: Case) -> None:
    check(case)
