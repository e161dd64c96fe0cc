"""Messages become domain values, or a clear refusal; whatever bytes come."""

from datetime import timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.scheduler.v1 import object_pb2 as pb
from isthmus.scheduler.v1 import runner_pb2 as wire
from isthmus.scheduler.v1 import scheduler_pb2 as api
from libs.common.errors import Invalid
from libs.common.names import JobName, NodeName, QueueName
from services.scheduler import convert, convert_api, convert_job, convert_runner
from services.scheduler.domain.lifecycle import Report
from services.scheduler.domain.messages import (
    Acknowledge,
    ForgetWorker,
    Heartbeat,
    Hello,
    StartWorker,
    StopWorker,
    Welcome,
)
from services.scheduler.domain.objects import Mode, Resources, WorkerId, WorkerPlacement
from services.scheduler.domain.validation import check_job_spec
from services.scheduler.testing import BEGIN, make_job

CREATE = api.CreateJobRequest(
    parent="tenants/acme",
    job_id="j",
    job=pb.Job(
        metadata=pb.Metadata(labels={"a": "b"}),
        spec=pb.JobSpec(
            command=["python", "train.py"],
            environment={"A": "1"},
            files=[pb.JobFile(path="a")],
            worker_count=2,
            resources=pb.Resources(cpu_millis=1),
            placement=pb.Placement(mode=pb.Placement.Mode.MODE_REQUIRED, level=1),
            deadline=Duration(seconds=5),
            artefacts=[pb.Artefact(id="m", path="m")],
        ),
    ),
)
ID = wire.WorkerId(job="tenants/acme/jobs/j", job_uid="u1", attempt=1, rank=0)
REPORT = wire.WorkerReport(
    id=ID,
    worker=pb.Worker(node="nodes/n0", state=pb.Worker.State.STATE_EXITED, end_time=Timestamp(seconds=1)),
    artefacts=[pb.KeptArtefact(id="m")],
    sequence=3,
)
HELLO = wire.AttachRequest(
    hello=wire.Hello(
        node="nodes/n0",
        status=pb.NodeStatus(
            capacity=pb.Resources(cpu_millis=1000, gpu_count=1),
            gpus=[pb.Gpu(index=0, model="x", memory_bytes=1)],
            topology=["z"],
        ),
        workers=[REPORT],
    )
)


def test_what_is_absent_takes_the_defaults() -> None:
    spec = convert_api.new_job(api.CreateJobRequest(parent="tenants/acme")).spec
    assert spec.queue == QueueName("acme", "default")
    assert (spec.worker_count, spec.resources) == (1, Resources(500, 512 * 2**20))
    assert (spec.deadline, spec.grace, spec.retention) == (
        timedelta(hours=1),
        timedelta(seconds=10),
        timedelta(days=7),
    )
    assert spec.nearness.mode is Mode.PREFERRED


def test_an_explicit_zero_is_not_absent() -> None:
    job = pb.Job(spec=pb.JobSpec(grace_time=Duration(), retention_time=Duration()))
    spec = convert_api.new_job(api.CreateJobRequest(parent="tenants/acme", job=job)).spec
    assert (spec.grace, spec.retention) == (timedelta(0), timedelta(0))


def test_every_worker_takes_some_cpu_and_memory() -> None:
    spec = convert_job.job_spec(pb.JobSpec(resources=pb.Resources(gpu_count=1)), "acme")
    assert spec.resources == Resources(500, 512 * 2**20, 1)


def test_a_spec_comes_back_as_it_went() -> None:
    job = make_job(workers=3, gpus=2, priority=-4, retry_exit_codes=(1, 2))
    assert convert_job.job_spec(convert_job.job_spec_message(job.spec), "acme") == job.spec


