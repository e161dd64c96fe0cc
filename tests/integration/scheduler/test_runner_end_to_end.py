"""Jobs from the submit to the end, over real processes: etcd, scheduler, runners, deployer."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from isthmus.deployer.v1 import manifest_pb2
from isthmus.scheduler.v1 import object_pb2 as pb
from isthmus.scheduler.v1 import scheduler_pb2
from libs.common.blobs import BlobRef
from libs.common.testing import eventually
from services.scheduler.runner.testing_processes import Processes, running_processes
from services.scheduler.testing_runner import State

WITHIN_S = 90.0
TRAIN = b"""
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
part = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(part)
print("sum", part.item(), "of", dist.get_world_size(), flush=True)
if dist.get_rank() == 0:
    torch.save(part, "model.pt")
dist.destroy_process_group()
"""


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    async with running_processes(tmp_path, "deployer", "scheduler", "n1") as made:
        yield made


def file(path: str, ref: BlobRef, *, executable: bool = False) -> pb.JobFile:
    blob = manifest_pb2.BlobRef(digest=ref.digest, size_bytes=ref.size_bytes)
    return pb.JobFile(path=path, blob=blob, executable=executable)


def folders(processes: Processes) -> list[Path]:
    """Return the folders of the workers that the node has."""
    return list(processes.workers().iterdir())


def let_go(go: Path) -> None:
    """Let the waiting job end."""
    go.touch()


async def test_a_job_brings_its_files_and_leaves_its_artefact(processes: Processes) -> None:
    user, blobs = processes.user(), processes.blobs()
    data = await blobs.upload(b"data")
    await user.submit(
        "train",
        *("sh", "-c", "cat in; cp in out; echo done"),
        files=[file("in", data)],
        artefacts=[pb.Artefact(id="model", path="out")],
    )
    job = await user.ended("train", within_s=WITHIN_S)
    assert job.status.state == State.STATE_SUCCEEDED, job.status
    (kept,) = job.status.artefacts
    assert (kept.id, kept.blob.digest) == ("model", data.digest)
    assert await user.log("train", follow=True) == b"datadone\n"
    assert await blobs.read(BlobRef.from_proto(kept.blob), 10) == b"data"
    assert not await user.reservations()
    await eventually(lambda: folders(processes) == [])


async def test_two_workers_train_together(processes: Processes) -> None:
    pytest.importorskip("torch", reason="torch isn't installed; `make setup` brings it")
    user, blobs = processes.user(), processes.blobs()
    script = await blobs.upload(TRAIN)
    await user.submit(
        "gang",
        *("python", "train.py"),
        workers=2,
        memory=2 * 2**30,
        files=[file("train.py", script)],
        artefacts=[pb.Artefact(id="model", path="model.pt")],
    )
    job = await user.ended("gang", within_s=WITHIN_S)
    logs = [await user.log("gang", rank, follow=True) for rank in (0, 1)]
    assert job.status.state == State.STATE_SUCCEEDED, (job.status, logs)
    assert [log for log in logs if b"sum 3.0 of 2" in log] == logs
    assert [kept.id for kept in job.status.artefacts] == ["model"]


# Waits for a file, so that a test decides when it ends; says who it is, so that a second start would be seen.
WAITING = "echo begin $$; while [ ! -e {go} ]; do sleep 0.05; done; echo end; cp /dev/null out"


async def submit_waiting(processes: Processes, go: Path) -> None:
    user = processes.user()
    await user.submit(
        "long", "sh", "-c", WAITING.format(go=go), artefacts=[pb.Artefact(id="model", path="out")]
    )
    await user.job_in("long", State.STATE_RUNNING, within_s=WITHIN_S)


async def pid_of_waiting(processes: Processes) -> int:
    """Return the process id that the waiting job tells."""
    user, told = processes.user(), b""
    request = scheduler_pb2.ReadLogsRequest(name=f"{user.parent}/jobs/long", follow=True)
    call = user.jobs.ReadLogs(request, timeout=WITHIN_S)
    async for part in call:
        told += part.data
        if b"\n" in told:
            call.cancel()
            return int(told.split()[1])
    raise AssertionError(f"it ended and told {told!r}")


async def succeeded_once(processes: Processes) -> None:
    """Assert that the waiting job succeeded, was started once, and gave everything back."""
    user = processes.user()
    job = await user.ended("long", within_s=WITHIN_S)
    assert job.status.state == State.STATE_SUCCEEDED, job.status
    assert job.status.attempt_count == 1
    assert [kept.id for kept in job.status.artefacts] == ["model"]
    log = (await user.log("long", follow=True)).decode().split()
    assert [log[0], log[2:]] == ["begin", ["end"]]
    assert not await user.reservations()
    node = await user.node("n1")
    assert not node.status.holdings
    await eventually(lambda: folders(processes) == [], within_s=WITHIN_S)


async def until_it_ends_by_itself(processes: Processes, go: Path) -> None:
    """Let the job end, and wait until its keeper has written that down."""
    let_go(go)
    (folder,) = folders(processes)
    await eventually((folder / "exit").exists, within_s=WITHIN_S)


@pytest.mark.parametrize("name", ["n1", "scheduler"])
async def test_a_job_that_ends_while_one_is_dead_succeeds_when_it_is_back(
    processes: Processes, tmp_path: Path, name: str
) -> None:
    go = tmp_path / "go"
    await submit_waiting(processes, go)
    processes.kill(name)
    await until_it_ends_by_itself(processes, go)
    await processes.start(name)
    await succeeded_once(processes)


async def test_a_job_that_ends_while_etcd_is_dead_succeeds_when_it_is_back(
    processes: Processes, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    await submit_waiting(processes, go)
    processes.etcd.kill()
    await until_it_ends_by_itself(processes, go)
    await processes.etcd.start()
    await succeeded_once(processes)


async def test_a_job_survives_the_death_of_everything(processes: Processes, tmp_path: Path) -> None:
    go = tmp_path / "go"
    await submit_waiting(processes, go)
    for name in ("scheduler", "n1", "deployer"):
        processes.kill(name)
    processes.etcd.kill()
    await processes.etcd.start()
    for name in ("deployer", "n1", "scheduler"):
        await processes.start(name)
    let_go(go)
    await succeeded_once(processes)


async def test_a_cancelled_job_ends_though_its_runner_died_before_it_did(
    processes: Processes, tmp_path: Path
) -> None:
    await submit_waiting(processes, tmp_path / "never")
    processes.kill("n1")
    user = processes.user()
    await user.cancel("long")
    await processes.start("n1")
    job = await user.ended("long", within_s=WITHIN_S)
    assert job.status.state == State.STATE_CANCELLED
    assert job.status.workers[0].reason == "CANCELLED"
    assert not await user.reservations()


async def test_a_runner_that_is_told_to_stop_leaves_its_workers_to_the_next(
    processes: Processes, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    await submit_waiting(processes, go)
    # One at a time: a second one over the same folder is refused.
    await processes.start("n2", "--state-dir", str(tmp_path / "n1"))
    assert processes.wait("n2") == 1
    assert "STATE_DIR_TAKEN" in processes.log("n2")
    assert processes.end("n1", signal.SIGTERM) == 0
    await processes.start("n1")
    let_go(go)
    await succeeded_once(processes)


async def test_a_runner_may_take_its_workers_with_it(processes: Processes, tmp_path: Path) -> None:
    processes.end("n1")
    await processes.start("n1", "--no-keep-workers")
    await submit_waiting(processes, tmp_path / "never")
    user = processes.user()
    pid = await pid_of_waiting(processes)
    assert processes.end("n1") == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await processes.start("n1")
    job = await user.ended("long", within_s=WITHIN_S)
    assert (job.status.state, job.status.reason) == (State.STATE_FAILED, "LOST")
