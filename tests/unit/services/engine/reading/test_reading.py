"""What is read of a sound file."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain.bounds import Bounds
from services.engine.domain.decompose.walk import decompose
from services.engine.domain.extents import Extent
from services.engine.domain.program import ValueType
from services.engine.domain.reference import interpret
from services.engine.reading import read_model
from services.engine.testing import small

FLOAT = TensorProto.FLOAT


def test_a_sound_model() -> None:
    data = small().SerializeToString()
    graph = read_model(data)
    assert graph.name == "net"
    assert graph.opset == 13
    assert graph.digest == "sha256:" + hashlib.sha256(data).hexdigest()
    batch = Extent.dimension("batch")
    assert graph.inputs == {"x": ValueType(DataType.FLOAT32, (batch, Extent.of(3)))}
    assert graph.bounds == Bounds({"batch": (1, 4096)})
    assert [node.origin for node in graph.nodes] == ["first (MatMul)", "#1 (Relu)", "last (Add)"]
    assert graph.outputs == ("y",)
    np.testing.assert_array_equal(graph.constants["c"], np.array([1, 2], np.float32))
    assert graph.constants["w"].shape == (3, 2)


def test_bounds_are_kept_and_equal_ones_fix_a_dimension() -> None:
    data = small().SerializeToString()
    assert read_model(data, {"batch": (2, 8)}).bounds.ranges == {"batch": (2, 8)}
    fixed = read_model(data, {"batch": (5, 5)})
    assert fixed.inputs["x"].shape == (Extent.of(5), Extent.of(3))
    assert fixed.bounds.ranges == {}


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"bach": (1, 2)}, "bounds are given for 'bach'.*did you mean 'batch'"),
        ({"batch": (-1, 2)}, "bounds of 'batch' are -1 to 2"),
        ({"batch": (3, 2)}, "bounds of 'batch' are 3 to 2"),
        ({"batch": (1, 1 << 40)}, "bounds of 'batch'"),
    ],
)
def test_bounds_that_mean_nothing(bounds: dict[str, tuple[int, int]], text: str) -> None:
    with pytest.raises(Invalid, match=text):
        read_model(small().SerializeToString(), bounds)


def test_sizes_without_a_name_get_one() -> None:
    model = small()
    shape = model.graph.input[0].type.tensor_type.shape
    shape.dim[0].Clear()
    extra = model.graph.input.add()
    extra.CopyFrom(helper.make_tensor_value_info("past key", FLOAT, ["a + b", "x_0", None, "a + b"]))
    graph = read_model(model.SerializeToString())
    assert str(graph.inputs["x"].shape[0]) == "x_0_2"
    assert [str(size) for size in graph.inputs["past key"].shape] == ["a___b", "x_0", "past_key_2", "a___b"]


def test_nodes_are_sorted_and_initialised_inputs_are_constants() -> None:
    model = small()
    nodes = list(reversed(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.input.append(helper.make_tensor_value_info("w", FLOAT, [3, 2]))
    graph = read_model(model.SerializeToString())
    assert [node.name for node in graph.nodes] == ["first", "#1", "last"]
    assert list(graph.inputs) == ["x"]


@pytest.mark.parametrize(
    "type_",
    ["BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FLOAT16", "DOUBLE"],
)
@pytest.mark.parametrize("raw", [True, False])
def test_constants_of_every_type(type_: str, raw: bool) -> None:
    number = TensorProto.DataType.Value(type_)
    wanted = np.array([0, 1, 1], helper.tensor_dtype_to_np_dtype(number))
    tensor = numpy_helper.from_array(wanted, "k") if raw else helper.make_tensor("k", number, [3], [0, 1, 1])
    model = small()
    model.graph.initializer.append(tensor)
    found = read_model(model.SerializeToString()).constants["k"]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_operators_that_onnx_defines_by_others_are_put_in_place() -> None:
    model = small()
    model.opset_import[0].version = 23
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, ["batch", "length", 3]))
    attention = helper.make_node("Attention", ["m", "m", "m"], ["r"], q_num_heads=1, kv_num_heads=1)
    model.graph.node[1].CopyFrom(attention)
    graph = read_model(model.SerializeToString())
    assert "Attention" not in {node.operator for node in graph.nodes}
    x = np.random.default_rng(1).standard_normal((2, 4, 3)).astype(np.float32)
    expected: Any = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(interpret(decompose(graph), {"x": x})["y"], expected[0], rtol=1e-5)


def test_functions_are_put_in_place() -> None:
    model = small()
    body = helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 13)],
    )
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    model.graph.node[1].CopyFrom(helper.make_node("Twice", ["m"], ["r"], domain="mine"))
    assert [node.operator for node in read_model(model.SerializeToString()).nodes] == ["MatMul", "Add", "Add"]
