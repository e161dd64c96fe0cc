"""Counting a release's devices: passes over the fleet, remembered until the fleet changes."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from libs.common.clock import Clock
from libs.common.names import ReleaseName
from libs.task import jsontext
from services.deployer.domain.blobs import Locks
from services.deployer.domain.buckets import bucket
from services.deployer.domain.model import Counts, FleetRow, Release, Stage
from services.deployer.domain.rollout import Offer
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


def counts_of(tx: Tx, release: Release, targeted: int | None) -> Counts:
    """Return a release's counts as of the transaction; None for `targeted` takes those that have reported."""
    stages = tx.stage_counts(release.sequence)
    failures = tx.failure_counts(release.sequence, MAX_FAILURES) if stages.get(Stage.FAILED) else ()
    return Counts.of(sum(stages.values()) if targeted is None else targeted, stages, failures)


class Counter:
    """Counts over pages of the fleet, so that a fleet never has to fit in memory."""

    def __init__(self, offer: Offer, opened_from: int | None = None, others: Iterable[Offer] = ()) -> None:
        """Count for `offer`.

        Args:
            offer: the release; its open step says which share is targeted.
            opened_from: list who runs the version already among the buckets from here up to the open share.
            others: releases to compare policies with.
        """
        self._offer = offer
        self._opened_from = opened_from
        self._others = tuple(others)
        self._matches: dict[str, tuple[bool, frozenset[ReleaseName]]] = {}
        self._fleet = self._selected = self._targeted = 0
        self._already: list[str] = []
        self._shared: set[ReleaseName] = set()
        self._seen: set[ReleaseName] = set()

    def add(self, rows: Iterable[FleetRow]) -> None:
        """Count a page."""
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
        )

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

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[ReleaseName, tuple[tuple[int, int], Selection, float]] = {}
        self._locks = Locks()

    async def of(self, release: Release) -> Selection:
        """Return how many devices a release selects now; over large fleets it may be some seconds old."""
        async with self._locks.of(str(release.name)):
            tenant = release.name.tenant
            revision = await self._store.read(lambda tx: tx.fleet_revision(tenant))
            known = self._known.get(release.name)
            if known is not None:
                (counted_at, share), selection, rest_until = known
                rests = self._clock.monotonic() < rest_until
                if share == release.open_share and (counted_at == revision or rests):
                    return selection
            return await self._count(Offer.of(release), None, ())

    async def count(
        self, offer: Offer, *, opened_from: int | None = None, others: Iterable[Offer] = ()
    ) -> Selection:
        """Count a release's devices anew; see `Counter` for the arguments."""
        async with self._locks.of(str(offer.release.name)):
            return await self._count(offer, opened_from, others)

    async def _count(self, offer: Offer, opened_from: int | None, others: Iterable[Offer]) -> Selection:
        """Pass over the fleet in pages, each a transaction that only reads."""
        release = offer.release
        tenant = release.name.tenant
        began = self._clock.monotonic()
        # Before the first page: what changes meanwhile must be counted again.
        revision = await self._store.read(lambda tx: tx.fleet_revision(tenant))
        counter = Counter(offer, opened_from, others)
        after: str | None = ""
        while after is not None:

            def page(tx: Tx, after: str = after) -> str | None:
                rows = tx.scan_fleet(tenant, after, PAGE)
                counter.add(rows)
                return rows[-1].device if len(rows) == PAGE else None

            after = await self._store.read(page)
        selection = counter.result()
        ended = self._clock.monotonic()
        took = ended - began
        rest = min(_LONGEST_REST_S, _REST * took) if selection.fleet >= LARGE else 0.0
        self._known[release.name] = ((revision, release.open_share), selection, ended + rest)
        return selection

    def forget(self, name: ReleaseName) -> None:
        """Drop what is remembered of a release that has ended."""
        self._known.pop(name, None)
