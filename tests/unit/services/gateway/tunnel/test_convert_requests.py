"""Requests from bytes to the domain's checks and on to serving; answers back."""

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from inference import open_inference_pb2
from isthmus.tunnel.v1 import tunnel_pb2
from libs.common.errors import Internal, Invalid
from services.gateway.tunnel import convert
from services.gateway.tunnel import convert_requests as requests
from services.gateway.tunnel.domain.checks import DATATYPES, Limits, check_request, check_request_id
from services.gateway.tunnel.domain.requests import Answer, Prediction, Request, Tensor
from services.gateway.tunnel.testing import DEVICE, ROW, request

TENSORS = st.builds(
    tunnel_pb2.Tensor,
    name=st.text(max_size=140),
    datatype=st.sampled_from([*DATATYPES, "BYTES", "fp32", ""]),
    shape=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), max_size=10),
    content=st.binary(max_size=40),
)
REQUESTS = st.builds(
    tunnel_pb2.Request,
    id=st.integers(0, 2**64 - 1),
    model=st.text(max_size=20) | st.just("ranker"),
    timeout=st.none()
    | st.builds(
        Duration,
        seconds=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 40),
        nanos=st.integers(-(2**31), 2**31 - 1),
    ),
    inputs=st.lists(TENSORS, max_size=40),
    outputs=st.lists(st.text(max_size=20), max_size=40),
    traceparent=st.text(max_size=60),
)


def checked(message: tunnel_pb2.Request) -> Request:
    found = requests.from_request(message)
    check_request_id(found)
    check_request(found, Limits())
    return found


def taken(message: tunnel_pb2.Request) -> Request | None:
    """Return the request; None where it is refused as it should be. Anything else raised is a fault."""
    refusal: Invalid | None = None
    try:
        return checked(message)
    except Invalid as error:
        refusal = error
    assert refusal.reason.isupper()
    assert len(refusal.message) < 2000
    return None


def message(**fields: object) -> tunnel_pb2.Request:
    tensor = tunnel_pb2.Tensor(name="x", datatype="FP32", shape=[1, 2], content=bytes(8))
    given = {"id": 1, "model": "ranker", "timeout": Duration(seconds=1), "inputs": [tensor], **fields}
    return tunnel_pb2.Request(**given)  # type: ignore[arg-type]


def tensor(**fields: object) -> list[tunnel_pb2.Tensor]:
    given = {"name": "x", "datatype": "FP32", "shape": [1, 2], "content": bytes(8), **fields}
    return [tunnel_pb2.Tensor(**given)]  # type: ignore[arg-type]


def test_a_request() -> None:
    whole = tunnel_pb2.ConnectRequest(
        request=message(timeout=Duration(nanos=200_000_000), outputs=["y"], traceparent="00-ab")
    )
    assert convert.from_connect_request(whole, DEVICE) == request(
        1, timeout_s=0.2, outputs=("y",), traceparent="00-ab"
    )


@given(REQUESTS)
def test_any_request_is_taken_or_refused_with_a_reason(given: tunnel_pb2.Request) -> None:
    parsed = tunnel_pb2.Request.FromString(given.SerializeToString())
    found = taken(parsed)
    if found is None:
        return
    infer = requests.to_infer_request(found)
    assert [len(raw) for raw in infer.raw_input_contents] == [len(t.content) for t in given.inputs]
    assert 0 < found.timeout_s <= 30


@given(st.binary(max_size=200))
def test_bytes_that_are_anything(data: bytes) -> None:
    try:
        parsed = tunnel_pb2.Request.FromString(data)
    except DecodeError:
        return
    taken(parsed)


