"""What is told of files that may not be readable: all that is in them, and everything that is wrong."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from libs.common.errors import Invalid
from services.engine.reading import inspection
from services.engine.reading.inspection import Control, Declared, Inspection, inspect_model
from services.engine.testing import small
from services.engine.testing_models import attention
from tests.unit.services.engine.domain.test_explain import branching

F = TensorProto.FLOAT
info = helper.make_tensor_value_info


def told(model: ModelProto | bytes, folder: Path | None = None, **bounds: tuple[int, int]) -> Inspection:
    return inspect_model(model if isinstance(model, bytes) else model.SerializeToString(), bounds, folder)


def model(*nodes: NodeProto, opset: int = 17, domains: tuple[str, ...] = ()) -> ModelProto:
    graph = helper.make_graph(nodes, "g", [info("x", F, ["n", 3])], [info(nodes[-1].output[0], F, None)], [])
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def faults(found: Inspection) -> list[tuple[str, str]]:
    return [(fault.node, fault.operator) for fault in found.faults]


def test_a_sound_file_is_told_whole() -> None:
    made = small()
    made.producer_name, made.producer_version = "exporter", "3"
    found = told(made)
    assert (found.ir_version, found.producer, found.opsets) == (8, "exporter 3", {"ai.onnx": 13})
    assert found.inputs == (Declared("x", "float32", ("batch", "3")),)
    assert found.outputs == (Declared("y", "float32", ("batch", "2")),)
    assert found.operators == {"Add": 1, "MatMul": 1, "Relu": 1}
    assert [(node.name, node.reads) for node in found.nodes] == [("first", ()), ("#1", (0,)), ("last", (1,))]
    assert (found.parameters, found.parameter_bytes) == ({"float32": 8}, 32)
    assert (found.faults, found.complete, found.control, found.deepest) == ((), True, (), 0)


def test_control_flow_is_told_with_the_sizes_of_its_graphs() -> None:
    found = told(branching())
    assert found.control == (
        Control("choice", "If", {"then_branch": 1, "else_branch": 2}),
        Control("turns", "Loop", {"body": 2}),
    )
    assert found.deepest == 1
    assert found.operators["Tanh"] == 1
    inside = {node.name: node.inside for node in found.nodes}
    assert inside["turn"] == [node.name for node in found.nodes].index("turns")
    assert not found.faults


def test_types_that_arent_tensors_are_told_too() -> None:
    made = small()
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.INT64, ["k", None]))
    made.graph.input.append(helper.make_value_info("s", helper.make_optional_type_proto(sequence)))
    made.graph.input.append(
        helper.make_value_info("m", helper.make_map_type_proto(TensorProto.INT64, sequence))
    )
    found = told(made)
    assert found.inputs[1:] == (
        Declared("s", "optional sequence of int64", ("k", "?")),
        Declared("m", "map", None),
    )
    # Maps can't be read: the input is named.
    assert "input 'm'" in found.faults[0].reason


def test_every_operator_that_cant_be_read_is_named() -> None:
    node = helper.make_node
    found = told(
        model(
            node("Rleu", ["x"], ["a"], name="first"),
            node("FusedMatMull", ["a", "a"], ["b"], name="second", domain="com.microsoft"),
            node("Relu", ["b"], ["c"], name="third", alpha=1.0),
            node("Gradient", ["x"], ["d"], domain="ai.onnx.preview.training", xs=["x"], y="c"),
            node("Tanh", ["c"], ["e"], name="fine"),
            domains=("com.microsoft", "ai.onnx.preview.training"),
        )
    )
    assert faults(found) == [
        ("first", "Rleu"),
        ("second", "com.microsoft:FusedMatMull"),
        ("third", "Relu"),
        ("#3", "ai.onnx.preview.training:Gradient"),
    ]
    reasons = [fault.reason for fault in found.faults]
    assert "did you mean 'Relu'" in reasons[0]
    assert "domain 'com.microsoft' is not supported; did you mean 'FusedMatMul'" in reasons[1]
    assert "'alpha' is not one of the operator's" in reasons[2]
    assert "is not supported" in reasons[3]
    assert not found.complete
    assert [node.operator for node in found.nodes][-1] == "Tanh"


def test_a_fault_in_a_body_is_named_by_its_own_node() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Nonsense", ["x"], ["a"], name="inner"),
            helper.make_node("Relu", ["x"], ["t"], name="twice", alpha=1.0),
        ],
        "body",
        [],
        [info("t", F, None)],
    )
    choice = helper.make_node("If", ["flag"], ["y"], name="choice", then_branch=body, else_branch=body)
    made = model(choice)
    made.graph.input.append(info("flag", TensorProto.BOOL, []))
    assert faults(told(made)) == [("inner", "Nonsense"), ("twice", "Relu")]


def test_nodes_that_cant_be_taken_apart_dont_hide_later_ones() -> None:
    node = helper.make_node
    made = model(
        # It makes shapes that can't be: 3 columns aren't 5.
        node(
            "Constant", [], ["five"], name="five", value=numpy_helper.from_array(np.ones((5, 2), np.float32))
        ),
        node("MatMul", ["x", "five"], ["a"], name="first"),
        node("Relu", ["a"], ["b"], name="after"),
        node("Constant", [], ["axes"], name="axes", value=numpy_helper.from_array(np.array([9]))),
        node("ReduceMean", ["x"], ["c"], name="second", axes=[7]),
        node("Add", ["b", "c"], ["y"], name="last"),
    )
    found = told(made)
    assert faults(found) == [("first", "MatMul"), ("second", "ReduceMean")]
    assert found.complete


def test_what_reads_what_isnt_there_is_not_blamed() -> None:
    node = helper.make_node
    # What it gives has no known type, so that nothing can stand for it.
    made = model(
        node("ReduceMean", ["x"], ["a"], name="bad", axes=[7]),
        node("Relu", ["a"], ["b"], name="after"),
        node("Tanh", ["b"], ["c"], name="later"),
        node("ReduceMax", ["x"], ["y"], name="also", axes=[8]),
    )
    assert [name for name, _ in faults(told(made))] == ["bad", "also"]


def test_inputs_and_constants_are_each_looked_at() -> None:
    made = small()
    made.graph.input.append(info("q", F, [1] * 9))
    made.graph.input.append(info("r", TensorProto.UNDEFINED, [1]))
    made.graph.initializer[0].raw_data = b"123"
    made.graph.initializer.add(name="far", data_type=F, dims=[2], data_location=TensorProto.EXTERNAL)
    made.graph.initializer[-1].external_data.add(key="location", value="far.bin")
    found = told(made)
    assert found.external_files == ("far.bin",)
    reasons = "\n".join(fault.reason for fault in found.faults)
    for name in ("'w'", "'far'", "'q'", "'r'"):
        assert name in reasons
    assert found.parameters["float32"] == 6 + 2 + 2


def test_an_opset_that_isnt_known_is_one_fault() -> None:
    made = small()
    made.opset_import[0].version = 999
    (fault,) = told(made).faults
    assert "opset 999" in fault.reason
    assert (fault.node, fault.operator) == ("", "")


def test_old_opsets_are_told_as_they_are_in_the_file() -> None:
    node = helper.make_node("Add", ["x", "x"], ["y"], name="sum", broadcast=1)
    made = model(node, opset=6)
    before = made.SerializeToString()
    found = told(made)
    assert found.opsets == {"ai.onnx": 6}
    assert not found.faults
    assert made.SerializeToString() == before


def test_bounds_of_no_dimension_are_a_fault() -> None:
    (fault,) = told(attention(), bacth=(1, 2)).faults
    assert "did you mean 'batch'" in fault.reason


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(Invalid, match="not an ONNX model"):
        told(b"not a model")


def test_faults_and_nodes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "MOST_FAULTS", 3)
    monkeypatch.setattr(inspection, "MOST_NODES", 4)
    nodes = [helper.make_node("Nope", ["x"], [f"y{number}"], name=f"n{number}") for number in range(9)]
    found = told(model(*nodes))
    assert [name for name, _ in faults(found)] == ["n0", "n1", "n2"]
    assert len(found.nodes) == 4
    assert found.operators == {"Nope": 9}


def test_functions_are_counted_and_looked_into() -> None:
    made = model(helper.make_node("Twice", ["x"], ["y"], domain="mine", name="call"), domains=("mine",))
    body = [helper.make_node("Nonsense", ["a"], ["b"], name="within")]
    made.functions.append(
        helper.make_function("mine", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    )
    found = told(made)
    assert found.functions == 1
    assert [operator for _, operator in faults(found)] == ["Nonsense"]
    assert onnx.ModelProto.FromString(made.SerializeToString()) == made
