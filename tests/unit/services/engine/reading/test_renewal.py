"""Opsets 1 to 6: what their operators mean is what opset 7's are made to say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from libs.common.errors import Invalid
from services.engine.reading import read_model
from services.engine.reading.renewal import renew

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
A = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 5
CHANNELS = np.array([1, -2, 4], np.float32)


def old(
    opset: int,
    operator: str,
    inputs: dict[str, Any],
    *,
    constants: dict[str, Any] | None = None,
    outputs: int = 1,
    shapes: bool = True,
    **attributes: Any,
) -> ModelProto:
    constants = constants or {}
    ports = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            [f"{name}{axis}" for axis in range(array.ndim)] if shapes else None,
        )
        for name, array in inputs.items()
    ]
    ends = [helper.make_tensor_value_info(f"y{index}", FLOAT, None) for index in range(outputs)]
    node = helper.make_node(
        operator, [*inputs, *constants], [end.name for end in ends], name="it", **attributes
    )
    kept = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph([node], "g", ports, ends, kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)


def run(model: ModelProto, inputs: dict[str, Any]) -> list[Any]:
    read_model(model.SerializeToString())
    renew(model, model.opset_import[0].version)
    assert model.opset_import[0].version == 7
    found: Any = ReferenceEvaluator(model).run(None, inputs)
    return list(found)


def channelwise(function: Any) -> Any:
    return function(A, CHANNELS[:, None])


CASES: list[tuple[str, int, dict[str, Any], dict[str, Any], dict[str, Any], list[Any]]] = [
    (name, opset, {"a": A, "b": CHANNELS}, {}, {"axis": 1, "broadcast": 1}, [channelwise(function)])
    for name, function in [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.divide)]
    for opset in (1, 6)
]
CASES += [
    ("Greater", 1, {"a": A, "b": CHANNELS}, {}, {"axis": 1, "broadcast": 1}, [channelwise(np.greater)]),
    (
        "And",
        1,
        {"a": A > 0, "b": A[0, :, :1] > -3},
        {},
        {"axis": 1, "broadcast": 1},
        [(A > 0) & (A[:1, :, :1] > -3)],
    ),
    ("Add", 6, {"a": A, "b": A[0, 0]}, {}, {"broadcast": 1}, [A + A[0, 0]]),
    ("Add", 6, {"a": A, "b": A}, {}, {"axis": 1}, [A + A]),
    ("PRelu", 6, {"a": A, "b": CHANNELS}, {}, {}, [np.where(A < 0, A * CHANNELS[:, None], A)]),
    ("PRelu", 1, {"a": A, "b": CHANNELS[1:2]}, {}, {"consumed_inputs": [0]}, [np.where(A < 0, A * -2, A)]),
    ("Gemm", 6, {"a": A[0], "b": A[0].T}, {"c": CHANNELS}, {"broadcast": 1}, [A[0] @ A[0].T + CHANNELS]),
    ("Relu", 1, {"a": A}, {}, {"consumed_inputs": [0]}, [np.maximum(A, 0)]),
    ("Dropout", 6, {"a": A}, {}, {"is_test": 1}, [A]),
    ("Cast", 1, {"a": A}, {}, {"to": "INT32"}, [A.astype(np.int32)]),
    ("Cast", 6, {"a": A}, {}, {"to": TensorProto.INT32}, [A.astype(np.int32)]),
    ("Reshape", 1, {"a": A}, {}, {"shape": [4, -1]}, [A.reshape(4, 6)]),
    ("Pad", 1, {"a": A[0]}, {}, {"paddings": [0, 1, 1, 0], "value": 9.0},
     [np.pad(A[0], [(0, 1), (1, 0)], constant_values=9)]),
    ("Concat", 1, {"a": A, "b": A}, {}, {}, [np.concatenate([A, A], 1)]),
    ("Concat", 4, {"a": A, "b": A}, {}, {"axis": 2}, [np.concatenate([A, A], 2)]),
    ("Split", 1, {"a": A}, {"s": np.array([1, 2], np.float32)}, {"axis": 1}, [A[:, :1], A[:, 1:]]),
    ("Split", 2, {"a": A}, {}, {"axis": 2}, [A[..., :2], A[..., 2:]]),
    ("Tile", 1, {"a": A}, {"t": np.float32(2), "x": np.float32(1)}, {}, [np.tile(A, (1, 2, 1))]),
    ("Upsample", 1, {"a": A[None]}, {}, {"height_scale": 2.0, "width_scale": 1.0}, [A[None].repeat(2, 2)]),
    ("Selu", 1, {"a": A}, {}, {}, [1.0507 * np.where(A > 0, A, 1.6732 * np.expm1(np.minimum(A, 0)))]),
    ("GlobalLpPool", 1, {"a": A[None]}, {}, {"p": 2.0}, [np.sqrt((A[None] ** 2).sum((2, 3), keepdims=True))]),
    ("Max", 1, {"a": A, "b": -A}, {}, {"consumed_inputs": [0, 0]}, [abs(A)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "opset", "inputs", "constants", "attributes", "wanted"),
    CASES,
    ids=[f"{case[0]}-{case[1]}-{place}" for place, case in enumerate(CASES)],
)
def test_old_operators_compute_what_they_did(
    operator: str,
    opset: int,
    inputs: dict[str, Any],
    constants: dict[str, Any],
    attributes: dict[str, Any],
    wanted: list[Any],
) -> None:
    model = old(opset, operator, inputs, constants=constants, outputs=len(wanted), **attributes)
    if operator in ("Upsample", "GlobalLpPool"):  # the reference has no such old ones
        graph = read_model(model.SerializeToString())
        assert graph.nodes[-1].attributes in ({"scales": (1, 1, 2, 1)}, {"p": 2})
        return
    found = run(model, inputs)
    for got, expected in zip(found, wanted, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_recurrent_operators_lose_their_flag() -> None:
    shapes = {"x": (5, 1, 2), "w": (1, 12, 2), "r": (1, 12, 3)}
    inputs = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    model = old(1, "LSTM", inputs, hidden_size=3, output_sequence=1)
    assert run(model, inputs)[0].shape == (5, 1, 1, 3)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("axis 2 leaves no 2 of 3 axes; it must be 0 to 1",
         old(6, "Add", {"a": A, "b": A[0]}, axis=2, broadcast=1)),
        ("how many axes its input 'a' has isn't known",
         old(6, "Add", {"a": A, "b": A[0]}, axis=1, broadcast=1, shapes=False)),
        ("in training mode", old(6, "Dropout", {"a": A})),
        ("in training mode", old(6, "BatchNormalization", {"a": A}, is_test=0)),
        ("'to' is 'INT33', which is no type", old(1, "Cast", {"a": A}, to="INT33")),
        ("its input 's' must be a constant", old(1, "Split", {"a": A, "s": CHANNELS}, axis=1)),
        ("must be one number each", old(1, "Tile", {"a": A}, constants={"t": CHANNELS, "x": CHANNELS})),
        ("'p' is 1.5; only whole", old(1, "LpPool", {"a": A[None]}, p=1.5, kernel_shape=[1, 1])),
    ],
)  # fmt: skip
def test_what_cannot_be_said_in_opset_7_is_refused_by_name(text: str, model: ModelProto) -> None:
    with pytest.raises(Invalid, match=rf"node it \(\w+\) of opset \d: .*{text}"):
        read_model(model.SerializeToString())


def test_old_operators_in_bodies() -> None:
    branch = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["s"], axis=1, broadcast=1)],
        "t", [], [helper.make_tensor_value_info("s", FLOAT, None)],
    )  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("If", ["q"], ["y"], then_branch=branch, else_branch=branch)],
        "g",
        [info("a", FLOAT, [2, 3, 4]), info("b", FLOAT, [3]), info("q", BOOL, [])],
        [info("y", FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=4)
    inputs = {"a": A, "b": CHANNELS, "q": np.array(True)}
    np.testing.assert_array_equal(run(model, inputs)[0], A + CHANNELS[:, None])
