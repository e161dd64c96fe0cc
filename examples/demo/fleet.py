"""The demo's devices together: started, fed, watched, and what they count in all."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from examples.demo.cloud import Cloud
from examples.demo.data import Log, deal
from examples.demo.devices import Device, Result
from examples.demo.plan import Plan
from examples.demo.progress import Progress, Step
from libs.common.errors import Error, Invalid, Unavailable
from libs.task.event import Event

_LEAST_EVENTS = 120
_RUNNING = ("ACTIVE", "CONFIRMED")
_PAUSE_S = 0.2
_SETTLE_S, _PROBLEMS_S = 90.0, 20.0

T = TypeVar("T")


class Fleet:
    """Agents that replay users' histories."""

    def __init__(self, plan: Plan, gateway: str, home: Path, progress: Progress) -> None:
        self._plan = plan
        self._gateway = gateway
        self._home = home
        self._progress = progress
        self._idle = threading.Event()
        self.devices: list[Device] = []
        self.rate = plan.events_per_s
        """Events a second on each device, from now on."""

    def start(self, cloud: Cloud) -> None:
        """Start the agents; they enrol by themselves, meanwhile."""
        token_file = self._home / "enrolment.token"
        uses = str(self._plan.devices)
        cloud.isthmus(
            "device", "token", "--attribute", "fleet=demo", "--uses", uses, "--out", str(token_file)
        )
        for number in range(self._plan.devices):
            device = Device(
                device_id=f"device-{number + 1}",
                home=self._home / f"d{number + 1}",
                gateway=self._gateway,
                token=token_file.read_text().strip(),
                attributes={"tier": "high" if number % 2 else "low"},
            )
            device.start()
            self.devices.append(device)

    def enrolled(self) -> bool:
        """Tell whether every agent has enrolled."""
        return all((status := device.quick_status()) and status.device for device in self.devices)

    def feed(self, hands: Iterable[list[Event]]) -> None:
        """Give each device its events, of which none may be sent yet."""
        for device, events in zip(self.devices, hands, strict=True):
            device.events = events
            device.feed(lambda: self.rate)

    def allow(self, goals: Iterable[int]) -> None:
        """Let each device have so many of its events, and no more."""
        for device, goal in zip(self.devices, goals, strict=True):
            device.allowed = goal

    def give_the_rest(self, version: str) -> bool:
        """Let the devices that run a version have all of their events; tell whether these may still decide.

        They may as long as a device isn't done with its events, or has found the version good. So they may
        while no device runs it.
        """
        run, spent = 0, 0
        for device in self.devices:
            if (status := device.quick_status()) is None:
                continue
            states = {f"{task.task}@{task.version}": task.state for task in status.tasks}
            if (state := states.get(version, "")) not in _RUNNING:
                continue
            device.allowed = len(device.events)
            waiting = status.pending_event_count + status.pending_run_count
            run += 1
            spent += state == "ACTIVE" and device.sent == len(device.events) and not waiting
        return spent < run or not run

    def wait(self, what: str, done: Callable[[], bool]) -> None:
        """Wait until `done()`; agents that ended by themselves are started again.

        Raises:
            Error: when a device is broken.
            Unavailable: when the plan's deadline comes.
        """
        while not done():
            self._revive()
            for device in self.devices:
                if device.fault:
                    tail = device.log.read_text(errors="replace")[-1500:]
                    raise Error(f"{device.device_id} broke while waiting for {what}: {device.fault}\n{tail}")
            if self._progress.elapsed_s > self._plan.deadline_s:
                raise Unavailable(f"gave up after {self._plan.deadline_s:g} s while waiting for {what}")
            self._idle.wait(_PAUSE_S)

    def _revive(self) -> None:
        for device in self.devices:
            if device.revive():
                self._progress.say(f"{device.device_id} ended by itself; started again")

    def meanwhile(self, what: str, work: Callable[[], T], look: Callable[[], None] = lambda: None) -> T:
        """Do what takes a while, waiting as `wait` does, and return what it returns.

        Args:
            what: what is waited for.
            work: what takes a while.
            look: called now and then.

        Raises:
            Error: what the work raised, and as `wait`.
        """
        ended: list[T] = []
        failed: list[BaseException] = []

        def do() -> None:
            try:
                ended.append(work())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=do, daemon=True)
        thread.start()

        def over() -> bool:
            look()
            return not thread.is_alive()

        self.wait(what, over)
        if failed:
            raise failed[0]
        return ended[0]

    def replay(self, goals: Sequence[int], what: str, step: Step | None = None) -> None:
        """Wait until each device has been fed so many events, or all that it may have."""
        began = [device.sent for device in self.devices]
        wanted = [
            max(0, min(goal, device.allowed) - start)
            for goal, device, start in zip(goals, self.devices, began, strict=True)
        ]

        def replayed() -> bool:
            sent = [device.sent - start for device, start in zip(self.devices, began, strict=True)]
            if step is not None:
                share = sum(map(min, sent, wanted)) / max(sum(wanted), 1)
                step.share = share
            return all(done >= goal for done, goal in zip(sent, wanted, strict=True))

        self.wait(what, replayed)

    def active(self) -> Counter[str]:
        """Return how many devices run each version."""
        found = Counter[str]()
        for device in self.devices:
            found.update(_active(device))
        return found

    def problems(self) -> list[str]:
        """Return what devices say is wrong with them, also after a while: some pass by themselves."""
        deadline = time.monotonic() + _PROBLEMS_S
        while (found := self._problems()) and time.monotonic() < deadline:
            self._revive()
            self._idle.wait(_PAUSE_S)
        return found

    def _problems(self) -> list[str]:
        found = []
        for device in self.devices:
            if (status := device.quick_status()) is None:
                found.append(f"{device.device_id} doesn't answer")
            else:
                found += [f"{device.device_id}: {problem}" for problem in status.problems]
        return found

    def settle(self) -> bool:
        """Feed no more, and wait until all that was fed has been worked off and has arrived."""
        for device in self.devices:
            device.finish()
        deadline = time.monotonic() + _SETTLE_S
        for device in self.devices:
            while not _settled(device):
                if time.monotonic() > deadline:
                    return False
                self._revive()
                self._idle.wait(_PAUSE_S)
        return True

    def counters(self) -> Counter[str]:
        """Return the devices' counters, added up.

        Raises:
            Unavailable: when a device doesn't answer.
        """
        found: dict[str, Counter[str]] = {}

        def answered() -> bool:
            for device in self.devices:
                if device.device_id not in found and (status := device.quick_status()):
                    counters = {item.name: value for item, value in status.counters.ListFields()}
                    found[device.device_id] = Counter(counters)
            return len(found) == len(self.devices)

        self.wait("the devices' counters", answered)
        return sum(found.values(), Counter[str]())

    def results(self) -> list[Result]:
        """Return all results so far."""
        return [result for device in self.devices for result in list(device.results)]

    def sent_events(self) -> list[Event]:
        """Return the events that devices have taken."""
        return [event for device in self.devices for event in device.events[: device.sent]]

    def stop(self) -> None:
        """End the agents."""
        for device in self.devices:
            device.stop()


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


def _active(device: Device) -> set[str]:
    """Return the versions that a device runs; none while it is away."""
    status = device.quick_status()
    tasks = status.tasks if status else ()
    return {f"{task.task}@{task.version}" for task in tasks if task.state in _RUNNING}


def _settled(device: Device) -> bool:
    if (status := device.quick_status()) is None:
        return False
    counters = status.counters
    ended = counters.success_count + counters.failure_count + counters.dropped_run_count
    return (
        counters.event_count == device.sent
        and status.pending_event_count == status.pending_run_count == 0
        and ended == counters.trigger_count == len(device.results) + counters.dropped_run_count
        and counters.acked_frame_count == counters.frame_count
    )
