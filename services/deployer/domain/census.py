"""Counting a release's devices: passes over the fleet, remembered until the fleet changes."""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from libs.common.clock import Clock
from libs.common.names import ReleaseName
from libs.task import jsontext
from services.deployer.domain.blobs import Locks
from services.deployer.domain.buckets import bucket
from services.deployer.domain.model import Counts, DeviceStage, FleetRow, Release, Stage
from services.deployer.domain.rollout import Books, Offer, failed_under, failures_of, served
from services.deployer.store import Store, Tx

PAGE = 5000
_MEMO = 10_000
LARGE = 10_000
"""Devices from which on a pass takes its time: while they come and go, counts may be some passes old."""
MAX_FAILURES = 10
"""Reasons of failures that are told of a release."""
_REST = 4.0
_LONGEST_REST_S = 5.0


@dataclass(frozen=True, slots=True)
class Selection:
    """How many devices a release selects."""

    fleet: int = 0
    """Devices of the tenant that aren't revoked."""
    selected: int = 0
    """By the policy."""
    targeted: int = 0
    """By the policy and the open step."""
    already: tuple[str, ...] = ()
    """Ids in the newly opened share that say they run the version."""
    shared_with: frozenset[ReleaseName] = frozenset()
    """Other releases whose policies select some of these devices too."""
    empty: frozenset[ReleaseName] = frozenset()
    """Other releases whose policies select no device at all."""
    elsewhere: tuple[str, ...] = ()
    """Ids that the policy selects too, but that have their version from a newer release; counted there."""


def counts_of(tx: Tx, release: Release, targeted: int | None) -> Counts:
    """Return a release's counts as of the transaction; None for `targeted` takes those that have reported."""
    stages = tx.stage_counts(release.sequence)
    failures = tx.failure_counts(release.sequence, MAX_FAILURES) if stages.get(Stage.FAILED) else ()
    return Counts.of(sum(stages.values()) if targeted is None else targeted, stages, failures)


class Counter:
    """Counts over pages of the fleet, so that a fleet never has to fit in memory."""

    def __init__(
        self,
        offer: Offer,
        opened_from: int | None = None,
        others: Iterable[Offer] = (),
        newer: Iterable[Offer] = (),
    ) -> None:
        """Count for `offer`.

        Args:
            offer: the release; its open step says which share is targeted.
            opened_from: list who runs the version already among the buckets from here up to the open share.
            others: releases to compare policies with.
            newer: releases that, where they have a version for a device, count it in this one's place.
        """
        self._offer = offer
        self._opened_from = opened_from
        self._others = tuple(others)
        self._newer = tuple(newer)
        self._matches: dict[str, tuple[bool, frozenset[ReleaseName]]] = {}
        self._fleet = self._selected = self._targeted = 0
        self._already: list[str] = []
        self._elsewhere: list[str] = []
        self._shared: set[ReleaseName] = set()
        self._seen: set[ReleaseName] = set()

    def add(
        self, rows: Iterable[FleetRow], failed: Mapping[str, Sequence[DeviceStage]] = MappingProxyType({})
    ) -> None:
        """Count a page; `failed` are its devices' failures by id, wanted where there are newer releases."""
        release, entry, start = self._offer.release, self._offer.entry, self._opened_from
        salt, share = release.salt, release.open_share
        for row in rows:
            if row.revoked:
                continue
            self._fleet += 1
            matches, others = self._match(row.attributes_json)
            self._seen |= others
            if not matches:
                continue
            if self._newer and self._is_elsewhere(row, failed.get(row.device, ())):
                self._elsewhere.append(row.device)
                continue
            self._selected += 1
            self._shared |= others
            place = bucket(salt, row.device)
            if place < share:
                self._targeted += 1
                if start is not None and place >= start and entry in row.reported:
                    self._already.append(row.device)

    def result(self) -> Selection:
        """Return the counts so far."""
        names = frozenset(offer.release.name for offer in self._others)
        return Selection(
            self._fleet,
            self._selected,
            self._targeted,
            tuple(self._already),
            frozenset(self._shared),
            names - self._seen,
            tuple(self._elsewhere),
        )

    def _is_elsewhere(self, row: FleetRow, failed: Sequence[DeviceStage]) -> bool:
        if failed_under(self._offer.release, failed):
            return False
        attributes = attributes_of(row.attributes_json)
        return served(self._newer, row.device, attributes, failures_of(failed))

    def _match(self, attributes_json: str) -> tuple[bool, frozenset[ReleaseName]]:
        """Match a combination of attributes once: many devices share few of them."""
        known = self._matches.get(attributes_json)
        if known is None:
            attributes = attributes_of(attributes_json)
            others = frozenset(o.release.name for o in self._others if o.policy(attributes))
            known = (self._offer.policy(attributes), others)
            if len(self._matches) < _MEMO:
                self._matches[attributes_json] = known
        return known


