"""Objects of the scheduler out of YAML files."""

import io
import sys
from pathlib import Path

import pytest

from libs.cli.objects import Object, read_job, read_objects
from libs.common.errors import Error, Invalid, NotFound

JOB = """\
apiVersion: scheduler.isthmus/v1
kind: Job
metadata:
  name: train-1
  labels: {team: ads}
spec:
  command: [python, train.py]
"""
QUEUE = """\
apiVersion: scheduler.isthmus/v1
kind: Queue
metadata: {name: tenants/acme/queues/ads}
spec: {priority: 5}
"""
NODE = """\
apiVersion: scheduler.isthmus/v1
kind: Node
metadata: {name: nodes/local, etag: "7"}
spec: {cordoned: true}
"""


def read(folder: Path, text: str) -> list[Object]:
    path = folder / "objects.yaml"
    path.write_text(text, "utf-8")
    return read_objects(str(path), "tenants/acme")


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(Invalid) as refused:
        read(folder, text)
    return refused.value.message.removeprefix(f"{folder}/")


def test_several_objects_stand_in_a_file(tmp_path: Path) -> None:
    job, queue, node = read(tmp_path, f"{JOB}---\n{QUEUE}---\n{NODE}---\n")
    assert (job.kind, job.id, dict(job.wanted.metadata.labels)) == ("Job", "train-1", {"team": "ads"})
    assert list(job.wanted.spec.command) == ["python", "train.py"]
    assert (queue.kind, queue.id, queue.wanted.spec.priority) == ("Queue", "ads", 5)
    assert (node.kind, node.id, node.wanted.spec.cordoned, node.wanted.metadata.etag) == (
        "Node",
        "local",
        True,
        "7",
    )
    assert [each.where.rpartition(":")[2] for each in (job, queue, node)] == ["1", "9", "14"]
    assert [each.shown for each in (job, queue, node)] == ["jobs/train-1", "queues/ads", "nodes/local"]


@pytest.mark.parametrize("queue", ["ads", "tenants/acme/queues/ads"])
def test_of_a_queues_name_the_last_part_will_do(tmp_path: Path, queue: str) -> None:
    (job,) = read(tmp_path, f"{JOB}  queue: {queue}\n")
    assert job.wanted.spec.queue == "tenants/acme/queues/ads"


def test_a_job_needs_no_name(tmp_path: Path) -> None:
    (job,) = read(tmp_path, "apiVersion: scheduler.isthmus/v1\nkind: Job\nspec: {command: [a]}\n")
    assert job.id == ""
    (job,) = read(tmp_path, "apiVersion: scheduler.isthmus/v1\nkind: Job\nmetadata:\nspec:\n")
    assert job.id == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "objects.yaml: holds no object"),
        ("---\n# empty\n", "objects.yaml: holds no object"),
        ("kind: Job", "objects.yaml:1:1: apiVersion: is missing; write apiVersion: scheduler.isthmus/v1"),
        ("apiVersion: scheduler.isthmus/v1", "objects.yaml:1:1: kind: is missing; write kind: Job"),
        (JOB.replace("Job", "Jobb"), "objects.yaml:2:7: kind: 'Jobb' is unknown; did you mean 'Job'?"),
        (JOB.replace("Job", "[Job]"), "objects.yaml:2:7: kind: must be text, not a list"),
        (
            JOB.replace("isthmus/v1", "isthmus/v2"),
            "objects.yaml:1:13: apiVersion: 'scheduler.isthmus/v2' is unknown; did you mean",
        ),
        (JOB.replace("spec", "specs"), "objects.yaml:6:1: unknown field 'specs'; did you mean 'spec'?"),
        (JOB + "status: {}", "objects.yaml:8:1: status: is the scheduler's to say; leave it out"),
        (
            JOB.replace("labels", "label"),
            "objects.yaml:5:3: metadata.label: unknown field; did you mean 'labels'?",
        ),
        (
            JOB.replace("labels: {team: ads}", "uid: x"),
            "objects.yaml:5:3: metadata.uid: is the scheduler's to give",
        ),
        (
            JOB.replace("train-1", "tenants/other/jobs/j"),
            "objects.yaml:4:9: metadata.name: 'tenants/other/jobs/j' is no job here; write its last part",
        ),
        (
            QUEUE.replace("{name: tenants/acme/queues/ads}", "{}"),
            "objects.yaml:1:1: metadata.name: is missing",
        ),
        (JOB.replace("command", "comand"), "objects.yaml:7:3: spec: unknown field 'comand'; did you mean"),
        (
            NODE.replace("etag", "labels: {a: b}, etag"),
            "objects.yaml:3:31: metadata.labels: a node's aren't anybody's to set; leave them out",
        ),
        ("- a\n", "objects.yaml:1:1: must be a mapping of names to values, not a list"),
    ],
)
def test_a_fault_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


def test_a_fault_of_a_later_object_has_its_own_line(tmp_path: Path) -> None:
    # The job takes lines 1 to 7, the separator the 8th; in the queue's fourth, it stands after "spec: {".
    text = f"{JOB}---\n{QUEUE.replace('priority', 'prio')}"
    assert "objects.yaml:12:8: spec: unknown field 'prio'" in refusal(tmp_path, text)


def test_a_file_of_a_job_may_come_from_beside_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    files = "  files:\n  - path: code/train.py\n    from: train.py\n"
    (job,) = read(tmp_path, JOB + files)
    (local,) = job.local
    assert local.path == tmp_path / "train.py"
    assert local.file.path == "code/train.py"
    local.file.blob.digest = "sha256:x"
    assert job.wanted.spec.files[0].blob.digest == "sha256:x"  # it is the job's own
    missing = refusal(tmp_path, JOB + files.replace("train.py\n", "gone.py\n"))
    assert "objects.yaml:10:11: spec.files[0].from: there is no file" in missing


def test_the_standard_input_is_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(QUEUE.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    (queue,) = read_objects("-", "tenants/acme")
    assert queue.where == "standard input:1"


@pytest.mark.parametrize(
    ("data", "said"), [(b"\xff", "isn't UTF-8"), (b"#" * (1024**2 + 1), "is longer than")]
)
def test_bad_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch, data: bytes, said: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(Invalid, match=said):
        read_objects("-", "tenants/acme")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        read_objects(str(tmp_path / "nowhere.yaml"), "tenants/acme")


@pytest.mark.parametrize("text", [QUEUE, f"{JOB}---\n{JOB}"])
def test_submitting_takes_one_job(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(Error, match=r"must hold one Job; several objects are for `isthmus apply -f`"):
        read_job(str(path), "tenants/acme")
