"""The click task: when it asks, what it sends, and what it falls back to."""

import dataclasses
import importlib.util
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from deploy.local.layout import ROOT
from examples.training.click_model.cascade import MODEL, Policy
from examples.training.click_model.log import RANKER_WINDOW, WINDOW, read_items, read_shown
from examples.training.click_model.ranker import half_stars
from isthmus.task import Context, Event
from libs.task.event import Event as StoredEvent
from libs.task.pipeline import pipeline_from_value
from libs.task.trigger import trigger_from_value
from tests.unit.examples.training.conftest import FILMS, write_log

TASK = ROOT / "examples" / "tasks" / "click"
POLICY = Policy(0.25, 0.75, 50)
DATATYPES = {"item": np.uint16, "history": np.uint16, "ratings": np.uint8}

MakeContext = Callable[..., Context]


class Cloud:
    """Answers requests, or doesn't, and keeps what it was asked."""

    def __init__(self, click: float | None) -> None:
        self._click = click
        self.asked: list[tuple[str, Mapping[str, Any], float, Sequence[str]]] = []

    def __call__(
        self, model: str, inputs: Mapping[str, Any], timeout_s: float, outputs: Sequence[str]
    ) -> tuple[dict[str, np.ndarray] | None, str]:
        """Answer with the click that it was made with."""
        self.asked.append((model, inputs, timeout_s, outputs))
        if self._click is None:
            return None, "not connected"
        return {"click": np.array([self._click], np.float32)}, ""


