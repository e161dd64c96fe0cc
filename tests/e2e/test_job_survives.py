"""kill -9 of scheduler, runner and etcd in mid-training: the job ends once, and leaves no slot taken."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.layout import ROOT
from deploy.local.stack import Stack
from tests.integration.system.world import WITHOUT, Cloud, CommandFailed, running_stack, tenant, until

pytestmark = pytest.mark.timeout(400)

# Trains, and then stays until it is told to end, so that everything is killed while it runs.
TRAINING = """
echo "started $$" >> "$DIARY"
"$PYTHON" -m click_model ratings.csv items.csv --epochs 1 || exit 1
until [ -e "$GO" ]; do sleep 0.1; done
echo "ended $$" >> "$DIARY"
"""
VICTIMS = (("scheduler",), ("runner",), ("etcd",), ("runner", "scheduler", "etcd"))


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A stack of its own."""
    with running_stack(without=(*WITHOUT, "engine")) as stack:
        yield stack


@pytest.fixture(scope="module")
def cloud(stack: Stack) -> Iterator[Cloud]:
    """A tenant."""
    with tenant(stack, "trainers") as cloud:
        yield cloud


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return the flags that put the program and a small log into a job's folder."""
    (tmp_path / "items.csv").write_text(
        "item,year,genres\n" + "".join(f"{n},1990,A\n" for n in range(9)), "utf-8"
    )
    rows = (f"u{n % 7},{n % 9},{100 * n},{100 * n + 5},{n * n % 5 + 1}" for n in range(1200))
    (tmp_path / "ratings.csv").write_text(
        "\n".join(["user,item,shown_s,rated_s,rating", *rows]) + "\n", "utf-8"
    )
    found = {name: tmp_path / name for name in ("items.csv", "ratings.csv")}
    shutil.copytree(ROOT / "examples/training/click_model", tmp_path / "click_model")
    found |= {f"click_model/{each.name}": each for each in (tmp_path / "click_model").glob("*.py")}
    return [flag for name, path in found.items() for flag in ("--file-in", f"{name}={path}")]


def job(cloud: Cloud, name: str) -> dict[str, Any]:
    """Return a job as it stands; waits for services that are away."""

    def read() -> dict[str, Any] | None:
        try:
            (found,) = cloud.isthmus("job", "get", name)
        except CommandFailed as error:
            if error.error["reason"] in ("JOB_NOT_FOUND", "NOT_FOUND"):
                raise
            return None
        return dict(found)

    return until(f"{name} to be readable", read)


def taken(stack: Stack, cloud: Cloud) -> list[dict[str, Any]]:
    """Return what the nodes hold for reservations."""
    (nodes,) = cloud.isthmus("node", "list")
    assert nodes
    return [holding for node in nodes for holding in node["status"].get("holdings", [])]


def test_a_job_ends_once_whatever_is_killed_meanwhile(
    stack: Stack, cloud: Cloud, files: list[str], tmp_path: Path
) -> None:
    diary, go = tmp_path / "diary", tmp_path / "go"
    environment = {"DIARY": str(diary), "GO": str(go), "PYTHON": sys.executable}
    flags = [flag for pair in environment.items() for flag in ("--env", "=".join(pair))]
    cloud.isthmus(
        *(
            "job",
            "submit",
            "--id",
            "train",
            "--memory",
            "2GiB",
            "--retries",
            "3",
            "--artefact",
            "model=model.onnx",
        ),
        *(*flags, *files, "--", "sh", "-c", TRAINING),
    )
    until("the training to begin", diary.exists)
    for victims in VICTIMS:
        before = {victim: stack.pid(victim) for victim in victims}
        for victim in victims:
            stack.kill(victim)
        for victim, pid in before.items():
            until(f"another {victim}", lambda victim=victim, pid=pid: stack.pid(victim) not in (0, pid))
        stack.wait_healthy(*victims)
        assert job(cloud, "train")["status"]["state"] == "STATE_RUNNING"
    assert len(taken(stack, cloud)) == 1
    go.touch()
    until(
        "the end", lambda: job(cloud, "train")["status"]["state"] not in ("STATE_RUNNING", "STATE_STOPPING")
    )
    ended = job(cloud, "train")["status"]
    assert ended["state"] == "STATE_SUCCEEDED", ended
    assert ended["attempt_count"] == 1
    first, last = diary.read_text("utf-8").splitlines()
    assert first.split()[0] == "started"
    assert last == f"ended {first.split()[1]}"
    until("the slot to be free", lambda: not taken(stack, cloud))
    text = "".join(piece["text"] for piece in cloud.isthmus("job", "logs", "train"))
    assert text.count("films shown") == 1
    assert "model.onnx, ranker.onnx" in text
    cloud.isthmus("job", "artefact", "get", "train", "model", "--out", str(tmp_path / "model.onnx"))
    assert (tmp_path / "model.onnx").stat().st_size > 1000


def test_a_job_cancelled_while_the_scheduler_is_away_ends_when_it_is_back(
    stack: Stack, cloud: Cloud, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    script = 'trap "" TERM; echo started >> "$DIARY"; while true; do sleep 0.1; done'
    cloud.isthmus(
        *("job", "submit", "--id", "stubborn", "--grace", "1s", "--env", f"DIARY={diary}", "--"),
        *("sh", "-c", script),
    )
    until("the job to begin", diary.exists)
    cloud.isthmus("job", "cancel", "stubborn")
    stack.kill("scheduler")
    stack.kill("runner")
    until("the end", lambda: job(cloud, "stubborn")["status"]["state"] == "STATE_CANCELLED")
    until("the slot to be free", lambda: not taken(stack, cloud))
    assert diary.read_text("utf-8") == "started\n"
