"""What workers write: appended by offset, kept over restarts, followed while it grows."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from isthmus.scheduler.v1 import runner_pb2 as wire
from isthmus.scheduler.v1 import runner_pb2_grpc
from isthmus.scheduler.v1 import scheduler_pb2 as api
from libs.common.client import rpc_errors
from libs.common.errors import Forbidden, Invalid, NotFound, OutOfRange, Precondition
from services.scheduler.config import SchedulerConfig
from services.scheduler.testing import Running, running_scheduler
from services.scheduler.testing_runner import FakeRunner, State

KIB = 1024


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    config = SchedulerConfig(
        port=0,
        metrics_port=-1,
        data_dir=tmp_path,
        identity_trust_dir=tmp_path / "trust",
        log_keep_bytes=64 * KIB,
    )
    async with running_scheduler(tmp_path, config=config) as made:
        yield made


@pytest.fixture
async def runner(running: Running) -> AsyncIterator[FakeRunner]:
    made = running.runner()
    await made.attach()
    yield made
    await made.detach()


async def parts(running: Running, **request: object) -> list[api.ReadLogsResponse]:
    stub = running.client().jobs
    call = stub.ReadLogs(api.ReadLogsRequest(name="tenants/acme/jobs/job", **request))  # type: ignore[arg-type]
    with rpc_errors():
        return [part async for part in call]


async def test_appends_are_idempotent_by_offset(running: Running, runner: FakeRunner) -> None:
    await running.client().submit("job")
    start = await runner.started("job")
    assert await runner.write(start, b"hello ", 0) == 6
    assert await runner.write(start, b"hello ", 0) == 6, "repeated"
    assert await runner.write(start, b"lo world", 3) == 11, "overlapping"
    assert await runner.write(start, b"far", 99) == 11, "beyond the end: send from here"
    assert await running.client().log("job") == b"hello world"
    (part,) = await parts(running, offset_bytes=6)
    assert (part.data, part.offset_bytes, part.dropped_bytes) == (b"world", 6, 0)
    with pytest.raises(OutOfRange, match="beyond the log's 11 bytes"):
        await parts(running, offset_bytes=12)


async def test_a_reader_follows_until_the_worker_has_ended(running: Running, runner: FakeRunner) -> None:
    client = running.client()
    await client.submit("job")
    reading = asyncio.create_task(client.log("job", follow=True))
    start = await runner.started("job")
    await runner.report("job")
    size = 0
    for i in range(5):
        size = await runner.write(start, f"line {i}\n".encode(), size)
    await runner.exit("job")
    await client.ended("job")
    assert not reading.done(), "the last words may come after the end is known"
    await runner.write(start, b"last words\n", size, last=True)
    assert await reading == b"".join(f"line {i}\n".encode() for i in range(5)) + b"last words\n"


async def test_the_newest_part_of_a_long_log_is_kept(running: Running, runner: FakeRunner) -> None:
    await running.client().submit("job")
    start = await runner.started("job")
    data = b"".join(b"%07d\n" % i for i in range(40 * KIB))
    size = 0
    while size < len(data):
        size = await runner.write(start, data[size : size + 100 * KIB], size)
    found = await parts(running)
    kept = b"".join(part.data for part in found)
    assert data.endswith(kept)
    assert 64 * KIB <= len(kept) <= 80 * KIB
    assert found[0].dropped_bytes == found[0].offset_bytes == len(data) - len(kept)
    assert not any(part.dropped_bytes for part in found[1:])
    assert max(len(part.data) for part in found) <= 64 * KIB


async def test_bytes_are_kept_as_they_came(running: Running, runner: FakeRunner) -> None:
    await running.client().submit("job")
    start = await runner.started("job")
    data = bytes(range(256)) * 3
    await runner.write(start, data)
    assert await running.client().log("job") == data


async def test_attempts_have_logs_of_their_own(running: Running, runner: FakeRunner) -> None:
    client = running.client()
    await client.submit("job", retry_count=1)
    await runner.write(await runner.started("job"), b"first", last=True)
    await runner.run("job")
    await runner.exit("job", code=137)
    await runner.write(await runner.started("job", attempt=2), b"second", last=True)
    assert await client.log("job", attempt=1) == b"first"
    assert await client.log("job", attempt=2) == await client.log("job") == b"second"


async def test_what_makes_no_sense_is_refused(running: Running, runner: FakeRunner) -> None:
    client = running.client()
    await client.submit("job", workers=2, cpus=100)
    with pytest.raises(Precondition, match="never started"):
        await parts(running)
    await client.cancel("job")
    await client.ended("job")
    await client.submit("job2", workers=2)
    start = await runner.started("job2")
    with pytest.raises(Invalid, match="use 0 to 1"), rpc_errors():
        await client.log("job2", 2)
    with pytest.raises(Invalid, match=r"attempt: 2 is too large; .* has had 1 attempt: "), rpc_errors():
        await client.log("job2", attempt=2)
    with pytest.raises(Invalid, match="at most"), rpc_errors():
        await runner.write(start, bytes(256 * KIB + 1))
    start.id.rank = 7
    with pytest.raises(Invalid, match="no worker 7"), rpc_errors():
        await runner.write(start, b"x")
    start.id.rank = 0
    start.id.job_uid = "../../etc"
    with pytest.raises(Invalid, match="job_uid"), rpc_errors():
        await runner.write(start, b"x")
    start.id.job_uid = "gone"
    with pytest.raises(NotFound), rpc_errors():
        await runner.write(start, b"x")


async def test_logs_go_with_their_job(running: Running, runner: FakeRunner, tmp_path: Path) -> None:
    client = running.client()
    await client.submit("job")
    start = await runner.started("job")
    await runner.write(start, b"x", last=True)
    await runner.run("job")
    await runner.exit("job")
    await client.ended("job")
    folder = tmp_path / "logs" / "acme"
    assert [each.name for each in folder.iterdir()] == [start.id.job_uid]
    await client.jobs.DeleteJob(api.DeleteJobRequest(name="tenants/acme/jobs/job"))
    assert list(folder.iterdir()) == []


async def test_only_runners_may_append(running: Running, runner: FakeRunner) -> None:
    stub = runner_pb2_grpc.RunnerServiceStub(running.channel)
    with pytest.raises(Forbidden), rpc_errors():
        await stub.AppendLog(wire.AppendLogRequest())


async def test_an_ended_job_is_followed_to_its_end_at_once(running: Running, runner: FakeRunner) -> None:
    client = running.client()
    await client.submit("job")
    start = await runner.started("job")
    await runner.write(start, b"x", last=True)
    await runner.run("job")
    await runner.exit("job")
    assert (await client.ended("job")).status.state == State.STATE_SUCCEEDED
    assert await client.log("job", follow=True) == b"x"
