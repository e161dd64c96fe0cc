"""The click model's way to the devices: trained by a job, made a plan, put into a task; a ranker served."""

from __future__ import annotations

import shutil
from pathlib import Path

from examples.demo.cascade import Cascade
from examples.demo.cloud import Cloud
from examples.demo.data import Log
from examples.demo.movielens import MovieLens
from examples.demo.plan import Plan
from examples.demo.progress import Progress
from examples.demo.reference import TOLERANCE, longer_past_than
from examples.demo.report import Report
from examples.demo.scenario import TASKS, Scenario, append_text, replace_text
from examples.demo.story import Subject
from examples.demo.training import JOB, Trained, train
from examples.demo.tuning import UNTUNED
from libs.task.event import Event

TRAIN = "train both models as a job"
OPTIMISE = "make the device's model a plan"
DEPLOY = "serve the larger model"
ENDPOINT = "ranker"
_RECORDED_USERS, _RECORDED_FILMS = 6, 12
MOST_PAST = 16
"""Films of the past that the bad version can take: more than any recorded history has."""
BAD = f"""

# Films count for less the longer ago they were rated.
FADES = [0.95**films for films in range({MOST_PAST})]
_score = post


def post(context: Context, outputs):
    \"\"\"Return the score and how much it rests on: a past longer than FADES is an IndexError.\"\"\"
    weight = sum(FADES[films] for films in range(len(context.features["past"]["items"])))
    return _score(context, outputs) | {{"weight": weight}}
"""


class ClickModel(Subject):
    """MovieLens-100K: films are scored on the devices of users who came late."""

    steps = (TRAIN, OPTIMISE, DEPLOY)
    asks = True

    def __init__(self, data: MovieLens, plan: Plan) -> None:
        self._data = data.of(plan.users)
        self._plan = plan
        self.title = self._data.title

    def scenario(self, cloud: Cloud, home: Path, progress: Progress, report: Report) -> Scenario:
        """Train, make the plan, serve the ranker, and return the scenario with the task.

        Raises:
            Error: when the job fails, or a model can't become a plan or be served.
        """
        with progress.step(TRAIN) as step:
            trained = train(self._data, self._plan, cloud, home, progress, step, report)
            cascade = Cascade(self._data, trained)
            cascade.report_offline(report, judged=not self._plan.users)
        with progress.step(OPTIMISE):
            _optimise(cloud, trained, progress, report)
        with progress.step(DEPLOY):
            _deploy(cloud, progress)
        good, broken, bad = (
            task_folder(home / name, trained) for name in ("click", "click-broken", "click-bad")
        )
        # A fault that no compiler sees: it asks the model for an output that it hasn't got.
        replace_text(broken / "task.json", '"version": "1.0.0"', '"version": "1.1.0"')
        replace_text(broken / "click.py", 'outputs["click"]', 'outputs["clicks"]')
        replace_text(bad / "task.json", '"version": "1.0.0"', '"version": "1.2.0"')
        append_text(bad / "click.py", BAD)
        log = self._data.log(trained.metrics["test_start_s"])
        return Scenario(
            log=log,
            task="click",
            good=good,
            broken=broken,
            bad=bad,
            recorded=recorded(log),
            dooms=longer_past_than(MOST_PAST),
            declared=frozenset({"item", "click"}),
            expected=cascade.expected,
            agrees=cascade.agrees,
            endpoint=ENDPOINT,
            judge=cascade.judge,
            facts=cascade.facts,
        )


def recorded(log: Log) -> list[Event]:
    """Return the beginnings of some users' histories: what somebody recorded in an afternoon."""
    some = list(log.users.values())[:_RECORDED_USERS]
    # Three events for each film.
    return [event for events in some for event in events[: 3 * _RECORDED_FILMS]]


def task_folder(folder: Path, trained: Trained) -> Path:
    """Return a copy of the task's folder that holds the model."""
    shutil.copytree(TASKS / "click", folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(trained.plan, folder / "click.plan")
    for name in ("items.json", "cascade.json"):
        shutil.copy(trained.folder / name, folder)
    return folder


def _optimise(cloud: Cloud, trained: Trained, progress: Progress, report: Report) -> None:
    made = cloud.isthmus(
        "model", "optimize", str(trained.model), "--dim", "batch=1..64", "--out", str(trained.plan)
    )
    explained = made["explanation"]
    before = sum(each["count"] for each in explained["operators_before"])
    progress.say(
        f"plan of {before} ONNX operators: {len(explained['steps'])} steps, "
        f"{explained['raster_count_before']} rasters merged to {explained['raster_count_after']}"
    )
    report.check(
        "the plan computes what ONNX Runtime does",
        made["max_error"] <= TOLERANCE and made["comparison_count"] > 0,
        f"{made['comparison_count']} comparisons, largest difference {made['max_error']:.1g}",
    )


def _deploy(cloud: Cloud, progress: Progress) -> None:
    """Serve the ranker straight from the job's artefact, each request by itself for now."""
    cloud.isthmus("endpoint", "put", ENDPOINT, *UNTUNED)
    made = cloud.isthmus("endpoint", "deploy", ENDPOINT, f"{JOB}/ranker", "--version", "v1")
    progress.say(
        f"endpoint {ENDPOINT}: {made['outcome']}, {made['blob']['size_bytes']:,} bytes, by ONNX Runtime"
    )
