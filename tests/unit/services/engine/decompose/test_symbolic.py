"""One plan for every size: operators with named dimensions, against ONNX Runtime at several sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from services.engine.domain.check_program import check_program
from services.engine.domain.decompose.walk import decompose
from services.engine.domain.reference import interpret
from services.engine.reading import read_model

SIZES = ({"n": 1, "h": 9, "w": 8, "k": 1}, {"n": 3, "h": 12, "w": 11, "k": 2})
BOUNDS = {"h": (6, 64), "w": (6, 64)}

X = ("n", 3, 4)
IMAGE = ("n", 4, "h", "w")
W33 = np.linspace(-1, 1, 6 * 4 * 9, dtype=np.float32).reshape(6, 4, 3, 3)
W2G = np.linspace(-1, 1, 6 * 2 * 4, dtype=np.float32).reshape(6, 2, 2, 2)
PER4 = np.array([0.5, -1.0, 2.0, 0.1], np.float32)
I64 = np.int64


def f32(values: list[float]) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def i64(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, I64)


FLOORED = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}

# Operator, inputs (a shape is a float32 input, an array a constant), attributes, opset.
CASES: list[tuple[str, list[Any], dict[str, Any], int]] = [
    ("Add", [X, ("n", 1, 4)], {}, 13),
    ("Mul", [X, PER4], {}, 7),
    ("Sub", [X, ("k", "n", 1, 4)], {}, 14),
    ("Div", [X, np.float32(3)], {}, 13),
    ("Max", [X, ("n", 1, 1), PER4], {}, 12),
    ("Mean", [X, ("n", 1, 1), PER4], {}, 13),
    ("Pow", [X, np.float32(2)], {}, 13),
    ("Pow", [X, np.int64(3)], {}, 13),
    ("PRelu", [X, PER4], {}, 16),
    ("LeakyRelu", [X], {"alpha": 0.3}, 16),
    ("HardSwish", [X], {}, 14),
    ("Clip", [X], {"min": -0.5, "max": 0.5}, 7),
    ("Clip", [X, np.float32(-0.5)], {}, 13),
    ("Softmax", [X], {}, 11),
    ("Softmax", [X], {"axis": 2}, 11),
    ("Softmax", [X], {}, 13),
    ("Softmax", [X], {"axis": 0}, 13),
    ("LogSoftmax", [X], {"axis": 1}, 13),
    ("LogSoftmax", [X], {"axis": 1}, 11),
    ("ReduceMean", [X], {"axes": [0, 2]}, 13),
    ("ReduceMean", [X, i64(0)], {"keepdims": 0}, 18),
    ("ReduceSum", [X], {"axes": [-1], "keepdims": 0}, 11),
    ("ReduceSum", [X, i64(0, 1)], {}, 13),
    ("ReduceSum", [X], {}, 13),
    ("ReduceLogSumExp", [X], {"axes": [1]}, 13),
    ("ReduceL2", [X, i64(0)], {}, 18),
    ("ArgMax", [X], {"axis": 1, "keepdims": 0}, 13),
    ("ArgMin", [X], {"axis": 0, "select_last_index": 1}, 13),
    ("CumSum", [X, i64(0)[0]], {"reverse": 1, "exclusive": 1}, 14),
    ("MatMul", [X, ("n", 4, 5)], {}, 13),
    ("MatMul", [("n", "h"), ("h", 5)], {}, 13),
    ("MatMul", [X, PER4], {}, 13),
    ("MatMul", [("h",), ("n", "h", "w")], {}, 13),
    ("Gemm", [("n", 4), W33.reshape(54, 4), np.float32(2)], {"transB": 1, "alpha": 0.5, "beta": 3.0}, 13),
    ("Gemm", [(4, "n"), (4, 5), (5,)], {"transA": 1}, 11),
    ("Conv", [IMAGE, W33], {}, 11),
    ("Conv", [IMAGE, W33, np.arange(6, dtype=np.float32)], {"pads": [1, 1, 1, 1], "strides": [2, 2]}, 11),
    ("Conv", [IMAGE, W2G], {"group": 2, "dilations": [2, 1], "auto_pad": "VALID"}, 11),
    ("Conv", [IMAGE, W33], {"auto_pad": "SAME_UPPER"}, 11),
    ("Conv", [("n", 4, 10, 11), W33], {"auto_pad": "SAME_LOWER", "strides": [2, 3]}, 11),
    ("Conv", [("n", 2, "w"), W2G[:, :, 0]], {"pads": [1, 0]}, 11),
    ("Conv", [("n", 1, 4, 5, "w"), W33[:2, :1, :, None]], {}, 11),
    ("Conv", [IMAGE, W33[:, :, :1, :1]], {}, 11),
    ("MaxPool", [IMAGE], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}, 12),
    ("MaxPool", [("n", 2, 10, 10)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, 12),
    ("AveragePool", [IMAGE], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, 11),
    ("AveragePool", [IMAGE], {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0], "count_include_pad": 1}, 11),
    ("AveragePool", [("n", 2, 9, 10)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, 19),
    ("GlobalAveragePool", [IMAGE], {}, 7),
    ("GlobalMaxPool", [IMAGE], {}, 7),
    ("GlobalLpPool", [IMAGE], {"p": 2}, 7),
    ("LpPool", [IMAGE], {"kernel_shape": [2, 2], "p": 2}, 11),
    ("BatchNormalization", [IMAGE, PER4, PER4, PER4, abs(PER4)], {}, 9),
    ("BatchNormalization", [IMAGE, PER4, PER4, PER4, abs(PER4)], {"epsilon": 0.1}, 15),
    ("InstanceNormalization", [IMAGE, PER4, PER4], {}, 7),
    ("LayerNormalization", [X, PER4, PER4], {}, 17),
    ("LRN", [IMAGE], {"size": 3, "alpha": 0.1}, 13),
    ("LpNormalization", [X], {"axis": 0}, 7),
    ("Reshape", [X, i64(0, -1)], {}, 14),
    ("Reshape", [X, i64(-1, 2, 3)], {}, 14),
    ("Flatten", [X], {"axis": 2}, 13),
    ("Transpose", [X], {"perm": [2, 0, 1]}, 13),
    ("Transpose", [X], {}, 13),
    ("Squeeze", [("n", 1, 4)], {"axes": [1]}, 11),
    ("Unsqueeze", [X, i64(0, -1)], {}, 13),
    ("Expand", [X, i64(2, 1, 3, 1)], {}, 13),
    ("Tile", [X, i64(2, 1, 3)], {}, 13),
    ("Concat", [X, ("n", 2, 4), ("n", "h", 4)], {"axis": 1}, 13),
    ("Concat", [X, ("k", 3, 4)], {"axis": 0}, 13),
    ("Slice", [X], {"starts": [1, 0], "ends": [3, 1 << 62], "axes": [2, 0]}, 9),
    ("Slice", [X, i64(-1, 3), i64(-(1 << 63), 0), i64(0, 2), i64(-1, -2)], {}, 13),
    ("Slice", [IMAGE, i64(1, 0), i64(-2, 5), i64(2, 3), i64(2, 3)], {}, 13),
    ("Slice", [X, i64(2), i64(9), i64(0)], {}, 13),
    ("Pad", [X], {"pads": [0, 1, 2, 3, 0, 0], "value": 1.5}, 10),
    ("Pad", [X, i64(1, 0, -1, 0, 2, 2), np.float32(7)], {}, 13),
    ("Pad", [IMAGE, i64(0, 0, 2, 3, 0, 0, 1, 2)], {"mode": "reflect"}, 13),
    ("Pad", [IMAGE, i64(0, 0, 2, 3, 0, 0, 1, 2)], {"mode": "edge"}, 13),
    ("Pad", [IMAGE, i64(2, 3, 1, 2), np.float32(0), i64(2, 3)], {"mode": "wrap"}, 19),
    ("DepthToSpace", [IMAGE], {"blocksize": 2, "mode": "CRD"}, 13),
    ("DepthToSpace", [IMAGE], {"blocksize": 2}, 13),
    ("SpaceToDepth", [("n", 3, 4, 6)], {"blocksize": 2}, 13),
    ("Gather", [X, i64(0, -1, 1)], {"axis": 1}, 13),
    ("Gather", [X, np.array(-1, np.int32)], {"axis": 0}, 13),
    ("GatherElements", [("n", 4), i64(0, -1, 2)[None, :] + 0 * I64(1)], {"axis": 1}, 13),
    ("Shape", [X], {}, 13),
    ("Shape", [X], {"start": -2}, 15),
    ("Size", [X], {}, 13),
    ("EyeLike", [("n", "h")], {"k": 1}, 9),
    ("Trilu", [("n", "h", "w"), np.array(-1, I64)], {"upper": 0}, 14),
    ("Dropout", [X], {}, 13),
    ("IsInf", [X], {"detect_negative": 0}, 10),
    ("ThresholdedRelu", [X], {"alpha": 0.2}, 10),
    ("ConvTranspose", [IMAGE, W33[:4]], {"strides": [2, 1], "pads": [1, 0, 0, 1]}, 11),
    ("ConvTranspose", [IMAGE, W2G.reshape(4, 3, 4, 1)], {"group": 2, "dilations": [2, 1]}, 11),
    ("ConvTranspose", [("n", 4, 5), W33[:4, :, :, 0]], {"strides": [3], "output_shape": [14]}, 11),
    ("ConvTranspose", [IMAGE, W33[:4], PER4], {"strides": [2, 2], "output_padding": [1, 1]}, 11),
    ("Einsum", [X, ("n", 4, 5)], {"equation": "bij,bjk->bik"}, 12),
    ("Einsum", [X, ("n", 4)], {"equation": "...ij, ...j -> ...i"}, 12),
    ("Einsum", [("n", "n")], {"equation": "ii->i"}, 12),
    ("Einsum", [X, (3, 4), ("n",)], {"equation": "bij,ij,b"}, 12),
    ("Einsum", [("n", "h", 2, 3), ("n", "w", 2, 3)], {"equation": "bihd,bjhd->bhij"}, 12),
    ("Hardmax", [X], {"axis": 1}, 11),
    ("Hardmax", [X], {}, 13),
    ("Resize", [IMAGE, f32([]), f32([1, 1, 2, 3])], FLOORED, 13),
    ("Resize", [("n", 2, 5, 6), f32([]), f32([1, 1, 2.5, 0.5])], {"mode": "linear"}, 13),
    ("Resize", [("n", 2, 5, 6), f32([]), f32([]), i64(7, 9)], {"mode": "cubic", "axes": [2, 3]}, 18),
    ("Resize", [("n", 2, 5, 6), f32([1, 1, 2, 2])], {"mode": "linear"}, 10),
    ("Upsample", [IMAGE, f32([1, 1, 2, 2])], {}, 9),
    ("QuantizeLinear", [X, np.float32(0.02), np.uint8(128)], {}, 13),
    ("DynamicQuantizeLinear", [X], {}, 11),
]


def model(operator: str, inputs: list[Any], attributes: Mapping[str, Any], opset: int) -> bytes:
    names, ports, constants = [], [], []
    for position, item in enumerate(inputs):
        names.append(f"i{position}")
        if isinstance(item, tuple):
            ports.append(helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, item))
        else:
            constants.append(numpy_helper.from_array(np.asarray(item), names[-1]))
    outputs = ["y"] + (["s", "z"] if operator == "DynamicQuantizeLinear" else [])
    node = helper.make_node(operator, names, outputs, name="tested", **attributes)
    ends = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph([node], "g", ports, ends, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "opset"),
    CASES,
    ids=[f"{operator}-{opset}-{position}" for position, (operator, _, _, opset) in enumerate(CASES)],
)
def test_one_program_serves_every_size(
    operator: str, inputs: list[Any], attributes: dict[str, Any], opset: int
) -> None:
    data = model(operator, inputs, attributes, opset)
    names = {size for item in inputs if isinstance(item, tuple) for size in item if isinstance(size, str)}
    graph = read_model(data, {name: pair for name, pair in BOUNDS.items() if name in names})
    program = decompose(graph)
    check_program(program, "decompose")
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    randomness = np.random.default_rng(3)
    for sizes in SIZES:
        fed = {
            f"i{position}": randomness.standard_normal(
                [sizes[size] if isinstance(size, str) else size for size in item]
            ).astype(np.float32)
            for position, item in enumerate(inputs)
            if isinstance(item, tuple)
        }
        expected = session.run(None, fed)
        for found, wanted in zip(interpret(program, fed).values(), expected, strict=True):
            assert found.dtype == wanted.dtype
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
