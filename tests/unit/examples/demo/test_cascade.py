"""What the cascade's results are compared with, and what is told of them."""

from pathlib import Path
from typing import Any

import pytest

from examples.demo.cascade import Cascade
from examples.demo.counting import source_of
from examples.demo.devices import Result
from examples.demo.movielens import Film, MovieLens, Rating
from examples.demo.report import Report
from examples.demo.training import Trained
from examples.demo.tuning import asked_in

FILMS = [str(number) for number in range(1, 61)]
DATA = MovieLens(
    {item: Film(item, item, "1990", []) for item in FILMS},
    {"u": [Rating("u", item, 10.0 * n, 10.0 * n + 1, 4.0) for n, item in enumerate(FILMS)]},
)
SCORES = {"model": 0.5, "ranker": 0.9, "cascade": 0.9, "ftrl_frozen": 0.4, "ftrl_prequential": 0.6}
TOTALS = {"auc": 0.7, "hit_rate": 0.5}


def trained(**changes: Any) -> Trained:
    """Return what a training made: films with even numbers are clicked, and the ranker knows."""
    metrics: dict[str, Any] = {name: TOTALS for name in SCORES}
    metrics |= {
        "test_events": 60,
        "cascade_sent_share": 0.4,
        "cascade_request_bytes": 602,
        "cascade_gain": {"auc": 0.01, "auc_low": 0.001, "auc_high": 0.02, "users": 1},
    }
    return Trained(
        Path("unused"),
        metrics | changes,
        {"low": 0.4, "high": 0.6, "least_past": 50, "window": 200},
        {"index": {item: int(item) for item in FILMS}, "window": 50},
        {
            ("u", item): {**SCORES, "clicked": float(int(item) % 2 == 0), "ranker": 0.9 - int(item) % 2 / 2}
            for item in FILMS
        },
    )


def result(item: str, source: str, click: float, device: float = 0.5) -> Result:
    value = {"event_id": f"u-{item}-1", "click": click, "device_click": device, "source": source, "past": 50}
    return Result("1.0.0", value, "", 5.0, read_s=float(item))


@pytest.mark.parametrize(
    ("changes", "right"),
    [
        ({}, True),
        ({"click": 0.5, "source": "unanswered"}, True),
        ({"click": 0.9 + 5e-5}, True),
        # The device's score where the cloud answered, and the other way round.
        ({"click": 0.5}, False),
        ({"source": "unanswered"}, False),
        ({"click": 0.9 + 5e-4}, False),
        ({"device_click": 0.5 + 5e-4}, False),
        ({"past": 51}, False),
        # It was uncertain, and should have asked.
        ({"click": 0.5, "source": "device"}, False),
    ],
)
def test_a_result_is_right_with_both_scores_and_the_right_source(
    changes: dict[str, object], right: bool
) -> None:
    value = {"past": 50, "device_click": 0.5, "click": 0.9, "source": "cloud"} | changes
    expected = {"past": 50, "device": 0.5, "cloud": 0.9}
    assert Cascade(DATA, trained()).agrees(value, expected) is right


@pytest.mark.parametrize(("past", "device"), [(49, 0.5), (50, 0.39), (50, 0.61)])
def test_who_is_certain_or_has_little_past_does_not_ask(past: int, device: float) -> None:
    cascade = Cascade(DATA, trained())
    expected = {"past": past, "device": device, "cloud": 0.9}
    value = {"past": past, "device_click": device, "click": device, "source": "device"}
    assert cascade.agrees(value, expected)
    assert not cascade.agrees(value | {"click": 0.9, "source": "cloud"}, expected)


def test_what_devices_saw_is_told_beside_the_whole_test_part() -> None:
    better = {"auc": 0.75, "hit_rate": 0.5}
    cascade, report = Cascade(DATA, trained(model=better)), Report("test")
    report.figures |= {"requests": 30, "request_bytes": 602 * 30, "answers": 30, "answer_bytes": 120}
    cascade.report_offline(report, judged=True)
    results = [
        result(item, "cloud", 0.9 - int(item) % 2 / 2) if int(item) <= 30 else result(item, "unanswered", 0.5)
        for item in FILMS
    ]
    cascade.judge(results, report)
    assert report.good
    whole, seen = report.comparisons
    assert whole.more == {"sent_up_share": 0.4, "bytes_up_a_request_bytes": 602}
    assert seen.events == 60
    assert seen.auc["device"] == 0.5
    assert seen.auc["cloud"] == 1.0
    assert 0.5 < seen.auc["cascade"] < 1.0
    assert seen.more["answered_in_time_share"] == 0.5
    assert seen.more["sent_up_share"] == 1.0
    assert seen.more["bytes_down_an_answer_bytes"] == 4
    facts = cascade.facts(results)
    assert facts["asked"] == "60, 30 answered in time"
    assert facts["AUC so far"].startswith("0.5000 on devices alone, 0.")


def test_a_score_that_training_did_not_see_is_found() -> None:
    cascade, report = Cascade(DATA, trained()), Report("test")
    cascade.judge([result("2", "cloud", 0.8)], report)
    assert not report.good
    assert "differ by at most 0.1" in report.checks[0].detail


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"ftrl_prequential": {"auc": 0.8, "hit_rate": None}}, "the device's model beats both baselines"),
        (
            {"cascade_gain": {"auc": -0.01, "auc_low": -0.02, "auc_high": 0.0, "users": 1}},
            "the cloud's model adds to the device's",
        ),
    ],
)
def test_models_that_are_no_good_are_found(changes: dict[str, Any], broken: str) -> None:
    report = Report("test")
    better = {"model": {"auc": 0.75, "hit_rate": 0.5}}
    Cascade(DATA, trained(**better, **changes)).report_offline(report, judged=True)
    assert [check.name for check in report.checks if not check.holds] == [broken]


def test_after_little_training_models_only_have_to_have_learnt() -> None:
    report = Report("test")
    Cascade(DATA, trained(model={"auc": 0.55, "hit_rate": 0.5})).report_offline(report, judged=False)
    assert [check.name for check in report.checks if not check.holds] == ["both models learn"]


def test_sources_are_counted_within_a_time() -> None:
    results = [result(str(number), "cloud", 0.9) for number in range(1, 6)]
    results.append(Result("1.0.0", None, "EXCEPTION", 5.0, read_s=3.0))
    assert asked_in(results, 2.0, 4.0) == {"cloud": 3}
    assert [source_of(each) for each in results[-2:]] == ["cloud", None]
