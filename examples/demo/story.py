"""What the demo does, step by step: train, publish, release, run, break, roll back, count."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from examples.demo.cloud import Cloud
from examples.demo.data import Log, deal
from examples.demo.devices import Device
from examples.demo.report import Report, quantile
from examples.demo.scenario import Scenario, Value
from libs.common.errors import Error, Invalid, Unavailable
from libs.task.event import Event

Make = Callable[[Cloud, Path, Callable[[str], None], Report], Scenario]
"""Makes the scenario, given the cloud, a folder, where to say what happens, and the report."""

STEPS = "25%,50%,100%"
_LEAST_EVENTS = 120
_RELEASES_S = 60.0
"""How long both releases may take; the histories have to last as long."""


@dataclass(frozen=True)
class Plan:
    """How large the demo is."""

    devices: int = 8
    events_per_device: int = 3000
    events_per_s: float = 24.0
    """On each device."""
    replay_s: float = 30.0
    """How long the histories run on the good version before the bad one comes."""
    deadline_s: float = 300.0
    """Nothing may take longer than this, all together."""


def dealt(log: Log, plan: Plan) -> list[list[Event]]:
    """Return each device's events.

    Raises:
        Invalid: when the log is too short for so many devices.
    """
    hands = deal(log, plan.devices, plan.events_per_device)
    shortest = min(len(events) for events in hands)
    if shortest < _LEAST_EVENTS:
        raise Invalid(
            f"{log.title}: one of {plan.devices} devices gets {shortest} events "
            f"and needs {_LEAST_EVENTS}; use a longer log or fewer --devices",
            reason="LOG_TOO_SHORT",
        )
    return hands


class Story:
    """One run of the demo against a running stack."""

    def __init__(
        self, plan: Plan, title: str, make: Make, gateway: str, admin_key_file: Path, home: Path
    ) -> None:
        self._plan = plan
        self._make = make
        self._scenario: Scenario
        self._gateway = gateway
        self._tenant = f"demo-{uuid.uuid4().hex[:8]}"
        self._home = home / self._tenant
        self._admin = ["--gateway", gateway, "--api-key-file", str(admin_key_file)]
        self._started = time.monotonic()
        self._devices: list[Device] = []
        self._stop = threading.Event()
        self._events_per_s = plan.events_per_s
        self.report = Report(title)

    def run(self) -> Report:
        """Run the whole story; the agents are gone afterwards.

        Raises:
            Error: when a step can't be done at all; what falls short is in the report's checks.
        """
        try:
            cloud = self._prepare()
            self._scenario = self._make(cloud, self._home, self._say, self.report)
            self._good, self._bad = (f"{self._scenario.task}@{version}" for version in ("1.0.0", "1.1.0"))
            self._start_devices(cloud)
            self._publish(cloud, self._scenario.good)
            self._release_good(cloud)
            self._replay()
            self._release_bad(cloud)
            self._settle()
            self._count(cloud)
        finally:
            self._stop.set()
            for device in self._devices:
                device.stop()
        self.report.figures["demo_s"] = time.monotonic() - self._started
        return self.report

    def _say(self, text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self._started:6.1f} s] {text}\n")
        sys.stderr.flush()

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        """Wait until `done()`; every device must stay alive and the plan's deadline holds."""
        while not done():
            for device in self._devices:
                if not device.alive() or device.fault:
                    tail = device.log.read_text(errors="replace")[-1500:]
                    raise Error(f"{device.device_id} broke while waiting for {what}: {device.fault}\n{tail}")
            if time.monotonic() - self._started > self._plan.deadline_s:
                raise Unavailable(f"gave up after {self._plan.deadline_s:g} s while waiting for {what}")
            self._stop.wait(0.2)

    def _prepare(self) -> Cloud:
        self._home.mkdir(parents=True)
        cloud = Cloud(self._admin)
        cloud.isthmus("tenant", "create", self._tenant, "--display-name", "demo")
        key_file = self._home / "demo.key"
        cloud.flags = [*self._admin, "--tenant", self._tenant]
        cloud.isthmus("key", "create", "--scope", "*", "--ttl", "1d", "--out", str(key_file))
        cloud.flags = ["--gateway", self._gateway, "--api-key-file", str(key_file), "--tenant", self._tenant]
        cloud.isthmus("trust", "init", "--keys", str(self._home / "keys"))
        self._say(f"tenant {self._tenant} with its API key, trust root and author key")
        return cloud

    def _start_devices(self, cloud: Cloud) -> None:
        token_file = self._home / "enrolment.token"
        uses = str(self._plan.devices)
        cloud.isthmus(
            "device", "token", "--attribute", "fleet=demo", "--uses", uses, "--out", str(token_file)
        )
        hands = dealt(self._scenario.log, self._plan)
        shortest = min(len(events) for events in hands)
        # A short log is replayed more slowly, so that there still are events when the bad version comes.
        self._events_per_s = min(self._plan.events_per_s, shortest / (self._plan.replay_s + _RELEASES_S))
        for number, events in enumerate(hands):
            device = Device(
                device_id=f"device-{number + 1}",
                home=self._home / f"d{number + 1}",
                gateway=self._gateway,
                token=token_file.read_text().strip(),
                attributes={"tier": "high" if number % 2 else "low"},
                events=events,
            )
            device.start()
            self._devices.append(device)
        self._wait("the devices to enrol", lambda: all(d.status(60.0).device for d in self._devices))
        for device in self._devices:
            device.feed(self._events_per_s, self._stop)
        users = sum(len({event.user for event in events}) for events in hands)
        self.report.figures |= {"devices": len(hands), "users": users}
        self._say(f"{len(hands)} agents enrolled; {users} users' histories are being replayed")

    def _publish(self, cloud: Cloud, folder: Path) -> None:
        keys = str(self._home / "keys")
        published = cloud.isthmus("task", "publish", str(folder), "--keys", keys)
        self._say(f"published {published['name']} ({published['total_bytes']} bytes, signed)")

    def _release(self, cloud: Cloud, version: str, *flags: str) -> dict[str, Any]:
        """Create a release and wait until it has ended; return it."""
        made: dict[str, Any] = cloud.isthmus("release", "create", version, "--steps", STEPS, *flags)
        release_id = made["name"].rpartition("/")[2]
        found: dict[str, Any] = {}
        seen = ""

        def ended() -> bool:
            nonlocal found, seen
            found = cloud.isthmus("release", "get", release_id)
            state = found["state"].removeprefix("STATE_")
            share = found["steps_percent"][found["step_index"]]
            counts = found["counts"]
            line = (
                f"{version}: {state.lower()}, step {share:g} %: {counts['confirmed_count']} of "
                f"{counts['targeted_count']} confirmed, {counts['failed_count']} failed"
            )
            if line != seen:
                self._say(line)
                seen = line
            return state not in ("RUNNING", "PAUSED")

        self._wait(f"the release of {version}", ended)
        return found

    def _release_good(self, cloud: Cloud) -> None:
        found = self._release(cloud, self._good, "--where", '{"eq": ["fleet", "demo"]}')
        confirmed = found["counts"]["confirmed_count"]
        if found["state"] != "STATE_SUCCEEDED":
            problems = [problem for device in self._devices for problem in device.status().problems]
            raise Error(f"{found['name']}: {found['state']}: {found['state_reason']}\n" + "\n".join(problems))
        self.report.check(
            "a release in steps reaches every device",
            found["state"] == "STATE_SUCCEEDED" and confirmed == len(self._devices),
            f"{confirmed} of {len(self._devices)} devices confirmed {self._good} "
            f"in {len(found['steps'])} steps",
        )
        for step in found["steps"]:
            if "open_time" in step and "close_time" in step:
                spent = datetime.fromisoformat(step["close_time"]) - datetime.fromisoformat(step["open_time"])
                self.report.figures[f"coverage_of_step_{step['percent']:g}%_s"] = spent.total_seconds()

    def _replay(self) -> None:
        """Let the histories run on the good version for a while."""
        goal = [
            min(len(device.events), device.sent + round(self._plan.replay_s * self._events_per_s))
            for device in self._devices
        ]

        def replayed() -> bool:
            return all(device.sent >= enough for device, enough in zip(self._devices, goal, strict=True))

        self._say(f"replaying histories on {len(self._devices)} devices")
        self._wait("the histories to be replayed", replayed)

    def _release_bad(self, cloud: Cloud) -> None:
        self._publish(cloud, self._scenario.bad)
        found = self._release(cloud, self._bad)
        last = found["steps"][-1]["percent"]
        self.report.check(
            "a bad version rolls back by itself",
            found["state"] == "STATE_ROLLED_BACK" and found["counts"]["failed_count"] >= 1,
            f"{found['state'].removeprefix('STATE_').lower()} in step {last:g} %: {found['state_reason']}",
        )

        def back() -> bool:
            return all(_active(device) == {self._good} for device in self._devices)

        try:
            self._wait("every device to be back on the good version", back)
        finally:
            active = Counter(version for device in self._devices for version in _active(device))
            self.report.check(
                "no device keeps the bad version",
                active == {self._good: len(self._devices)},
                ", ".join(f"{count} devices run {version}" for version, count in active.items()),
            )

    def _settle(self) -> None:
        """Stop feeding, and wait until all that was fed has been worked off and has arrived."""
        self._stop.set()
        self._say("histories stopped; waiting for the last runs and frames")
        idle = threading.Event()
        for device in self._devices:

            def settled(device: Device = device) -> bool:
                counters = device.status().counters
                ended = counters.success_count + counters.failure_count + counters.dropped_run_count
                return (
                    counters.event_count == device.sent
                    and ended == counters.trigger_count == len(device.results) + counters.dropped_run_count
                    and counters.acked_frame_count == counters.frame_count
                )

            deadline = time.monotonic() + 60
            while not settled() and time.monotonic() < deadline:
                idle.wait(0.2)

    def _count(self, cloud: Cloud) -> None:
        statuses = [device.status() for device in self._devices]
        counters = [status.counters for status in statuses]
        total = Counter[str]()
        for each in counters:
            total.update({item.name: value for item, value in each.ListFields()})
        results = [result for device in self._devices for result in device.results]
        good = [result for result in results if result.value is not None]
        latencies = [result.latency_ms for result in results]
        sent_events = [event for device in self._devices for event in device.events[: device.sent]]
        synthetic = sum(1 for event in sent_events if event.fields.get("synthetic"))
        raw, sent = total["event_bytes"], total["frame_bytes"]
        self.report.figures |= {
            "events": total["event_count"],
            "events_synthetic": synthetic,
            "triggers": total["trigger_count"],
            "results": len(good),
            "failed_runs_of_the_bad_version": total["failure_count"],
            "frames_sent": total["frame_count"],
            "raw_event_bytes": raw,
            "sent_bytes": sent,
            "bytes_saved_share": 1 - sent / raw if raw else 0.0,
            "latency_p50_ms": quantile(latencies, 0.50),
            "latency_p99_ms": quantile(latencies, 0.99),
        }
        self.report.check(
            "every event is taken once",
            total["event_count"] == len(sent_events),
            f"{total['event_count']:,} stored of {len(sent_events):,} sent",
        )
        self.report.check(
            "every trigger ends in one result or a counted drop",
            total["trigger_count"] == len(results) + total["dropped_run_count"] and len(good) > 0,
            f"{total['trigger_count']:,} triggers, {len(good):,} results, "
            f"{len(results) - len(good):,} failures, "
            f"{total['dropped_run_count']:,} dropped as their version was taken back",
        )
        self._check_results(good)
        records = cloud.lines("tunnel", "export", "--tombstones")
        keys = Counter((r["device"], r["stream"], r["epoch"], r["sequence"]) for r in records)
        self.report.check(
            "every frame arrives exactly once",
            len(records) == len(keys) == total["frame_count"] > 0,
            f"{total['frame_count']:,} queued on devices, {len(records):,} in the cloud's log, "
            f"{len(records) - len(keys):,} twice",
        )
        fields = {name for record in records for name in record.get("payload", {})}
        self.report.check(
            "only declared fields left the devices",
            bool(fields) and fields <= self._scenario.declared and total["refused_frame_count"] == 0,
            f"fields seen in the cloud: {', '.join(sorted(fields))}",
        )
        problems = [f"{status.device}: {problem}" for status in statuses for problem in status.problems]
        self.report.check("no device reports a problem", not problems, "; ".join(problems) or "none")
        if synthetic:
            self.report.notes.append(
                f"Synthetic: {synthetic:,} of the events are page visits derived from the ratings, and "
                "marked so; the ratings are real."
            )

    def _check_results(self, good: list[Any]) -> None:
        expected: dict[str, Value] = {}
        for device in self._devices:
            expected |= self._scenario.expected(device.events[: device.sent])
        agrees = self._scenario.agrees
        right = sum(1 for result in good if agrees(result.value, expected[str(result.value["event_id"])]))
        self.report.check(
            "each result is what a second implementation computes",
            right == len(good) > 0,
            f"{right:,} of {len(good):,} results agree",
        )
        self._scenario.judge(good, self.report)


def _active(device: Device) -> set[str]:
    running = ("ACTIVE", "CONFIRMED")
    return {f"{task.task}@{task.version}" for task in device.status().tasks if task.state in running}
