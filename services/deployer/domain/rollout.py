"""What a device should run: a pure function of its attributes, the tenant's releases and its own failures.

For each task the newest release wins whose policy and open step select the device. Left out are releases that
were rolled back, and versions that failed on the device. So nothing is written per device when a step opens,
and rolling back needs no memory either: without the release, what the device ran before is the newest again.

A version that failed is left out of the release it failed under and of every older one. A newer release of
the same version tries again: whoever makes it wants that.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from libs.common.errors import Invalid
from libs.task import jsontext
from libs.task.expression import Fields, parse_expression
from libs.task.profile import profile_digest
from services.deployer.domain.buckets import bucket
from services.deployer.domain.model import DeviceStage, Release, ReleaseState, Stage
from services.deployer.store import Tx

Policy = Callable[[Fields], bool]

Failures = Mapping[tuple[str, str], int]
"""Of one device: (task, version) to the sequence of the newest release under which it failed."""


def parse_policy(text: str) -> Policy:
    """Return the predicate over attributes that a policy's JSON text spells; an empty text selects all.

    Raises:
        Invalid: with line and column.
    """
    if not text:
        return lambda attributes: True
    try:
        value = jsontext.load(text, what="policy_json")
    except Invalid as error:
        if error.reason != "SYNTAX":
            raise
        raise Invalid(
            f"{error.message}; write a JSON expression over device attributes, such as "
            '{"eq": ["os", "linux"]}',
            reason=error.reason,
            metadata=error.metadata,
        ) from None
    with jsontext.positions(text, what="policy_json"):
        return parse_expression(value).matches


@dataclass(frozen=True, slots=True)
class Offer:
    """A release with its policy compiled."""

    release: Release
    policy: Policy

    @classmethod
    def of(cls, release: Release) -> "Offer":
        """Compile a release's policy; raise Invalid when it doesn't parse."""
        return cls(release, parse_policy(release.policy_json))

    @property
    def entry(self) -> str:
        """The profile entry `task@version`."""
        return f"{self.release.version.task}@{self.release.version.version}"

    def selects(self, device: str, attributes: Fields) -> bool:
        """Tell whether the policy and the open step select a device."""
        share = self.release.open_share
        return share > 0 and self.policy(attributes) and bucket(self.release.salt, device) < share


class Book:
    """A tenant's releases that may put something on a device, ordered for `wanted`. Immutable."""

    def __init__(self, releases: Iterable[Release]) -> None:
        by_task: dict[str, list[Offer]] = defaultdict(list)
        for release in sorted(releases, key=lambda r: r.sequence, reverse=True):
            if release.state is not ReleaseState.ROLLED_BACK:
                by_task[release.version.task].append(Offer.of(release))
        self._by_task: Mapping[str, Sequence[Offer]] = dict(sorted(by_task.items()))

    def wanted(self, device: str, attributes: Fields, failures: Failures) -> list[Offer]:
        """Return the releases whose versions the device should run, by task."""
        chosen = []
        for task, offers in self._by_task.items():
            for offer in offers:
                failed_under = failures.get((task, offer.release.version.version), -1)
                if failed_under < offer.release.sequence and offer.selects(device, attributes):
                    chosen.append(offer)
                    break
        return chosen

    def newer(self, release: Release) -> list[Offer]:
        """Return the later releases of the same task."""
        offers = self._by_task.get(release.version.task, ())
        return [offer for offer in offers if offer.release.sequence > release.sequence]

    def counts(self, offer: Offer, device: str, attributes: Fields, stages: Collection[DeviceStage]) -> bool:
        """Tell whether a release's gate counts a device; `stages` are all of the device's.

        It does when it gives the device its version, or when that failed there: a device that two running
        releases of a task select, because it changed or came later than both, counts in one of them.
        """
        if not offer.selects(device, attributes):
            return False
        if failed_under(offer.release, stages):
            return True
        return not served(self.newer(offer.release), device, attributes, failures_of(stages))

    def open_releases(self, task: str = "") -> list[Offer]:
        """Return the releases that haven't ended, of one task or of all."""
        lists = [self._by_task.get(task, ())] if task else self._by_task.values()
        return [o for offers in lists for o in offers if not o.release.state.ended]


class Books:
    """Each tenant's book, compiled again only when its releases have changed. Usable from any thread."""

    def __init__(self) -> None:
        self._books: dict[str, tuple[int, Book]] = {}

    def of(self, tx: Tx, tenant: str) -> Book:
        """Return the tenant's book as of the transaction."""
        revision = tx.release_revision(tenant)
        known = self._books.get(tenant)
        if known is None or known[0] != revision:
            known = self._books[tenant] = (revision, Book(tx.releases_in_effect(tenant)))
        return known[1]


def served(offers: Iterable[Offer], device: str, attributes: Fields, failures: Failures) -> bool:
    """Tell whether one of some releases has a version for a device that hasn't failed there."""
    return any(
        failures.get((offer.release.version.task, offer.release.version.version), -1) < offer.release.sequence
        and offer.selects(device, attributes)
        for offer in offers
    )


def failed_under(release: Release, stages: Iterable[DeviceStage]) -> bool:
    """Tell whether a device, by its stages, failed under a release."""
    return any(s.release_sequence == release.sequence and s.stage is Stage.FAILED for s in stages)


def failures_of(stages: Iterable[DeviceStage]) -> dict[tuple[str, str], int]:
    """Return the failures among the stages of one device."""
    failures: dict[tuple[str, str], int] = {}
    for stage in stages:
        if stage.stage is Stage.FAILED:
            key = (stage.task, stage.version)
            failures[key] = max(failures.get(key, -1), stage.release_sequence)
    return failures


def profile_of(wanted: Collection[Offer]) -> tuple[str, ...]:
    """Return the sorted `task@version` list of a wanted set."""
    return tuple(sorted(offer.entry for offer in wanted))


def index_digest(wanted: tuple[str, ...], reported: tuple[str, ...]) -> bytes:
    """Return what the push index should hold for a device: 16 bytes, or none when it runs what it should.

    Both come sorted.
    """
    return b"" if wanted == reported else _digest(wanted)


@functools.lru_cache(maxsize=4096)
def _digest(wanted: tuple[str, ...]) -> bytes:
    """Return the profile digest of a wanted set; whole fleets share few."""
    return profile_digest(wanted)