@pytest.mark.parametrize(
    "change",
    [
        pb.JobSpec(placement=pb.Placement(mode=17)),  # type: ignore[arg-type]
        pb.JobSpec(queue="queues/x"),
        pb.JobSpec(deadline=Duration(seconds=10**15)),
        pb.JobSpec(grace_time=Duration(nanos=2**31 - 1)),
    ],
)
def test_what_cannot_be_read_is_refused(change: pb.JobSpec) -> None:
    with pytest.raises(Invalid, match=r"spec\."):
        convert_job.job_spec(change, "acme")


def test_runners_messages_are_told_apart() -> None:
    hello = convert_runner.from_runner(HELLO)
    assert isinstance(hello, Hello)
    assert hello.node == NodeName("n0")
    assert hello.facts.ports == (20_000, 29_999)
    report = convert_runner.from_runner(wire.AttachRequest(report=REPORT))
    assert isinstance(report, Report)
    assert report.id == WorkerId(JobName("acme", "j"), "u1", 1, 0)
    assert isinstance(convert_runner.from_runner(wire.AttachRequest(heartbeat=wire.Heartbeat())), Heartbeat)
    with pytest.raises(Invalid, match="is empty"):
        convert_runner.from_runner(wire.AttachRequest())


def test_a_report_of_more_artefacts_than_a_job_has_is_refused() -> None:
    message = wire.WorkerReport()
    message.CopyFrom(REPORT)
    message.artefacts.extend(pb.KeptArtefact(id=f"a{i}") for i in range(64))
    with pytest.raises(Invalid, match="artefacts: 65 are reported; at most 64"):
        convert_runner.from_runner(wire.AttachRequest(report=message))


def test_every_order_has_a_message() -> None:
    worker = WorkerId(JobName("acme", "j"), "u1", 2, 1)
    placement = WorkerPlacement(1, NodeName("n0"), Resources(5), (3,))
    start = StartWorker(worker, make_job().spec, placement, "h", 7, 1, BEGIN)
    kinds = [
        convert_runner.to_runner(order).WhichOneof("message")
        for order in (
            Welcome(timedelta(seconds=10)),
            start,
            StopWorker(worker, "CANCELLED"),
            Acknowledge(worker, 4),
            ForgetWorker(worker),
        )
    ]
    assert kinds == ["welcome", "start", "stop", "acknowledge", "forget"]
    message = convert_runner.to_runner(start).start
    assert (message.master_host, message.master_port, message.local_rank) == ("h", 7, 1)
    assert list(message.placement.gpu_indexes) == [3]
    assert convert_runner.worker_id(message.id) == worker


@pytest.mark.parametrize("token", ["x", "AAAA", convert.page([1, 2], lambda _: pb.Gpu(), 1, "a", str)[1]])
def test_tokens_of_other_lists_are_refused(token: str) -> None:
    with pytest.raises(Invalid, match="page_token"):
        convert.page_start(token, 0, "job")


@st.composite
def mangled(draw: st.DrawFn, good: Message) -> Message:
    """A message whose bytes were changed here and there, and that still parses."""
    data = bytearray(good.SerializeToString())
    for _ in range(draw(st.integers(0, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    made = type(good)()
    try:
        made.ParseFromString(bytes(data))
    except DecodeError:
        return good
    return made


@settings(max_examples=300, deadline=None)
@given(mangled(CREATE))
def test_any_submission_is_read_or_refused(request: Message) -> None:
    assert isinstance(request, api.CreateJobRequest)
    try:
        new = convert_api.new_job(request)
        check_job_spec(new.spec, new.tenant)
    except Invalid:
        return
    assert new.tenant
    assert new.spec.command


@settings(max_examples=300, deadline=None)
@given(mangled(HELLO))
def test_any_message_of_a_runner_is_read_or_refused(request: Message) -> None:
    assert isinstance(request, wire.AttachRequest)
    try:
        message = convert_runner.from_runner(request)
    except Invalid:
        return
    assert isinstance(message, Hello | Report | Heartbeat)
