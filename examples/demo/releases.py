"""Versions of the demo's task: published after a pre-flight, released in steps, refused, rolled back."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from examples.demo.cloud import Cloud
from examples.demo.fleet import Fleet
from examples.demo.progress import Progress
from examples.demo.report import Report
from examples.demo.scenario import Scenario
from libs.cli.output import human_seconds
from libs.common.errors import Error, Unavailable
from libs.task.event import Event

_REFUSED = "PREFLIGHT_FAILED"
_EVERYWHERE = 100
"""Percents of the last step: a version that is rolled back there was stopped too late."""
_SPENT_S = 20.0
"""After so long without an event to come, what hasn't been decided won't be."""
_RAISED = re.compile(r"^\s*(\w*(?:Error|Exception)\b.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Releases:
    """What becomes of the scenario's versions."""

    cloud: Cloud
    fleet: Fleet
    scenario: Scenario
    progress: Progress
    report: Report
    home: Path
    steps: str
    """Of each release, as `release create --steps` takes them."""

    @property
    def good(self) -> str:
        """The version that does well, as TASK@VERSION."""
        return f"{self.scenario.task}@1.0.0"

    @property
    def bad(self) -> str:
        """The version that does well over what was recorded, and badly in the field."""
        return f"{self.scenario.task}@1.2.0"

    def publish_good(self) -> None:
        """Publish the good version, with recorded events that later ones are tried over as well."""
        recorded = self.home / "recorded.jsonl"
        write_events(recorded, self.scenario.recorded)
        preflight = self._publish(self.scenario.good, "--events", str(recorded))
        self.report.check(
            "a version is tried in a simulator before it is published",
            preflight.get("state") == "STATE_PASSED" and preflight["run_count"] > 0,
            _verdict(preflight),
        )

    def publish_broken(self) -> None:
        """See that a version which fails on every run isn't published."""
        try:
            self._publish(self.scenario.broken)
        except Error as error:
            refused, said = error.reason == _REFUSED, error.message.partition(": ")[2]
            self.progress.say(f"refused: {gist(said)}")
        else:
            refused, said = False, "it was published"
        self.report.check("a plainly broken version isn't published", refused, gist(said))

    def release_good(self) -> None:
        """Release the good version to all devices in steps.

        Raises:
            Error: when it doesn't get there; nothing that follows would make sense.
        """
        found = self._release(self.good, "--where", '{"eq": ["fleet", "demo"]}')
        confirmed, devices = found["counts"]["confirmed_count"], len(self.fleet.devices)
        if found["state"] != "STATE_SUCCEEDED":
            raise Error(
                "\n".join(
                    [f"{found['name']}: {found['state']}: {found['state_reason']}", *self.fleet.problems()]
                )
            )
        self.report.check(
            "a release in steps reaches every device",
            confirmed == devices,
            f"{confirmed} of {devices} devices confirmed {self.good} in {len(found['steps'])} steps",
        )
        for step in found["steps"]:
            if "open_time" in step and "close_time" in step:
                spent = datetime.fromisoformat(step["close_time"]) - datetime.fromisoformat(step["open_time"])
                self.report.figures[f"coverage_of_step_{step['percent']:g}%_s"] = spent.total_seconds()

    def release_bad(self) -> None:
        """Release the bad version, and see it rolled back by itself.

        Raises:
            Unavailable: when devices have no events left for it to fail on.
        """
        preflight = self._publish(self.scenario.bad)
        hopeful_s = time.monotonic()

        def look() -> None:
            # However long the release takes to reach a device: there are events left for it to fail on.
            nonlocal hopeful_s
            if self.fleet.give_the_rest(self.bad):
                hopeful_s = time.monotonic()
            elif time.monotonic() - hopeful_s > _SPENT_S:
                raise Unavailable(
                    f"the devices that run {self.bad} have no events left, and it has neither failed nor "
                    "done well often enough in a row; use a longer log",
                    reason="LOG_TOO_SHORT",
                )

        found = self._release(self.bad, look=look)
        last = found["steps"][-1]["percent"]
        self.report.check(
            "a version that only fails in the field rolls back by itself",
            preflight.get("state") == "STATE_PASSED"
            and found["state"] == "STATE_ROLLED_BACK"
            and last < _EVERYWHERE
            and found["counts"]["failed_count"] >= 1,
            f"{_verdict(preflight)}; {found['state'].removeprefix('STATE_').lower()} in step {last:g} %: "
            f"{found['state_reason']}",
        )
        wanted = {self.good: len(self.fleet.devices)}
        try:
            self.fleet.wait("every device to be back", lambda: self.fleet.active() == wanted)
        finally:
            active = self.fleet.active()
            self.report.check(
                "no device keeps the bad version",
                active == wanted,
                ", ".join(f"{count} devices run {version}" for version, count in active.items()) or "none",
            )

    def _publish(self, folder: Path, *flags: str) -> dict[str, Any]:
        """Publish a version; return its pre-flight."""
        keys = str(self.home / "keys")
        published = self.cloud.isthmus("task", "publish", str(folder), "--keys", keys, *flags)
        preflight: dict[str, Any] = published.get("preflight") or {}
        name = "@".join(published["name"].split("/")[3::2])
        self.progress.say(f"published {name}, signed ({_verdict(preflight)})")
        return preflight

    def _say_briefly(self, line: str) -> None:
        """Say where a release is; why is for the report."""
        self.progress.say(line.partition("  — ")[0])

    def _release(self, version: str, *flags: str, look: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Create a release and wait until it has ended; return it."""
        name = f"v{version.partition('@')[2].replace('.', '-')}"
        self.cloud.isthmus(
            *("release", "create", version, "--id", name, "--steps", self.steps, *flags),
            done=("RELEASE_EXISTS",),
        )
        self.fleet.meanwhile(
            f"the release of {version}",
            # 1: it has ended otherwise than well, which is what is looked at.
            lambda: self.cloud.follow("release", "watch", name, say=self._say_briefly, failed=(1,)),
            look,
        )
        found: dict[str, Any] = self.cloud.isthmus("release", "get", name)
        return found


def write_events(path: Path, events: Iterable[Event]) -> None:
    """Write events as JSON Lines, as `isthmus task try` and `task publish` read them."""
    with path.open("w", encoding="utf-8") as file:
        for event in events:
            file.write(json.dumps(event.to_json(), ensure_ascii=False) + "\n")


def _verdict(preflight: dict[str, Any]) -> str:
    if not preflight:
        return "no pre-flight"
    state = str(preflight["state"]).removeprefix("STATE_").lower()
    text = (
        f"pre-flight {state}: {preflight['run_count']:,} runs over {preflight['event_count']:,} events, "
        f"{preflight['failure_count']:,} failed"
    )
    if "p99_run_time" in preflight:
        text += f", p99 {human_seconds(float(preflight['p99_run_time'].removesuffix('s')))}"
    return text


def gist(text: str, most: int = 200) -> str:
    """Return a text in one short line; of a traceback the last line, which says what was wrong."""
    before, traced, rest = text.partition("Traceback (most recent call last)")
    if traced and (raised := _RAISED.findall(rest)):
        text = f"{before}{raised[-1]}"
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"
