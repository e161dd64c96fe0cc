"""A film's past is one and the same in training, in the task, and in what the demo compares both with."""

import dataclasses
import importlib.util
import json
import random
from pathlib import Path
from types import ModuleType

import pytest

from examples.demo.click import Reference
from examples.demo.movielens import Film, MovieLens, Rating, entered
from examples.demo.scenario import TASKS
from examples.training.click_model.log import WINDOW, Shown, read_items, read_shown
from isthmus.task import Context, Event
from libs.task.pipeline import pipeline_from_value

DAY_S = 86400
Rows = dict[str, tuple[int, list[int], list[float]]]


@pytest.fixture(scope="module")
def data() -> MovieLens:
    """Make users who rate several films in one second, in few seconds, and over months."""
    random_ = random.Random(5)
    films = {str(n): Film(str(n), f"Film {n}", "1990", ["Drama"]) for n in range(1, 121)}
    ratings = {}
    for user in (f"u{n}" for n in range(15)):
        moments = sorted(
            random_.choice((0, 3, 5, 60, 20 * DAY_S, 33 * DAY_S)) + random_.randrange(40) for _ in range(90)
        )
        moments.sort()
        chosen = random_.sample(sorted(films), 90)
        # In the order in which the data set's reader gives them.
        pairs = sorted(zip(moments, chosen, strict=True))
        before = float("-inf")
        rated = []
        for moment, item in pairs:
            if rated and rated[-1].rated_s < moment:
                before = rated[-1].rated_s
            shown = max(before + 0.001, moment - 20.0)
            rated.append(Rating(user, item, shown, float(moment), float(random_.randint(1, 5))))
        ratings[user] = rated
    return MovieLens(films, ratings)


@pytest.fixture(scope="module")
def task() -> ModuleType:
    """Load the task's script."""
    spec = importlib.util.spec_from_file_location("click_task", TASKS / "click" / "click.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def shown(data: MovieLens, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Return training's rows by the id of the event that brings the film on the screen."""
    ratings, films = data.write(tmp_path_factory.mktemp("files"))
    found: Shown = read_shown(ratings, read_items(films))
    ids = {(each.user, each.item): entered(each) for given in data.ratings.values() for each in given}
    return {
        ids[name]: (int(found.item[n]), found.history[n].tolist(), found.ratings[n].tolist())
        for n, name in enumerate(found.names)
    }


def test_the_reference_sees_what_training_saw(data: MovieLens, shown: Rows) -> None:
    index = {item: number for number, item in enumerate(data.films, start=1)}
    reference = Reference(Path("unused"), index, WINDOW)
    seen = {}
    for events in data.log(float("-inf")).users.values():
        for event_id, film, past in reference.windows(events):
            rest = [0] * (WINDOW - len(past))
            seen[event_id] = (film, [item for item, _ in past] + rest, [rating for _, rating in past] + rest)
    assert len(seen) == 15 * 90
    assert seen == shown
    lengths = {sum(1 for rating in ratings if rating) for _, _, ratings in seen.values()}
    assert min(lengths) == 0
    assert max(lengths) == WINDOW


def test_the_task_sees_what_training_saw(
    data: MovieLens, shown: Rows, task: ModuleType, tmp_path: Path
) -> None:
    index = {item: number for number, item in enumerate(data.films, start=1)}
    (tmp_path / "items.json").write_text(json.dumps({"window": WINDOW, "index": index}), "utf-8")
    source = json.loads((TASKS / "click" / "task.json").read_text("utf-8"))
    (feature,) = pipeline_from_value(source["pipeline"]).features
    for events in data.log(float("-inf")).users.values():
        for number, event in enumerate(events):
            if event.type != "page_enter":
                continue
            stored = [each for each in events[: number + 1] if feature.selects(each)]
            features = {"past": feature.evaluate(stored, event.time_s)}
            inputs = task.pre(
                Context(
                    "click", "1.0.0", [Event(**dataclasses.asdict(event))], features, tmp_path, ["items.json"]
                )
            )
            film, history, ratings = shown[event.event_id]
            assert inputs == {"item": [film], "history": [history], "ratings": [ratings]}


def test_a_log_holds_those_who_came_late_whole(data: MovieLens) -> None:
    first = {user: rated[0].shown_s for user, rated in data.ratings.items()}
    since = sorted(first.values())[7]
    log = data.log(since)
    assert set(log.users) == {user for user, came in first.items() if came >= since}
    for user, events in log.users.items():
        rates = [event for event in events if event.type == "rate"]
        assert [event.fields["item_id"] for event in rates] == [each.item for each in data.ratings[user]]
        assert all(event.fields.get("synthetic") for event in events if event.type != "rate")
        assert not any("synthetic" in event.fields for event in rates)


def test_the_score_goes_up_without_the_user(task: ModuleType) -> None:
    event = Event("e", "page_enter", "item", "u1", 5.0, {"item_id": "7"})
    for count, sent in ((0, 1), (9, 0), (10, 1)):
        context = Context(
            "click", "1.0.0", [event], {"past": {"items": ["1"] * count, "ratings": [3.0] * count}}
        )
        value = task.post(context, {"click": [0.123456]})
        assert value == {"event_id": "e", "item": "7", "past": count, "click": 0.123456}
        assert [frame.fields for frame in context.frames] == [{"item": "7", "click": 0.1235}] * sent
