"""Pre-flight: a version is tried in a simulator before it is published.

Nothing is locked and no transaction is open while the simulator works; what it was given is checked again in
the transaction that publishes.
"""

from dataclasses import replace
from typing import Protocol

from libs.common.clock import Clock
from libs.common.errors import Exhausted, Invalid, Precondition
from libs.common.names import TaskName
from libs.common.shares import Shares
from libs.common.sizes import size_text
from libs.task.event import MAX_RECORDING_BYTES
from services.deployer.domain.blobs import check_ref
from services.deployer.domain.model import BlobRef, Preflight, PreflightState
from services.deployer.domain.signals import Meter
from services.deployer.store import Store

# Versions that are being tried. Whoever waits takes the place of a call, and a simulator may be stalled.
_AT_ONCE = 32
_BUSY_RETRY_S = 5.0


class Simulator(Protocol):
    """Runs versions over recorded events; see `services.deployer.simulator.RemoteSimulator`."""

    async def simulate(self, task: TaskName, signed: bytes, events: BlobRef | None) -> Preflight:
        """Return how a version of `task` did.

        Args:
            task: whose files it is made of.
            signed: its signed manifest, verified.
            events: a recording, a blob of the tenant; None only loads the version.

        Raises:
            Invalid: when the recording can't be used, naming its line.
            Exhausted: when the simulator has no room now.
            Unavailable: when it can't be reached.
            Internal: when it broke.
        """
        ...


class Preflights:
    """Has versions tried, where there is a simulator."""

    def __init__(self, store: Store, simulator: Simulator | None, meter: Meter, clock: Clock) -> None:
        self._store = store
        self._simulator = simulator
        self._meter = meter
        self._clock = clock
        self._places = Shares(_AT_ONCE)

    async def run(self, task: TaskName, version: str, signed: bytes, events: BlobRef | None) -> Preflight:
        """Return how a new version did; SKIPPED without a simulator.

        Args:
            task: the task.
            version: which version, for messages.
            signed: its signed manifest, verified.
            events: a recording; None takes that of the task's newest version that had one.

        Raises:
            Precondition: PREFLIGHT_FAILED, saying what failed; MISSING_BLOBS when the recording isn't there.
            Invalid: when the recording can't be used.
            Exhausted, Unavailable, Internal: see `Simulator`.
        """
        events = await self._recording(task, events)
        if self._simulator is None:
            self._meter.preflight("skipped", 0.0)
            return Preflight(state=PreflightState.SKIPPED, events=events)
        if not self._places.take(task.tenant):
            raise Exhausted(
                f"{self._places.held_by(task.tenant)} versions of your tenant are being tried, as many as "
                "may be beside those of others; try again",
                reason="TOO_MANY_PREFLIGHTS",
                retry_after_s=_BUSY_RETRY_S,
            )
        started, outcome = self._clock.monotonic(), "error"
        try:
            found = replace(await self._simulator.simulate(task, signed, events), events=events)
            outcome = found.state.name.lower()
        finally:
            self._places.give_back(task.tenant)
            self._meter.preflight(outcome, self._clock.monotonic() - started)
        if found.state is not PreflightState.PASSED:
            raise _failed(task, version, found)
        return found

    async def _recording(self, task: TaskName, events: BlobRef | None) -> BlobRef | None:
        if events is None:
            return await self._store.read(lambda tx: tx.newest_events(task))
        digest = check_ref(events, "events").digest
        if events.size_bytes > MAX_RECORDING_BYTES:
            raise _bad_events(
                f"has {size_text(events.size_bytes)}, more than {size_text(MAX_RECORDING_BYTES)}; "
                "give a shorter recording",
                "TOO_LARGE",
            )
        record = await self._store.read(lambda tx: tx.get_blob(task.tenant, digest))
        if record is None:
            raise Precondition(
                f"events: {digest} isn't a blob of this tenant; upload it first",
                reason="MISSING_BLOBS",
                metadata={"digests": digest},
            )
        if record.blob != events:
            raise _bad_events(
                f"{digest} has {record.blob.size_bytes} bytes, not {events.size_bytes}", "SIZE_MISMATCH"
            )
        return events


def told(preflight: Preflight) -> str:
    """Return a verdict in a few words, for the audit."""
    if preflight.state is PreflightState.SKIPPED:
        return "pre-flight skipped: no simulator"
    name = preflight.state.name.lower()
    return f"pre-flight {name}: {preflight.run_count} runs over {preflight.event_count} events"


def _failed(task: TaskName, version: str, found: Preflight) -> Precondition:
    return Precondition(
        f"{task.task}@{version} failed its pre-flight with {found.reason}: {found.message}; see it on your "
        "machine with `isthmus task try FOLDER --events FILE`, mend it and publish it again",
        reason="PREFLIGHT_FAILED",
        metadata={
            "failure_reason": found.reason,
            "event_count": str(found.event_count),
            "run_count": str(found.run_count),
            "failure_count": str(found.failure_count),
        },
    )


def _bad_events(what: str, reason: str) -> Invalid:
    return Invalid(f"events: {what}", reason=reason, metadata={"field": "events"})
