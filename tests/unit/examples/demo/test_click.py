"""What the demo compares devices with, and how its versions come to fail."""

import dataclasses
import random
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

from examples.demo.click import BAD, MOST_PAST, recorded
from examples.demo.data import Log
from examples.demo.movielens import Film, MovieLens, Rating, entered
from examples.demo.reference import Reference, longer_past_than, padded
from examples.demo.scenario import TASKS, Scenario, append_text
from examples.demo.story import ripe_and_held
from examples.training.click_model.log import RANKER_WINDOW, WINDOW, Shown, read_items, read_shown
from isthmus.task import Context, Event
from libs.task.event import Event as StoredEvent

DAY_S = 86400
Rows = dict[str, tuple[int, list[tuple[np.ndarray, np.ndarray]]]]


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
        rated: list[Rating] = []
        for moment, item in pairs:
            if rated and rated[-1].rated_s < moment:
                before = rated[-1].rated_s
            shown = max(before + 0.001, moment - 20.0)
            rated.append(Rating(user, item, shown, float(moment), float(random_.randint(1, 5))))
        ratings[user] = rated
    return MovieLens(films, ratings)


@pytest.fixture(scope="module")
def shown(data: MovieLens, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Return training's rows by the id of the event that brings the film on the screen."""
    ratings, films = data.write(tmp_path_factory.mktemp("files"))
    found: Shown = read_shown(ratings, read_items(films))
    ids = {(each.user, each.item): entered(each) for given in data.ratings.values() for each in given}
    both = [found.past(slice(None), window) for window in (WINDOW, RANKER_WINDOW)]
    return {
        ids[name]: (
            int(found.item[n]),
            [(history[n : n + 1], ratings[n : n + 1]) for history, ratings in both],
        )
        for n, name in enumerate(found.names)
    }


def test_the_reference_sees_what_training_saw(data: MovieLens, shown: Rows) -> None:
    index = {item: number for number, item in enumerate(data.films, start=1)}
    reference = Reference(Path("unused"), Path("unused"), index, WINDOW, RANKER_WINDOW)
    found: Rows = {}
    for events in data.log(float("-inf")).users.values():
        for event_id, film, past in reference.windows(events):
            found[event_id] = (film, [padded([past], window) for window in (WINDOW, RANKER_WINDOW)])
    assert set(found) == set(shown)
    lengths = set()
    for event_id, (film, windows) in shown.items():
        assert found[event_id][0] == film
        for (history, ratings), (seen_history, seen_ratings) in zip(windows, found[event_id][1], strict=True):
            assert np.array_equal(history, seen_history)
            assert np.array_equal(ratings, seen_ratings)
        lengths.add(int(np.count_nonzero(windows[1][1])))
    assert min(lengths) == 0
    assert max(lengths) > WINDOW


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


def test_a_part_of_the_users_is_taken_evenly_over_time(data: MovieLens) -> None:
    part = data.of(5)
    assert len(part.ratings) == 5
    assert all(part.ratings[user] == data.ratings[user] for user in part.ratings)
    first = sorted(rated[0].shown_s for rated in data.ratings.values())
    assert min(rated[0].shown_s for rated in part.ratings.values()) == first[0]
    assert data.of(0) is data.of(99) is data


def test_what_is_recorded_is_shorter_than_what_the_bad_version_can_take(data: MovieLens) -> None:
    log = data.log(float("-inf"))
    beginnings = recorded(log)
    assert len({event.user for event in beginnings}) == 6
    assert len(beginnings) == 6 * 36
    assert not any(long for _, long in longer_past_than(MOST_PAST)(beginnings))
    whole = list(log.users["u0"])
    assert [position for position, _ in longer_past_than(MOST_PAST)(whole)] == [
        number for number, event in enumerate(whole) if event.type == "page_enter"
    ]
    assert any(long for _, long in longer_past_than(MOST_PAST)(whole))


def test_the_bad_version_fails_on_a_past_longer_than_recorded(tmp_path: Path) -> None:
    script = tmp_path / "click.py"
    shutil.copy(TASKS / "click" / "click.py", script)
    append_text(script, BAD)
    (tmp_path / "cascade.json").write_text('{"low": 1.0, "high": 0.0, "least_past": 50}', "utf-8")
    module = runpy.run_path(str(script))
    event = Event("e", "page_enter", "item", "u1", 5.0, {"item_id": "7"})

    def post(past: int) -> dict[str, object]:
        features = {"past": {"items": ["1"] * past, "ratings": [3.0] * past}}
        context = Context("click", "1.2.0", [event], features, tmp_path, ["cascade.json"])
        found: dict[str, object] = module["post"](context, {"click": [0.5]})
        return found

    assert post(MOST_PAST)["click"] == 0.5
    with pytest.raises(IndexError):
        post(MOST_PAST + 1)


def test_the_bad_version_comes_when_it_fails_on_whatever_is_next() -> None:
    events = [StoredEvent(str(n), "view", "", "u", float(n)) for n in range(100)]

    def found(doomed: list[bool]) -> tuple[int, int]:
        # Every third event triggers; what comes from the 88th on is for the bad version.
        tells = [(3 * number, each) for number, each in enumerate(doomed)]
        return ripe_and_held(events, dataclasses.replace(SCENARIO, dooms=lambda _: tells))

    # So few are left in the end that some before are held back too.
    assert found([True] * 33) == (0, 69)
    assert found([False] * 5 + [True] * 28) == (15, 69)
    assert found([True] * 9 + [False] + [True] * 23) == (30, 69)
    # It doesn't fail in the end, and so it must come sooner.
    assert found([True] * 12 + [False] * 21) == (0, 6)
    # Never ten in a row, but as often as a device needs.
    assert found([False, True, True, True] * 8) == (3, 87)
    assert found([False] * 30 + [True] * 3) == (90, 90)
    # Never in a row: when it comes anyway.
    assert found([False, True] * 16) == (88, 88)


SCENARIO = Scenario(
    log=Log("none", {}),
    task="t",
    good=Path(),
    broken=Path(),
    bad=Path(),
    recorded=(),
    dooms=lambda _: [],
    declared=frozenset(),
    expected=lambda events, wanted: {},
    agrees=lambda value, expected: True,
)
