"""`isthmus job`, against a cloud that keeps what it is sent."""

import json
from pathlib import Path

import pytest

from isthmus.scheduler.v1 import object_pb2, scheduler_pb2
from libs.cli import following, jobs
from libs.cli.testing import FakeCloud
from tests.unit.libs.cli.groups.conftest import Isthmus

State = object_pb2.JobStatus


def made(state: int, **status: object) -> object_pb2.Job:
    job = object_pb2.Job()
    job.metadata.name = "tenants/acme/jobs/train"
    job.status.MergeFrom(object_pb2.JobStatus(**status))  # type: ignore[arg-type]
    job.status.state = state  # type: ignore[assignment]
    return job


def test_a_job_of_flags_is_sent_as_they_say(cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("echo hello")
    script.chmod(0o755)
    ran = isthmus(
        *("job", "submit", "--id", "train", "--queue", "ads", "--workers", "2", "--cpus", "1.5"),
        *("--memory", "1GiB", "--gpus", "1", "--priority", "-7", "--env", "EPOCHS=5", "--env", "EMPTY="),
        *("--file-in", f"bin/train.sh={script}", "--artefact", "model=out/model.onnx", "--label", "team=ads"),
        *("--deadline", "30m", "--retries", "3", "--grace", "5s"),
        *("--", "bin/train.sh", "--json", "--id", "x"),
    )
    assert ran.code == 0, ran.err
    (request,) = cloud.asked(scheduler_pb2.CreateJobRequest)
    blob = cloud.put(b"echo hello")
    wanted = object_pb2.JobSpec(
        queue="tenants/acme/queues/ads",
        command=["bin/train.sh", "--json", "--id", "x"],
        environment={"EPOCHS": "5", "EMPTY": ""},
        files=[object_pb2.JobFile(path="bin/train.sh", blob=blob, executable=True)],
        worker_count=2,
        resources=object_pb2.Resources(cpu_millis=1500, memory_bytes=1024**3, gpu_count=1),
        priority=-7,
        retry_count=3,
        artefacts=[object_pb2.Artefact(id="model", path="out/model.onnx")],
    )
    wanted.deadline.FromSeconds(1800)
    wanted.grace_time.FromSeconds(5)
    assert request.job.spec == wanted
    assert (request.parent, request.job_id, request.validate_only) == ("tenants/acme", "train", False)
    assert dict(request.job.metadata.labels) == {"team": "ads"}
    assert request.request_id
    assert "job tenants/acme/jobs/train" in ran.lines
    assert "workers 2 × (1.5 cores, 1.0 GiB, 1 GPU)" in ran.lines


def test_what_is_not_named_is_left_to_the_scheduler(cloud: FakeCloud, isthmus: Isthmus) -> None:
    assert isthmus("job", "submit", "true").code == 0
    (request,) = cloud.asked(scheduler_pb2.CreateJobRequest)
    assert request.job.spec == object_pb2.JobSpec(command=["true"])
    # One amount named leaves the others at their defaults.
    assert isthmus("job", "submit", "--gpus", "2", "true").code == 0
    assert cloud.asked(scheduler_pb2.CreateJobRequest)[1].job.spec.resources == object_pb2.Resources(
        cpu_millis=500, memory_bytes=512 * 1024**2, gpu_count=2
    )


def test_a_job_comes_from_a_file_too(cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    path = tmp_path / "job.yaml"
    path.write_text(
        "apiVersion: scheduler.isthmus/v1\nkind: Job\nmetadata: {name: train, labels: {team: ads}}\n"
        "spec:\n  command: [python, train.py]\n  files:\n  - {path: train.py, from: train.py}\n"
    )
    extra = tmp_path / "data.txt"
    extra.write_text("1 2 3")
    ran = isthmus(
        "job", "submit", "--file", str(path), "--file-in", f"data.txt={extra}", "--dry-run", "--json"
    )
    assert ran.code == 0, ran.err
    assert ran.json["outcome"] == "checked"
    (request,) = cloud.asked(scheduler_pb2.CreateJobRequest)
    assert (request.job_id, request.validate_only) == ("train", True)
    contents = {file.path: cloud.blobs[file.blob.digest] for file in request.job.spec.files}
    assert contents == {"train.py": b"print(1)", "data.txt": b"1 2 3"}
    assert cloud.jobs == {}
    assert isthmus("job", "submit", "--file", str(path), "--id", "other").code == 0
    assert list(cloud.jobs) == ["other"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a COMMAND, or a file with --file"),
        (("--file", "job.yaml", "true"), "--file says all of the job; leave out COMMAND"),
        (("--file", "job.yaml", "--cpus", "1"), "--file says all of the job; leave out --cpus"),
        (("--file", "job.yaml", "--env", "A=1"), "--file says all of the job; leave out --env"),
        (("--cpus", "many", "true"), "'many': write cores such as 2, 0.5 or 0.25"),
        (("--memory", "1XB", "true"), "'1XB' is no size; write bytes or a number with a unit"),
        (("--env", "A", "true"), "'A': write KEY=VALUE"),
        (("--artefact", "a=1", "--artefact", "a=2", "true"), "'a' is given twice"),
        (("--workers", "0", "true"), "0 is not in the range"),
        (("--file-in", "a=/dev/null", "true"), "/dev/null: is no plain file"),
    ],
)
def test_what_is_typed_wrong_is_told(isthmus: Isthmus, arguments: tuple[str, ...], said: str) -> None:
    ran = isthmus("job", "submit", *arguments)
    assert ran.code == 2
    assert said in ran.err


def test_a_file_that_is_not_there_is_told_as_such(cloud: FakeCloud, isthmus: Isthmus) -> None:
    ran = isthmus("job", "submit", "--file-in", "a=/nonexistent/file", "--json", "true")
    assert (ran.code, ran.error["reason"]) == (4, "NO_FILE")
    assert "/nonexistent/file: No such file" in ran.error["message"]
    assert cloud.jobs == {}


def test_a_job_is_watched_to_its_end(cloud: FakeCloud, isthmus: Isthmus) -> None:
    running = made(
        State.STATE_RUNNING, workers=[object_pb2.Worker(rank=0, state=object_pb2.Worker.STATE_RUNNING)]
    )
    cloud.history.append([made(State.STATE_PENDING), running, running, made(State.STATE_SUCCEEDED)])
    ran = isthmus("job", "submit", "--id", "train", "--watch", "true")
    assert ran.code == 0, ran.err
    assert ran.err.splitlines() == ["train  PENDING", "train  RUNNING  1/1 workers run", "train  SUCCEEDED"]
    assert "state SUCCEEDED" in ran.lines


@pytest.mark.parametrize("state", [State.STATE_FAILED, State.STATE_CANCELLED])
def test_a_job_that_does_not_succeed_is_no_success_to_wait_for(
    cloud: FakeCloud, isthmus: Isthmus, state: int
) -> None:
    ended = made(state, reason="EXIT_CODE", message="rank 0 exited with 3")
    cloud.history.append([ended])
    ran = isthmus("job", "watch", "train", "--json")
    assert ran.code == 1
    assert ran.error["reason"] == "JOB_NOT_SUCCEEDED"
    assert "EXIT_CODE: rank 0 exited with 3" in ran.error["message"]
    assert ran.json["status"]["reason"] == "EXIT_CODE"


def test_watching_goes_on_after_the_scheduler_was_away(
    cloud: FakeCloud, isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_PAUSE_S", 0.01)
    cloud.history.append([made(State.STATE_RUNNING), None])  # killed
    cloud.history.append([None])  # not yet there
    cloud.history.append([made(State.STATE_RUNNING)])  # told to stop
    cloud.history.append([None])
    cloud.history.append([made(State.STATE_SUCCEEDED)])
    ran = isthmus("job", "watch", "train")
    assert ran.code == 0, ran.err
    assert ran.err.count("(waiting for it)") == 2
    assert len(cloud.asked(scheduler_pb2.WatchJobRequest)) == 5


def test_a_scheduler_that_never_was_there_is_not_waited_for(cloud: FakeCloud, isthmus: Isthmus) -> None:
    cloud.history.append([None])
    assert isthmus("job", "watch", "train").code == 5
    assert len(cloud.asked(scheduler_pb2.WatchJobRequest)) == 1


def test_whoever_stops_watching_is_told_that_the_job_goes_on(
    cloud: FakeCloud, isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **keywords: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "resuming", interrupted)
    ran = isthmus("job", "submit", "--id", "train", "--watch", "true")
    assert ran.code == 130
    assert "the job goes on: `isthmus job watch train`, `isthmus job cancel train`" in ran.err


def test_logs_are_printed_byte_for_byte(cloud: FakeCloud, isthmus: Isthmus) -> None:
    cloud.logs["train", 1] = ["höhe\n".encode()[:2], "höhe\n".encode()[2:], b"no newline"]
    ran = isthmus("job", "logs", "train", "--rank", "1", "--attempt", "2")
    assert (ran.code, ran.out) == (0, "höhe\nno newline")
    (request,) = cloud.asked(scheduler_pb2.ReadLogsRequest)
    assert (request.rank, request.attempt, request.follow) == (1, 2, False)
    lines = [
        line for line in isthmus("job", "logs", "train", "--rank", "1", "--json").out.splitlines() if line
    ]
    assert len(lines) == 3
    assert '"offset_bytes": 2' in lines[1]
    assert "�" not in "".join(lines)


def test_a_log_that_ends_within_a_character_is_told_as_json_to_its_end(
    cloud: FakeCloud, isthmus: Isthmus
) -> None:
    cloud.logs["train", 0] = [b"h\xc3", b"\xb6he", b"cut \xe2\x82"]
    lines = [json.loads(line) for line in isthmus("job", "logs", "train", "--json").out.splitlines()]
    assert "".join(line["text"] for line in lines) == "höhecut \ufffd"
    assert [line["offset_bytes"] for line in lines] == [0, 2, 5, 11]


def test_following_logs_loses_and_repeats_nothing(
    cloud: FakeCloud, isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_PAUSE_S", 0.01)
    cloud.logs["train", 0] = [b"one\n", b"two\n", None, b"three\n", None, b"four\n"]
    ran = isthmus("job", "logs", "-f", "train")
    assert (ran.code, ran.out) == (0, "one\ntwo\nthree\nfour\n")
    assert [each.offset_bytes for each in cloud.asked(scheduler_pb2.ReadLogsRequest)] == [0, 8, 14]
    assert isthmus("job", "logs", "other").code == 4


def test_a_job_is_shown_with_its_workers_and_what_it_kept(cloud: FakeCloud, isthmus: Isthmus) -> None:
    job = made(State.STATE_FAILED, reason="OUT_OF_MEMORY", message="rank 1 took too much", attempt_count=2)
    job.spec.command.extend(["python", "train.py"])
    job.spec.retry_count = 1
    job.spec.resources.cpu_millis = 1000
    worker = job.status.workers.add(rank=1, node="nodes/local", state=object_pb2.Worker.STATE_EXITED)
    worker.exit_code, worker.reason, worker.peak_memory_bytes = 137, "OUT_OF_MEMORY", 600 * 1024**2
    worker.start_time.FromSeconds(100)
    worker.end_time.FromSeconds(195)
    job.status.start_time.FromSeconds(100)
    job.status.end_time.FromSeconds(200)
    job.status.artefacts.add(id="model", blob=cloud.put(b"x"))
    cloud.jobs["train"] = job
    lines = isthmus("job", "get", "train").lines
    assert "why OUT_OF_MEMORY: rank 1 took too much" in lines
    assert "command python train.py" in lines
    assert "workers 1 × (1 core)" in lines
    assert "attempts 2 of at most 2" in lines
    assert "rank 1 EXITED 137 on local, after 1 m 35 s, 600.0 MiB at most, OUT_OF_MEMORY" in lines
    assert any(line.startswith("model sha256:") for line in lines)
    assert "ended 1970-01-01 00:03:20Z, after 1 m 40 s" in lines
    assert isthmus("job", "get", "train", "--json").json["status"]["workers"][0]["exit_code"] == 137
    assert isthmus("job", "get", "gone").code == 4


def test_jobs_are_listed_over_pages(cloud: FakeCloud, isthmus: Isthmus) -> None:
    for number in range(5):
        cloud.jobs[f"j{number}"] = made(State.STATE_RUNNING)
    assert len(isthmus("job", "list", "--limit", "3", "--json").json) == 3
    assert len(isthmus("job", "list").lines) == 6
    reasons = [
        object_pb2.PendingReason(kind=object_pb2.PendingReason.KIND_CPU, message="in many words"),
        object_pb2.PendingReason(kind=object_pb2.PendingReason.KIND_MEMORY),
    ]
    cloud.jobs = {
        "waits": made(State.STATE_PENDING, pending=reasons),
        "failed": made(State.STATE_FAILED, reason="LOST", message="in many words"),
    }
    failed, waits = isthmus("job", "list").lines[1:]
    assert "nothing 0 - LOST -" in failed
    assert "nothing 0 - CPU, MEMORY -" in waits
    cloud.jobs.clear()
    assert isthmus("job", "list").lines == ["(none)"]


def test_cancelling_waits_where_asked(cloud: FakeCloud, isthmus: Isthmus) -> None:
    cloud.jobs["train"] = made(State.STATE_RUNNING)
    assert "state STOPPING" in isthmus("job", "cancel", "train").lines
    cloud.history.append([made(State.STATE_STOPPING), made(State.STATE_CANCELLED, reason="CANCELLED")])
    ran = isthmus("job", "cancel", "train", "--watch")
    assert ran.code == 0, ran.err
    assert "state CANCELLED" in ran.lines


def test_explaining_shows_each_node(cloud: FakeCloud, isthmus: Isthmus) -> None:
    reason = object_pb2.PendingReason(
        kind=object_pb2.PendingReason.KIND_CPU, node_count=1, message="wants 4 cores, 1 is free"
    )
    cloud.jobs["train"] = made(State.STATE_PENDING, pending=[reason])
    cloud.explained.nodes.add(node="nodes/local", fitting_worker_count=0, reasons=[reason])
    cloud.explained.ahead.append("tenants/acme/jobs/first")
    cloud.explained.summary = "It waits for 3 more cores."
    ran = isthmus("job", "explain", "train")
    assert "why CPU (1 node): wants 4 cores, 1 is free" in ran.lines
    assert "ahead first" in ran.lines
    assert "local 0 CPU (1 node): wants 4 cores, 1 is free" in ran.lines
    assert ran.lines[-1] == "It waits for 3 more cores."
    assert isthmus("job", "explain", "train", "--json").json["nodes"][0]["reasons"][0]["kind"] == "KIND_CPU"


def test_an_artefact_is_fetched_and_checked(cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path) -> None:
    job = made(State.STATE_SUCCEEDED)
    job.spec.artefacts.add(id="model", path="m")
    job.spec.artefacts.add(id="later", path="l")
    job.status.artefacts.add(id="model", blob=cloud.put(b"the model"))
    cloud.jobs["train"] = job
    out = tmp_path / "model.onnx"
    ran = isthmus("job", "artefact", "get", "train", "model", "--out", str(out), "--json")
    assert ran.code == 0, ran.err
    assert ran.json["size_bytes"] == 9
    assert out.read_bytes() == b"the model"
    unknown = isthmus("job", "artefact", "get", "train", "modell", "--out", str(out))
    assert (unknown.code, "it names model, later" in unknown.err) == (4, True)
    later = isthmus("job", "artefact", "get", "train", "later", "--out", str(out))
    assert "it is SUCCEEDED; artefacts are kept when it has succeeded" in later.err
    cloud.blobs[job.status.artefacts[0].blob.digest] = b"other one"
    assert isthmus("job", "artefact", "get", "train", "model", "--out", str(tmp_path / "b")).code != 0
    assert not (tmp_path / "b").exists()


def test_where_an_artefact_goes_is_looked_at_first(isthmus: Isthmus) -> None:
    ran = isthmus("job", "artefact", "get", "there-is-none", "model", "--out", "/nowhere/model.onnx")
    assert ran.code == 4
    assert "--out /nowhere/model.onnx: No such file" in ran.err


def test_a_job_is_deleted(cloud: FakeCloud, isthmus: Isthmus) -> None:
    cloud.jobs["train"] = made(State.STATE_FAILED)
    assert isthmus("job", "delete", "train", "--etag", "5", "--json").json == {
        "deleted": "tenants/acme/jobs/train"
    }
    (request,) = cloud.asked(scheduler_pb2.DeleteJobRequest)
    assert request.etag == "5"
    assert isthmus("job", "delete", "train").code == 4


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_list_has_all_jobs_and_a_limit_says_that_it_cuts(
    cloud: FakeCloud, isthmus: Isthmus, form: tuple[str, ...]
) -> None:
    for number in range(1203):
        job = object_pb2.Job()
        job.metadata.name = f"tenants/acme/jobs/j{number:04}"
        cloud.jobs[f"j{number:04}"] = job
    whole = isthmus("job", "list", *form)
    assert (whole.code, whole.err) == (0, "")
    assert "j0000" in whole.out
    assert "j1202" in whole.out
    cut = isthmus("job", "list", "--limit", "60", *form)
    assert "j0059" in cut.out
    assert "j0060" not in cut.out
    assert "… and more: 60 shown" in cut.err
    assert isthmus("job", "list", "--limit", "1203", *form).err == ""


@pytest.mark.parametrize("flag", ["--cpus", "--memory"])
def test_an_amount_of_nothing_is_refused(cloud: FakeCloud, isthmus: Isthmus, flag: str) -> None:
    ran = isthmus("job", "submit", flag, "0", "--", "true")
    assert ran.code == 2
    assert f"{flag} 0: a worker needs some" in ran.err
    assert cloud.requests == []


@pytest.mark.parametrize("command", ["get", "delete"])
def test_a_full_name_is_taken_as_it_is(cloud: FakeCloud, isthmus: Isthmus, command: str) -> None:
    cloud.jobs["train"] = made(State.STATE_SUCCEEDED)
    assert isthmus("job", command, "tenants/acme/jobs/train").code == 0
    for request in cloud.asked(scheduler_pb2.DeleteJobRequest):
        assert request.name == "tenants/acme/jobs/train"


def test_a_full_name_of_another_tenant_is_sent(cloud: FakeCloud, isthmus: Isthmus) -> None:
    ran = isthmus("job", "get", "tenants/other/jobs/none")
    assert (ran.code, "tenants/other/jobs/none: not found" in ran.err) == (4, True)


@pytest.mark.parametrize("name", ["tenants/acme/queues/train", "jobs/train", "tenants/acme/jobs/", "a/b"])
def test_a_name_of_something_else_is_refused(cloud: FakeCloud, isthmus: Isthmus, name: str) -> None:
    ran = isthmus("job", "get", name)
    assert ran.code == 2
    assert "names nothing in jobs; write its id, or tenants/acme/jobs/<id>" in ran.err


def test_what_says_the_same_is_said_once(cloud: FakeCloud, isthmus: Isthmus) -> None:
    job = made(State.STATE_CANCELLED, reason="CANCELLED", message="cancelled")
    job.spec.command.extend(["sh", "-c", "echo 'a b'"])
    cloud.jobs["train"] = job
    ran = isthmus("job", "watch", "train")
    assert ran.code == 1
    assert "tenants/acme/jobs/train: CANCELLED; see" in ran.err
    assert "CANCELLED: " not in ran.out + ran.err
    assert """sh -c 'echo '"'"'a b'"'"''""" in ran.out
