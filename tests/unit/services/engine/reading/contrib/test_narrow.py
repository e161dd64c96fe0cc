"""Weights of few bits as ONNX Runtime has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.unit.services.engine.reading.contrib.cases import Case, check, named, normal, whole


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


CASES = {
    "four bits": narrow(4, 64, 5, 32),
    "four bits with zero points": narrow(4, 64, 5, 16, np.uint8),
    "four bits with zero points of half a byte": narrow(4, 48, 5, 16, np.uint8, bias=True),
    "four bits with real zero points": narrow(4, 64, 5, 16, np.float32),
    "four bits and a block begun": narrow(4, 40, 5, 32, np.uint8),
    "four bits in an old opset": narrow(4, 32, 4, 16, np.uint8, opset=10),
    "four bits in a new opset": narrow(4, 32, 4, 16, np.uint8, opset=21),
    "four bits of halves": narrow(4, 32, 4, 16, np.uint8, dtype=np.float16),
    "eight bits": narrow(8, 64, 5, 32),
    "eight bits with zero points": narrow(8, 40, 5, 16, np.uint8, bias=True),
    "two bits": narrow(2, 64, 5, 16, np.uint8),
}


@named(CASES)
def test_it_agrees(case: Case) -> None:
    check(case)
