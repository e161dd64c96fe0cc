"""The runner's settings, its messages, its outbox, and what Prometheus sees."""

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from isthmus.scheduler.v1 import runner_pb2
from libs.common.config import ConfigError, load
from libs.common.errors import Invalid
from libs.common.names import JobName, NodeName
from services.scheduler import convert as shared
from services.scheduler import convert_runner
from services.scheduler.domain.lifecycle import Report
from services.scheduler.domain.objects import (
    BlobRef,
    Facts,
    Gpu,
    KeptArtefact,
    Link,
    Resources,
    Worker,
    WorkerId,
    WorkerState,
)
from services.scheduler.runner import convert
from services.scheduler.runner.config import RunnerConfig
from services.scheduler.runner.metrics import Metrics
from services.scheduler.runner.testing import start
from services.scheduler.runner.workers import Outbox

NODE = NodeName("n1")
ID = WorkerId(JobName("acme", "train"), "uid", 2, 1)


def faults(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(RunnerConfig, "scheduler-runner", argv, {})
    return str(caught.value)


def test_settings_come_from_flags_and_variables() -> None:
    environ = {"ISTHMUS_SCHEDULER_RUNNER_NODE": "n7", "ISTHMUS_SCHEDULER_RUNNER_TOPOLOGY": "zone-a,rack-3"}
    config = load(RunnerConfig, "scheduler-runner", ["--no-keep-workers"], environ)
    assert (config.node, config.topology, config.keep_workers) == ("n7", ("zone-a", "rack-3"), False)


def test_wrong_settings_are_all_told() -> None:
    told = faults("--node", "N 1", "--first-port", "30000", "--scheduler-target", "far.example:7430")
    assert "--node" in told
    assert "--first-port" in told
    assert "--tls-ca-file" in told


def test_metrics_off_the_loopback_need_certificates() -> None:
    off = ("--metrics-host", "0.0.0.0", "--metrics-port", "8431")
    assert "'0.0.0.0' is off the loopback; give --tls-ca-file" in faults(*off)
    assert "off the loopback" in faults(*off, "--tls-ca-file", "ca.pem")
    files = ("--tls-ca-file", "ca.pem", "--tls-cert-file", "tls.pem", "--tls-key-file", "tls.key")
    assert load(RunnerConfig, "scheduler-runner", (*off, *files), {}).metrics_host == "0.0.0.0"
    # Where there is no port, nobody cares.
    assert load(RunnerConfig, "scheduler-runner", off[:2], {}).metrics_port == -1


def test_orders_are_read_and_stored_ones_too() -> None:
    message = start(["python", "x"], rank=1, workers=2, gpus=(1, 3), deadline_s=60)
    read = convert.assignment(message)
    assert convert.stored_assignment(message.SerializeToString()) == read
    assert (read.id.job, read.id.rank, read.spec.command) == (JobName("acme", "train"), 1, ("python", "x"))
    assert read.placement.gpus == (1, 3)
    assert read.deadline is not None
    message.ClearField("deadline_time")
    assert convert.assignment(message).deadline is None


@given(st.binary(max_size=300))
def test_no_stored_bytes_crash_the_reading(data: bytes) -> None:
    with contextlib.suppress(Invalid):
        convert.stored_assignment(data)


def test_reports_survive_the_wire() -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    worker = Worker(1, NODE, WorkerState.EXITED, 3, "DEADLINE", "late", now, now + timedelta(1), 2**33)
    kept = (KeptArtefact("model", BlobRef("sha256:" + "a" * 64, 3)),)
    told = Report(ID, worker, kept, 2)
    data = convert.report_message(told).SerializeToString()
    assert convert_runner.report(runner_pb2.WorkerReport.FromString(data)) == told


def test_what_a_node_is_survives_the_wire() -> None:
    facts = Facts(
        Resources(4000, 2**33, 2),
        (Gpu(0, "x", 1), Gpu(1, "x", 1)),
        (Link(0, 1, 96.0),),
        ("zone-a", "rack-3"),
        "1.2",
        "10.0.0.7",
        (21_000, 21_999),
    )
    assert shared.facts(convert.node_status(facts)) == facts


def report(sequence: int, rank: int = 0) -> Report:
    return Report(WorkerId(ID.job, "uid", 1, rank), Worker(rank, NODE), sequence=sequence)


def test_a_report_waits_until_it_or_a_later_one_is_acknowledged() -> None:
    outbox, first, second = Outbox(), report(1), report(2)
    outbox.put(first)
    assert outbox.changed.is_set()
    assert outbox.take(10.0, 5.0) == [first]
    assert outbox.take(14.9, 5.0) == []
    assert outbox.take(15.0, 5.0) == [first]
    outbox.put(second)
    assert outbox.take(15.0, 5.0) == [second]
    outbox.acknowledged(first.id, 1)
    assert len(outbox) == 1
    outbox.acknowledged(first.id, 2)
    assert len(outbox) == 0
    outbox.acknowledged(first.id, 2)
    outbox.drop(first.id)


def test_a_report_that_is_put_again_goes_out_at_once() -> None:
    outbox, told = Outbox(), report(2)
    outbox.put(told)
    outbox.put(report(1, rank=1))
    assert len(outbox.take(0.0, 5.0)) == 2
    outbox.put(told)
    assert outbox.take(0.1, 5.0) == [told]


@pytest.mark.parametrize(
    ("state", "code", "reason", "label"),
    [
        (WorkerState.EXITED, 0, "", "ok"),
        (WorkerState.EXITED, 3, "", "exit_code"),
        (WorkerState.EXITED, 137, "", "signal"),
        (WorkerState.EXITED, 137, "OUT_OF_MEMORY", "out_of_memory"),
        (WorkerState.FAILED, 0, "LOST", "lost"),
        (WorkerState.EXITED, 0, "SOMETHING_ELSE", "other"),
    ],
)
def test_ends_are_counted_by_why(state: WorkerState, code: int, reason: str, label: str) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.ended(Worker(0, NODE, state, code, reason))
    metrics.watch(lambda: 4)
    metrics.attached(True)
    value = registry.get_sample_value
    assert value("isthmus_scheduler_runner_workers_ended_total", {"reason": label}) == 1
    assert value("isthmus_scheduler_runner_workers") == 4
    assert value("isthmus_scheduler_runner_attached") == 1
