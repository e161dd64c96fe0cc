"""`isthmus job` of several jobs, and what it says of those that can't start."""

import pytest

from isthmus.scheduler.v1 import object_pb2
from libs.cli import session
from libs.cli.testing import FakeCloud
from libs.common.errors import NotFound
from tests.unit.libs.cli.groups.conftest import Isthmus

State = object_pb2.JobStatus


def keep(cloud: FakeCloud, name: str, state: int, queue: str) -> None:
    job = object_pb2.Job()
    job.metadata.name = f"tenants/acme/jobs/{name}"
    job.spec.queue = f"tenants/acme/queues/{queue}"
    job.status.state = state  # type: ignore[assignment]
    cloud.jobs[name] = job


def test_several_are_deleted_and_an_error_says_which_before(cloud: FakeCloud, isthmus: Isthmus) -> None:
    for name in ("a", "b", "c"):
        keep(cloud, name, State.STATE_FAILED, "ads")
    assert len(isthmus("job", "delete", "a", "b", "--json").json["deleted"]) == 2
    ran = isthmus("job", "delete", "c", "gone")
    assert ran.code == 4
    assert "gone: not found; done before: tenants/acme/jobs/c" in ran.err
    assert cloud.jobs == {}


def test_several_are_cancelled(cloud: FakeCloud, isthmus: Isthmus) -> None:
    for name in ("a", "b"):
        keep(cloud, name, State.STATE_RUNNING, "ads")
    assert isthmus("job", "cancel", "a", "tenants/acme/jobs/b").code == 0
    assert all(job.spec.cancelled for job in cloud.jobs.values())
    assert isthmus("job", "cancel", "a", "b", "--watch").code == 2


def test_a_list_is_of_states_and_a_queue(cloud: FakeCloud, isthmus: Isthmus) -> None:
    keep(cloud, "a", State.STATE_FAILED, "ads")
    keep(cloud, "b", State.STATE_FAILED, "default")
    keep(cloud, "c", State.STATE_RUNNING, "ads")

    def listed(*arguments: str) -> list[str]:
        return [each["metadata"]["name"][-1] for each in isthmus("job", "list", "--json", *arguments).json]

    assert listed("--state", "failed") == ["a", "b"]
    assert listed("--queue", "ads") == ["a", "c"]
    assert listed("--queue", "tenants/acme/queues/ads", "--state", "RUNNING") == ["c"]
    assert "… and more: 1 of 2 shown" in isthmus("job", "list", "--queue", "ads", "--limit", "1").err


def test_a_job_that_cant_start_is_warned_of(cloud: FakeCloud, isthmus: Isthmus) -> None:
    cloud.pending = [
        object_pb2.PendingReason(kind=object_pb2.PendingReason.KIND_NO_NODE_FITS, message="64 cores")
    ]
    ran = isthmus("job", "submit", "--id", "big", "--", "true")
    assert ran.code == 0
    assert ran.err == "warning: big can't start as things are: NO_NODE_FITS: 64 cores\n"


@pytest.mark.parametrize("given", ["", "acme"])
def test_a_key_of_another_tenant_is_told_from_a_missing_one(
    cloud: FakeCloud, isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("ISTHMUS_TENANT", given)
    refused = NotFound("tenants/default: not found", reason="TENANT_NOT_FOUND")
    monkeypatch.setattr(session, "error_from_rpc", lambda _: refused)
    ran = isthmus("job", "get", "none")
    assert ran.code == 4
    assert ("give --tenant or ISTHMUS_TENANT" in ran.err) == (not given)
