"""Types of constants and inputs: each that ONNX has, held as numpy holds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, TypeProto, helper, numpy_helper
from onnx.defs import OpSchema

from libs.runtime.plan import DataType
from services.engine.domain.graph import LooseTensor, OptionalOf, SequenceOf
from services.engine.reading import read_model
from services.engine.reading.tensors import TYPES
from services.engine.testing import small

NUMBERS = [number for number, type_ in TYPES.items() if type_ is not DataType.STRING]
TENSOR = helper.make_tensor_type_proto


def test_every_type_that_onnx_has_is_known() -> None:
    names = {TensorProto.DataType.Name(number) for number in TYPES}
    # Six-bit floats are types that plans don't have.
    assert set(TensorProto.DataType.keys()) - names <= {"UNDEFINED", "FLOAT6E2M3", "FLOAT6E3M2"}
    assert set(TYPES.values()) == set(DataType)


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("number", NUMBERS, ids=TensorProto.DataType.Name)
def test_constants_are_those_that_onnx_reads(number: int, raw: bool) -> None:
    values = np.array([0, 1, 1, 0, 1], np.float32)  # an odd number: packed types leave half a byte
    if not TensorProto.DataType.Name(number).startswith(("BOOL", "UINT", "COMPLEX", "FLOAT8E8")):
        values[1] = -1
    dtype = helper.tensor_dtype_to_np_dtype(number)
    wanted = values.astype(dtype)
    tensor = numpy_helper.from_array(wanted, "k")
    if not raw:
        tensor = helper.make_tensor(
            "k",
            number,
            [5],
            values.astype(np.complex64) if "COMPLEX" in TensorProto.DataType.Name(number) else wanted,
        )
    assert tensor.HasField("raw_data") == raw
    assert tensor.data_type == number
    model = small()
    model.graph.initializer.append(tensor)
    found = read_model(model.SerializeToString()).constants["k"]
    assert found.dtype == wanted.dtype
    assert found.tobytes() == numpy_helper.to_array(tensor).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("size", range(10))
@pytest.mark.parametrize("name", ["INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2"])
def test_packed_types_of_any_length(name: str, size: int) -> None:
    number = TensorProto.DataType.Value(name)
    bits = 2 if name.endswith("2") else 4
    raw = np.random.default_rng(size).bytes((size * bits + 7) // 8)
    tensor = TensorProto(name="k", data_type=number, dims=[size], raw_data=raw)
    model = small()
    model.graph.initializer.append(tensor)
    found = read_model(model.SerializeToString()).constants["k"]
    np.testing.assert_array_equal(found, numpy_helper.to_array(tensor))


def test_strings_are_texts() -> None:
    model = small()
    model.graph.initializer.append(helper.make_tensor("k", TensorProto.STRING, [2, 1], ["a", "ü"]))
    found = read_model(model.SerializeToString()).constants["k"]
    assert found.tolist() == [["a"], ["ü"]]
    assert found.dtype == np.object_


@pytest.mark.parametrize("flat", [True, False])
def test_sparse_constants_become_dense(flat: bool) -> None:
    values = numpy_helper.from_array(np.array([5, 7], np.int16), "k")
    places = np.array([1, 5]) if flat else np.array([[0, 1], [1, 2]])
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(places), [2, 3])
    model = small()
    model.graph.sparse_initializer.append(sparse)
    model.graph.node.add(op_type="Constant", output=["d"]).attribute.append(
        AttributeProto(name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse)
    )
    graph = read_model(model.SerializeToString())
    constant: Any = next(node for node in graph.nodes if node.operator == "Constant").attributes[
        "sparse_value"
    ]
    for found in (graph.constants["k"], constant):
        np.testing.assert_array_equal(found, np.array([[0, 5, 0], [0, 0, 7]], np.int16))
        assert found.dtype == np.int16


@pytest.mark.parametrize(
    ("declared", "wanted"),
    [
        (TENSOR(TensorProto.STRING, None), LooseTensor(DataType.STRING)),
        (TENSOR(TensorProto.FLOAT, None), LooseTensor(DataType.FLOAT32)),
        (
            helper.make_sequence_type_proto(TENSOR(TensorProto.INT64, ["a", 3])),
            SequenceOf(LooseTensor(DataType.INT64, 2)),
        ),
        (
            helper.make_optional_type_proto(
                helper.make_sequence_type_proto(TENSOR(TensorProto.BFLOAT16, None))
            ),
            OptionalOf(SequenceOf(LooseTensor(DataType.BFLOAT16))),
        ),
    ],
)
def test_inputs_that_are_no_arrays_of_known_shape(declared: TypeProto, wanted: object) -> None:
    model = small()
    model.graph.input.add(name="extra", type=declared)
    assert read_model(model.SerializeToString()).inputs["extra"] == wanted


def test_a_type_as_an_attribute() -> None:
    model = small()
    node = helper.make_node("Optional", [], ["o"], type=TENSOR(TensorProto.FLOAT, [2]))
    model.opset_import[0].version = 15
    model.graph.node.append(node)
    graph = read_model(model.SerializeToString())
    (found,) = [node for node in graph.nodes if node.operator == "Optional"]
    assert found.attributes == {"type": LooseTensor(DataType.FLOAT32, 1)}


def test_each_kind_of_attribute_that_operators_have_is_read() -> None:
    from onnx.defs import get_all_schemas_with_history

    from services.engine.reading.nodes import _KINDS

    def kind(attribute: OpSchema.Attribute) -> str:
        return str(attribute.type).rpartition(".")[2]

    used = {kind(each) for schema in get_all_schemas_with_history() for each in schema.attributes.values()}
    assert used == set(_KINDS.values())
