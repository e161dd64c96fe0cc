"""Boxes that overlap less: what the package's cases leave out."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T

from services.engine.testing import applied


def test_boxes_of_negative_size_overlap_with_nothing() -> None:
    boxes = np.array([[[0, 0, 1, 1], [5, 5, -3, 1], [0.1, 0, 1, 1], [5, 5, 1, -2]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7, 0.6]]], np.float32)
    given = [boxes, scores, np.array([4]), np.array([0.5], np.float32), np.array([0.1], np.float32)]
    (found,) = applied("NonMaxSuppression", given, [T.INT64], center_point_box=1)
    assert found.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 3]]