@pytest.mark.parametrize(
    ("given", "reason", "told"),
    [
        (message(id=0), "BAD_REQUEST_ID", "start at 1"),
        (message(model=""), "BAD_MODEL", "no model's id"),
        (message(model="a/b"), "BAD_MODEL", "'a/b'"),
        (message(model="m" * 129), "BAD_MODEL", "129 characters"),
        (message(timeout=None), "BAD_TIMEOUT", "more than 0"),
        (message(timeout=Duration()), "BAD_TIMEOUT", "more than 0"),
        (message(timeout=Duration(seconds=-1)), "BAD_TIMEOUT", "more than 0"),
        (message(timeout=Duration(seconds=1, nanos=-1)), "BAD_TIMEOUT", "more than 0"),
        (message(timeout=Duration(seconds=1, nanos=10**9)), "BAD_TIMEOUT", "more than 0"),
        (message(timeout=Duration(seconds=30, nanos=1)), "BAD_TIMEOUT", "at most 30 s"),
        (message(inputs=[]), "BAD_INPUT", "1 to 32"),
        (message(inputs=tensor() * 33), "BAD_INPUT", "1 to 32"),
        (message(inputs=tensor(name="")), "BAD_INPUT", r"inputs\[0\]\.name"),
        (message(inputs=tensor(name="ä" * 65)), "BAD_INPUT", "1 to 128 bytes"),
        (message(inputs=tensor(datatype="FP23")), "BAD_INPUT", "did you mean 'FP32'"),
        (message(inputs=tensor(datatype="BYTES")), "BAD_INPUT", "use one of BOOL, INT8"),
        (message(inputs=tensor(shape=[1] * 9)), "BAD_INPUT", "at most 8"),
        (message(inputs=tensor(shape=[-1, 2])), "BAD_INPUT", "0 or more"),
        (message(inputs=tensor(shape=[2, 2])), "BAD_INPUT", r"8 bytes; FP32 of the shape \[2, 2\] has 16"),
        (message(inputs=tensor(shape=[2**62] * 8)), "BAD_INPUT", "has 8 bytes"),
        (
            message(inputs=tensor(shape=[262_145], datatype="UINT8", content=bytes(262_145))),
            "REQUEST_TOO_LARGE",
            "262145 bytes of content; at most 262144",
        ),
        (message(outputs=["y"] * 33), "BAD_OUTPUT", "at most 32"),
        (message(outputs=["y", ""]), "BAD_OUTPUT", r"outputs\[1\]"),
    ],
)
def test_what_is_refused(given: tunnel_pb2.Request, reason: str, told: str) -> None:
    with pytest.raises(Invalid, match=told) as caught:
        checked(given)
    assert caught.value.reason == reason


def test_what_is_just_allowed() -> None:
    largest = tensor(shape=[4096, 32], datatype="FP16", content=bytes(262_144))
    given = message(
        inputs=largest, timeout=Duration(seconds=30), outputs=["y"] * 32, model="A.b_c-" + "9" * 122
    )
    assert checked(given).inputs[0].shape == (4096, 32)
    scalar = tensor(shape=[], content=bytes(4))
    assert checked(message(inputs=scalar)).inputs[0].shape == ()
    empty = tensor(shape=[0, 5], content=b"")
    assert checked(message(inputs=empty * 32)).inputs[31].content == b""


def test_lists_that_are_too_long_are_not_converted_whole() -> None:
    given = message(inputs=tensor(shape=[1] * 100_000) * 40, outputs=["y"] * 100_000)
    found = requests.from_request(given)
    assert (len(found.inputs), len(found.inputs[0].shape), len(found.outputs)) == (33, 9, 33)


def test_a_request_for_serving() -> None:
    infer = requests.to_infer_request(request(1, outputs=("y",)))
    assert infer.model_name == "ranker"
    assert [(t.name, t.datatype, list(t.shape)) for t in infer.inputs] == [("x", "FP32", [1, 2])]
    assert list(infer.raw_input_contents) == [bytes(8)]
    assert [output.name for output in infer.outputs] == ["y"]


def test_an_answer_of_serving() -> None:
    response = open_inference_pb2.ModelInferResponse(model_version="v2", raw_output_contents=[bytes(8)])
    response.outputs.add(name="x", datatype="FP32", shape=[1, 2])
    assert requests.from_infer_response(response) == Prediction("v2", (ROW,))
    response.outputs.add(name="y", datatype="FP32", shape=[1])
    with pytest.raises(Internal):
        requests.from_infer_response(response)


def test_answers() -> None:
    reply = convert.to_connect_response(Answer(7, Prediction("v1", (Tensor("y", "INT64", (2,), bytes(16)),))))
    answer = reply.answer
    assert (answer.id, answer.model_version, answer.failure_reason) == (7, "v1", "")
    (output,) = answer.outputs
    assert (output.name, output.datatype, list(output.shape), len(output.content)) == ("y", "INT64", [2], 16)
    failed = convert.to_connect_response(Answer(8, None, "NO_SERVING", "none")).answer
    assert (failed.id, failed.failure_reason, failed.failure_message) == (8, "NO_SERVING", "none")
    assert (failed.model_version, len(failed.outputs)) == ("", 0)
