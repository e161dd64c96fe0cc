"""The click model's way to the devices: trained by a job, made a plan by the engine, put into a task."""

from __future__ import annotations

import csv
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples.demo.cloud import Cloud
from examples.demo.devices import Result
from examples.demo.movielens import MovieLens, entered
from examples.demo.report import Report
from examples.demo.scenario import TASKS, Scenario, Value
from examples.training.click_model.metrics import auc
from libs.common.errors import Error, Precondition, Unavailable
from libs.task.event import Event

PROGRAM = Path(__file__).resolve().parent.parent / "training" / "click_model"
TOLERANCE = 1e-4
_JOB = "click-model"
_ARTEFACTS = {
    name.partition(".")[0]: name for name in ("model.onnx", "items.json", "metrics.json", "predictions.csv")
}
_ENDED = ("STATE_SUCCEEDED", "STATE_FAILED", "STATE_CANCELLED")
_START_S = 120.0
_LOG_CHARACTERS = 2000
_WINDOW_S = 30 * 86400.0

Say = Callable[[str], None]
Scores = dict[str, float]


@dataclass(frozen=True, slots=True)
class Trained:
    """What the job made, and the plan of it."""

    folder: Path
    metrics: dict[str, Any]
    predictions: dict[tuple[str, str], Scores]
    """By user and film: what was predicted in training's test part, and whether it was clicked."""

    @property
    def model(self) -> Path:
        """The ONNX file."""
        return self.folder / "model.onnx"

    @property
    def plan(self) -> Path:
        """The plan."""
        return self.folder / "click.plan"


@dataclass(frozen=True, slots=True)
class ClickModel:
    """Makes the scenario of MovieLens-100K: films are scored on the devices of users who came late."""

    data: MovieLens
    epochs: int
    """Most epochs of training."""

    @property
    def title(self) -> str:
        """What it is about."""
        return self.data.title

    def scenario(self, cloud: Cloud, home: Path, say: Say, report: Report) -> Scenario:
        """Train, make the plan, and return the scenario with the task that holds it.

        Raises:
            Error: when the job fails or its model can't become a plan.
        """
        trained = self._train(cloud, home, say, report)
        _optimise(cloud, trained, say, report)
        films = json.loads((trained.folder / "items.json").read_text("utf-8"))
        good = _task(home / "click", trained)
        bad = _task(home / "click-bad", trained)
        # A fault that no compiler sees: it asks the model for an output that it hasn't got.
        _replace(bad / "task.json", '"version": "1.0.0"', '"version": "1.1.0"')
        _replace(bad / "click.py", 'outputs["click"]', 'outputs["clicks"]')
        return Scenario(
            log=self.data.log(trained.metrics["test_start_s"]),
            task="click",
            good=good,
            bad=bad,
            declared=frozenset({"item", "click"}),
            expected=Reference(trained.model, films["index"], films["window"]).expected,
            agrees=_agrees,
            judge=lambda results, report: self._judge(trained, results, report),
        )

    def _train(self, cloud: Cloud, home: Path, say: Say, report: Report) -> Trained:
        folder = home / "training"
        folder.mkdir()
        files = dict(zip(("ratings.csv", "items.csv"), self.data.write(folder), strict=True))
        files |= {f"click_model/{each.name}": each for each in sorted(PROGRAM.glob("*.py"))}
        flags = [flag for path, local in files.items() for flag in ("--file-in", f"{path}={local}")]
        flags += [flag for pair in _ARTEFACTS.items() for flag in ("--artefact", "=".join(pair))]
        started = time.monotonic()
        cloud.isthmus(
            *("job", "submit", "--id", _JOB, "--cpus", "1", "--memory", "1GiB", "--deadline", "5m", *flags),
            *("--", "python", "-m", "click_model", "ratings.csv", "items.csv", "--epochs", str(self.epochs)),
        )
        job = _follow(cloud, say)
        if job["status"]["state"] != "STATE_SUCCEEDED":
            status = job["status"]
            log = "".join(piece["text"] for piece in cloud.lines("job", "logs", _JOB))[-_LOG_CHARACTERS:]
            raise Precondition(f"{_JOB}: {status['state']}: {status['reason']}: {status['message']}\n{log}")
        report.figures["training_job_s"] = time.monotonic() - started
        _check_job(cloud, job, report)
        for name, file in _ARTEFACTS.items():
            cloud.isthmus("job", "artefact", "get", _JOB, name, "--out", str(folder / file))
        metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
        found = {name: metrics[name]["auc"] for name in ("model", "ftrl_frozen", "ftrl_prequential")}
        report.compare("whole test part", metrics["test_events"], found)
        report.check(
            "the model beats both baselines",
            found["model"] > max(found["ftrl_frozen"], found["ftrl_prequential"]),
            f"AUC {found['model']:.3f}; FTRL {found['ftrl_frozen']:.3f} frozen, "
            f"{found['ftrl_prequential']:.3f} prequential; {metrics['test_events']:,} events after training",
        )
        return Trained(folder, metrics, _read_predictions(folder / "predictions.csv"))

    def _judge(self, trained: Trained, results: list[Result], report: Report) -> None:
        """Compare the devices' scores with those of training, and with the baselines'."""
        rated = {entered(each): each for given in self.data.ratings.values() for each in given}
        scored = []
        for result in results:
            assert result.value is not None
            rating = rated[str(result.value["event_id"])]
            score = float(str(result.value["click"]))
            scored.append((score, trained.predictions[rating.user, rating.item]))
        furthest = max((abs(score - other["model"]) for score, other in scored), default=float("inf"))
        report.check(
            "devices see what training saw",
            furthest <= TOLERANCE,
            f"{len(scored):,} scores from events on devices and from training's files differ by at most "
            f"{furthest:.1g}",
        )
        clicked = np.array([other["clicked"] for _, other in scored])
        found = {
            name: auc(clicked, np.array([other[name] for _, other in scored]))
            for name in ("ftrl_frozen", "ftrl_prequential")
        }
        found["model"] = auc(clicked, np.array([score for score, _ in scored]))
        report.compare("seen by devices", len(scored), found)


