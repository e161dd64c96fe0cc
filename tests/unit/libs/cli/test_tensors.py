"""Arrays between JSON and the wire: nothing is bent on the way, and what is no array is refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from isthmus.engine.v1 import engine_pb2, plan_pb2
from libs.cli.tensors import read_inputs, tensor_from_json, tensor_to_json, tensors_from_json, type_name
from libs.common.errors import Invalid

TYPES = {
    type_: np.dtype(type_name(type_))
    for type_ in plan_pb2.DataType.values()
    if plan_pb2.DATA_TYPE_UNSPECIFIED < type_ <= plan_pb2.DATA_TYPE_FLOAT64
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


@given(st.data())
def test_an_array_comes_back_as_it_was(data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from(sorted(TYPES)))
    finite = {"elements": {"allow_nan": False, "allow_infinity": False}} if TYPES[type_].kind == "f" else {}
    array = data.draw(
        arrays.arrays(TYPES[type_], arrays.array_shapes(min_dims=0, max_dims=4, min_side=1), **finite)
    )
    spec = engine_pb2.TensorSpec(name="x", type=type_)
    tensor = tensor_from_json(spec, json.loads(json.dumps(array.tolist())))
    assert tuple(tensor.shape) == array.shape
    assert tensor.data == array.astype(array.dtype.newbyteorder("<")).tobytes()
    assert tensor_to_json(tensor) == array.tolist()


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (2, 0, 3), (2, 1, 0)])
def test_what_is_empty_keeps_its_lists(shape: tuple[int, ...]) -> None:
    tensor = engine_pb2.InferTensor(name="y", type=plan_pb2.DATA_TYPE_INT8, shape=shape)
    assert tensor_to_json(tensor) == np.zeros(shape, np.int8).tolist()


def test_what_json_has_no_number_for_is_text() -> None:
    data = np.array([np.nan, np.inf, -np.inf, 1], np.float32).tobytes()
    tensor = engine_pb2.InferTensor(name="y", type=plan_pb2.DATA_TYPE_FLOAT32, shape=[4], data=data)
    assert tensor_to_json(tensor) == ["nan", "inf", "-inf", 1.0]


@given(JSON, st.sampled_from(sorted(TYPES)))
def test_anything_else_is_refused_by_the_inputs_name(
    value: object, type_: plan_pb2.DataType.ValueType
) -> None:
    spec = engine_pb2.TensorSpec(name="x", type=type_)
    said = ""
    try:
        (tensor,) = tensors_from_json([spec], {"x": value})
    except Invalid as error:
        said = error.message
    if said:
        assert said.startswith("input 'x': ")
    else:
        assert len(tensor.data) == TYPES[type_].itemsize * int(np.prod(tensor.shape))


@given(JSON)
def test_inputs_are_an_object_of_what_the_plan_takes(values: object) -> None:
    spec = engine_pb2.TensorSpec(name="only this", type=plan_pb2.DATA_TYPE_INT64)
    with pytest.raises(Invalid, match=r"^inputs: "):
        tensors_from_json([spec], values)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (True, "true is no int8"),
        (None, "null is no int8"),
        ("abc", "'abc' is no int8"),
        (1.5, "1.5 is no int8"),
        ({"a": 1}, "an object is no int8"),
    ],
)
def test_a_wrong_element_is_told_as_it_was_written(value: object, said: str) -> None:
    spec = engine_pb2.TensorSpec(name="x", type=plan_pb2.DATA_TYPE_INT8)
    with pytest.raises(Invalid) as caught:
        tensor_from_json(spec, [value])
    assert caught.value.message == f"input 'x': {said}"


def test_a_number_of_very_many_digits_is_told() -> None:
    assert read_inputs('{"x": [-12]}') == {"x": [-12]}
    with pytest.raises(Invalid, match="is too large for any type"):
        read_inputs("1" * 5000)


def test_a_type_that_json_cant_say_is_named() -> None:
    spec = engine_pb2.TensorSpec(name="x", type=plan_pb2.DATA_TYPE_BFLOAT16)
    with pytest.raises(Invalid, match=r"'x' is of bfloat16, which JSON can't say here; convert it"):
        tensor_from_json(spec, [1.0])
