"""Recurrent layers: what the package's cases leave out."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto as T

from services.engine.testing import applied

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("operator", GATES)
def test_members_of_length_0_end_as_zeros(operator: str, direction: str) -> None:
    """As ONNX Runtime has it, although they began as something else."""
    rows, random = GATES[operator] * 2, np.random.default_rng(3)
    x, w, r = (
        random.standard_normal(shape).astype(np.float32) for shape in ((3, 2, 2), (1, rows, 2), (1, rows, 2))
    )
    start, states = np.ones((1, 2, 2), np.float32), 2 if operator == "LSTM" else 1
    _, *last = applied(
        operator,
        [x, w, r, None, np.array([0, 3], np.int32), *[start] * states],
        [T.FLOAT] * (1 + states),
        opset=14,
        hidden_size=2,
        direction=direction,
    )
    for state in last:
        assert not state[0, 0].any()
        assert (state[0, 1] != 0).all()
