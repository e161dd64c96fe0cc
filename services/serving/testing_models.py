"""Small ONNX files, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str]


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[int, Shape]],
    outputs: Mapping[str, tuple[int, Shape]],
    constants: Mapping[str, Any] | None = None,
) -> bytes:
    """Return a model of nodes; inputs and outputs are (element type of ONNX, shape) by name."""
    graph = helper.make_graph(
        list(nodes),
        "model",
        [helper.make_tensor_value_info(name, *spec) for name, spec in inputs.items()],
        [helper.make_tensor_value_info(name, *spec) for name, spec in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    content: bytes = made.SerializeToString()
    return content


def scale(factor: float, width: int = 4) -> bytes:
    """X [batch, width] → y = factor · x."""
    shape = ("batch", width)
    return model(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        {"x": (TensorProto.FLOAT, shape)},
        {"y": (TensorProto.FLOAT, shape)},
        {"factor": np.float32(factor)},
    )


def identity(element: int, shape: Shape = ("batch", "n")) -> bytes:
    """X → y = x, of any element type and shape."""
    node = helper.make_node("Identity", ["x"], ["y"])
    return model([node], {"x": (element, shape)}, {"y": (element, shape)})


def lookup(rows: int = 8) -> bytes:
    """I [batch] → y = table[i] [batch, 2]: an index out of range fails whoever is in the batch."""
    return model(
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        {"i": (TensorProto.INT64, ("batch",))},
        {"y": (TensorProto.FLOAT, ("batch", 2))},
        {"table": np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)},
    )
