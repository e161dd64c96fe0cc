"""What the demo does, step by step: train, serve, publish, release, ask, tune, break, roll back, count."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from examples.demo.cloud import Cloud
from examples.demo.counting import Counting
from examples.demo.fleet import Fleet, dealt
from examples.demo.plan import Plan
from examples.demo.progress import Progress, Step
from examples.demo.releases import Releases
from examples.demo.report import Report
from examples.demo.scenario import Scenario
from examples.demo.tuning import Tuning
from libs.task.event import Event

PREPARE = "tenant, keys and devices"
PUBLISH = "publish, after a pre-flight"
USE = "devices are in use, without the task"
RELEASE = "release in steps"
TUNE = "tune the endpoint while devices ask"
REPLAY = "replay histories"
BREAK = "release what fails in the field"
COUNT = "count"

_BEFORE_SHARE, _TRIALS_SHARE, _APPLY_SHARE, _OPEN_SHARE = 0.5, 0.62, 0.72, 0.88
"""Of a device's events: those from before it has the task, from before the endpoint is reconfigured, from
before the rest is replayed, and from before the bad version comes. However slow a machine is, there are some
for each.
"""
_TRIALS_S = 100.0
"""How long the events before the reconfiguration last, at least."""
_FAST = 250.0
"""Events a second on each device while no task runs."""
_IN_A_ROW, _LEAST_IN_A_ROW = 10, 3
"""Triggers on which the bad version has to fail one after the other once it is released: better many, and as
many as a device needs to give it up.
"""


class Subject:
    """What a demo is about: makes the scenario, in steps of its own."""

    title: str
    steps: tuple[str, ...] = ()
    """Titles of the steps that `scenario` takes."""
    asks: bool = False
    """Whether devices ask a model in the cloud."""

    def scenario(self, cloud: Cloud, home: Path, progress: Progress, report: Report) -> Scenario:
        """Return the scenario.

        Raises:
            Error: when it can't be made.
        """
        raise NotImplementedError


class OwnLog(Subject):
    """A log of one's own: its scenario is made before anything starts."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.title = scenario.log.title

    def scenario(self, cloud: Cloud, home: Path, progress: Progress, report: Report) -> Scenario:
        """See `Subject`."""
        return self._scenario


@dataclass(frozen=True, slots=True)
class Ground:
    """The stack that a demo runs on."""

    gateway: str
    admin_key_file: Path
    tunnel_metrics: str
    """Where the tunnel shows its metrics, as an HTTP address."""


def titles(subject: Subject) -> list[str]:
    """Return the titles of all steps, in their order."""
    tune = (TUNE,) if subject.asks else ()
    return [PREPARE, *subject.steps, PUBLISH, USE, RELEASE, *tune, REPLAY, BREAK, COUNT]


