"""What the gateway knows of devices right now: the push index in force, and the streams that wait on it."""

from collections.abc import AsyncIterator, Callable, Iterable

from libs.common.errors import Unauthenticated, Unavailable
from services.gateway.domain.hints import HintHub, Waiter
from services.gateway.domain.push_index import Change, Fingerprints, PushIndex

_SNAPSHOT_SOON_S = 1.0


def revoked_error() -> Unauthenticated:
    """Return what a revoked device is told."""
    return Unauthenticated(
        "this device was revoked, for good; if it shall come back, enrol it under a new id",
        reason="DEVICE_REVOKED",
    )


class PushState:
    """The index in force and the held streams. A snapshot is built aside and put in place whole.

    `on_revoked` is called with a device's resource name when it is revoked, `on_replaced` when a whole index
    was put in force, in which any device may be revoked. `ready` is whether that has ever happened: from then
    on what is known stays in force, however long the deployer is away. One event loop's; not thread-safe.
    """

    def __init__(
        self,
        fingerprints: Fingerprints,
        hub: HintHub,
        on_revoked: Callable[[str], None],
        on_replaced: Callable[[], None],
    ) -> None:
        self.fingerprints = fingerprints
        self.hub = hub
        self.index = PushIndex(fingerprints)
        self.ready = False
        self._on_revoked = on_revoked
        self._on_replaced = on_replaced

    def new_index(self) -> PushIndex:
        """Return an empty index to read a snapshot into."""
        return PushIndex(self.fingerprints)

    def apply(self, changes: Iterable[Change]) -> None:
        """Take changes into the index in force; hint the devices they concern, cut off the revoked ones."""
        for change in changes:
            fingerprint = self.index.apply(change)
            if change.revoked:
                self._on_revoked(change.device)
            elif change.wanted_digest is not None:
                self.hub.wake(fingerprint)

    def replace(self, index: PushIndex) -> None:
        """Put a whole index in force and hint the held streams that it concerns."""
        self.index = index
        self.ready = True
        for waiter in self.hub.waiters():
            if index.differs(waiter.fingerprint, waiter.profile_digest):
                waiter.wake()
        self._on_replaced()

    def differs(self, fingerprint: bytes, profile_digest: bytes) -> bool:
        """Say whether a device with this profile should pull."""
        return self.index.differs(fingerprint, profile_digest)

    async def hints(self, waiter: Waiter) -> AsyncIterator[None]:
        """Yield whenever the device that waits should pull: at once if it should now, then on each change.

        Raises:
            Error: when the stream has to end.
        """
        if self.index.differs(waiter.fingerprint, waiter.profile_digest):
            yield
        while True:
            await waiter.wait()
            # Whatever the device runs by now, it should run something else: that is what being listed means.
            if self.index.wanted(waiter.fingerprint) is not None:
                yield

    def admit(self, fingerprint: bytes) -> None:
        """Let a device in.

        Raises:
            Unauthenticated: when it is revoked.
            Unavailable: before the first snapshot, while any device may be revoked for all that is known.
        """
        if not self.ready:
            raise Unavailable(
                "this gateway has just started and doesn't know yet which devices are revoked: try again",
                reason="PUSH_INDEX_NOT_READY",
                retry_after_s=_SNAPSHOT_SOON_S,
            )
        if self.index.is_revoked(fingerprint):
            raise revoked_error()
