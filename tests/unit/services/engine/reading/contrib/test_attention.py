"""Attention, embeddings and rotation as ONNX Runtime has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.unit.services.engine.reading.contrib.cases import Array, Case, check, named, normal, whole

HALF = np.float16
X, WEIGHTS, BIAS = normal(2, 3, 8), normal(8, 24), normal(24)
Q, K, V = normal(2, 3, 8), normal(2, 5, 8), normal(2, 5, 6)


def ints(*values: Any) -> Array:
    return np.array(values, np.int32)


KEPT = ints([1, 1, 0], [1, 0, 0])
FAR = ints([1, 1, 0, 1, 0], [0, 1, 1, 1, 0])
SQUARE = np.tril(np.ones((2, 3, 3), np.int32))


def attention(
    *more: Any, symbolic: Any = (0,), outputs: Any = (0,), opset: int = 17, **attributes: Any
) -> Case:
    return Case(
        "Attention",
        [X, WEIGHTS, *(more or (BIAS,))],
        {"num_heads": 2, **attributes},
        symbolic=symbolic,
        outputs=outputs,
        opset=opset,
        constants=[1],
    )


def heads(
    *inputs: Any, symbolic: Any = (0, 1, 2), outputs: Any = (0,), opset: int = 17, **attributes: Any
) -> Case:
    return Case(
        "MultiHeadAttention",
        inputs or [Q, K, V],
        {"num_heads": 2, **attributes},
        symbolic=symbolic,
        outputs=outputs,
        opset=opset,
    )


def quantised(x: Any, weights: Any, *more: Any, scale: Any = 0.01, **attributes: Any) -> Case:
    """Return attention to integers; `more` are a mask and zero points."""
    inputs = [x, weights, BIAS, np.array(0.02, np.float32), np.asarray(scale, np.float32), *more]
    return Case("QAttention", inputs, {"num_heads": 2, **attributes}, symbolic=[0], constants=[1])


BYTES, SIGNED = whole(2, 3, 8), whole(8, 24, dtype=np.int8) // 2
IDS = np.random.default_rng(3).integers(0, 9, (2, 3)).astype(np.int32)
SEGMENTS = ints([0, 0, 1], [0, 1, 1])
TABLES = [normal(9, 8), normal(6, 8), normal(2, 8), normal(8), normal(8)]


def embedded(
    *more: Any, tables: Any = TABLES, segments: Any = SEGMENTS, outputs: Any = (0, 1), **options: Any
) -> Case:
    inputs = [IDS, segments, *tables, *more]
    return Case("EmbedLayerNormalization", inputs, outputs=outputs, **options)


AT = np.array([[0, 1, 2], [7, 4, 5]])
COS, SIN = np.cos(normal(10, 2)), np.sin(normal(10, 2))


def rotary(
    x: Array, at: Any = AT, tables: Any = (COS, SIN), symbolic: Any = (0,), opset: int = 17, **attributes: Any
) -> Case:
    return Case("RotaryEmbedding", [x, at, *tables], attributes, symbolic=symbolic, opset=opset)


CASES = {
    "attention": attention(),
    "attention in an old opset": attention(opset=11),
    "attention in a new opset": attention(opset=20),
    "attention without a bias": attention(None),
    "attention that looks back": attention(unidirectional=1),
    "attention that looks back, masked": attention(BIAS, KEPT, unidirectional=1),
    "attention with a scale": attention(scale=0.3),
    "attention with a mask": attention(BIAS, KEPT),
    "attention with a mask of little": attention(BIAS, KEPT, mask_filter_value=-1.0),
    "attention with a square mask": attention(BIAS, SQUARE),
    "attention with lengths": attention(BIAS, ints(3, 2)),
    "attention with lengths of a fixed batch": attention(BIAS, ints(3, 2), symbolic=()),
    "attention with ends and starts": attention(BIAS, ints(3, 2, 0, 1), symbolic=()),
    "attention with a bias of scores": attention(BIAS, KEPT, None, normal(1, 2, 3, 3)),
    "attention with its state": attention(outputs=(0, 1)),
    "attention of narrow values": Case(
        "Attention", [X, normal(8, 20), normal(20)], {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}
    ),
    "heads": heads(),
    "heads in an old opset": heads(opset=11),
    "heads of halves": heads(*(each.astype(HALF) for each in (Q, K, V))),
    "heads with a bias": heads(Q, K, V, normal(22)),
    "heads that look back": heads(Q, Q, Q, unidirectional=1, symbolic=[0]),
    "heads that look back with more keys": heads(unidirectional=1),
    "heads that look back with fewer keys": heads(Q, K[:, :2], V[:, :2], unidirectional=1),
    "heads with a mask": heads(Q, K, V, None, FAR, symbolic=(0, 1, 2, 4)),
    "heads with a square mask": heads(Q, K, V, None, np.stack([FAR, FAR, FAR], 1)),
    "heads with lengths": heads(Q, K, V, None, ints(3, 2)),
    "heads with a bias of scores": heads(Q, K, V, None, None, normal(2, 1, 3, 5), scale=0.4),
    "heads with their state": heads(outputs=(0, 1, 2)),
    "heads apart": heads(Q, normal(2, 2, 5, 4), normal(2, 2, 5, 4)),
    "quantised": quantised(BYTES, SIGNED),
    "quantised with a mask": quantised(BYTES, SIGNED, KEPT, np.array(120, np.uint8), np.array(3, np.int8)),
    "quantised in columns": quantised(
        BYTES, SIGNED, None, np.array(120, np.uint8), scale=np.linspace(0.001, 0.02, 24), unidirectional=1
    ),
    "quantised without a sign": quantised(BYTES, whole(8, 24) // 2, None, None, np.array(60, np.uint8)),
    "embedded": embedded(),
    "embedded with a mask": embedded(KEPT, outputs=(0, 1, 2), symbolic=[0, 1, 7]),
    "embedded without segments": embedded(KEPT, segments=None, tables=[*TABLES[:2], None, *TABLES[3:]]),
    "embedded at positions": embedded(None, ints([2, 1, 0], [0, 1, 1]), attributes={"epsilon": 0.1}),
    "embedded at one batch's positions": embedded(None, ints([2, 1, 0])),
    "embedded in halves": embedded(KEPT, tables=[each.astype(HALF) for each in TABLES], outputs=(0, 1, 2)),
    "rotary": rotary(normal(2, 3, 8)),
    "rotary of apart heads": rotary(normal(2, 2, 3, 4)),
    "rotary of neighbours": rotary(normal(2, 2, 3, 4), interleaved=1),
    "rotary of neighbours together": rotary(normal(2, 3, 8), interleaved=1),
    "rotary from one place on": rotary(normal(2, 2, 3, 4), np.array([4])),
    "rotary from one place on, together": rotary(normal(2, 3, 8), np.array([4]), opset=11),
    "rotary of a part": rotary(normal(2, 2, 3, 6), rotary_embedding_dim=4, num_heads=2),
    "rotary of a part together": rotary(normal(2, 3, 12), rotary_embedding_dim=4, num_heads=2),
    "rotary of a part, neighbours": rotary(
        normal(2, 2, 3, 6), rotary_embedding_dim=4, num_heads=2, interleaved=1
    ),
    "rotary with a scale": rotary(normal(2, 3, 8), scale=2.0),
    "rotary of halves": rotary(normal(2, 3, 8).astype(HALF), tables=(COS.astype(HALF), SIN.astype(HALF))),
}


@named(CASES)
def test_it_agrees(case: Case) -> None:
    check(case)
