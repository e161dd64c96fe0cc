"""`isthmus apply`: created, configured, unchanged, and what is refused."""

from pathlib import Path

import pytest

from isthmus.scheduler.v1 import object_pb2, scheduler_pb2
from libs.cli.testing import FakeCloud
from tests.unit.libs.cli.groups.conftest import Isthmus

HEAD = "apiVersion: scheduler.isthmus/v1\n"
QUEUE = HEAD + "kind: Queue\nmetadata: {name: ads, labels: {team: ads}}\nspec: {quota: {cpuMillis: 4000}}\n"
JOB = HEAD + "kind: Job\nmetadata: {name: train}\nspec: {command: ['true']}\n"
NODE = HEAD + "kind: Node\nmetadata: {name: local}\nspec: {cordoned: true}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "all.yaml"
    path.write_text("---\n".join((QUEUE, JOB, NODE)))
    return path


@pytest.fixture
def node(cloud: FakeCloud) -> object_pb2.Node:
    made = cloud.nodes["local"] = object_pb2.Node()
    made.metadata.name = "nodes/local"
    return made


def test_what_is_not_there_is_created_and_then_unchanged(
    cloud: FakeCloud, isthmus: Isthmus, file: Path, node: object_pb2.Node
) -> None:
    first = isthmus("apply", "-f", str(file))
    assert first.code == 0, first.err
    assert first.lines == [
        "tenants/acme/queues/ads created",
        "tenants/acme/jobs/train created",
        "nodes/local configured",
    ]
    assert cloud.queues["ads"].spec.quota.cpu_millis == 4000
    assert dict(cloud.queues["ads"].metadata.labels) == {"team": "ads"}
    assert node.spec.cordoned
    again = isthmus("apply", "-f", str(file), "--json")
    assert again.json == {
        "objects": [
            {"name": "tenants/acme/queues/ads", "outcome": "unchanged"},
            {"name": "tenants/acme/jobs/train", "outcome": "unchanged"},
            {"name": "nodes/local", "outcome": "unchanged"},
        ],
        "dry_run": False,
    }
    assert not cloud.asked(scheduler_pb2.UpdateQueueRequest)


def test_a_changed_queue_is_configured_from_what_was_seen(
    cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path
) -> None:
    path = tmp_path / "queue.yaml"
    path.write_text(QUEUE)
    isthmus("apply", "-f", str(path))
    seen = cloud.queues["ads"].metadata.etag
    path.write_text(QUEUE.replace("4000", "8000"))
    assert isthmus("apply", "-f", str(path)).lines == ["tenants/acme/queues/ads configured"]
    assert cloud.queues["ads"].spec.quota.cpu_millis == 8000
    assert cloud.asked(scheduler_pb2.UpdateQueueRequest)[0].queue.metadata.etag == seen
    path.write_text(QUEUE.replace("labels: {team: ads}", "labels: {team: b}").replace("4000", "8000"))
    assert isthmus("apply", "-f", str(path)).lines == ["tenants/acme/queues/ads configured"]
    path.write_text(QUEUE.replace("labels", "etag: '1', labels"))
    stale = isthmus("apply", "-f", str(path))
    assert stale.code == 1
    assert f"{path}:1: queues/ads: tenants/acme/queues/ads: was written by somebody else" in stale.err


def test_a_dry_run_changes_nothing(
    cloud: FakeCloud, isthmus: Isthmus, file: Path, node: object_pb2.Node
) -> None:
    ran = isthmus("apply", "-f", str(file), "--dry-run")
    assert ran.lines == [
        "tenants/acme/queues/ads created (dry run)",
        "tenants/acme/jobs/train created (dry run)",
        "nodes/local configured (dry run)",
    ]
    assert (cloud.queues, cloud.jobs, node.spec.cordoned) == ({}, {}, False)
    assert all(request.validate_only for request in cloud.requests)


def test_a_dry_run_takes_the_queue_that_it_would_make_for_there(
    cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path
) -> None:
    path = tmp_path / "both.yaml"
    path.write_text(f"{QUEUE}---\n{JOB.replace('command', 'queue: ads, command')}")
    assert isthmus("apply", "-f", str(path), "--dry-run").code == 0
    assert cloud.asked(scheduler_pb2.CreateJobRequest)[0].job.spec.queue == ""
    assert isthmus("apply", "-f", str(path)).code == 0
    assert cloud.jobs["train"].spec.queue == "tenants/acme/queues/ads"
    isthmus("apply", "-f", str(path), "--dry-run")  # now it is there
    assert cloud.asked(scheduler_pb2.CreateJobRequest)[-1].job.spec.queue == "tenants/acme/queues/ads"


def test_a_job_that_is_there_otherwise_is_refused(cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    isthmus("apply", "-f", str(path))
    cloud.jobs["train"].spec.cancelled = True  # that is no other spec
    assert isthmus("apply", "-f", str(path)).lines == ["tenants/acme/jobs/train unchanged"]
    path.write_text(JOB.replace("'true'", "'false'"))
    refused = isthmus("apply", "-f", str(path), "--json")
    assert refused.code == 1
    assert refused.error["reason"] == "JOB_IS_DIFFERENT"
    assert "isthmus job delete train" in refused.error["message"]


def test_what_was_applied_before_a_fault_is_told(cloud: FakeCloud, isthmus: Isthmus, file: Path) -> None:
    ran = isthmus("apply", "-f", str(file))  # there is no node
    assert ran.code == 4
    assert f"{file}:11: nodes/local: nodes/local: not found; a node is made by its runner" in ran.err
    assert "applied before: tenants/acme/queues/ads, tenants/acme/jobs/train" in ran.err


def test_nothing_is_sent_when_a_file_is_wrong(
    cloud: FakeCloud, isthmus: Isthmus, file: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(QUEUE.replace("quota", "quotas"))
    ran = isthmus("apply", "-f", str(file), "-f", str(wrong))
    assert ran.code == 2
    assert f"{wrong}:4:8: spec: unknown field 'quotas'; did you mean 'quota'?" in ran.err
    assert cloud.requests == []


def test_a_job_without_a_name_is_refused(cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("metadata: {name: train}\n", ""))
    ran = isthmus("apply", "-f", str(path))
    assert ran.code == 2
    assert f"{path}:1: metadata.name: is missing" in ran.err
    assert cloud.requests == []


def test_an_object_given_twice_is_refused(cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    ran = isthmus("apply", "-f", str(path), "-f", str(path))
    assert ran.code == 2
    assert f"jobs/train is given twice, first at {path}:1" in ran.err
    assert cloud.requests == []
