"""Operators that mobile engines are known to get wrong, each by name: plans agree with their peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper
from onnx.helper import make_node as node
from onnx.helper import np_dtype_to_tensor_dtype

from libs.common.errors import Invalid
from libs.runtime.codec import decode, encode
from libs.runtime.program import Program
from services.engine.peers import Peer
from services.engine.pipeline import Stages, compile_model

RANDOM = np.random.default_rng(7)
Arrays = Mapping[str, np.ndarray[Any, Any]]


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def small(*shape: int, dtype: Any = np.uint8) -> Any:
    low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -100
    return RANDOM.integers(low, 100, shape).astype(dtype)


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def model(nodes: Sequence[Any], inputs: Arrays, outputs: Sequence[str], opset: int = 22) -> ModelProto:
    ports = [
        helper.make_tensor_value_info(name, np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    # Types of outputs are left to inference.
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "trap", ports, results)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def lstm(direction: str, outputs: str, **more: Any) -> tuple[list[Any], Arrays]:
    directions = 2 if direction == "bidirectional" else 1
    inputs = {"x": normal(4, 2, 3), "w": normal(directions, 20, 3), "r": normal(directions, 20, 5), **more}
    names = ["x", "w", "r"] + (["", "lengths"] if "lengths" in more else [])
    return [node("LSTM", names, outputs.split(","), hidden_size=5, direction=direction)], inputs


def gru(**attributes: Any) -> tuple[list[Any], Arrays]:
    inputs = {"x": normal(4, 2, 3), "w": normal(1, 15, 3), "r": normal(1, 15, 5), "b": normal(1, 30)}
    return [node("GRU", ["x", "w", "r", "b"], ["y", "h"], hidden_size=5, **attributes)], inputs


def resize(sizes: Sequence[int], **attributes: Any) -> tuple[list[Any], Arrays]:
    inputs = {"x": normal(1, 2, 6, 7), "sizes": i64(*sizes)}
    return [node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)], inputs


def grid_sample(**attributes: Any) -> tuple[list[Any], Arrays]:
    grid = RANDOM.uniform(-1.6, 1.6, (1, 4, 5, 2)).astype(np.float32)
    return [node("GridSample", ["x", "grid"], ["y"], **attributes)], {"x": normal(1, 2, 6, 7), "grid": grid}


def scatter(operator: str, reduction: str) -> tuple[list[Any], Arrays]:
    inputs: dict[str, Any] = {"x": normal(5, 3)}
    if operator == "ScatterND":
        inputs |= {"i": i64(0, 2, 0, 4).reshape(4, 1), "u": normal(4, 3)}
    else:
        inputs |= {"i": RANDOM.integers(0, 5, (4, 3)), "u": normal(4, 3)}
    return [node(operator, ["x", "i", "u"], ["y"], reduction=reduction)], inputs


def one(operator: str, inputs: Arrays, outputs: str = "y", **attributes: Any) -> tuple[list[Any], Arrays]:
    return [node(operator, list(inputs), outputs.split(","), **attributes)], inputs


def qlinear_conv() -> tuple[list[Any], Arrays]:
    inputs: dict[str, Any] = {
        "x": small(1, 2, 6, 6),
        "xs": np.array(0.02, np.float32),
        "xz": np.array(30, np.uint8),
        "w": small(3, 2, 3, 3, dtype=np.int8),
        "ws": np.array([0.01, 0.02, 0.03], np.float32),
        "wz": np.zeros(3, np.int8),
        "ys": np.array(0.7, np.float32),
        "yz": np.array(120, np.uint8),
        "b": RANDOM.integers(-500, 500, 3).astype(np.int32),
    }
    return one("QLinearConv", inputs, pads=[1, 1, 1, 1])


BIG = i64(1 << 31, 3_000_000_000, -(1 << 40), 7)
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -1.5], np.float32)
TRAPS: dict[str, tuple[list[Any], Arrays]] = {
    "einsum of three": one(
        "Einsum", {"a": normal(2, 3), "b": normal(3, 4), "c": normal(4, 5)}, equation="ij,jk,kl->il"
    ),
    "conv integer": one(
        "ConvInteger",
        {
            "x": small(1, 2, 5, 5),
            "w": small(3, 2, 3, 3),
            "xz": np.array(9, np.uint8),
            "wz": np.array(4, np.uint8),
        },
    ),
    "is nan": one("IsNaN", {"x": ODD}),
    "is inf": one("IsInf", {"x": ODD}),
    "is negative inf": one("IsInf", {"x": ODD}, detect_positive=0),
    "gru relu": gru(activations=["Relu", "Relu"]),
    "gru reset before": gru(linear_before_reset=0),
    "gru reset after": gru(linear_before_reset=1),
    "lstm reverse": lstm("reverse", "y,h,c"),
    "lstm bidirectional": lstm("bidirectional", "y,h,c"),
    "lstm lengths": lstm("forward", "y,h,c", lengths=np.array([2, 4], np.int32)),
    "lstm reverse lengths": lstm("reverse", "y,h,c", lengths=np.array([2, 4], np.int32)),
    "lstm one output": lstm("forward", "y"),
    "lstm last state alone": lstm("forward", ",h"),
    "rnn relu": one(
        "RNN",
        {"x": normal(4, 2, 3), "w": normal(1, 5, 3), "r": normal(1, 5, 5)},
        "y,h",
        hidden_size=5,
        activations=["Relu"],
    ),
    "grid sample reflection": grid_sample(padding_mode="reflection"),
    "grid sample reflection aligned": grid_sample(padding_mode="reflection", align_corners=1),
    "grid sample cubic": grid_sample(mode="cubic"),
    "grid sample cubic border": grid_sample(mode="cubic", padding_mode="border"),
    **{
        f"{operator} {way}": scatter(operator, way)
        for operator in ("ScatterND", "ScatterElements")
        for way in ("add", "mul", "max", "min")
    },
    "max pool dilations": one("MaxPool", {"x": normal(1, 2, 8, 8)}, kernel_shape=[2, 2], dilations=[2, 2]),
    "max pool places": one(
        "MaxPool", {"x": normal(2, 2, 6, 6)}, "y,i", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "max pool places by columns": one(
        "MaxPool", {"x": normal(2, 2, 6, 6)}, "y,i", kernel_shape=[2, 2], storage_order=1
    ),
    "resize cubic": resize((1, 2, 9, 11), mode="cubic", coordinate_transformation_mode="half_pixel"),
    "resize antialias": resize((1, 2, 3, 4), mode="linear", antialias=1),
    "resize cubic antialias": resize((1, 2, 3, 4), mode="cubic", antialias=1),
    "resize nearest by a fraction": resize((1, 2, 9, 10), mode="nearest"),
    "arg max of the last": one(
        "ArgMax", {"x": small(3, 6) % 3 * 1.0 + normal(3, 6) * 0}, select_last_index=1
    ),
    "mean over no axes": one(
        "ReduceMean", {"x": normal(2, 3), "axes": np.zeros(0, np.int64)}, noop_with_empty_axes=1
    ),
    "shrink": one("Shrink", {"x": normal(3, 4)}, lambd=0.4, bias=0.1),
    "int64 products": one("Mul", {"x": BIG, "z": BIG}),
    "int64 sums": one("ReduceSum", {"x": BIG}),
    "int64 powers": one("Pow", {"x": i64(3, -7, 2), "z": i64(30, 15, 62)}),
    "lp pool": one("LpPool", {"x": normal(1, 2, 6, 6)}, kernel_shape=[2, 2], p=3),
    "qlinear conv": qlinear_conv(),
    "deform conv": one(
        "DeformConv",
        {"x": normal(1, 2, 5, 5), "w": normal(2, 2, 2, 2), "offset": normal(1, 8, 4, 4)},
        kernel_shape=[2, 2],
    ),
    "dft": one("DFT", {"x": normal(2, 8, 1)}),
    "group normalization": one(
        "GroupNormalization", {"x": normal(2, 6, 3, 3), "s": normal(6), "b": normal(6)}, num_groups=3
    ),
    "hardmax": one("Hardmax", {"x": normal(3, 5)}),
    "mish": one("Mish", {"x": normal(3, 5)}),
    "pad wrap": one("Pad", {"x": normal(3, 5), "pads": i64(1, 2, 2, 1)}, mode="wrap"),
}
NEWER: dict[str, tuple[list[Any], Arrays]] = {
    "attention": one(
        "Attention", {"q": normal(1, 2, 3, 4), "k": normal(1, 2, 5, 4), "v": normal(1, 2, 5, 4)}
    ),
    "rms normalization": one("RMSNormalization", {"x": normal(2, 5), "s": normal(5)}),
    "rotary embedding": one(
        "RotaryEmbedding",
        {"x": normal(1, 2, 3, 4), "cos": normal(8, 2), "sin": normal(8, 2), "at": i64(0, 3, 5).reshape(1, 3)},
    ),
}


SIMPLE, SKIP_SIMPLE = "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"
RUNTIME: dict[str, tuple[list[Any], Arrays]] = {
    "simplified layer normalization": one(SIMPLE, {"x": normal(2, 3, 8), "s": normal(8)}),
    "skip simplified layer normalization": one(
        SKIP_SIMPLE,
        {"x": normal(2, 3, 8), "skip": normal(2, 3, 8), "s": normal(8)},
        "y,,,sum",
        domain="com.microsoft",
    ),
    "skip simplified layer normalization with a bias": one(
        SKIP_SIMPLE,
        {"x": normal(2, 3, 8), "skip": normal(2, 3, 8), "s": normal(8), "b": normal(8)},
        domain="com.microsoft",
        epsilon=0.01,
    ),
}
"""Operators that ONNX Runtime adds."""


@pytest.mark.parametrize("name", [*TRAPS, *NEWER, *RUNTIME])
def test_it_agrees(name: str) -> None:
    nodes, inputs = (TRAPS | NEWER | RUNTIME)[name]
    outputs = [output for output in nodes[-1].output if output]
    made = model(nodes, inputs, outputs, 23 if name in NEWER else 22)
    data = made.SerializeToString()
    program = Program(decode(encode(compile_model(data, {}, "a test", Stages(lambda stage: None)).plan)))
    got, expected = program.run(inputs), Peer(data).run(dict(inputs))
    for output in outputs:
        assert got[output].dtype == expected[output].dtype
        assert got[output].shape == expected[output].shape
        if got[output].dtype.kind == "f":
            np.testing.assert_allclose(got[output], expected[output], rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(got[output], expected[output])


def test_operators_of_others_are_refused_by_name() -> None:
    made = model(
        [node("CropAndResize", ["x", "x", "x", "x"], ["y"], name="last", domain="com.microsoft")],
        {"x": normal(2)},
        ["y"],
    )
    with pytest.raises(Invalid, match=r"node last \(CropAndResize\): .*domain 'com\.microsoft' is not supp"):
        compile_model(made.SerializeToString(), {}, "a test", Stages(lambda stage: None))
