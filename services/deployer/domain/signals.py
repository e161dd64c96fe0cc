"""What one part of the deployer tells the others after a transaction has committed.

Signals only save waiting: whoever listens reads the store again, and one that is lost with its process is
made up for when the next starts.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from libs.common.names import DeviceName, ReleaseName
from services.deployer.domain.model import Counts, Release, Stage


@dataclass(frozen=True, slots=True)
class Offered:
    """A release whose offer changed for the devices with buckets from `low` up to, not with, `high`."""

    release: Release
    low: int
    high: int


@dataclass(slots=True)
class Signals:
    """Listeners by what they listen for; called in order, on the event loop."""

    devices: list[Callable[[DeviceName], None]] = field(default_factory=list)
    releases: list[Callable[[ReleaseName], None]] = field(default_factory=list)
    offers: list[Callable[[Offered], None]] = field(default_factory=list)

    def device_changed(self, name: DeviceName) -> None:
        """Tell that what a device should run, runs or may do has changed."""
        for listener in self.devices:
            listener(name)

    def releases_changed(self, names: Collection[ReleaseName]) -> None:
        """Tell that releases or their counts have changed."""
        for name in names:
            for listener in self.releases:
                listener(name)

    def offer_changed(self, release: Release, low: int, high: int) -> None:
        """Tell that a release is offered to a range of buckets now, or no more."""
        if low < high:
            for listener in self.offers:
                listener(Offered(release, low, high))


class Meter(Protocol):
    """What is counted for the operator."""

    def set_signed(self) -> None:
        """Count a signed device set."""
        ...

    def reported(self, stage: Stage) -> None:
        """Count a stage report that was new."""
        ...

    def preflight(self, outcome: str, seconds: float) -> None:
        """Count a pre-flight that "passed", "failed", was "skipped", or ended by an "error"."""
        ...

    def blob_bytes(self, direction: str, count: int) -> None:
        """Count bytes of blobs "written" or "read"."""
        ...

    def release_counts(self, name: ReleaseName, counts: Counts | None) -> None:
        """Show a release's devices by stage; None when it has ended."""
        ...

    def decided(self, decision: str) -> None:
        """Count a decision of the controller."""
        ...