@pytest.fixture(scope="module")
def task() -> ModuleType:
    """Load the task's script."""
    spec = importlib.util.spec_from_file_location("click_task", TASK / "click.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def context(tmp_path: Path) -> MakeContext:
    """Return what makes the context of one run."""
    index = {str(film): film for film in range(1, FILMS + 1)}
    (tmp_path / "items.json").write_text(json.dumps({"window": WINDOW, "index": index}), "utf-8")
    (tmp_path / "cascade.json").write_text(json.dumps(POLICY.to_json()), "utf-8")

    def make(past: int, cloud: Cloud | None = None) -> Context:
        features = {
            "past": {
                "items": [str(1 + number % FILMS) for number in range(past)],
                "ratings": [1.0 + number % 5 for number in range(past)],
            }
        }
        event = Event("e", "page_enter", "item", "u1", 5.0, {"item_id": "7"})
        declared = [each["path"] for each in source()["resources"]]
        return Context("click", "1.0.0", [event], features, tmp_path, declared, asker=cloud)

    return make


def source() -> dict[str, Any]:
    """Return the task's source."""
    found: dict[str, Any] = json.loads((TASK / "task.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize(
    ("device_click", "past", "asks"),
    [
        (0.5, 50, True),
        (0.25, 200, True),
        (0.75, 200, True),
        (0.5, 49, False),
        (0.249, 200, False),
        (0.751, 200, False),
    ],
)
def test_it_asks_where_it_is_uncertain_and_the_past_is_long(
    task: ModuleType, context: MakeContext, device_click: float, past: int, asks: bool
) -> None:
    cloud = Cloud(0.875)
    value = task.post(context(past, cloud), {"click": np.array([device_click])})
    assert len(cloud.asked) == asks
    assert value == {
        "event_id": "e",
        "item": "7",
        "past": past,
        "click": 0.875 if asks else device_click,
        "device_click": device_click,
        "source": "cloud" if asks else "device",
    }


def test_without_an_answer_its_own_score_counts(task: ModuleType, context: MakeContext) -> None:
    cloud = Cloud(None)
    run = context(60, cloud)
    value = task.post(run, {"click": np.array([0.5])})
    assert (value["click"], value["device_click"], value["source"]) == (0.5, 0.5, "unanswered")
    assert any("not connected" in line for line in run.log_lines)


def test_it_sends_what_the_manifest_declares_and_no_more(task: ModuleType, context: MakeContext) -> None:
    cloud = Cloud(0.5)
    task.post(context(130, cloud), {"click": np.array([0.5])})
    ((model, inputs, timeout_s, outputs),) = cloud.asked
    assert (model, timeout_s, list(outputs)) == (MODEL, 0.25, ["click"])
    declared = source()["endpoints"][model]
    assert set(inputs) == set(declared) == set(DATATYPES)
    for name, value in inputs.items():
        sent = np.array(value, DATATYPES[name])
        assert declared[name] == {"datatype": sent.dtype.name.upper(), "max_elements": sent.size}
        assert sent.tolist() == value
    assert inputs["item"] == [7]
    assert inputs["history"] == [[1 + number % FILMS for number in range(130)] + [0] * 70]
    assert inputs["ratings"] == [[2 + 2 * (number % 5) for number in range(130)] + [0] * 70]


def test_a_tenth_of_the_scores_goes_up_without_the_user(task: ModuleType, context: MakeContext) -> None:
    sent = []
    for number in range(1000):
        run = context(200)
        run.events = [dataclasses.replace(run.events[0], event_id=f"u1-{number}-1")]
        task.post(run, {"click": [0.123456]})
        sent += [frame.fields for frame in run.frames]
    assert 70 <= len(sent) <= 130
    assert sent == [{"item": "7", "click": 0.1235}] * len(sent)


def test_both_models_see_on_the_device_what_they_saw_in_training(
    task: ModuleType, tmp_path: Path, context: MakeContext
) -> None:
    ratings, items = write_log(tmp_path)
    # One user rates them all, and some of them at one moment.
    random_ = random.Random(3)
    lines = ["user,item,shown_s,rated_s,rating"]
    rated = 0
    for page in range(480):
        films = random_.sample(range(1, FILMS + 1), random_.randint(1, 4))
        shown_s, rated = rated + 1, rated + random_.randint(5, 20_000)
        given = (",".join((str(film), str(shown_s), str(rated), str(film % 5 + 1))) for film in films)
        lines += [f"u{page % 2},{each}" for each in given]
    ratings.write_text("\n".join(lines) + "\n", "utf-8")
    shown = read_shown(ratings, read_items(items))
    events = [
        # Of one moment, a device takes events by their ids.
        StoredEvent(
            f"{item}-{when}", "rate", "item", user, float(when), {"item_id": item, "rating": float(stars)}
        )
        for user, item, _, when, stars in (line.split(",") for line in lines[1:])
    ]
    (feature,) = pipeline_from_value(source()["pipeline"]).features
    seen_whole = 0
    for row in random_.sample(range(len(shown)), 60):
        (user, item), now = shown.names[row], float(shown.shown_s[row])
        entered = StoredEvent("e", "page_enter", "item", user, now, {"item_id": item})
        mine = [each for each in events if each.user == user and each.time_s < now]
        mine.sort(key=lambda each: (each.time_s, str(each.fields["item_id"])))
        features = {"past": feature.evaluate([*mine, entered], now)}
        cloud = Cloud(0.5)
        event = Event(**dataclasses.asdict(entered))
        run = Context("click", "1.0.0", [event], features, tmp_path, None, asker=cloud)
        given = task.pre(run)
        rows = slice(row, row + 1)
        history, stars = shown.past(rows, WINDOW)
        assert given == {
            "item": [int(shown.item[row])],
            "history": history.tolist(),
            "ratings": stars.tolist(),
        }
        task.post(run, {"click": np.array([0.5])})
        history, stars = shown.past(rows, RANKER_WINDOW)
        for _, inputs, *_ in cloud.asked:
            assert inputs["history"] == history.tolist()
            assert inputs["ratings"] == half_stars(stars).tolist()
        assert len(cloud.asked) == (shown.past_count(rows, RANKER_WINDOW)[0] >= POLICY.least_past)
        seen_whole += shown.past_count(rows, RANKER_WINDOW)[0] == RANKER_WINDOW
    assert seen_whole > 0


@pytest.mark.parametrize(
    "odd",
    [
        {"item_id": "7"},
        {"item_id": "7", "rating": "5"},
        {"item_id": "7", "rating": True},
        {"item_id": "7", "rating": 0},
        {"item_id": "7", "rating": 1e300},
        {"item_id": ["7"], "rating": 5},
        {"item_id": 7, "rating": 5},
        {"rating": 5},
    ],
)
def test_an_odd_event_of_an_app_is_left_out_of_the_past_and_fails_no_run(odd: dict[str, Any]) -> None:
    (feature,) = pipeline_from_value(source()["pipeline"]).features
    rated = StoredEvent("e1", "rate", "item", "u1", 1.0, {"item_id": "9", "rating": 4.5})
    found = feature.evaluate([rated, StoredEvent("e2", "rate", "item", "u1", 2.0, odd)], 3.0)
    assert found == {"items": ["9"], "ratings": [4.5]}


def test_a_screen_without_the_name_of_a_film_wakes_nothing() -> None:
    (step,) = trigger_from_value(source()["trigger"]).steps
    for item, wakes in (("7", True), ("", True), (7, False), (["7"], False), (None, False)):
        entered = StoredEvent("e", "page_enter", "item", "u1", 1.0, {"item_id": item})
        assert step.matches(entered) == wakes