@functools.lru_cache(maxsize=_MEMO)
def attributes_of(text: str) -> Mapping[str, object]:
    """Return the attributes of a fleet row; many rows share few texts."""
    value = jsontext.load(text, what="attributes")
    assert isinstance(value, dict)
    return MappingProxyType(value)


class Census:
    """Counts releases' devices, and remembers until the fleet or the release's open share changes."""

    def __init__(self, store: Store, books: Books, clock: Clock) -> None:
        self._store = store
        self._books = books
        self._clock = clock
        self._known: dict[ReleaseName, tuple[int, object, Selection, float]] = {}
        self._locks = Locks()

    async def of(self, release: Release) -> Selection:
        """Return how many devices a release selects now; over large fleets it may be some seconds old."""
        async with self._locks.of(str(release.name)):
            revision, of_releases, _ = await self._store.read(partial(self._state, release=release))
            known = self._known.get(release.name)
            if known is not None:
                counted_at, counted_of, selection, rest_until = known
                rests = self._clock.monotonic() < rest_until
                if counted_of == of_releases and (counted_at == revision or rests):
                    return selection
            return await self._count(Offer.of(release), None, ())

    async def count(
        self, offer: Offer, *, opened_from: int | None = None, others: Iterable[Offer] = ()
    ) -> Selection:
        """Count a release's devices anew; see `Counter` for the arguments."""
        async with self._locks.of(str(offer.release.name)):
            return await self._count(offer, opened_from, others)

    def _state(self, tx: Tx, release: Release) -> tuple[int, object, list[Offer]]:
        """Return what a count depends on, the fleet's revision and the releases; and the newer ones."""
        newer = self._newer(tx, release)
        of_newer = [
            (n.release.sequence, n.release.open_share, tx.stage_counts(n.release.sequence).get(Stage.FAILED))
            for n in newer
        ]
        return tx.fleet_revision(release.name.tenant), (release.open_share, of_newer), newer

    def _newer(self, tx: Tx, release: Release) -> list[Offer]:
        if not release.sequence:
            return []  # not stored yet: it will be the newest
        return self._books.of(tx, release.name.tenant).newer(release)

    async def _count(self, offer: Offer, opened_from: int | None, others: Iterable[Offer]) -> Selection:
        """Pass over the fleet in pages, each a transaction that only reads."""
        release = offer.release
        tenant = release.name.tenant
        began = self._clock.monotonic()
        # Before the first page: what changes meanwhile must be counted again.
        revision, of_releases, newer = await self._store.read(partial(self._state, release=release))
        counter = Counter(offer, opened_from, others, newer)
        after: str | None = ""
        while after is not None:

            def page(tx: Tx, after: str = after) -> str | None:
                rows = tx.scan_fleet(tenant, after, PAGE)
                failed: dict[str, list[DeviceStage]] = defaultdict(list)
                if newer and rows:
                    for stage in tx.failed_stages(tenant, after, rows[-1].device):
                        failed[stage.device.device].append(stage)
                counter.add(rows, failed)
                return rows[-1].device if len(rows) == PAGE else None

            after = await self._store.read(page)
        selection = counter.result()
        ended = self._clock.monotonic()
        took = ended - began
        rest = min(_LONGEST_REST_S, _REST * took) if selection.fleet >= LARGE else 0.0
        self._known[release.name] = (revision, of_releases, selection, ended + rest)
        return selection

    def forget(self, name: ReleaseName) -> None:
        """Drop what is remembered of a release that has ended."""
        self._known.pop(name, None)
