import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.task.uploads import UploadField, UploadStream
from services.device_agent.domain.uploads import MAX_FRAME_BYTES, check_send, reportable

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


TRACEBACK = """Traceback (most recent call last):
  File "genre-profile@1.2/lib/pre.py", line 3, in load
    return parse(text)
  File "genre-profile@1.2/pre.py", line 12, in run
    rows = load(event.fields["text"])
KeyError: 'Alice: 42
Bob: no'
"""


def test_a_failure_is_told_by_its_kind_and_place_and_not_by_its_text():
    text = reportable("EXCEPTION", TRACEBACK)
    assert text.startswith("KeyError (pre.py, line 12, in run);")
    assert "Alice" not in text
    assert "event.fields" not in text


@pytest.mark.parametrize(
    ("reason", "message", "told"),
    [
        ("EXCEPTION", "whatever: Alice", "EXCEPTION;"),
        ("BAD_RESULT", "the result of run: Alice is no number", "BAD_RESULT;"),
        ("MEMORY", "MemoryError: Alice", "MEMORY;"),
        ("TIMEOUT", "ran longer than 1 s", "ran longer than 1 s"),
        ("LOAD_ERROR", "SyntaxError: line 3", "SyntaxError: line 3"),
    ],
)
def test_only_the_vms_own_words_and_load_errors_are_told_as_they_are(reason, message, told):
    text = reportable(reason, message)
    assert text.startswith(told)
    assert "Alice" not in text


@given(st.sampled_from(["EXCEPTION", "BAD_RESULT", "MEMORY"]), st.text())
def test_the_text_of_an_error_never_passes_without_frames(reason, message):
    text = reportable(reason, f"ValueError: {message}\n{message}")
    assert text == f"{reason}; its text stays on the device, see its results and log"