class Story:
    """One run of the demo against a running stack."""

    def __init__(self, plan: Plan, subject: Subject, ground: Ground, home: Path, progress: Progress) -> None:
        self._plan = plan
        self._subject = subject
        self._ground = ground
        self._tenant = f"demo-{uuid.uuid4().hex[:8]}"
        self._home = home / self._tenant
        self._progress = progress
        self._ripe: tuple[int, ...] = ()
        self._held: tuple[int, ...] = ()
        self.fleet = Fleet(plan, ground.gateway, self._home, progress)
        self.report = Report(subject.title)

    def run(self) -> Report:
        """Run the whole story; the agents are gone afterwards.

        Raises:
            Error: when a step can't be done at all; what falls short is in the report's checks.
        """
        progress, fleet = self._progress, self.fleet
        admin = ["--gateway", self._ground.gateway, "--api-key-file", str(self._ground.admin_key_file)]
        cloud = Cloud(admin)
        try:
            with progress.step(PREPARE):
                self._prepare(cloud)
                fleet.start(cloud)
            scenario = self._subject.scenario(cloud, self._home, progress, self.report)
            steps = self._plan.steps
            releases = Releases(cloud, fleet, scenario, progress, self.report, self._home, steps)
            with progress.step(PUBLISH):
                releases.publish_good()
                releases.publish_broken()
            with progress.step(USE) as step:
                self._use(scenario, step)
            with progress.step(RELEASE):
                releases.release_good()
            if scenario.endpoint:
                with progress.step(TUNE) as step:
                    self._tune(cloud, scenario, step)
            calm = self._replay()
            with progress.step(BREAK) as step:
                # It has to meet what it fails on.
                fleet.allow(self._held)
                fleet.replay(self._ripe, "histories to be longer than any recorded", step)
                step.share = None
                releases.release_bad()
            with progress.step(COUNT):
                progress.say("histories stopped; waiting for the last runs and frames")
                fleet.settle()
                Counting(cloud, fleet, scenario, self.report).run(calm)
        finally:
            cloud.close()
            fleet.stop()
        self.report.figures["demo_s"] = progress.elapsed_s
        self.report.figures["commands_repeated"] = cloud.repeated
        return self.report

    def _prepare(self, cloud: Cloud) -> None:
        """Make a tenant with its key, which the cloud is asked with from then on."""
        self._home.mkdir(parents=True)
        admin = list(cloud.flags)
        there = ("TENANT_EXISTS",)
        cloud.isthmus("tenant", "create", self._tenant, "--display-name", "demo", done=there)
        key_file = self._home / "demo.key"
        cloud.flags = [*admin, "--tenant", self._tenant]
        cloud.isthmus("key", "create", "--scope", "*", "--ttl", "1d", "--out", str(key_file))
        mine = ["--gateway", self._ground.gateway, "--api-key-file", str(key_file), "--tenant", self._tenant]
        cloud.flags = mine
        cloud.isthmus("trust", "init", "--keys", str(self._home / "keys"))
        self._progress.say(f"tenant {self._tenant} with its API key, trust root and author key")

    def _use(self, scenario: Scenario, step: Step) -> None:
        """Let the devices gather histories before they have the task, and open what may be replayed later."""
        fleet, hands = self.fleet, dealt(scenario.log, self._plan)
        fleet.wait("the devices to enrol", fleet.enrolled)
        users = sum(len({event.user for event in events}) for events in hands)
        self.report.figures |= {"devices": len(hands), "users": users}
        self._progress.say(f"{len(hands)} agents enrolled; {users} users' histories are being replayed")
        self._progress.facts = lambda: {
            "devices": f"{len(fleet.devices)}, {sum(device.sent for device in fleet.devices):,} events",
            "results": f"{sum(len(device.results) for device in fleet.devices):,}",
            **scenario.facts(fleet.results()),
        }
        self._ripe, self._held = zip(*(ripe_and_held(events, scenario) for events in hands), strict=True)
        fleet.feed(hands)
        before = [round(len(events) * _BEFORE_SHARE) for events in hands]
        fleet.rate = _FAST
        self._allow(_BEFORE_SHARE)
        fleet.replay(before, "the devices to have been in use", step)
        # A release takes as long as it takes, and few runs confirm a version.
        fleet.rate = self._plan.events_per_s / 4
        self._allow(_OPEN_SHARE)

    def _allow(self, share: float) -> None:
        """Let the devices have so much of their events, and none that the bad version has to meet."""
        self.fleet.allow(
            min(round(share * len(device.events)), held)
            for device, held in zip(self.fleet.devices, self._held, strict=True)
        )

    def _tune(self, cloud: Cloud, scenario: Scenario, step: Step) -> None:
        """Tune the endpoint while devices go on asking, slowly: the trials run on the same cores."""
        fleet = self.fleet
        self._allow(_TRIALS_SHARE)
        left = min(device.allowed - device.sent for device in fleet.devices)
        slowly = self._plan.events_per_s / 3
        fleet.rate = max(0.5, min(slowly, left / _TRIALS_S))

        def applying() -> None:
            fleet.rate = slowly
            self._allow(_APPLY_SHARE)

        address = self._ground.tunnel_metrics
        tuning = Tuning(cloud, fleet, self._plan, scenario.endpoint, address, self._progress, self.report)
        tuning.run(step, applying)

    def _replay(self) -> tuple[float, float]:
        """Let the histories run on the good version for a while; return when that began and ended."""
        began = time.monotonic()
        self.fleet.rate = self._plan.events_per_s
        self._allow(_OPEN_SHARE)
        more = round(self._plan.replay_s * self._plan.events_per_s)
        with self._progress.step(REPLAY) as step:
            self._progress.say(f"replaying histories on {len(self.fleet.devices)} devices")
            goals = [device.sent + more for device in self.fleet.devices]
            self.fleet.replay(goals, "the histories to be replayed", step)
        return began, time.monotonic()


def ripe_and_held(events: list[Event], scenario: Scenario) -> tuple[int, int]:
    """Return how many of a device's events must be fed, and may be, until the bad version comes.

    Of what comes after either, it fails on many in a row. Where it never does, both are what is fed before
    the bad version anyway.
    """
    dooms, opened = scenario.dooms(events), round(len(events) * _OPEN_SHARE)
    for least in (_IN_A_ROW, _LEAST_IN_A_ROW):
        if starts := _starts(dooms, least):
            held = next((start for start in starts if start >= opened), starts[-1])
            return starts[0], held
    return opened, opened


def _starts(dooms: list[tuple[int, bool]], least: int) -> list[int]:
    """Return the positions of triggers from which on so many in a row are doomed."""
    starts, in_a_row = [], 0
    for position, doomed in reversed(dooms):
        in_a_row = in_a_row + 1 if doomed else 0
        if in_a_row >= least:
            starts.append(position)
    return starts[::-1]
