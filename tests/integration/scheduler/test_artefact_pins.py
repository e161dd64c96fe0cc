"""Artefacts are pinned as long as their job is there, over real processes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc
from isthmus.scheduler.v1 import object_pb2 as pb
from isthmus.scheduler.v1 import scheduler_pb2 as api
from libs.common.client import rpc_errors
from libs.common.errors import Unavailable
from services.scheduler.runner.testing_processes import Processes, running_processes
from services.scheduler.testing_runner import State

WITHIN_S = 90.0


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    async with running_processes(tmp_path, "deployer", "scheduler", "n1") as made:
        yield made


async def pins(processes: Processes, digest: str) -> int:
    stub = blob_pb2_grpc.BlobServiceStub(processes._channel("deployer", "acme"))
    stat = blob_pb2.StatBlobRequest(digest=digest)
    return (await stub.StatBlob(stat, wait_for_ready=True)).pin_count


async def test_deleting_a_job_lets_its_artefacts_go(processes: Processes) -> None:
    user = processes.user()
    await user.submit("train", *("sh", "-c", "echo 1 > out"), artefacts=[pb.Artefact(id="m", path="out")])
    job = await user.ended("train", within_s=WITHIN_S)
    assert job.status.state == State.STATE_SUCCEEDED, job.status
    digest = job.status.artefacts[0].blob.digest
    assert await pins(processes, digest) == 1
    delete = api.DeleteJobRequest(name=job.metadata.name)
    processes.kill("deployer")
    with pytest.raises(Unavailable), rpc_errors():
        await user.jobs.DeleteJob(delete)
    assert (await user.job("train")).status.artefacts, "a job stays as long as its pins can't be released"
    await processes.start("deployer")
    await user.jobs.DeleteJob(delete)
    assert await pins(processes, digest) == 0
