"""What the cascade of the device's model and the cloud's ranker is worth, by what devices did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence

import numpy as np

from examples.demo.devices import Result
from examples.demo.movielens import MovieLens, entered
from examples.demo.reference import TOLERANCE, Reference
from examples.demo.report import LATENCIES, Report
from examples.demo.scenario import Value
from examples.demo.training import Trained
from examples.training.click_model.metrics import auc, hit_rate
from libs.task.event import Event

_NAMES = {
    "model": "device",
    "cascade": "cascade",
    "ranker": "cloud",
    "ftrl_frozen": "ftrl_frozen",
    "ftrl_prequential": "ftrl_prequential",
}
"""Scorers by their names in training's files: what the report calls them."""
_LEAST_FOR_AUC = 50
_LEARNT = 0.6
"""An AUC that nothing has by chance."""


class Cascade:
    """Compares scores with what happened, and with what other code computes."""

    def __init__(self, data: MovieLens, trained: Trained) -> None:
        self._trained = trained
        self._rated = {entered(each): each for given in data.ratings.values() for each in given}
        self._low, self._high = trained.cascade["low"], trained.cascade["high"]
        self._least_past = trained.cascade["least_past"]
        self._reference = Reference(
            trained.model,
            trained.ranker,
            trained.films["index"],
            trained.films["window"],
            trained.cascade["window"],
        )

    def report_offline(self, report: Report, *, judged: bool) -> None:
        """Tell how good all are over the whole test part, as training computed it.

        Args:
            report: where to.
            judged: whether they have learnt enough to be compared.
        """
        metrics = self._trained.metrics
        found = {label: metrics[name] for name, label in _NAMES.items()}
        area = {label: each["auc"] for label, each in found.items()}
        hits = {label: each["hit_rate"] for label, each in found.items() if each["hit_rate"] is not None}
        gained = metrics["cascade_gain"]
        more = {
            "sent_up_share": metrics["cascade_sent_share"],
            "bytes_up_a_request_bytes": metrics["cascade_request_bytes"],
        }
        report.compare("whole test part", metrics["test_events"], area, hits, more)
        if not judged:
            report.check(
                "both models learn",
                min(area["device"], area["cloud"]) > _LEARNT,
                f"AUC {area['device']:.4f} and {area['cloud']:.4f}; too little training to compare them",
            )
            return
        report.check(
            "the device's model beats both baselines",
            area["device"] > max(area["ftrl_frozen"], area["ftrl_prequential"]),
            f"AUC {area['device']:.4f}; FTRL {area['ftrl_frozen']:.4f} frozen, "
            f"{area['ftrl_prequential']:.4f} learning on; {metrics['test_events']:,} events after training",
        )
        report.check(
            "the cloud's model adds to the device's",
            gained["auc"] > 0,
            f"AUC {area['cascade']:.4f} with {metrics['cascade_sent_share']:.0%} sent up, "
            f"{gained['auc']:+.4f} (95 % {gained['auc_low']:+.4f} to {gained['auc_high']:+.4f}, "
            f"over {gained['users']} users)",
        )

    def expected(self, events: Iterable[Event], wanted: Container[str]) -> dict[str, Value]:
        """See `Reference.expected`."""
        return self._reference.expected(events, wanted)

    def agrees(self, value: Value, expected: Value) -> bool:
        """Tell whether a device's result is the expected one: both scores, and where it is from."""
        here, there = float(str(expected["device"])), float(str(expected["cloud"]))
        device, click, past = (float(str(value[name])) for name in ("device_click", "click", "past"))
        uncertain = self._low <= device <= self._high and past >= self._least_past
        wanted = there if value["source"] == "cloud" else here
        return (
            past == expected["past"]
            and abs(device - here) <= TOLERANCE
            and abs(click - wanted) <= TOLERANCE
            and uncertain == (value["source"] != "device")
        )

    def judge(self, results: Sequence[Result], report: Report) -> None:
        """Compare devices' scores with those of training, and tell how good all are over what devices saw."""
        furthest = 0.0
        scored: dict[str, list[float]] = {label: [] for label in ("device", "cascade", *_NAMES.values())}
        users: list[str] = []
        clicked: list[float] = []
        for result in results:
            assert result.value is not None
            rating = self._rated[str(result.value["event_id"])]
            trained = self._trained.predictions[rating.user, rating.item]
            device, click = (float(str(result.value[name])) for name in ("device_click", "click"))
            wanted = trained["ranker"] if result.value["source"] == "cloud" else trained["model"]
            furthest = max(furthest, abs(device - trained["model"]), abs(click - wanted))
            for name, label in _NAMES.items():
                scored[label].append({"model": device, "cascade": click}.get(name, trained[name]))
            users.append(rating.user)
            clicked.append(trained["clicked"])
        report.check(
            "devices and cloud see what training saw",
            bool(scored["device"]) and furthest <= TOLERANCE,
            f"{len(clicked):,} scores from events and from training's files differ by at most {furthest:.1g}",
        )
        happened = np.array(clicked)
        numbers = {user: number for number, user in enumerate(dict.fromkeys(users))}
        who = np.array([numbers[user] for user in users], np.int64)
        scores = {label: np.array(each) for label, each in scored.items()}
        area = {label: auc(happened, each) for label, each in scores.items()}
        hits = {label: hit_rate(who, happened, each) for label, each in scores.items()}
        report.compare(
            "seen by devices", len(clicked), _numbers(area), _numbers(hits), _cost(results, report.figures)
        )

    def facts(self, results: Sequence[Result]) -> Mapping[str, str]:
        """Tell what came of asking so far, and how good the scores are."""
        good = [result.value for result in results if result.value is not None]
        sources = Counter(str(value["source"]) for value in good)
        said = {
            "asked": f"{sources['cloud'] + sources['unanswered']:,}, {sources['cloud']:,} answered in time",
        }
        if len(good) >= _LEAST_FOR_AUC:
            rated = [self._rated[str(value["event_id"])] for value in good]
            happened = np.array(
                [self._trained.predictions[each.user, each.item]["clicked"] for each in rated]
            )
            device, both = (
                auc(happened, np.array([float(str(value[name])) for value in good]))
                for name in ("device_click", "click")
            )
            said["AUC so far"] = f"{device:.4f} on devices alone, {both:.4f} with the cloud"
        return said


def _cost(results: Sequence[Result], figures: Mapping[str, float]) -> dict[str, float]:
    """Return what the cascade took, of what devices did."""
    asked = [each for each in results if each.value is not None and each.value["source"] != "device"]
    answered = sum(each.value is not None and each.value["source"] == "cloud" for each in asked)
    found = {"sent_up_share": len(asked) / len(results) if results else 0.0}
    found["answered_in_time_share"] = answered / len(asked) if asked else 0.0
    if figures.get("requests"):
        found["bytes_up_a_request_bytes"] = figures["request_bytes"] / figures["requests"]
    if figures.get("answers"):
        found["bytes_down_an_answer_bytes"] = figures["answer_bytes"] / figures["answers"]
    return found | {name: figures[name] for name in LATENCIES if name in figures}


def _numbers(found: Mapping[str, float]) -> dict[str, float]:
    """Return what could be computed."""
    return {name: value for name, value in found.items() if np.isfinite(value)}
