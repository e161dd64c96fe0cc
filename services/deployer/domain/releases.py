"""Releases, as people see and steer them. What opens their steps is `services.deployer.domain.reconciler`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from libs.common.clock import Clock
from libs.common.errors import AlreadyExists, Precondition
from libs.common.names import ReleaseName, VersionName
from libs.common.rand import Randomness
from services.deployer.domain.catalogue import check_trusted
from services.deployer.domain.census import MAX_FAILURES, Census, Selection, counts_of
from services.deployer.domain.creates import earlier_answer, remember
from services.deployer.domain.fleet import check_etag
from services.deployer.domain.gate import decide, devices, most_often
from services.deployer.domain.missing import no_release, no_version, not_found
from services.deployer.domain.model import AuditEntry, Counts, Gate, Release, ReleaseState, StepStatus
from services.deployer.domain.release_rules import check_gate, check_reason, check_shares
from services.deployer.domain.rollout import Books, Offer
from services.deployer.domain.signals import Signals
from services.deployer.domain.trust import Notary
from services.deployer.store import Store, Tx


@dataclass(frozen=True, slots=True)
class NewRelease:
    """What to create. An empty id lets the server choose; no shares mean all at once."""

    tenant: str
    release_id: str
    version: VersionName
    policy_json: str
    shares: tuple[int, ...]
    gate: Gate
    request_id: str = ""
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class ReleaseView:
    """A release with what is computed when it is read."""

    release: Release
    counts: Counts
    """For an ended one as the gate last saw them, but for the reasons of failures, which go on."""
    reason: str
    late_failed: int = 0
    """Devices that failed after the release had ended."""


class Releases:
    """What the release API does."""

    def __init__(
        self,
        store: Store,
        books: Books,
        notary: Notary,
        census: Census,
        signals: Signals,
        clock: Clock,
        randomness: Randomness,
        *,
        watch_recheck_s: float = 5.0,
        watch_interval_s: float = 0.1,
    ) -> None:
        """Let a watcher look again after `watch_recheck_s`, and not before `watch_interval_s`."""
        self._store = store
        self._books = books
        self._notary = notary
        self._census = census
        self._signals = signals
        self._clock = clock
        self._randomness = randomness
        self._watch_recheck_s = watch_recheck_s
        self._watch_interval_s = watch_interval_s

    async def create(self, new: NewRelease, actor: str, *, validate_only: bool) -> ReleaseView:
        """Start a release: its first step opens at once.

        An older release of the task that hasn't ended is superseded when both policies select some device, or
        when the older one selects none: it takes no further step, and devices that the new one doesn't reach
        keep what they have.

        Raises:
            Invalid: for a policy, steps or a gate that break a rule.
            NotFound: when the tenant has no such version.
            AlreadyExists: when there is a release of that id.
            Precondition: when too few of the newest root's authors signed the version, or the root expired.
        """
        now = self._clock.now()
        check_shares(new.shares)
        check_gate(new.gate)
        if new.version.tenant != new.tenant:
            raise not_found(new.version)
        release = Release(
            name=ReleaseName(
                new.tenant, new.release_id or f"{new.version.task[:40]}-{self._randomness.id(8)}"
            ),
            version=new.version,
            policy_json=new.policy_json,
            shares=new.shares,
            gate=new.gate,
            salt=self._randomness.bytes(16),
            create_time=now,
            creator=actor,
            steps=(StepStatus(new.shares[0], now),),
        )
        offer = Offer.of(release)

        def before(tx: Tx) -> tuple[Release | None, list[Offer]]:
            earlier = earlier_answer(tx, new.tenant, new.request_id, new.fingerprint)
            if earlier is not None:
                return _release(tx, ReleaseName.parse(earlier)), []
            _check_new(tx, self._notary, release)
            return None, self._books.of(tx, new.tenant).open_releases(new.version.task)

        done, older = await self._store.read(before)
        if done is not None:
            return await self._view(done)
        selection = await self._census.count(offer, others=older)
        if validate_only:
            self._census.forget(release.name)
            return _first_view(release, selection, now)
        replaced = selection.shared_with | selection.empty

        def work(tx: Tx) -> tuple[Release, list[ReleaseName]]:
            earlier = earlier_answer(tx, new.tenant, new.request_id, new.fingerprint)
            if earlier is not None:
                return _release(tx, ReleaseName.parse(earlier)), []
            _check_new(tx, self._notary, release)
            stored = tx.add_release(release)
            ended = self._supersede(tx, stored, replaced, now)
            remember(tx, new.tenant, new.request_id, new.fingerprint, stored.name, now)
            detail = (
                f"{stored.version}, policy {stored.policy_json or 'all'}, steps "
                f"{', '.join(f'{share / 100:g} %' for share in stored.shares)}; "
                f"selects {selection.selected} of {selection.fleet} devices"
            )
            tx.add_audit(
                AuditEntry(new.tenant, actor, "release.create", str(stored.name), detail[:2000], now)
            )
            return stored, ended

        stored, ended = await self._store.run(work)
        self._signals.offer_changed(stored, 0, stored.open_share)
        self._signals.releases_changed([stored.name, *ended])
        return await self._view(stored)

    def _supersede(
        self, tx: Tx, by: Release, replaced: frozenset[ReleaseName], now: datetime
    ) -> list[ReleaseName]:
        ended = []
        for name in sorted(replaced, key=str):
            release = _release(tx, name)
            if release.state.ended:
                continue
            reason = (
                f"{by.name} of {by.version.version} took its place; "
                "devices it hasn't reached keep what they have"
            )
            tx.update_release(
                replace(
                    release,
                    state=ReleaseState.SUPERSEDED,
                    state_reason=reason,
                    end_time=now,
                    end_counts=counts_of(tx, release, None),
                    revision=release.revision + 1,
                )
            )
            tx.add_audit(AuditEntry(name.tenant, "controller", "release.supersede", str(name), reason, now))
            ended.append(name)
        return ended

    async def get(self, name: ReleaseName) -> ReleaseView:
        """Return a release; raise NotFound."""
        return await self._view(await self._store.read(lambda tx: _release(tx, name)))

    async def list(self, tenant: str, before: int | None, limit: int) -> list[ReleaseView]:
        """Return releases, the newest first."""
        releases = await self._store.read(lambda tx: tx.list_releases(tenant, before, limit))
        return [await self._view(release) for release in releases]

    async def watch(self, name: ReleaseName) -> AsyncIterator[ReleaseView]:
        """Yield a release now and after each change, until it has ended; raise NotFound."""
        changed = asyncio.Event()

        def listener(other: ReleaseName) -> None:
            if other == name:
                changed.set()

        self._signals.releases.append(listener)
        try:
            last: ReleaseView | None = None
            while True:
                changed.clear()
                view = await self.get(name)
                # The reason tells remaining seconds; alone they are no change.
                if last is None or (view.release, view.counts) != (last.release, last.counts):
                    yield view
                    last = view
                if view.release.state.ended:
                    return
                await self._wait(changed)
                # Many devices report at once: a watcher is told of what they add up to.
                await self._clock.sleep(self._watch_interval_s)
        finally:
            self._signals.releases.remove(listener)

    async def _wait(self, changed: asyncio.Event) -> None:
        # A change by another replica sets no event: look now and then.
        sleep = asyncio.ensure_future(self._clock.sleep(self._watch_recheck_s))
        wait = asyncio.ensure_future(changed.wait())
        try:
            await asyncio.wait({sleep, wait}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            wait.cancel()

    async def pause(self, name: ReleaseName, reason: str, etag: str, actor: str) -> ReleaseView:
        """Let a release take no more steps; raise NotFound, Conflict, or Precondition when it has ended."""
        check_reason(reason)

        def change(release: Release, now: datetime) -> Release | None:
            if release.state is ReleaseState.PAUSED:
                return None
            _check_open(release, "paused")
            text = f"paused by {actor}" + (f": {reason}" if reason else "")
            return replace(release, state=ReleaseState.PAUSED, state_reason=text)

        return await self._steer(name, etag, actor, "release.pause", reason, change)

    async def resume(self, name: ReleaseName, etag: str, actor: str) -> ReleaseView:
        """Let a paused release go on; its step's timeout counts anew. Raises as `pause` does."""

        def change(release: Release, now: datetime) -> Release | None:
            if release.state is ReleaseState.RUNNING:
                return None
            _check_open(release, "resumed")
            return replace(release, state=ReleaseState.RUNNING, state_reason="", resume_time=now)

        return await self._steer(name, etag, actor, "release.resume", "", change)

    async def roll_back(self, name: ReleaseName, reason: str, etag: str, actor: str) -> ReleaseView:
        """Take a release's version back from every device, ended or not; raise NotFound or Conflict."""
        check_reason(reason)
        stored = await self._store.read(lambda tx: _release(tx, name))
        counts = await self._counts_now(stored)
        figures = (
            f"it had {counts.confirmed} of {devices(counts.targeted)} confirmed, {counts.failed} failed"
            f"{most_often(counts, ', ')}"
        )

        def change(release: Release, now: datetime) -> Release | None:
            if release.state is ReleaseState.ROLLED_BACK:
                return None
            text = f"rolled back by {actor}" + (f": {reason}" if reason else "")
            return rolled_back(release, f"{text} ({figures})", counts, now)

        detail = f"{reason} ({figures})" if reason else figures
        return await self._steer(name, etag, actor, "release.roll_back", detail, change)

    async def _counts_now(self, release: Release) -> Counts:
        """Return counts with all that devices have said, also after the release had ended."""
        ended = release.end_counts
        if ended is None or release.state is ReleaseState.ROLLED_BACK:
            return (await self._view(release)).counts
        counts = await self._store.read(lambda tx: counts_of(tx, release, None))
        return replace(counts, targeted=max(counts.targeted, ended.targeted))

    async def _steer(
        self,
        name: ReleaseName,
        etag: str,
        actor: str,
        action: str,
        detail: str,
        change: Callable[[Release, datetime], Release | None],
    ) -> ReleaseView:
        now = self._clock.now()

        def work(tx: Tx) -> tuple[Release, bool]:
            release = _release(tx, name)
            check_etag(name, release.revision, etag)
            changed = change(release, now)
            if changed is None:
                return release, False
            changed = replace(changed, revision=release.revision + 1)
            tx.update_release(changed)
            tx.add_audit(AuditEntry(name.tenant, actor, action, str(name), detail, now))
            return changed, True

        release, is_new = await self._store.run(work)
        if is_new:
            if release.state is ReleaseState.ROLLED_BACK:
                self._signals.offer_changed(release, 0, release.open_share)
            self._signals.releases_changed([name])
        return await self._view(release)

    async def _view(self, release: Release) -> ReleaseView:
        if release.state.ended:
            return await self._store.read(lambda tx: _ended_view(tx, release))
        selection = await self._census.of(release)
        counts = await self._store.read(lambda tx: counts_of(tx, release, selection.targeted))
        decision = decide(
            release,
            counts,
            selection.selected,
            selection.fleet,
            self._clock.now(),
            elsewhere=len(selection.elsewhere),
        )
        return ReleaseView(release, counts, decision.reason)


