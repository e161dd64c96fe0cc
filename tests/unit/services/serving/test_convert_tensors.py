import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference import open_inference_pb2 as pb
from libs.common.errors import Invalid
from services.serving import convert_tensors
from services.serving.domain.tensors import DTYPES, Tensor

NUMERIC = [name for name in DTYPES if name != "BYTES"]


def request(
    datatype: str, shape: list[int], raw: bytes | None = None, **contents: list
) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name="m")
    tensor = made.inputs.add(name="x", datatype=datatype, shape=shape)
    if raw is not None:
        made.raw_input_contents.append(raw)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return made


def array(made: pb.ModelInferRequest) -> np.ndarray:
    (tensor,) = convert_tensors.inputs(made)
    return tensor.array


@given(
    st.sampled_from(NUMERIC), st.lists(st.integers(0, 3), max_size=4), st.booleans(), st.integers(0, 2**32)
)
def test_what_goes_out_comes_in(datatype: str, shape: list[int], raw: bool, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 2, shape).astype(DTYPES[datatype])
    answer = pb.ModelInferResponse()
    convert_tensors.fill(answer, [Tensor("x", datatype, values)], raw)
    asked = pb.ModelInferRequest()
    asked.inputs.add(name="x", datatype=datatype, shape=shape).CopyFrom(
        pb.ModelInferRequest.InferInputTensor.FromString(answer.outputs[0].SerializeToString())
    )
    asked.raw_input_contents.extend(answer.raw_output_contents)
    np.testing.assert_array_equal(array(asked), values)
    assert array(asked).dtype == DTYPES[datatype]


@given(st.lists(st.binary(max_size=5), max_size=5), st.booleans())
def test_bytes_go_out_and_come_in(values: list[bytes], raw: bool) -> None:
    held = np.empty(len(values), object)
    held[:] = values
    answer = pb.ModelInferResponse()
    convert_tensors.fill(answer, [Tensor("x", "BYTES", held)], raw)
    if raw:
        asked = request("BYTES", [len(values)], answer.raw_output_contents[0])
    else:
        asked = request("BYTES", [len(values)], bytes_contents=values)
    assert array(asked).tolist() == values


@settings(max_examples=300)
@given(
    st.sampled_from([*DTYPES, "BF16", ""]),
    st.lists(st.integers(-2, 2**62), max_size=3),
    st.none() | st.binary(max_size=24),
    st.lists(st.integers(-200, 200), max_size=3),
)
def test_whatever_comes_is_taken_or_refused_as_invalid(
    datatype: str, shape: list[int], raw: bytes | None, values: list[int]
) -> None:
    made = request(datatype, shape, raw, int_contents=values)
    try:
        found = array(made)
    except Invalid:
        return
    assert found.shape == tuple(shape)
    assert found.dtype == DTYPES[datatype]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (request("INT8", [1], int_contents=[128]), "holds 128, which is no INT8"),
        (request("UINT8", [1], uint_contents=[256]), "holds 256, which is no UINT8"),
        (request("INT16", [1], int_contents=[-40000]), "holds -40000, which is no INT16"),
        (request("FP16", [1], fp32_contents=[1.0]), "send it in raw_input_contents"),
        (request("FP32", [1], fp64_contents=[1.0]), "FP32 belongs in fp32_contents"),
        (request("FP32", [2], fp32_contents=[1.0]), "1 elements in fp32_contents; its shape has 2"),
        (request("BF16", [1], b"ab"), "isn't taken"),
        (request("BOOL", [1], b"\x02"), "holds 2 as BOOL"),
        (request("FP32", [2**20, 2**19], b""), "raw bytes"),
        (request("FP32", [2**39, 2**39], b""), "of less than 2^40 elements"),
        (request("BOOL", [0, 2**31, 2**31]), "of less than 2^40 elements"),
        (request("FP32", [1] * 33, b"abcd"), "at most 32 sizes"),
        (request("BYTES", [2**20], b""), "too few"),
        (request("BYTES", [1], struct.pack("<I", 9) + b"a"), "end within element 0"),
        (request("BYTES", [1], struct.pack("<I", 1) + b"ab"), "1 raw bytes behind"),
    ],
)
def test_what_is_wrong_is_named(made: pb.ModelInferRequest, told: str) -> None:
    with pytest.raises(Invalid, match="input 'x': ") as caught:
        convert_tensors.inputs(made)
    assert told in caught.value.message


def test_texts_are_bounded_by_their_number() -> None:
    made = request("BYTES", [2**19], bytes(2**21))
    made.inputs.add(name="z", datatype="BYTES", shape=[2**19 + 1])
    made.raw_input_contents.append(b"")
    with pytest.raises(Invalid, match="1048577 elements of BYTES; a request has at most 1048576"):
        convert_tensors.inputs(made)