@dataclass(frozen=True, slots=True)
class Reference:
    """The same scores by other code: windows from the raw events, and ONNX Runtime."""

    model: Path
    index: dict[str, int]
    """Films by name."""
    window: int

    def expected(self, events: Iterable[Event]) -> dict[str, Value]:
        """Return the score of each film by the id of the event that brought it on the screen."""
        shown = list(self.windows(events))
        if not shown:
            return {}
        # Here, since only this comparison takes it; devices don't have it.
        import onnxruntime

        session = onnxruntime.InferenceSession(str(self.model), providers=["CPUExecutionProvider"])
        item = np.array([film for _, film, _ in shown], np.int64)
        history = np.zeros((len(shown), self.window), np.int64)
        ratings = np.zeros((len(shown), self.window), np.float32)
        for row, (_, _, past) in enumerate(shown):
            history[row, : len(past)] = [film for film, _ in past]
            ratings[row, : len(past)] = [rating for _, rating in past]
        (scores,) = session.run(["click"], {"item": item, "history": history, "ratings": ratings})
        return {
            event_id: {"past": len(past), "click": float(score)}
            for (event_id, _, past), score in zip(shown, scores, strict=True)
        }

    def windows(self, events: Iterable[Event]) -> Iterator[tuple[str, int, list[tuple[int, float]]]]:
        """Yield for each film that came up: the event's id, the film, the user's past films and ratings."""
        rated: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            if event.type == "rate":
                rated[event.user].append(event)
            elif event.type == "page_enter":
                past = [
                    (self.index.get(str(old.fields["item_id"]), 0), float(str(old.fields["rating"])))
                    for old in rated[event.user]
                    if event.time_s - _WINDOW_S < old.time_s <= event.time_s
                ]
                film = self.index.get(str(event.fields["item_id"]), 0)
                yield event.event_id, film, past[-self.window :]


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


def _agrees(value: Value, expected: Value) -> bool:
    difference = abs(float(str(value["click"])) - float(str(expected["click"])))
    return value["past"] == expected["past"] and difference <= TOLERANCE


def _follow(cloud: Cloud, say: Say) -> dict[str, Any]:
    """Say what the job writes while it runs, and return the job when it has ended."""
    said = ""
    deadline = time.monotonic() + _START_S
    while True:
        job: dict[str, Any] = cloud.isthmus("job", "get", _JOB)
        state = job["status"]["state"]
        if state in _ENDED:
            return job
        if state == "STATE_RUNNING":
            break
        if time.monotonic() > deadline:
            why = cloud.isthmus("job", "explain", _JOB)["summary"]
            raise Unavailable(f"{_JOB} didn't start within {_START_S:g} s: {why}")
        if state != said:
            say(f"job {_JOB}: {state.removeprefix('STATE_').lower()}")
            said = state
        time.sleep(0.2)
    node = job["status"]["workers"][0]["node"]
    say(f"job {_JOB}: running on {node}, {job['status']['reservation'].rpartition('/')[2]}")
    rest = ""
    for piece in cloud.stream("job", "logs", _JOB, "--follow"):
        *lines, rest = (rest + piece["text"]).split("\n")
        for line in lines:
            say(f"  {line}")
    try:
        cloud.isthmus("job", "watch", _JOB)
    except Error as error:
        if error.reason != "JOB_NOT_SUCCEEDED":
            raise
    ended: dict[str, Any] = cloud.isthmus("job", "get", _JOB)
    return ended


def _optimise(cloud: Cloud, trained: Trained, say: Say, report: Report) -> None:
    made = cloud.isthmus(
        "model", "optimize", str(trained.model), "--dim", "batch=1..64", "--out", str(trained.plan)
    )
    explained = made["explanation"]
    before = sum(each["count"] for each in explained["operators_before"])
    say(
        f"plan of {before} ONNX operators: {len(explained['steps'])} steps, "
        f"{explained['raster_count_before']} rasters merged to {explained['raster_count_after']}"
    )
    report.check(
        "the plan computes what ONNX Runtime does",
        made["max_error"] <= TOLERANCE and made["comparison_count"] > 0,
        f"{made['comparison_count']} comparisons, largest difference {made['max_error']:.1g}",
    )


def _task(folder: Path, trained: Trained) -> Path:
    """Return a copy of the task's folder that holds the model."""
    shutil.copytree(TASKS / "click", folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(trained.plan, folder / "click.plan")
    shutil.copy(trained.folder / "items.json", folder)
    return folder


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text, f"{file}: no {old}"
    file.write_text(text.replace(old, new), "utf-8")


def _read_predictions(path: Path) -> dict[tuple[str, str], Scores]:
    with path.open(newline="", encoding="utf-8") as file:
        return {
            (row.pop("user"), row.pop("item")): {name: float(value) for name, value in row.items()}
            for row in csv.DictReader(file)
        }
