"""What the demo found: named checks, and the table that shows them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from libs.cli.output import human_bytes, human_seconds

LATENCIES = ("device_run_p50_ms", "device_run_p99_ms", "cascade_run_p50_ms", "cascade_run_p99_ms")
"""Figures that belong beside what was gained, where there is a comparison."""

LABELS = {
    "training_job_s": "training job took",
    "training_peak_memory_bytes": "training's most memory",
    "users": "users whose histories they replay",
    "tuning_trials": "trials of the tuner",
    "goodput_before_rps": "answers in time before tuning",
    "goodput_after_rps": "answers in time after tuning",
    "tuning_s": "tuning took",
    "events": "events on devices",
    "events_synthetic": "of these derived, and marked so",
    "triggers": "runs triggered",
    "results": "good runs, each with a result",
    "failed_runs_of_the_bad_version": "failed runs of the bad version",
    "frames_sent": "frames sent up",
    "raw_event_bytes": "size of all events",
    "sent_bytes": "size of what was sent up instead",
    "bytes_saved_share": "saved by that",
    "requests": "requests to the larger model",
    "request_bytes": "size of the requests",
    "answers": "answers in time",
    "answer_bytes": "size of the answers",
    "asked": "results that were uncertain",
    "answered": "of these from the cloud",
    "unanswered": "of these from the device, unanswered",
    "answers_too_late": "answers that came too late",
    "sent_up_share": "uncertain, so sent up",
    "answered_in_time_share": "answered in time, of these",
    "bytes_up_a_request_bytes": "size of a request",
    "bytes_down_an_answer_bytes": "size of an answer",
    "device_run_p50_ms": "run on the device alone: median",
    "device_run_p99_ms": "run on the device alone: 99th percentile",
    "cascade_run_p50_ms": "run that asks the cloud: median",
    "cascade_run_p99_ms": "run that asks the cloud: 99th percentile",
    "demo_s": "the demo took",
    "commands_repeated": "commands typed again, a service away",
}
"""Words for figures; JSON has the names."""
_STEP = re.compile(r"coverage_of_step_([0-9.]+)%_s")


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must be so."""

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """How well the same events were scored in several ways."""

    where: str
    events: int
    auc: Mapping[str, float]
    """Area under the ROC curve by the scorer's name."""
    hit_rate: Mapping[str, float]
    """Share of clicks among what each scorer puts on top; empty where nobody compares that."""
    more: Mapping[str, float]
    """What else there is to say, by name; units as in figures."""


@dataclass(slots=True)
class Report:
    """Figures and checks of one run."""

    title: str
    figures: dict[str, float] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)

    def check(self, name: str, holds: bool, detail: str) -> None:
        """Add a check."""
        self.checks.append(Check(name, holds, detail))

    def compare(
        self,
        where: str,
        events: int,
        auc: Mapping[str, float],
        hit_rate: Mapping[str, float] | None = None,
        more: Mapping[str, float] | None = None,
    ) -> None:
        """Add how good several ways are to score the same events."""
        self.comparisons.append(Comparison(where, events, auc, hit_rate or {}, more or {}))

    @property
    def good(self) -> bool:
        """Tell whether there are checks and all of them hold."""
        return bool(self.checks) and all(check.holds for check in self.checks)

    def show(self, as_json: bool) -> None:
        """Print it to standard output, as tables or as one JSON object."""
        if as_json:
            whole = {
                "title": self.title,
                "figures": self.figures,
                "checks": [
                    {"name": check.name, "holds": check.holds, "detail": check.detail}
                    for check in self.checks
                ],
                "auc": {each.where: {"events": each.events, **each.auc} for each in self.comparisons},
                "hit_rate": {each.where: dict(each.hit_rate) for each in self.comparisons},
                "cascade": {each.where: dict(each.more) for each in self.comparisons},
                "notes": self.notes,
                "good": self.good,
            }
            sys.stdout.write(json.dumps(whole, indent=2) + "\n")
            return
        console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
        console.print()
        console.print(f"[bold]{self.title}[/]")
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in self.figures.items():
            if self.comparisons and name in LATENCIES:
                continue
            label, text = _for_people(name, value)
            table.add_row(label, text)
        console.print(table)
        console.print()
        if self.comparisons:
            console.print(self._comparison_table())
            console.print()
        checks = Table("", "CHECK", "WHAT WAS SEEN", box=None, header_style="bold", pad_edge=False)
        for check in self.checks:
            checks.add_row("[green]ok[/]" if check.holds else "[red]FAILED[/]", check.name, check.detail)
        console.print(checks)
        for note in self.notes:
            console.print(f"\n{note}")

    def _comparison_table(self) -> Table:
        table = Table("ON HELD-OUT TIME", box=None, header_style="bold", pad_edge=False)
        for each in self.comparisons:
            table.add_column(f"{each.where.upper()}, {each.events:,} EVENTS", justify="right")
        for kind, of in (("AUC", "auc"), ("hit rate", "hit_rate")):
            for name in _names(getattr(each, of) for each in self.comparisons):
                cells = (getattr(each, of).get(name) for each in self.comparisons)
                shown = ("-" if cell is None else f"{cell:.4f}" for cell in cells)
                table.add_row(f"{kind}: {_label(name)}", *shown)
        for name in _names(each.more for each in self.comparisons):
            cells = (each.more.get(name) for each in self.comparisons)
            table.add_row(
                _for_people(name, 0.0)[0],
                *("-" if cell is None else _for_people(name, cell)[1] for cell in cells),
            )
        return table


def _names(found: Iterable[Mapping[str, float]]) -> list[str]:
    """Return all names, in the order in which they come up."""
    return list(dict.fromkeys(name for each in found for name in each))


def _label(name: str) -> str:
    return {
        "device": "device alone",
        "cascade": "device + cloud",
        "cloud": "cloud alone",
        "model": "click model",
        "ftrl_frozen": "FTRL, frozen",
        "ftrl_prequential": "FTRL, learning on",
    }.get(name, name)


def _for_people(name: str, value: float) -> tuple[str, str]:
    """Return a figure's words and its value with the unit; units stand at the ends of names."""
    label = LABELS.get(name) or _STEP.sub(r"step of \1 %: release to coverage", name).replace("_", " ")
    if name.endswith("_bytes"):
        return label, human_bytes(value)
    if name.endswith("_ms"):
        return label, human_seconds(value / 1e3)
    if name.endswith("_s"):
        return label, human_seconds(value)
    if name.endswith("_rps"):
        return label, f"{value:,.0f} /s"
    if name.endswith("_share"):
        return label, f"{100 * value:.2f} %"
    return label, f"{value:,.0f}"


def quantile(values: list[float], share: float) -> float:
    """Return the value below which `share` of the sorted values lie; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
