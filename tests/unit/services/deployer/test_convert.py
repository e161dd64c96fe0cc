"""What goes through `convert` comes back the same."""

from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isthmus.deployer.v1 import pull_pb2, release_pb2, task_pb2
from libs.common.errors import Invalid
from libs.common.names import ReleaseName, VersionName
from libs.common.testing import START
from libs.task.testing import attempt
from services.deployer import convert
from services.deployer.domain.model import (
    BlobRef,
    Counts,
    FailureCount,
    Gate,
    Release,
    ReleaseState,
    Stage,
    StepStatus,
)
from services.deployer.domain.release_rules import check_gate, check_shares, share_of
from services.deployer.domain.releases import ReleaseView

moments = st.datetimes(
    min_value=datetime(1, 1, 2, tzinfo=UTC).replace(tzinfo=None),
    max_value=datetime(9999, 12, 30, tzinfo=UTC).replace(tzinfo=None),
    timezones=st.just(UTC),
)
spans = st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=365))
percents = st.floats(0, 100)


@given(moments)
def test_times(moment: datetime) -> None:
    message = convert.timestamp(moment)
    assert message is not None
    assert convert.time_of(message) == moment
    assert convert.timestamp(None) is None


@given(spans)
def test_durations(value: timedelta) -> None:
    assert convert.span(convert.duration(value), "f") == value


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1))
def test_any_duration_is_read_or_refused(seconds: int, nanos: int) -> None:
    value, error = attempt(convert.span, Duration(seconds=seconds, nanos=nanos), "f")
    assert isinstance(value, timedelta) if error is None else "f:" in error.message


@given(percents, percents, st.integers(1, 10**6), spans, spans)
def test_gates(confirmed: float, failed: float, least: int, soak: timedelta, timeout: timedelta) -> None:
    gate = Gate(confirmed, failed, least, soak, timeout)
    assert convert.gate(convert.gate_message(gate)) == gate


def test_an_absent_gate_takes_the_defaults() -> None:
    assert convert.gate(release_pb2.Gate()) == Gate()


@given(st.builds(release_pb2.Gate, confirmed_percent=st.floats(), failed_percent=st.floats()))
def test_any_gate_passes_or_is_refused(message: release_pb2.Gate) -> None:
    _, error = attempt(check_gate, convert.gate(message))
    assert error is None or "gate." in error.message


@given(st.integers(1, 10_000))
def test_shares(share: int) -> None:
    assert share_of(share / 100, 0) == share


@given(st.lists(st.floats(), max_size=25))
@example([1.797693134862316e306])
def test_any_steps_pass_or_are_refused(steps: list[float]) -> None:
    def read() -> list[int]:
        shares = [share_of(step, index) for index, step in enumerate(steps)]
        check_shares(shares)
        return shares

    shares, error = attempt(read)
    if error is not None:
        assert "steps_percent" in error.message
    else:
        assert shares == sorted(set(shares or ()))


@given(st.builds(Counts, *[st.integers(0, 2**32 - 1)] * 7))
def test_counts(counts: Counts) -> None:
    message = convert.counts(counts)
    assert [field for _, field in message.ListFields()] == [
        n
        for n in (
            counts.targeted,
            counts.downloaded,
            counts.verified,
            counts.staged,
            counts.activated,
            counts.confirmed,
            counts.failed,
        )
        if n
    ]


failures = st.builds(
    FailureCount, st.from_regex(r"[A-Z][A-Z0-9_]{0,63}", fullmatch=True), st.integers(1, 2**32 - 1)
)


@given(st.lists(failures, max_size=10))
def test_failures_of_a_release(told: list[FailureCount]) -> None:
    made = Release(
        name=ReleaseName("acme", "r1"),
        version=VersionName("acme", "genres", "1.0.0"),
        policy_json="",
        shares=(10_000,),
        gate=Gate(),
        salt=b"0" * 16,
        create_time=START,
        creator="me",
        steps=(StepStatus(10_000, START),),
    )
    message = convert.release(ReleaseView(made, Counts(failures=tuple(told)), ""))
    assert [FailureCount(f.reason, f.device_count) for f in message.failures] == told


@given(st.text(), st.integers(0, 2**64 - 1))
def test_blob_references(digest: str, size: int) -> None:
    ref = BlobRef(digest, size)
    assert convert.blob_ref(convert.blob(ref)) == ref


@pytest.mark.parametrize("stage", list(Stage))
def test_stages_have_the_numbers_of_the_proto(stage: Stage) -> None:
    assert pull_pb2.StageReport.Stage.Name(stage.value) == f"STAGE_{stage.name}"
    assert convert.stage_report(pull_pb2.StageReport(stage=stage.value), 0).stage is stage


def test_states_have_the_numbers_of_the_proto() -> None:
    for state in ReleaseState:
        assert release_pb2.Release.State.Name(state.value) == f"STATE_{state.name}"


def test_a_request_differs_from_another_by_any_field() -> None:
    one = task_pb2.CreateTaskRequest(parent="tenants/a", task_id="t", request_id="q")
    two = task_pb2.CreateTaskRequest(parent="tenants/a", task_id="t", request_id="q", description="d")
    assert convert.fingerprint(one) != convert.fingerprint(two)
    assert convert.fingerprint(one) == convert.fingerprint(
        task_pb2.CreateTaskRequest.FromString(one.SerializeToString())
    )


def task_of(text: str) -> task_pb2.Task:
    return task_pb2.Task(name=text)


@given(st.from_regex(r"[a-z0-9-]{1,63}", fullmatch=True), st.integers(1, 100))
def test_page_tokens(last: str, limit: int) -> None:
    names = [*(["x"] * (limit - 1)), last]
    messages, token = convert.page(names, task_of, limit, "task", str)
    assert [message.name for message in messages] == names
    assert convert.text_page(token, limit, "task") == (last, limit)
    with pytest.raises(Invalid):
        convert.text_page(token, limit, "device")
    assert convert.page(names, task_of, limit + 1, "task", str)[1] == ""
    assert convert.page([], task_of, limit, "task", str) == ([], "")


@settings(deadline=None)
@given(st.lists(st.sampled_from([1, 100, 600_000, 1_500_000, 4_000_000]), max_size=12))
def test_pages_hold_what_fits_and_lose_nothing(sizes: list[int]) -> None:
    names = [f"{number:03}" + "x" * size for number, size in enumerate(sizes)]
    seen: list[str] = []
    token = convert.encode_token({"task": ""})
    while token:
        after = convert.decode_token(token)["task"]
        rest = [name for name in names if name[:3] > str(after)]
        messages, token = convert.page(rest, task_of, 10, "task", lambda name: name[:3])
        seen += [message.name for message in messages]
        answer = task_pb2.ListTasksResponse(tasks=messages, next_page_token=token)
        assert len(messages) == 1 or answer.ByteSize() <= convert.MAX_PAGE_BYTES + len(token) + 8
        assert messages or not rest
    assert seen == names
