"""The push index's source of truth: which devices should hear that there is something to pull.

One publisher turns signals into changes: it reads each marked device's state anew and appends the result to a
bounded log in memory, so that what is appended later is never older. Watchers read the log from a revision
on. Revisions of one process begin at its start time, so a watcher of an earlier process, or one that fell
behind the log, is told OUT_OF_RANGE and takes a snapshot: that is all a restart costs.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from libs.common.clock import Clock
from libs.common.errors import OutOfRange
from libs.common.names import DeviceName
from services.deployer.domain.buckets import bucket
from services.deployer.domain.census import attributes_of
from services.deployer.domain.model import DeviceStage, FleetRow
from services.deployer.domain.rollout import Books, Failures, Offer, failures_of, index_digest, profile_of
from services.deployer.domain.signals import Offered, Signals
from services.deployer.store import Store, Tx

_log = logging.getLogger("isthmus.deployer.feed")

PAGE = 2000
_EPOCH_BITS = 20
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class DeviceChange:
    """A device's entry in the index; no digest takes it out."""

    device: str
    wanted_digest: bytes
    revoked: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes, and the revision after them; 0 inside a snapshot."""

    revision: int
    changes: tuple[DeviceChange, ...]


class Feed:
    """The log of changes, and who fills it."""

    def __init__(
        self, store: Store, books: Books, signals: Signals, clock: Clock, *, log_count: int = 200_000
    ) -> None:
        """Keep about `log_count` changes for watchers that lag."""
        self._store = store
        self._books = books
        self._clock = clock
        self._log_count = log_count
        self._log: dict[int, tuple[DeviceChange, ...]] = {}
        self._kept = 0
        self._head = int(clock.now().timestamp() * 1000) << _EPOCH_BITS
        self._oldest = self._head + 1
        self._devices: dict[DeviceName, None] = {}
        self._offers: list[Offered] = []
        self._marked = asyncio.Event()
        self._published = asyncio.Event()
        signals.devices.append(self._mark_device)
        signals.offers.append(self._mark_offer)

    @property
    def revision(self) -> int:
        """The revision after the newest change."""
        return self._head

    def _mark_device(self, name: DeviceName) -> None:
        self._devices[name] = None
        self._marked.set()

    def _mark_offer(self, offered: Offered) -> None:
        self._offers.append(offered)
        self._marked.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._marked.wait()
            self._marked.clear()
            try:
                await self._publish_marked()
            except Exception:
                _log.exception("publishing to the push index failed; trying again in %g s", _RETRY_S)
                self._marked.set()
                await self._clock.sleep(_RETRY_S)

    async def _publish_marked(self) -> None:
        while self._offers:
            await self._publish_offer(self._offers[0])
            self._offers.pop(0)
        while self._devices:
            names = list(self._devices)[:PAGE]
            for name in names:  # before reading: who is marked meanwhile must be read again
                del self._devices[name]
            try:
                changes = await self._store.read(partial(self._of_devices, names=names))
            except BaseException:
                self._devices.update(dict.fromkeys(names))
                raise
            self._append(changes)

    async def _publish_offer(self, offered: Offered) -> None:
        """Publish every device that a release is newly offered to, or no more, page by page."""
        release = offered.release
        tenant = release.name.tenant
        policy = Offer.of(release).policy
        after = ""
        while True:

            def page(tx: Tx, after: str = after) -> tuple[str, list[DeviceChange]]:
                rows = tx.scan_fleet(tenant, after, PAGE)
                touched = [
                    row
                    for row in rows
                    if offered.low <= bucket(release.salt, row.device) < offered.high
                    and policy(attributes_of(row.attributes_json))
                ]
                last = rows[-1].device if rows else ""
                changes = self._of_rows(tx, tenant, touched, after, last)
                return (last if len(rows) == PAGE else ""), changes

            after, changes = await self._store.read(page)
            self._append(changes)
            if not after:
                return

    def _of_devices(self, tx: Tx, names: Iterable[DeviceName]) -> list[DeviceChange]:
        changes = []
        for name in names:
            device = tx.get_device(name)
            if device is None:
                continue
            failures = failures_of(tx.device_stages(name))
            book = self._books.of(tx, name.tenant)
            wanted = profile_of(book.wanted(name.device, device.attributes, failures))
            digest = b"" if device.revoked else index_digest(wanted, device.reported)
            changes.append(DeviceChange(str(name), digest, device.revoked))
        return changes

    def _of_rows(
        self, tx: Tx, tenant: str, rows: Sequence[FleetRow], after: str, up_to: str
    ) -> list[DeviceChange]:
        """Return the changes of rows whose ids lie above `after` and up to `up_to`."""
        if not rows:
            return []
        book = self._books.of(tx, tenant)
        stages: dict[str, list[DeviceStage]] = defaultdict(list)
        for stage in tx.failed_stages(tenant, after, up_to):
            stages[stage.device.device].append(stage)
        changes = []
        for row in rows:
            name = f"tenants/{tenant}/devices/{row.device}"
            if row.revoked:
                changes.append(DeviceChange(name, b"", True))
                continue
            failures: Failures = failures_of(stages.get(row.device, ()))
            wanted = profile_of(book.wanted(row.device, attributes_of(row.attributes_json), failures))
            changes.append(DeviceChange(name, index_digest(wanted, row.reported), False))
        return changes

    def _append(self, changes: Sequence[DeviceChange]) -> None:
        if not changes:
            return
        self._head += 1
        self._log[self._head] = tuple(changes)
        self._kept += len(changes)
        while self._kept > self._log_count and self._oldest < self._head:
            self._kept -= len(self._log.pop(self._oldest))
            self._oldest += 1
        self._published.set()
        self._published = asyncio.Event()

    async def watch(self, revision: int) -> AsyncIterator[Batch]:
        """Yield batches from after `revision` on, without end; from 0 on, a snapshot first.

        Raises:
            OutOfRange: when the log doesn't reach back to `revision`, at the start or later.
        """
        if revision == 0:
            revision = self._head
            async for changes in self._snapshot():
                yield Batch(0, tuple(changes))
            yield Batch(revision, ())
        while True:
            if not self._oldest - 1 <= revision <= self._head:
                raise OutOfRange(
                    f"revision: {revision} isn't in the log, which holds {self._oldest - 1} to {self._head}; "
                    "start again from 0",
                    reason="COMPACTED",
                )
            published = self._published
            if revision == self._head:
                await published.wait()
                continue
            revision += 1
            yield Batch(revision, self._log[revision])

    async def _snapshot(self) -> AsyncIterator[list[DeviceChange]]:
        """Yield what the index has to know: devices not running what they should, and the revoked."""
        for tenant in await self._store.read(lambda tx: tx.fleet_tenants()):
            after = ""
            while True:

                def page(tx: Tx, tenant: str = tenant, after: str = after) -> tuple[str, list[DeviceChange]]:
                    rows = tx.scan_fleet(tenant, after, PAGE)
                    last = rows[-1].device if rows else ""
                    changes = self._of_rows(tx, tenant, rows, after, last)
                    return (last if len(rows) == PAGE else ""), changes

                after, changes = await self._store.read(page)
                needed = [change for change in changes if change.wanted_digest or change.revoked]
                if needed:
                    yield needed
                if not after:
                    break