def _ended_view(tx: Tx, release: Release) -> ReleaseView:
    counts = release.end_counts or Counts()
    if release.state is ReleaseState.ROLLED_BACK:
        return ReleaseView(release, counts, release.state_reason)
    # Its version stays on devices, reaches new ones, and may fail there: nobody else would tell.
    late = max(0, tx.failed_count(release.sequence) - counts.failed)
    if not late:
        return ReleaseView(release, counts, release.state_reason)
    counts = replace(counts, failures=tuple(tx.failure_counts(release.sequence, MAX_FAILURES)))
    reason = f"{release.state_reason}; since then {devices(late)} failed{most_often(counts, ', ')}"
    return ReleaseView(release, counts, reason, late)


def rolled_back(release: Release, reason: str, counts: Counts, now: datetime) -> Release:
    """Return a release as it is once its version is taken back; the caller counts the revision up."""
    return replace(
        release,
        state=ReleaseState.ROLLED_BACK,
        state_reason=reason,
        end_time=now,
        end_counts=counts,
        # An ended one's last step keeps when its gate held, and what it counted then.
        steps=release.steps if release.state.ended else close_step(release.steps, counts, None),
    )


def close_step(
    steps: Sequence[StepStatus], counts: Counts, close_time: datetime | None
) -> tuple[StepStatus, ...]:
    """Return the steps with the last one's counts frozen; `close_time` only if its gate held."""
    *earlier, last = steps
    return (*earlier, replace(last, counts=counts, close_time=close_time))


def _check_new(tx: Tx, notary: Notary, release: Release) -> None:
    version = tx.get_version(release.version)
    if version is None:
        raise no_version(tx, release.version)
    check_trusted(tx, notary, version, release.create_time)
    if tx.get_release(release.name) is not None:
        raise AlreadyExists(f"{release.name}: exists already; choose another id", reason="RELEASE_EXISTS")


def _first_view(release: Release, selection: Selection, now: datetime) -> ReleaseView:
    counts = Counts(targeted=selection.targeted)
    decision = decide(release, counts, selection.selected, selection.fleet, now)
    reason = (
        f"would be made: its policy selects {selection.selected} of {selection.fleet} devices"
        if selection.selected
        else f"would be made, but would wait: {decision.reason}"
    )
    # People ask how many the policy selects, not only the first step.
    return ReleaseView(release, replace(counts, targeted=selection.selected), reason)


def _release(tx: Tx, name: ReleaseName) -> Release:
    release = tx.get_release(name)
    if release is None:
        raise no_release(tx, name)
    return release


def _check_open(release: Release, what: str) -> None:
    if release.state.ended:
        rest = (
            "create a new release to offer the version again"
            if release.state is ReleaseState.ROLLED_BACK
            else "only rolling it back is left"
        )
        raise Precondition(
            f"{release.name}: has ended ({release.state.name.lower().replace('_', ' ')}) and can't be "
            f"{what}; {rest}",
            reason="RELEASE_ENDED",
        )
