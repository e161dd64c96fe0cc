"""Normalisation as ONNX Runtime has it, with each input and output that may be left out."""

from __future__ import annotations

import numpy as np

from tests.unit.services.engine.reading.contrib.cases import Case, check, named, normal

HALF = np.float16
SIMPLE, SKIP, SKIP_SIMPLE = (
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
)


def skip(*more: object, dtype: type = np.float32, **options: object) -> Case:
    """Return a case with scale, shift and bias where `more` names them."""
    inputs = [normal(2, 3, 8, dtype=dtype), normal(2, 3, 8, dtype=dtype), normal(8, dtype=dtype)]
    inputs += [normal(8, dtype=dtype) if "beta" in more else None, normal(8, dtype=dtype)]
    return Case(SKIP, inputs if "bias" in more else inputs[:4], **options)  # type: ignore[arg-type]


def simple(*, bias: bool = False, dtype: type = np.float32, **options: object) -> Case:
    inputs = [normal(2, 3, 8, dtype=dtype), normal(2, 3, 8, dtype=dtype), normal(8, dtype=dtype)]
    return Case(SKIP_SIMPLE, inputs + [normal(8, dtype=dtype)] * bias, **options)  # type: ignore[arg-type]


CASES = {
    "simplified": Case(SIMPLE, [normal(2, 3, 8), normal(8)], domain=""),
    "simplified of any size": Case(SIMPLE, [normal(2, 3, 8), normal(8)], domain="", symbolic=[0]),
    "simplified over two axes": Case(
        SIMPLE, [normal(2, 3, 8), normal(3, 8)], {"axis": 1, "epsilon": 0.1}, domain=""
    ),
    "simplified of doubles": Case(SIMPLE, [normal(2, 8, dtype=float), normal(8, dtype=float)], domain=""),
    "simplified of halves": Case(SIMPLE, [normal(2, 8, dtype=HALF), normal(8, dtype=HALF)], domain=""),
    "simplified of halves with a float32 scale": Case(
        SIMPLE, [normal(2, 8, dtype=HALF), normal(8)], domain=""
    ),
    "simplified in an old opset": Case(SIMPLE, [normal(2, 8), normal(8)], domain="", opset=9),
    "simplified with its inverse": Case(SIMPLE, [normal(2, 8), normal(8)], domain="", outputs=(0, 1)),
    "simplified in a new opset": Case(SIMPLE, [normal(2, 8), normal(8)], domain="", opset=21),
    "layer in an old opset": Case("LayerNormalization", [normal(2, 3, 8), normal(8)], domain="", opset=14),
    "layer with all in an old opset": Case(
        "LayerNormalization",
        [normal(2, 3, 8), normal(3, 8), normal(3, 8)],
        {"axis": 1, "epsilon": 0.1},
        domain="",
        opset=11,
        outputs=(0, 1, 2),
        symbolic=[0],
    ),
    "layer of halves in an old opset": Case(
        "LayerNormalization", [normal(3, 8, dtype=HALF), normal(8, dtype=HALF)], domain="", opset=16
    ),
    "layer in its own opset": Case("LayerNormalization", [normal(2, 3, 8), normal(8)], domain="", opset=17),
    "skip": skip(),
    "skip with a shift": skip("beta"),
    "skip with a bias": skip("bias"),
    "skip with both": skip("beta", "bias"),
    "skip with the sum": skip("beta", "bias", outputs=(0, 3)),
    "skip with its statistics": skip("beta", "bias", outputs=(0, 1, 2, 3)),
    "skip with one statistic": skip("beta", outputs=(0, 2)),
    "skip in halves": skip("beta", "bias", dtype=HALF, outputs=(0, 3)),
    "skip of any size": skip("beta", "bias", symbolic=[0, 1], outputs=(0, 3)),
    "skip in an old opset": skip("beta", opset=8),
    "skip in a new opset": skip("beta", opset=20),
    "skip with an epsilon": skip("beta", attributes={"epsilon": 0.5}),
    "skip that repeats": Case(SKIP, [normal(2, 3, 8), normal(3, 8), normal(8), normal(8)], outputs=(0, 3)),
    "skip of one batch": Case(SKIP, [normal(2, 3, 8), normal(1, 3, 8), normal(8)], outputs=(0, 3)),
    "skip of two axes": Case(SKIP, [normal(3, 8), normal(3, 8), normal(8), normal(8)]),
    "skip simplified": simple(),
    "skip simplified with a bias": simple(bias=True, outputs=(0, 3)),
    "skip simplified with its statistics": simple(bias=True, outputs=(0, 2, 3)),
    "skip simplified in halves": simple(bias=True, dtype=HALF, outputs=(0, 3)),
    "skip simplified of any size": simple(symbolic=[0, 1], outputs=(0, 3)),
    "skip simplified with an epsilon": simple(attributes={"epsilon": 0.5}),
    "skip simplified in an old opset": simple(bias=True, opset=7),
}


@named(CASES)
def test_it_agrees(case: Case) -> None:
    check(case)
