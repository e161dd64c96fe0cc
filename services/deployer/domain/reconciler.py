"""The controller of running releases: snapshot, pure decision, one transaction that compares revisions.

One loop serves them all. A release is looked at when something about it has changed, when its gate's time has
come, and now and then in case another replica saw the change. A fault with one release is logged and tried
again later; it never stops the others.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from libs.common.clock import Clock
from libs.common.errors import Conflict
from libs.common.names import DeviceName, ReleaseName
from services.deployer.domain.census import Census, Selection, counts_of
from services.deployer.domain.gate import Advance, Decision, Hold, Pause, RollBack, Succeed, decide
from services.deployer.domain.model import AuditEntry, Counts, Release, ReleaseState, StepStatus
from services.deployer.domain.releases import close_step, rolled_back
from services.deployer.domain.rollout import Offer, failed_under
from services.deployer.domain.signals import Meter, Signals
from services.deployer.store import Store, Tx

_log = logging.getLogger("isthmus.deployer.reconciler")

_ACTIONS: dict[type, str] = {
    Advance: "release.step",
    Pause: "release.pause",
    RollBack: "release.roll_back",
    Succeed: "release.succeed",
}
_BATCH = 1000
_RETRY_S = 5.0


class Reconciler:
    """Opens steps, and pauses, ends and rolls back releases, as their gates say."""

    def __init__(
        self,
        store: Store,
        census: Census,
        signals: Signals,
        meter: Meter,
        clock: Clock,
        *,
        recheck_s: float = 10.0,
        min_interval_s: float = 0.05,
    ) -> None:
        """Look at each running release every `recheck_s`, at none more often than each `min_interval_s`."""
        self._store = store
        self._census = census
        self._signals = signals
        self._meter = meter
        self._clock = clock
        self._recheck_s = recheck_s
        self._min_interval_s = min_interval_s
        self._due: dict[ReleaseName, float] = {}
        self._not_before: dict[ReleaseName, float] = {}
        self._settled: dict[ReleaseName, int] = {}
        self._let_go: dict[ReleaseName, Selection] = {}
        self._wake = asyncio.Event()
        signals.releases.append(self.wake)

    def wake(self, name: ReleaseName) -> None:
        """Look at a release soon."""
        self._due[name] = min(self._due.get(name, float("inf")), self._not_before.get(name, 0.0))
        self._wake.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        find_at = 0.0
        while True:
            self._wake.clear()
            now = self._clock.monotonic()
            if now >= find_at:
                await self._find()
                find_at = now + self._recheck_s
            for name in [name for name, due in self._due.items() if due <= now]:
                del self._due[name]
                await self._look(name)
            await self._sleep(min([find_at, *self._due.values()]))

    async def _find(self) -> None:
        """Take up running releases that nobody told us of: from before the start, from other replicas."""
        try:
            for name in await self._store.read(lambda tx: tx.running_releases()):
                self._due.setdefault(name, 0.0)
        except Exception:
            _log.exception("listing the running releases failed; trying again")

    async def _sleep(self, until: float) -> None:
        seconds = until - self._clock.monotonic()
        if seconds <= 0 or self._wake.is_set():
            await asyncio.sleep(0)
            return
        sleep = asyncio.ensure_future(self._clock.sleep(seconds))
        wake = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({sleep, wake}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            wake.cancel()

    async def _look(self, name: ReleaseName) -> None:
        began = self._clock.monotonic()
        wait_s: float | None
        try:
            wait_s = await self.reconcile(name)
        except Conflict:
            wait_s = 0.0
        except Exception:
            _log.exception("looking at %s failed; trying again in %g s", name, _RETRY_S)
            wait_s = _RETRY_S
        ended = self._clock.monotonic()
        if wait_s is None:
            self._not_before.pop(name, None)
            self._settled.pop(name, None)
            self._let_go.pop(name, None)
            self._census.forget(name)
            return
        # Over a large fleet a look takes its time: at most half of it is spent looking.
        self._not_before[name] = ended + max(self._min_interval_s, ended - began)
        self._due[name] = max(self._not_before[name], min(ended + wait_s, self._due.get(name, float("inf"))))

    async def reconcile(self, name: ReleaseName) -> float | None:
        """Look at one release once; return in how many seconds to look again, or None when it doesn't run."""
        release = await self._store.read(lambda tx: tx.get_release(name))
        if release is None or release.state is not ReleaseState.RUNNING:
            if release is not None and release.state.ended:
                self._meter.release_counts(name, None)
            return None
        await self._settle(release)
        selection = await self._census.of(release)
        if selection.elsewhere and self._let_go.get(name) is not selection:
            await self._let_go_of(release, selection.elsewhere)
            self._let_go[name] = selection
        counts = await self._store.read(lambda tx: counts_of(tx, release, selection.targeted))
        self._meter.release_counts(name, counts)
        now = self._clock.now()
        decision = decide(
            release, counts, selection.selected, selection.fleet, now, elsewhere=len(selection.elsewhere)
        )
        if isinstance(decision, Hold):
            if decision.until is None:
                return self._recheck_s
            return min(self._recheck_s, max(0.0, (decision.until - now).total_seconds()))
        await self._commit(release, decision, counts)
        return 0.0

    async def _settle(self, release: Release) -> None:
        """Count as confirmed who runs the version already when its step opens: they have no more to say."""
        opened_from = 0
        settled = self._settled.get(release.name, 0)
        if settled:
            if settled == len(release.steps):
                return
            opened_from = release.steps[settled - 1].share
        selection = await self._census.count(Offer.of(release), opened_from=opened_from)
        for start in range(0, len(selection.already), _BATCH):
            batch = selection.already[start : start + _BATCH]
            await self._store.run(partial(_put_running, release=release, devices=batch))
        self._settled[release.name] = len(release.steps)

    async def _let_go_of(self, release: Release, devices: Sequence[str]) -> None:
        """Forget how far the release had come on devices that a newer one serves now."""
        for start in range(0, len(devices), _BATCH):
            batch = devices[start : start + _BATCH]
            await self._store.run(partial(_drop_stages, release=release, devices=batch))

    async def _commit(self, release: Release, decision: Decision, counts: Counts) -> None:
        now = self._clock.now()
        changed = replace(release, revision=release.revision + 1)
        match decision:
            case Advance():
                opened = StepStatus(release.shares[len(release.steps)], now)
                changed = replace(
                    changed, steps=(*close_step(release.steps, counts, now), opened), resume_time=None
                )
            case Pause(reason):
                changed = replace(changed, state=ReleaseState.PAUSED, state_reason=reason)
            case Succeed(reason):
                changed = replace(
                    changed,
                    state=ReleaseState.SUCCEEDED,
                    state_reason=reason,
                    end_time=now,
                    end_counts=counts,
                    steps=close_step(release.steps, counts, now),
                )
            case RollBack(reason):
                changed = rolled_back(changed, reason, counts, now)
        action = _ACTIONS[type(decision)]
        detail = decision.reason
        if isinstance(decision, Advance):
            detail = f"{detail}; opening step {len(changed.steps)} ({changed.open_share / 100:g} %)"

        def work(tx: Tx) -> None:
            tx.update_release(changed)
            tx.add_audit(
                AuditEntry(release.name.tenant, "controller", action, str(release.name), detail, now)
            )

        await self._store.run(work)
        _log.info("%s: %s: %s", release.name, action, detail)
        self._meter.decided(action.removeprefix("release."))
        if isinstance(decision, RollBack):
            self._signals.offer_changed(changed, 0, changed.open_share)
        else:
            self._signals.offer_changed(changed, release.open_share, changed.open_share)
        self._signals.releases_changed([release.name])


def _put_running(tx: Tx, release: Release, devices: Sequence[str]) -> None:
    tx.put_running(release, devices)


def _drop_stages(tx: Tx, release: Release, devices: Sequence[str]) -> None:
    for device in devices:
        name = DeviceName(release.name.tenant, device)
        stages = tx.device_stages(name)
        if not failed_under(release, stages):  # since it was counted
            tx.drop_stages(
                name, [s.release_sequence for s in stages if s.release_sequence == release.sequence]
            )
