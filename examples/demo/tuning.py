"""The endpoint is tuned and reconfigured while devices go on asking."""

from __future__ import annotations

import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from examples.demo.cloud import Cloud
from examples.demo.devices import Result
from examples.demo.fleet import Fleet
from examples.demo.plan import Plan
from examples.demo.progress import Progress, Step
from examples.demo.report import Report
from libs.common.errors import Error, Unavailable

EXPERIMENT = "batching"
UNTUNED = ("--max-batch-rows", "32", "--max-batch-delay", "10ms")
"""How the endpoint is served before: held back for others, as where there is much more to do."""
_VARY = ("max_batch_rows=1,4,16", "max_batch_delay_ms=0,2", "instance_count=1,2")
_OBJECTIVE = "goodput_rps"
_CALLERS = 4
_PATIENCE_S, _PAUSE_S = 60.0, 0.5
_NO_FAILURE = "not within the device's time, so that its own score counted, which is no failure"
_DONE = re.compile(r"\] (\d+)/(\d+) ")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Finds a configuration of the endpoint by trials, and applies it."""

    cloud: Cloud
    fleet: Fleet
    plan: Plan
    endpoint: str
    tunnel_metrics: str
    """Where the tunnel shows its metrics, as an HTTP address."""
    progress: Progress
    report: Report

    def run(self, step: Step, applying: Callable[[], None]) -> None:
        """Tune and apply; `applying` is called in between.

        Raises:
            Error: when there is no best trial.
        """
        failed_before = self._failures()
        began = time.monotonic()
        self.cloud.isthmus(
            *("tune", "run", self.endpoint, "--id", EXPERIMENT),
            *(flag for each in _VARY for flag in ("--vary", each)),
            *("--objective", _OBJECTIVE, "--trials", str(self.plan.trials), "--concurrency", str(_CALLERS)),
            *("--duration", f"{self.plan.trial_s:g}s", "--target-latency", "200ms", "--deadline", "4m"),
            done=("ALREADY_EXISTS",),
        )

        def said(line: str) -> None:
            self.progress.say(line)
            if found := _DONE.search(line):
                step.share = int(found[1]) / int(found[2])

        self.fleet.meanwhile(
            "the trials", lambda: self.cloud.follow("tune", "watch", EXPERIMENT, say=said, failed=(1,))
        )
        experiment = self.cloud.isthmus("tune", "get", EXPERIMENT)
        if not experiment["best_trial"]:
            raise Error(f"{experiment['name']}: {experiment['state']}: {experiment['message']}")
        applying()
        since = time.monotonic()
        self.fleet.meanwhile(
            "the best trial to be applied",
            lambda: self.cloud.follow("tune", "apply", EXPERIMENT, say=self.progress.say, failed=(1,)),
        )
        ended = time.monotonic()
        self._judge(self.cloud.isthmus("tune", "get", EXPERIMENT))
        self._see_nothing_dropped(failed_before, asked_in(self.fleet.results(), since, ended))
        self.report.figures["tuning_s"] = ended - began

    def _judge(self, experiment: dict[str, Any]) -> None:
        application = experiment.get("application") or {}
        before, after = (
            next((each["value"] for each in application.get(when, ()) if each["name"] == _OBJECTIVE), 0.0)
            for when in ("before", "after")
        )
        trials = self.cloud.isthmus("tune", "trials", EXPERIMENT)
        best = next(each for each in trials if each["number"] == experiment["best_trial"])
        point = ", ".join(f"{name} {value:g}" for name, value in sorted(best["point"].items()))
        self.progress.say(f"the best of {len(trials)} trials: {point}")
        self.report.figures |= {
            "tuning_trials": len(trials),
            "goodput_before_rps": before,
            "goodput_after_rps": after,
        }
        state = str(application.get("state", "")).removeprefix("STATE_").lower()
        self.report.check(
            "the endpoint is tuned while devices use it",
            state == "applied",
            f"{point}: {state}, {before:,.0f} answers in time a second before, {after:,.0f} after",
        )

    def _failures(self) -> Counter[str]:
        """Return how many requests ended in another way than with an answer, by where and how."""
        found = Counter[str]()
        for each in self.cloud.isthmus("endpoint", "stats", self.endpoint):
            found["failed in serving"] += int(each["inference_stats"]["fail"]["count"])
        outcomes = scrape(self.tunnel_metrics, "isthmus_tunnel_requests_total")
        found.update(
            {f"{name} in the tunnel": round(outcomes.get(name, 0)) for name in ("failed", "refused")}
        )
        return found

    def _see_nothing_dropped(self, before: Counter[str], asked: Counter[str]) -> None:
        failures = {name: count - before[name] for name, count in self._failures().items()}
        self.report.check(
            "no request fails while the endpoint is reconfigured",
            not any(failures.values()) and asked["cloud"] + asked["unanswered"] > 0,
            f"{asked['cloud']:,} requests of devices answered meanwhile"
            + (f", {asked['unanswered']:,} more {_NO_FAILURE}; " if asked["unanswered"] else "; ")
            + ", ".join(f"{count:,} {name}" for name, count in failures.items()),
        )


def asked_in(results: Sequence[Result], since_s: float, until_s: float) -> Counter[str]:
    """Return how many results of a time came from where: "device", "cloud" or "unanswered"."""
    return Counter(
        str(result.value.get("source"))
        for result in results
        if result.value is not None and since_s <= result.read_s <= until_s
    )


def scrape(address: str, name: str) -> dict[str, float]:
    """Return a metric's values by the value of its first label.

    Raises:
        Unavailable: when nobody shows it for a while.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(f"{address}/metrics", timeout=30) as page:
                text = page.read().decode()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise Unavailable(f"{address}/metrics: {error}") from error
        time.sleep(_PAUSE_S)
    return {
        next(iter(sample.labels.values()), ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }
