from contextvars import copy_context

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry import trace

from libs.common.identity import Metadata
from libs.common.tracing import carry, current_ids, extract, inject

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def carried(metadata: Metadata) -> tuple[list[tuple[str, str]], tuple[str, str] | None]:
    """Return what goes on, and the ids, of a call that came with this metadata."""

    def call() -> tuple[list[tuple[str, str]], tuple[str, str] | None]:
        carry(metadata)
        return inject(), current_ids()

    return copy_context().run(call)


def test_outside_of_calls_there_is_no_trace() -> None:
    assert inject() == []
    assert current_ids() is None


def test_a_trace_goes_on_as_it_came() -> None:
    assert carried((("x", "y"), ("traceparent", PARENT))) == ([("traceparent", PARENT)], (TRACE, SPAN))


def test_the_state_of_a_trace_goes_along() -> None:
    headers, _ = carried((("traceparent", PARENT), ("tracestate", "a=1,b=2")))
    assert headers == [("traceparent", PARENT), ("tracestate", "a=1,b=2")]


def test_a_call_without_a_trace_begins_one_of_its_own() -> None:
    (one, ids), (other, _) = carried(()), carried((("x", "y"),))
    assert ids is not None
    assert one == [("traceparent", f"00-{ids[0]}-{ids[1]}-00")]
    assert one != other


def test_a_span_that_is_open_goes_before_the_trace_that_came() -> None:
    def call() -> None:
        carry((("traceparent", PARENT),))
        with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(0xABC, 0xDEF, is_remote=False))):
            assert current_ids() == (f"{0xABC:032x}", f"{0xDEF:016x}")
            assert dict(inject())["traceparent"].split("-")[1] == f"{0xABC:032x}"
        assert current_ids() == (TRACE, SPAN)

    copy_context().run(call)


@pytest.mark.parametrize(
    "metadata",
    [
        (("traceparent", f"00-{'0' * 32}-{SPAN}-01"),),
        (("traceparent", f"00-{TRACE}-{'0' * 16}-01"),),
        (("traceparent", f"ff-{TRACE}-{SPAN}-01"),),
        (("traceparent", PARENT + "\n"),),
        (("traceparent", PARENT.upper()),),
        (("traceparent", PARENT.encode()),),
    ],
)
def test_what_is_no_trace_is_not_gone_on_with(metadata: Metadata) -> None:
    _, ids = carried(metadata)
    kept = trace.get_current_span(extract(metadata)).get_span_context()
    assert ids is not None
    assert (ids == (TRACE, SPAN)) == kept.is_valid


@given(
    st.text(max_size=80)
    | st.binary(max_size=20)
    | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-.{0,4}")
)
@example(PARENT)
def test_it_reads_what_the_standards_own_reader_reads(value: str | bytes) -> None:
    headers, ids = carried((("traceparent", value),))
    expected = trace.get_current_span(extract((("traceparent", value),))).get_span_context()
    assert ids is not None
    (header,) = headers
    if expected.is_valid:
        assert ids == (f"{expected.trace_id:032x}", f"{expected.span_id:016x}")
        assert header[1].endswith(f"-{expected.trace_flags:02x}")
    else:
        assert header[1] == f"00-{ids[0]}-{ids[1]}-00"
