"""Grids: what the package's cases leave out, where its evaluator, ONNX Runtime and PyTorch all differ."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T

from services.engine.testing import applied


def test_the_single_place_of_an_aligned_axis_is_its_first_end() -> None:
    theta = np.array([[[2, 0, 0], [0, 3, 0]]], np.float32)
    (grid,) = applied("AffineGrid", [theta, np.array([1, 1, 1, 3])], [T.FLOAT], align_corners=1)
    assert grid.tolist() == [[[[-2, -3], [0, -3], [2, -3]]]]
