"""`isthmus job logs -f` before there is a log."""

from typing import Any

from isthmus.scheduler.v1 import object_pb2
from libs.cli.testing import FakeCloud
from tests.unit.libs.cli.groups.conftest import Isthmus


def test_following_the_logs_of_a_job_that_waits_says_what_for(cloud: FakeCloud, isthmus: Isthmus) -> None:
    def seen(state: Any, *messages: str) -> object_pb2.Job:
        job = object_pb2.Job()
        job.metadata.name = "tenants/default/jobs/train"
        job.status.state = state
        for message in messages:
            job.status.pending.add(kind=object_pb2.PendingReason.KIND_GPU, message=message)
        return job

    status = object_pb2.JobStatus
    cloud.jobs["train"] = seen(status.STATE_PENDING, "needs 2")
    cloud.logs["train", 0] = [b"one\n"]
    cloud.history.append(
        [
            seen(status.STATE_PENDING, "needs 2"),
            seen(status.STATE_PENDING, "needs 2"),
            seen(status.STATE_PENDING, "needs 1"),
            seen(status.STATE_STARTING),
        ]
    )
    ran = isthmus("job", "logs", "-f", "train")
    assert (ran.code, ran.out) == (0, "one\n")
    assert [line for line in ran.err.splitlines() if "waits" in line] == [
        "train waits to be started — GPU: needs 2",
        "train waits to be started — GPU: needs 1",
    ]
    # What has been started has a log; and without --follow there is nothing to wait for.
    cloud.jobs["train"] = seen(status.STATE_RUNNING)
    assert "waits" not in isthmus("job", "logs", "-f", "train").err
    cloud.jobs["train"] = seen(status.STATE_PENDING, "needs 2")
    assert "waits" not in isthmus("job", "logs", "train").err
