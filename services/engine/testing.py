"""ONNX models for tests of reading: small, sound, and easily spoilt."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper


def small() -> ModelProto:
    """Return y = relu(x · w) + c of opset 13, with x [batch, 3], w [3, 2] raw and c [2] not."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], name="first"),
            helper.make_node("Relu", ["m"], ["r"]),
            helper.make_node("Add", ["r", "c"], ["y"], name="last"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        [
            numpy_helper.from_array(np.ones((3, 2), np.float32), "w"),
            helper.make_tensor("c", TensorProto.FLOAT, [2], [1.0, 2.0]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
