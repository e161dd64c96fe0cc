import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from inference import open_inference_pb2 as pb
from libs.cli.inference import infer_request, outputs_of, tensor_text
from libs.common.errors import Internal, Invalid
from services.serving import convert_tensors
from services.serving.domain.tensors import DTYPES

Spec = pb.ModelMetadataResponse.TensorMetadata
NUMBERS = sorted(set(DTYPES) - {"BYTES"})


def answer(*tensors: tuple[str, str, list[int], bytes]) -> pb.ModelInferResponse:
    response = pb.ModelInferResponse()
    for name, datatype, shape, data in tensors:
        response.outputs.add(name=name, datatype=datatype, shape=shape)
        response.raw_output_contents.append(data)
    return response


@given(st.data(), st.sampled_from(NUMBERS))
def test_serving_reads_what_was_written_and_the_command_reads_it_back(
    data: st.DataObject, type_: str
) -> None:
    finite = {"elements": {"allow_nan": False, "allow_infinity": False}} if type_.startswith("FP") else {}
    dtype = DTYPES[type_]
    shapes = arrays.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4)
    array = data.draw(arrays.arrays(dtype, shapes, **finite))
    values = json.loads(json.dumps({"x": array.tolist()}))
    request = infer_request("m", "", [Spec(name="x", datatype=type_)], values)
    (read,) = convert_tensors.inputs(request)
    assert (read.name, read.datatype) == ("x", type_)
    np.testing.assert_array_equal(read.array, array)
    response = pb.ModelInferResponse()
    convert_tensors.fill(response, [read], raw=True)
    assert outputs_of(response) == values


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=1, max_size=3))
def test_texts_are_bytes_on_the_way(rows: list[list[str]]) -> None:
    request = infer_request("m", "v1", [Spec(name="s", datatype="BYTES")], {"s": rows})
    (read,) = convert_tensors.inputs(request)
    assert read.array.tolist() == [[each.encode() for each in row] for row in rows]
    response = pb.ModelInferResponse()
    convert_tensors.fill(response, [read], raw=True)
    assert outputs_of(response) == {"s": rows}


def test_bytes_that_are_no_text_are_shown_all_the_same() -> None:
    assert outputs_of(answer(("s", "BYTES", [1], struct.pack("<I", 2) + b"\xffa"))) == {"s": ["\\xffa"]}


def test_shapes_are_told_for_people() -> None:
    assert tensor_text(Spec(name="x", datatype="FP32", shape=[-1, 4])) == "x: FP32[any, 4]"
    assert tensor_text(Spec(name="y", datatype="INT64")) == "y: INT64[]"


@pytest.mark.parametrize(
    ("datatype", "value", "said"),
    [
        ("BYTES", [1], "1 is no text, which BYTES takes"),
        ("BYTES", ["\ud800"], "holds half a character"),
        ("BF16", [1], "'BF16' can't be written as JSON"),
        ("INT8", [128], "128 is no INT8"),
        ("BOOL", [1], "1 is no BOOL"),
        ("INT64", [1.5], "1.5 is no INT64"),
        ("FP16", [1e6], "1000000.0 is no FP16"),
    ],
)
def test_a_value_that_is_not_of_the_datatype_is_told(datatype: str, value: object, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        infer_request("m", "", [Spec(name="x", datatype=datatype)], {"x": value})


@pytest.mark.parametrize(
    "odd",
    [
        answer(("y", "FP32", [2], b"\0" * 4)),
        answer(("y", "FP32", [-1], b"")),
        answer(("y", "BF16", [1], b"\0\0")),
        answer(("y", "BYTES", [1], b"\5\0\0\0abc")),
        answer(("y", "BYTES", [2], b"\0\0\0\0")),
        answer(("y", "BYTES", [1], b"\0")),
        answer(("y", "FP32", [2**40, 0], b"")),
        pb.ModelInferResponse(outputs=[pb.ModelInferResponse.InferOutputTensor(name="y")]),
    ],
)
def test_an_answer_that_can_not_be_read_is_told(odd: pb.ModelInferResponse) -> None:
    with pytest.raises(Internal, match="serving gave an answer that can't be read"):
        outputs_of(odd)


@given(
    st.sampled_from([*DTYPES, "BF16"]),
    st.lists(st.integers(-2, 2**40), max_size=5),
    st.binary(max_size=64),
)
def test_whatever_comes_is_read_or_refused(datatype: str, shape: list[int], data: bytes) -> None:
    with contextlib.suppress(Internal):
        assert set(outputs_of(answer(("y", datatype, shape, data)))) == {"y"}
