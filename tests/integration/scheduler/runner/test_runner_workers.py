"""What becomes of workers on a node: real processes, a scheduler in this process."""

import os
from pathlib import Path

import pytest

from isthmus.scheduler.v1 import object_pb2
from libs.common.blobs import BlobRef
from libs.common.testing import ServerChannel, eventually
from libs.common.testing_blobs import MemoryBlobService
from services.scheduler.runner.testing import (
    FakeScheduler,
    RunnerUnderTest,
    running_runner,
    worker_id,
)

EXITED, FAILED = object_pb2.Worker.STATE_EXITED, object_pb2.Worker.STATE_FAILED


async def test_a_program_runs_and_its_exit_code_and_output_come_back(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    worker = scheduler.start(["sh", "-c", "echo out; echo err >&2; exit 7"])
    report = await scheduler.until_ended(worker)
    ended = report.worker
    assert (ended.state, ended.exit_code, ended.reason, ended.message) == (EXITED, 7, "", "")
    assert ended.start_time.ToNanoseconds() <= ended.end_time.ToNanoseconds()
    assert ended.peak_memory_bytes > 0
    assert await scheduler.whole_log(worker) == b"out\nerr\n"
    assert [r.sequence for r in scheduler.reports] == sorted(r.sequence for r in scheduler.reports)


async def test_a_worker_that_is_forgotten_leaves_nothing(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    worker = scheduler.start(["true"])
    await scheduler.until_ended(worker)
    assert runner.folders == ["trainuid-1-0"]
    scheduler.forget(worker)
    other = scheduler.start(["true"], "other")
    await scheduler.until_ended(other)
    await scheduler.until_ended(worker)
    scheduler.forget(other)
    await eventually_empty(runner)


async def eventually_empty(runner: RunnerUnderTest) -> None:
    await eventually(lambda: runner.folders == [])


async def test_a_running_worker_that_is_forgotten_is_ended(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    worker = scheduler.start(["sleep", "1000"])
    await scheduler.until_running(worker)
    scheduler.forget(worker)
    await eventually_empty(runner)


async def test_what_a_worker_sees(runner: RunnerUnderTest, scheduler: FakeScheduler) -> None:
    names = "RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT ISTHMUS_JOB ISTHMUS_ATTEMPT"
    names += " CUDA_VISIBLE_DEVICES OMP_NUM_THREADS MINE"
    script = f"import os; [print(n, os.environ[n]) for n in {names.split()}]; print(os.getcwd())"
    worker = scheduler.start(
        ["python", "-c", script],
        rank=1,
        workers=2,
        gpus=(3, 1),
        env={"MINE": "a=b", "RANK": "9", "OMP_NUM_THREADS": "7"},
    )
    log = (await scheduler.whole_log(worker)).decode().splitlines()
    assert dict(line.split(" ", 1) for line in log[:-1]) == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "20000",
        "ISTHMUS_JOB": "tenants/acme/jobs/train",
        "ISTHMUS_ATTEMPT": "1",
        "CUDA_VISIBLE_DEVICES": "3,1",
        "OMP_NUM_THREADS": "7",
        "MINE": "a=b",
    }
    assert log[-1] == str(runner.folder / "trainuid-1-1" / "job")


async def test_a_worker_sees_nothing_of_the_runners_environment(
    folder: Path, services: ServerChannel, scheduler: FakeScheduler
) -> None:
    environ = {"PATH": os.environ["PATH"], "ISTHMUS_SECRET": "s3cret", "AWS_KEY": "k"}
    async with running_runner(folder, services, environ=environ):
        worker = scheduler.start(["env"])
        log = await scheduler.whole_log(worker)
    assert b"RANK=0" in log
    assert b"s3cret" not in log
    assert b"AWS_KEY" not in log


async def test_files_come_with_the_job_and_artefacts_go_with_it(
    runner: RunnerUnderTest, scheduler: FakeScheduler, blobs: MemoryBlobService
) -> None:
    data = blobs.put("acme", b"data")
    script = blobs.put("acme", b"#!/bin/sh\ncp in/data out\necho done\n")
    worker = scheduler.start(
        ["./run.sh"],
        files=[("in/data", data, False), ("run.sh", script, True)],
        artefacts=[("model", "out"), ("again", "in/data")],
    )
    report = await scheduler.until_ended(worker)
    assert (report.worker.exit_code, report.worker.reason) == (0, "")
    kept = {a.id: (a.blob.digest, a.blob.size_bytes) for a in report.artefacts}
    assert kept == {"model": (data.digest, 4), "again": (data.digest, 4)}
    assert blobs.pins == {("acme", "tenants/acme/jobs/train", data.digest)}


async def test_an_artefact_that_wasnt_made_fails_the_worker(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    worker = scheduler.start(["true"], artefacts=[("model", "out.onnx")])
    ended = (await scheduler.until_ended(worker)).worker
    assert (ended.state, ended.exit_code, ended.reason) == (EXITED, 0, "ARTEFACT_MISSING")
    assert "'model'" in ended.message
    assert "out.onnx" in ended.message


async def test_an_artefact_that_is_a_directory_is_told_so(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    worker = scheduler.start(["mkdir", "out"], artefacts=[("model", "out")])
    ended = (await scheduler.until_ended(worker)).worker
    assert ended.reason == "ARTEFACT_MISSING"
    assert "artefact 'model': 'out' is a directory" in ended.message


async def test_an_artefact_that_leads_out_of_the_folder_isnt_kept(
    runner: RunnerUnderTest, scheduler: FakeScheduler, blobs: MemoryBlobService
) -> None:
    worker = scheduler.start(["ln", "-s", "/etc/passwd", "out"], artefacts=[("model", "out")])
    ended = (await scheduler.until_ended(worker)).worker
    assert ended.reason == "ARTEFACT_MISSING"
    assert blobs.blobs == {}


async def test_only_worker_0_keeps_artefacts_and_only_when_it_succeeds(
    runner: RunnerUnderTest, scheduler: FakeScheduler, blobs: MemoryBlobService
) -> None:
    script = ["sh", "-c", "echo x > out; exit $RANK"]
    first = scheduler.start(script, "one", rank=1, workers=2, artefacts=[("model", "out")])
    second = scheduler.start(["sh", "-c", "echo x > out; exit 1"], "two", artefacts=[("model", "out")])
    for worker in (first, second):
        report = await scheduler.until_ended(worker)
        assert (report.worker.exit_code, report.worker.reason, len(report.artefacts)) == (1, "", 0)
    assert blobs.blobs == {}


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["pyhton"], 127, "did you mean"),
        (["no-such-program-anywhere"], 127, "isn't on the PATH"),
        (["./run.sj"], 127, "did you mean './run.sh'?"),
        (["run.sh"], 127, "did you mean './run.sh'?"),
        (["./data"], 126, "`executable`"),
        (["./nothing"], 126, "is no program"),
        (["./lost"], 126, "interpreter"),
        (["./data/x"], 127, "isn't there"),
    ],
)
async def test_a_command_that_cant_be_started_says_why(
    runner: RunnerUnderTest,
    scheduler: FakeScheduler,
    blobs: MemoryBlobService,
    command: list[str],
    code: int,
    said: str,
) -> None:
    files = [
        ("run.sh", blobs.put("acme", b"#!/bin/sh\n"), True),
        ("data", blobs.put("acme", b"#!/bin/sh\n#\n"), False),
        ("nothing", blobs.put("acme", b"\x7f\x00nothing"), True),
        ("lost", blobs.put("acme", b"#!/no/such/interpreter\n"), True),
    ]
    worker = scheduler.start(command, files=files)
    ended = (await scheduler.until_ended(worker)).worker
    assert (ended.state, ended.reason, ended.exit_code) == (FAILED, "START_FAILED", code)
    assert repr(command[0]) in ended.message
    assert said in ended.message


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", ".."])
async def test_a_file_that_leads_out_of_the_folder_is_refused(
    runner: RunnerUnderTest, scheduler: FakeScheduler, blobs: MemoryBlobService, path: str
) -> None:
    worker = scheduler.start(["true"], files=[(path, blobs.put("acme", b"x"), False)])
    ended = (await scheduler.until_ended(worker)).worker
    assert (ended.state, ended.reason, ended.exit_code) == (FAILED, "START_FAILED", 126)
    assert "files.path" in ended.message


async def test_files_that_cant_be_fetched_fail_the_start(
    runner: RunnerUnderTest, scheduler: FakeScheduler, blobs: MemoryBlobService
) -> None:
    missing = scheduler.start(["true"], "missing", files=[("x", BlobRef.of(b"nowhere"), False)])
    ended = (await scheduler.until_ended(missing)).worker
    assert (ended.reason, ended.exit_code) == ("START_FAILED", 126)
    assert "isn't a blob" in ended.message
    ref = blobs.put("acme", b"x")
    blobs.fail = 1000
    away = scheduler.start(["true"], "away", files=[("x", ref, False)])
    ended = (await scheduler.until_ended(away)).worker
    assert (ended.reason, ended.exit_code) == ("START_FAILED", 0)


async def test_a_deployer_that_is_away_for_a_moment_costs_nothing(
    runner: RunnerUnderTest, scheduler: FakeScheduler, blobs: MemoryBlobService
) -> None:
    ref = blobs.put("acme", b"x")
    blobs.fail = 2
    worker = scheduler.start(["cat", "x"], files=[("x", ref, False)])
    assert (await scheduler.until_ended(worker)).worker.exit_code == 0
    assert await scheduler.whole_log(worker) == b"x"


async def test_stopping_one_that_isnt_there_says_that_it_is_lost(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    scheduler.stop(worker_id("never"))
    ended = (await scheduler.until_ended(worker_id("never"))).worker
    assert (ended.state, ended.reason) == (FAILED, "LOST")


async def test_starting_twice_starts_once(runner: RunnerUnderTest, scheduler: FakeScheduler) -> None:
    command = ["sh", "-c", "echo started; sleep 1000"]
    worker = scheduler.start(command)
    scheduler.start(command)
    await scheduler.until(lambda: scheduler.log(worker) == b"started\n")
    scheduler.start(command)
    scheduler.stop(worker)
    await scheduler.until_ended(worker)
    scheduler.reports.clear()
    scheduler.start(command)
    await scheduler.until_ended(worker)
    assert await scheduler.whole_log(worker) == b"started\n"
    assert runner.folders == ["trainuid-1-0"]


async def test_orders_that_make_no_sense_cost_nothing_else(
    runner: RunnerUnderTest, scheduler: FakeScheduler
) -> None:
    scheduler.tell(start={"id": {"job": "nonsense"}})
    scheduler.start(["true"], "a")
    bad = worker_id("train", uid="../../etc")
    scheduler.tell(start={"id": bad, "spec": {"command": ["true"]}, "placement": {"node": "nodes/n1"}})
    report = await scheduler.until_ended(bad)
    assert report.worker.reason == "START_FAILED"
    assert (await scheduler.until_ended(worker_id("a"))).worker.exit_code == 0
    assert runner.folders == ["auid-1-0"]
