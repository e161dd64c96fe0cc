from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.deployer.v1 import manifest_pb2, preflight_pb2
from isthmus.device_agent.v1 import simulator_pb2
from libs.common.blobs import BlobRef
from libs.common.errors import Invalid
from libs.common.names import TaskName
from libs.common.testing import START
from libs.task.testing import attempt, make_manifest
from services.device_agent.simulator import convert
from services.device_agent.simulator.verdict import Verdict

EVENTS = BlobRef.of(b"events")


def request(**change: object) -> simulator_pb2.SimulateRequest:
    made = simulator_pb2.SimulateRequest(
        parent="tenants/acme/tasks/genres", manifest=make_manifest().SerializeToString()
    )
    made.MergeFrom(simulator_pb2.SimulateRequest(**change))  # type: ignore[arg-type]
    return made


def test_a_request_is_read_whole() -> None:
    wanted = convert.wanted(request(events=EVENTS.to_proto()))
    assert (wanted.task, wanted.events) == (TaskName("acme", "genres"), EVENTS)
    assert wanted.manifest.key == "genres@1.0.0"
    assert wanted.payload == make_manifest().SerializeToString()
    assert convert.wanted(request()).events is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parent": "genres"}, "parent"),
        ({"manifest": b"\xff\xff"}, "manifest: isn't a TaskManifest"),
        ({"events": manifest_pb2.BlobRef(digest="x")}, "digest"),
    ],
)
def test_what_is_malformed_is_named(change: dict[str, object], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        convert.wanted(request(**change))


@given(st.binary(max_size=300), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(manifest: bytes, events: bytes) -> None:
    made = request(manifest=manifest)
    made.events.digest = events.hex()
    wanted, error = attempt(convert.wanted, made)
    assert error is not None or wanted is not None


@given(st.integers(0, 2**40), st.floats(0, 1e5))
def test_verdicts_are_written_with_their_figures(count: int, seconds: float) -> None:
    verdict = Verdict(passed=True, run_count=count, p50_s=seconds, p99_s=seconds, asked_count=3)
    message = convert.preflight(verdict, EVENTS, START)
    assert (message.state, message.run_count) == (preflight_pb2.Preflight.STATE_PASSED, count)
    assert (message.events, message.asked_count) == (EVENTS.to_proto(), 3)
    assert message.HasField("p50_run_time") == bool(count)
    if count:
        assert abs(message.p99_run_time.ToTimedelta() - timedelta(seconds=seconds)) < timedelta(
            microseconds=2
        )
    bad = convert.preflight(Verdict(passed=False, reason="CRASH", message="m"), None, START)
    assert (bad.state, bad.reason, bad.message) == (preflight_pb2.Preflight.STATE_FAILED, "CRASH", "m")
    assert not bad.HasField("events")
