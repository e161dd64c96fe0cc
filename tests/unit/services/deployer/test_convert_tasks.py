"""Pre-flights go through `convert_tasks` and come back the same; what a simulator says is bounded."""

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from isthmus.deployer.v1 import manifest_pb2, preflight_pb2, task_pb2
from libs.common.errors import Internal, Invalid
from services.deployer import convert_tasks
from services.deployer.domain.model import BlobRef, Preflight, PreflightState

counts = st.integers(0, 2**62)
spans = st.none() | st.timedeltas(timedelta(microseconds=1), timedelta(days=1))
moments = st.datetimes(
    min_value=datetime(1, 1, 2, tzinfo=UTC).replace(tzinfo=None),
    max_value=datetime(9999, 12, 30, tzinfo=UTC).replace(tzinfo=None),
    timezones=st.just(UTC),
)
preflights = st.builds(
    Preflight,
    state=st.sampled_from(PreflightState),
    reason=st.text(max_size=64),
    message=st.text(max_size=1000),
    events=st.none() | st.builds(BlobRef, st.just("sha256:" + "a" * 64), counts),
    event_count=counts,
    run_count=counts,
    failure_count=counts,
    frame_count=counts,
    frame_bytes=counts,
    refused_frame_count=counts,
    asked_count=counts,
    p50_run_time=spans,
    p99_run_time=spans,
    end_time=st.none() | moments,
)


@given(preflights)
def test_preflights(value: Preflight) -> None:
    assert convert_tasks.preflight_value(convert_tasks.preflight(value)) == value


@given(st.binary(max_size=200))
def test_whatever_a_simulator_says_is_read_or_refused(data: bytes) -> None:
    message = preflight_pb2.Preflight(state=preflight_pb2.Preflight.STATE_PASSED)
    with contextlib.suppress(DecodeError):
        message.MergeFromString(data)
    with contextlib.suppress(Internal):
        value = convert_tasks.preflight_value(message)
        assert (len(value.reason) <= 64, len(value.message) <= 1000) == (True, True)


@pytest.mark.parametrize(
    "wrong",
    [
        preflight_pb2.Preflight(state=1, end_time=Timestamp(seconds=2**62)),
        preflight_pb2.Preflight(state=1, p50_run_time=Duration(seconds=2**62)),
        preflight_pb2.Preflight(state=77),
    ],
)
def test_what_is_out_of_range_is_a_fault_of_ours(wrong: preflight_pb2.Preflight) -> None:
    with pytest.raises(Internal) as raised:
        convert_tasks.preflight_value(wrong)
    assert raised.value.reason == "BAD_VERDICT"


def test_no_verdict_is_a_fault_of_ours() -> None:
    with pytest.raises(Internal, match="state 0"):
        convert_tasks.preflight_value(preflight_pb2.Preflight())


def test_a_publication_names_its_events_only_when_it_has_some() -> None:
    request = task_pb2.PublishVersionRequest(parent="tenants/acme/tasks/genres", validate_only=True)
    assert convert_tasks.publication(request).events is None
    request.events.CopyFrom(manifest_pb2.BlobRef(digest="sha256:x", size_bytes=3))
    assert convert_tasks.publication(request).events == BlobRef("sha256:x", 3)
    with pytest.raises(Invalid, match="parent"):
        convert_tasks.publication(task_pb2.PublishVersionRequest(parent="genres"))
