"""Small real networks as ONNX files, for tests; weights are random by a fixed seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str]
OPSET = 17


class Model:
    """A model in the making."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._randomness = np.random.default_rng(7)
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._constants: list[Any] = []
        self._count = 0

    def input(self, name: str, *shape: int | str, type_: int = TensorProto.FLOAT) -> str:
        """Add an input."""
        self._inputs.append(helper.make_tensor_value_info(name, type_, shape))
        return name

    def weight(self, *shape: int, scale: float = 0.3) -> str:
        """Add random float32 weights."""
        return self.constant((self._randomness.standard_normal(shape) * scale).astype(np.float32))

    def constant(self, array: Any) -> str:
        """Add a constant."""
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node with one output."""
        self._count += 1
        output = output or f"v{self._count}"
        node = helper.make_node(operator, inputs, [output], name=f"{operator}_{self._count}", **attributes)
        self._nodes.append(node)
        return output

    def finish(
        self, outputs: Mapping[str, Shape], type_: int = TensorProto.FLOAT, opset: int = OPSET
    ) -> bytes:
        """Return the file."""
        ends = [helper.make_tensor_value_info(name, type_, shape) for name, shape in outputs.items()]
        graph = helper.make_graph(self._nodes, self._name, self._inputs, ends, self._constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        content: bytes = made.SerializeToString()
        return content


def mlp() -> bytes:
    """Two dense layers and a softmax: x [batch, 8] → y [batch, 4]."""
    m = Model("mlp")
    x = m.input("x", "batch", 8)
    hidden = m.add("Relu", m.add("Gemm", x, m.weight(8, 16), m.weight(16)))
    m.add("Softmax", m.add("Gemm", hidden, m.weight(4, 16), m.weight(4), transB=1), axis=-1, output="y")
    return m.finish({"y": ("batch", 4)})


def conv_net() -> bytes:
    """Convolutions, pooling, a dense layer: x [batch, 3, 12, 12] → y [batch, 5]."""
    m = Model("conv_net")
    x = m.input("x", "batch", 3, 12, 12)
    x = m.add("Conv", x, m.weight(8, 3, 3, 3), m.weight(8), pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    scale, shift, mean = m.weight(8), m.weight(8), m.weight(8)
    variance = m.constant(np.linspace(0.5, 2, 8, dtype=np.float32))
    x = m.add("Relu", m.add("BatchNormalization", x, scale, shift, mean, variance))
    x = m.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = m.add("Conv", x, m.weight(16, 4, 3, 3), kernel_shape=[3, 3], strides=[2, 2], group=2)
    x = m.add("Flatten", m.add("GlobalAveragePool", m.add("Relu", x)))
    m.add("Gemm", x, m.weight(16, 5), m.weight(5), output="y")
    return m.finish({"y": ("batch", 5)})


def attention() -> bytes:
    """One block of self-attention with layer normalisation: x [batch, length, 16] → y of the same shape."""
    m = Model("attention")
    x = m.input("x", "batch", "length", 16)
    heads = m.constant(np.array([0, 0, 4, 4], np.int64))

    def head(order: list[int]) -> str:
        projected = m.add("Add", m.add("MatMul", x, m.weight(16, 16)), m.weight(16))
        return m.add("Transpose", m.add("Reshape", projected, heads), perm=order)

    query, key, value = head([0, 2, 1, 3]), head([0, 2, 3, 1]), head([0, 2, 1, 3])
    scores = m.add("Div", m.add("MatMul", query, key), m.constant(np.float32(2)))
    mixed = m.add("MatMul", m.add("Softmax", scores, axis=-1), value)
    back = m.constant(np.array([0, 0, 16], np.int64))
    joined = m.add("Reshape", m.add("Transpose", mixed, perm=[0, 2, 1, 3]), back)
    total = m.add("Add", x, m.add("MatMul", joined, m.weight(16, 16)))
    m.add("LayerNormalization", total, m.weight(16), m.weight(16), axis=-1, epsilon=1e-5, output="y")
    return m.finish({"y": ("batch", "length", 16)})


def embedding() -> bytes:
    """Embedding of ids, masked mean pooling, a logistic score: ids [batch, 6] → score [batch, 1]."""
    m = Model("embedding")
    ids = m.input("ids", "batch", 6, type_=TensorProto.INT64)
    looked_up = m.add("Gather", m.weight(10, 8), ids)
    present = m.add("Not", m.add("Equal", ids, m.constant(np.int64(0))))
    mask = m.add("Cast", present, to=TensorProto.FLOAT)
    masked = m.add("Mul", looked_up, m.add("Unsqueeze", mask, m.constant(np.array([2], np.int64))))
    axes = m.constant(np.array([1], np.int64))
    total = m.add("ReduceSum", masked, axes, keepdims=0)
    count = m.add("Max", m.add("ReduceSum", mask, axes, keepdims=1), m.constant(np.float32(1)))
    m.add("Sigmoid", m.add("Gemm", m.add("Div", total, count), m.weight(8, 1), m.weight(1)), output="score")
    return m.finish({"score": ("batch", 1)})


def repeated() -> bytes:
    """Return a loop that halves, with a branch in it: x [batch, 3] → y [batch, 3], count []."""
    info, node = helper.make_tensor_value_info, helper.make_node
    number, flag, count = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64

    def branch(operator: str, output: str) -> Any:
        ends = [info(output, number, ("batch", 3))]
        return helper.make_graph([node(operator, ["half"], [output])], operator, [], ends)

    body = helper.make_graph(
        [
            node("Mul", ["v", "factor"], ["half"], name="halve"),
            node("ReduceSum", ["half"], ["sum"], keepdims=0),
            node("Greater", ["sum", "least"], ["more"]),
            node("If", ["more"], ["w"], then_branch=branch("Identity", "t"), else_branch=branch("Neg", "e")),
            node("Add", ["n", "one"], ["m"]),
        ],
        "round",
        [info("i", count, []), info("c", flag, []), info("v", number, ["batch", 3]), info("n", count, [])],
        [info("more", flag, []), info("w", number, ["batch", 3]), info("m", count, [])],
        [numpy_helper.from_array(np.array(1, np.int64), "one")],
    )
    graph = helper.make_graph(
        [node("Loop", ["most", "", "x", "zero"], ["y", "count"], name="loop", body=body)],
        "repeated",
        [info("x", number, ["batch", 3])],
        [info("y", number, ["batch", 3]), info("count", count, [])],
        [
            numpy_helper.from_array(np.array(100, np.int64), "most"),
            numpy_helper.from_array(np.array(0, np.int64), "zero"),
            numpy_helper.from_array(np.array(0.5, np.float32), "factor"),
            numpy_helper.from_array(np.array(1, np.float32), "least"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    content: bytes = made.SerializeToString()
    return content


def beside() -> tuple[bytes, dict[str, bytes]]:
    """Return a dense layer x [batch, 3] → y [batch, 2], and the files that its weights are in."""
    weights = np.arange(6, dtype=np.float32).reshape(3, 2) / 8
    bias = np.array([1, -1], np.float32)

    def outside(name: str, location: str, shape: Sequence[int], offset: int) -> TensorProto:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", location),
            ("offset", str(offset)),
            ("length", str(4 * math.prod(tensor.dims))),
        ):
            tensor.external_data.add(key=key, value=value)
        return tensor

    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="dense")],
        "beside",
        [info("x", TensorProto.FLOAT, ["batch", 3])],
        [info("y", TensorProto.FLOAT, ["batch", 2])],
        [outside("w", "weights.bin", (3, 2), 8), outside("b", "more/bias.bin", (2,), 0)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    files = {"weights.bin": bytes(8) + weights.tobytes(), "more/bias.bin": bias.tobytes()}
    return made.SerializeToString(), files


MODELS = {"mlp": mlp, "conv_net": conv_net, "attention": attention, "embedding": embedding}
"""By name."""
