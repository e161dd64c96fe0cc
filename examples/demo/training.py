"""The training job, and what it made."""

from __future__ import annotations

import csv
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo.cloud import Cloud
from examples.demo.movielens import MovieLens
from examples.demo.plan import Plan
from examples.demo.progress import Progress, Step
from examples.demo.report import Report
from libs.common.errors import Error, Precondition

PROGRAM = Path(__file__).resolve().parent.parent / "training" / "click_model"
JOB = "click-model"
_FILES = ("model.onnx", "ranker.onnx", "items.json", "cascade.json", "metrics.json", "predictions.csv")
ARTEFACTS = {name.partition(".")[0]: name for name in _FILES}
"""Files that the job makes, by the names they are kept by."""
_LOG_CHARACTERS = 2000
_EPOCH = re.compile(r"epoch \d+ of \d+:")

Scores = dict[str, float]


@dataclass(frozen=True, slots=True)
class Trained:
    """What the job made, in a folder."""

    folder: Path
    metrics: dict[str, Any]
    cascade: dict[str, Any]
    """Which scores of the device's model are uncertain, and how long to wait for the ranker's."""
    films: dict[str, Any]
    """Films by name, and how many of a user's past the models look at."""
    predictions: dict[tuple[str, str], Scores]
    """By user and film: what was predicted in training's test part, and whether it was clicked."""

    @property
    def model(self) -> Path:
        """The device's model, an ONNX file."""
        return self.folder / "model.onnx"

    @property
    def ranker(self) -> Path:
        """The cloud's model, an ONNX file."""
        return self.folder / "ranker.onnx"

    @property
    def plan(self) -> Path:
        """The plan of the device's model."""
        return self.folder / "click.plan"


def train(
    data: MovieLens, plan: Plan, cloud: Cloud, home: Path, progress: Progress, step: Step, report: Report
) -> Trained:
    """Have a job train both models, and fetch what it made.

    Raises:
        Error: when the job fails; with the end of its log.
    """
    folder = home / "training"
    folder.mkdir()
    files = dict(zip(("ratings.csv", "items.csv"), data.write(folder), strict=True))
    files |= {f"click_model/{each.name}": each for each in sorted(PROGRAM.glob("*.py"))}
    flags = [flag for path, local in files.items() for flag in ("--file-in", f"{path}={local}")]
    flags += [flag for pair in ARTEFACTS.items() for flag in ("--artefact", "=".join(pair))]
    began = progress.elapsed_s
    cloud.isthmus(
        *("job", "submit", "--id", JOB, "--cpus", "1", "--memory", "2GiB", "--deadline", "6m", *flags),
        *("--", "python", "-m", "click_model", "ratings.csv", "items.csv", "--epochs", str(plan.epochs)),
        *("--ranker-epochs", str(plan.ranker_epochs), "--ranker-networks", str(plan.ranker_networks)),
        done=("JOB_EXISTS",),
    )
    # Both are trained twice: once to choose by the validation part, and once on all before the test.
    _follow(cloud, progress, step, 2 * plan.epochs + (1 + plan.ranker_networks) * plan.ranker_epochs)
    job: dict[str, Any] = cloud.isthmus("job", "get", JOB)
    if job["status"]["state"] != "STATE_SUCCEEDED":
        status = job["status"]
        log = "".join(piece["text"] for piece in cloud.lines("job", "logs", JOB))[-_LOG_CHARACTERS:]
        raise Precondition(f"{JOB}: {status['state']}: {status['reason']}: {status['message']}\n{log}")
    report.figures["training_job_s"] = progress.elapsed_s - began
    _check_job(cloud, job, report)
    with ThreadPoolExecutor(3) as pool:
        fetched = pool.map(
            lambda pair: cloud.isthmus(
                "job", "artefact", "get", JOB, pair[0], "--out", str(folder / pair[1])
            ),
            ARTEFACTS.items(),
        )
        list(fetched)
    return read_trained(folder)


def read_trained(folder: Path) -> Trained:
    """Return what the job wrote to a folder."""
    metrics, cascade, films = (
        json.loads((folder / name).read_text("utf-8"))
        for name in ("metrics.json", "cascade.json", "items.json")
    )
    return Trained(folder, metrics, cascade, films, _read_predictions(folder / "predictions.csv"))


def _follow(cloud: Cloud, progress: Progress, step: Step, epochs: int) -> None:
    """Say what the job writes and how it is, until it has ended; `epochs` are to come in all."""
    gone = 0

    def said(line: str) -> None:
        nonlocal gone
        progress.say(f"  {line}")
        if _EPOCH.search(line):
            gone += 1
            step.share = gone / epochs

    broken: list[Error] = []

    def log() -> None:
        try:
            cloud.follow("job", "logs", JOB, "--follow", say=said, failed=(1,), timeout_s=400.0)
        except Error as error:
            broken.append(error)

    logs = threading.Thread(target=log, daemon=True)
    logs.start()
    # 1: it didn't succeed, which the caller looks at.
    cloud.follow("job", "watch", JOB, say=progress.say, failed=(1,), timeout_s=400.0)
    logs.join(timeout=30)
    if broken:
        raise broken[0]


def _check_job(cloud: Cloud, job: dict[str, Any], report: Report) -> None:
    status, (worker,) = job["status"], job["status"]["workers"]
    nodes: list[dict[str, Any]] = cloud.isthmus("node", "list")
    held = [holding for node in nodes for holding in node["status"]["holdings"]]
    tenant = job["metadata"]["name"].partition("/jobs/")[0]
    mine = [holding for holding in held if holding["reservation"].startswith(f"{tenant}/")]
    report.figures["training_peak_memory_bytes"] = worker["peak_memory_bytes"]
    report.check(
        "training is a job that ran once and gave its slot back",
        status["attempt_count"] == 1 and worker["exit_code"] == 0 and not mine,
        f"{status['attempt_count']} attempt on {worker['node']}, exit code {worker['exit_code']}, "
        f"{len(mine)} slots still held",
    )


def _read_predictions(path: Path) -> dict[tuple[str, str], Scores]:
    with path.open(newline="", encoding="utf-8") as file:
        return {
            (row.pop("user"), row.pop("item")): {name: float(value) for name, value in row.items()}
            for row in csv.DictReader(file)
        }
