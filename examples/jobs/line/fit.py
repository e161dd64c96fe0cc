"""Fits a line to noisy points and writes it as an ONNX model: the smallest training job there is."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

points = np.random.default_rng(7)
x = points.uniform(-1, 1, 1000)
y = 3 * x - 1 + points.normal(0, 0.1, 1000)

slope, offset = 0.0, 0.0
for epoch in range(1, 101):
    error = slope * x + offset - y
    slope -= 0.5 * float(np.mean(error * x))
    offset -= 0.5 * float(np.mean(error))
    if epoch % 20 == 0:
        print(f"epoch {epoch}: mean square {np.mean(error**2):.4f}", flush=True)

graph = helper.make_graph(
    [
        helper.make_node("Mul", ["x", "slope"], ["scaled"]),
        helper.make_node("Add", ["scaled", "offset"], ["y"]),
    ],
    "line",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch"])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])],
    [
        numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in (("slope", slope), ("offset", offset))
    ],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "line.onnx")
print(f"y = {slope:.3f} x + {offset:.3f}")
