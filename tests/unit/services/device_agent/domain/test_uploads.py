import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.task.uploads import UploadField, UploadStream
from services.device_agent.domain.uploads import MAX_FRAME_BYTES, check_send

UPLOADS = {
    "out": UploadStream(
        "out",
        {
            "n": UploadField("n", "number"),
            "s": UploadField("s", "string", 20),
            "m": UploadField("m", "number_map"),
        },
    )
}


def test_declared_fields_go_as_compact_sorted_json():
    outgoing = check_send(UPLOADS, "out", {"s": "é", "n": 1.5})
    assert outgoing.payload == '{"n":1.5,"s":"é"}'.encode()
    assert outgoing.refusal == ""


@pytest.mark.parametrize(
    ("stream", "fields", "refusal"),
    [
        ("other", {}, "STREAM_UNDECLARED"),
        ("out", {"n": 1, "x": 1}, "FIELD_UNDECLARED"),
        ("out", {"n": "1"}, "FIELD_TYPE"),
        ("out", {"n": True}, "FIELD_TYPE"),
        ("out", {"n": float("nan")}, "FIELD_TYPE"),
        ("out", {"s": "x" * 19}, "FIELD_TOO_LARGE"),
        ("out", {"m": {"a": "1"}}, "FIELD_TYPE"),
    ],
)
def test_anything_else_refuses_the_whole_frame(stream, fields, refusal):
    outgoing = check_send(UPLOADS, stream, fields)
    assert (outgoing.refusal, outgoing.payload) == (refusal, b"")
    assert outgoing.message
    assert outgoing.stream == ("out" if stream == "out" else "")


def test_a_frame_larger_than_the_tunnel_takes_is_refused():
    fields = {f"f{i}": UploadField(f"f{i}", "string", 65536) for i in range(5)}
    uploads = {"out": UploadStream("out", fields)}
    outgoing = check_send(uploads, "out", dict.fromkeys(fields, "x" * 65000))
    assert outgoing.refusal == "FRAME_TOO_LARGE"
    assert len(check_send(uploads, "out", {"f0": "x" * 65000}).payload) < MAX_FRAME_BYTES


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


sends = st.dictionaries(st.sampled_from("nsmx") | st.text(max_size=3), values)


@given(st.text(max_size=5) | st.just("out"), sends)
def test_whatever_a_script_sends_only_declared_names_and_types_get_through(stream, fields):
    outgoing = check_send(UPLOADS, stream, fields)
    if outgoing.refusal:
        assert outgoing.payload == b""
    else:
        assert stream == "out"
        assert json.loads(outgoing.payload) == fields
        assert set(fields) <= {"n", "s", "m"}
        assert isinstance(fields.get("n", 0), int | float)
        assert isinstance(fields.get("s", ""), str)
