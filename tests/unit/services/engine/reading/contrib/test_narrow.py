"""Weights of few bits as ONNX Runtime has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from tests.unit.services.engine.reading.contrib.cases import Array, Case, check, named, normal, whole


def narrow(
    bits: int,
    rows: int,
    columns: int,
    block: int,
    zeros: Any = None,
    *,
    bias: bool = False,
    dtype: Any = np.float32,
    opset: int = 17,
    **attributes: Any,
) -> Case:
    """Return a product with weights of few bits; `zeros` is the type of zero points."""
    blocks = -(-rows // block)
    inputs: list[Any] = [normal(2, 3, rows, dtype=dtype), whole(columns, blocks, block * bits // 8)]
    inputs.append(normal(columns, blocks, dtype=dtype))
    if zeros is np.uint8:
        inputs.append(whole(columns, -(-blocks * bits // 8)))
    else:
        inputs.append(None if zeros is None else 8 + normal(columns, blocks, dtype=zeros))
    if bias:
        inputs += [None, normal(columns, dtype=dtype)]
    attributes |= {"K": rows, "N": columns, "bits": bits, "block_size": block}
    constants = [index for index in range(1, len(inputs)) if inputs[index] is not None]
    return Case(
        "MatMulNBits", inputs, attributes, opset=opset, symbolic=[0], constants=constants, within=1e-4
    )


PLACES = np.array([[1, 3], [0, 8]])


def gathered(
    data: Any,
    zeros: Any = None,
    *,
    dtype: Any = np.float32,
    opset: int = 17,
    blocks: int = 4,
    **attributes: Any,
) -> Case:
    """Return rows of a table in blocks of 16."""
    inputs = [data, PLACES, normal(9, blocks, dtype=dtype), *([] if zeros is None else [zeros])]
    attributes = {"block_size": 16, **attributes}
    return Case(
        "GatherBlockQuantized",
        inputs,
        attributes,
        opset=opset,
        symbolic=[1],
        constants=[0, 2, 3][: len(inputs) - 1],
    )


def four(*shape: int, dtype: Any) -> Array:
    return (whole(*shape) % 16 - (8 if dtype is ml_dtypes.int4 else 0)).astype(np.int8).astype(dtype)


CASES = {
    "four bits": narrow(4, 64, 5, 32),
    "four bits with zero points": narrow(4, 64, 5, 16, np.uint8),
    "four bits with zero points of half a byte": narrow(4, 48, 5, 16, np.uint8, bias=True),
    "four bits with real zero points": narrow(4, 64, 5, 16, np.float32),
    "four bits and a block begun": narrow(4, 40, 5, 32, np.uint8),
    "four bits in an old opset": narrow(4, 32, 4, 16, np.uint8, opset=11),
    "four bits by bytes": narrow(4, 256, 24, 32, accuracy_level=4),
    "four bits by bytes with zero points": narrow(4, 256, 24, 64, np.uint8, accuracy_level=4, bias=True),
    "four bits by bytes and a block begun": narrow(4, 80, 24, 32, np.uint8, accuracy_level=4),
    "four bits by bytes, real zero points": narrow(4, 64, 24, 32, np.float32, accuracy_level=4),
    "four bits by bytes of halves": narrow(4, 64, 24, 32, dtype=np.float16, accuracy_level=4, opset=20),
    "four bits by bytes, of weights that come": replace(
        narrow(4, 64, 24, 32, np.uint8, accuracy_level=4), constants=()
    ),
    "eight bits by bytes": narrow(8, 64, 24, 32, np.uint8, accuracy_level=4, opset=18),
    "two bits by bytes": narrow(2, 64, 24, 32, np.uint8, accuracy_level=4),
    "four bits in a new opset": narrow(4, 32, 4, 16, np.uint8, opset=21),
    "four bits of halves": narrow(4, 32, 4, 16, np.uint8, dtype=np.float16),
    "eight bits": narrow(8, 64, 5, 32),
    "eight bits with zero points": narrow(8, 40, 5, 16, np.uint8, bias=True),
    "rows of bytes with four bits": gathered(whole(9, 32)),
    "rows of bytes with four bits and zero points": gathered(whole(9, 32), whole(9, 2)),
    "rows of bytes with four bits and half a byte": gathered(whole(9, 24), whole(9, 2), blocks=3),
    "rows of bytes": gathered(whole(9, 64), whole(9, 4), bits=8, dtype=np.float16),
    "rows of bytes without zero points": gathered(whole(9, 64), bits=8),
    "rows of four bits": gathered(four(9, 64, dtype=ml_dtypes.uint4), opset=21),
    "rows of four signed bits": gathered(
        four(9, 64, dtype=ml_dtypes.int4), four(9, 4, dtype=ml_dtypes.int4), opset=21
    ),
    "two bits": narrow(2, 64, 5, 16, np.uint8),
}


@named(CASES)
def test_it_agrees(case: Case) -> None:
    check(case)
