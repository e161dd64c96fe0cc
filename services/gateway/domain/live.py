"""Streams that are open now; they outlive the credentials they came with, so callers are checked again."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from libs.common.clock import Clock
from libs.common.errors import Error, Unauthenticated
from services.gateway.domain.callers import Caller, CallerAuthenticator

_log = logging.getLogger(__name__)


class LiveStream:
    """One open stream. `cut` stops the transport; `error` then says why."""

    __slots__ = ("_stop", "caller", "error")

    def __init__(self, caller: Caller, stop: Callable[[Error], object]) -> None:
        self.caller = caller
        self.error: Error | None = None
        self._stop = stop

    def cut(self, error: Error) -> None:
        """End the stream with an error; the first one counts."""
        if self.error is None:
            self.error = error
            self._stop(error)


class LiveStreams:
    """All open streams by principal. One event loop's; not thread-safe."""

    def __init__(self) -> None:
        self._streams: dict[str, set[LiveStream]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def open(self, caller: Caller, stop: Callable[[Error], object]) -> Iterator[LiveStream]:
        """Keep a stream listed while it is open; `stop` is called, once, if it has to end early."""
        stream = LiveStream(caller, stop)
        principal = caller.identity.principal
        self._streams.setdefault(principal, set()).add(stream)
        self._count += 1
        try:
            yield stream
        finally:
            self._count -= 1
            streams = self._streams[principal]
            streams.discard(stream)
            if not streams:
                del self._streams[principal]

    def cut(self, principal: str, error: Error) -> None:
        """End all streams of a principal."""
        for stream in list(self._streams.get(principal, ())):
            stream.cut(error)

    async def recheck(self, authenticator: CallerAuthenticator) -> None:
        """Check every stream's caller once and end the streams of those who may not stay."""
        for stream in [stream for streams in self._streams.values() for stream in streams]:
            try:
                await authenticator.recheck(stream.caller)
            except Unauthenticated as error:
                stream.cut(error)
            except Error as error:  # can't tell right now: next round will
                _log.warning("open stream not rechecked", extra={"reason": error.reason})

    async def recheck_for_ever(
        self, authenticator: CallerAuthenticator, clock: Clock, interval_s: float
    ) -> None:
        """Recheck every `interval_s` seconds."""
        while True:
            await clock.sleep(interval_s)
            try:
                await self.recheck(authenticator)
            except Exception:
                _log.exception("rechecking open streams failed; trying again in %g s", interval_s)
