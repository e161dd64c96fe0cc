"""How the command follows what goes on in the cloud, over restarts of whatever is in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from libs.common.errors import Error, Unavailable

if TYPE_CHECKING:
    from libs.cli.session import Session

# A service that was killed is back well before; a stream that was open goes on then.
_PATIENCE_S = 60.0
# What never answered may be somewhere else, and never will.
_FIRST_PATIENCE_S = 30.0
_PAUSE_S = 0.5

Reply = TypeVar("Reply")


def resuming(
    session: Session, start: Callable[[], Iterator[Reply]], *, came: bool = False, endless: bool = False
) -> Iterator[Reply]:
    """Yield what a stream brings; where it breaks off because a service is away, start another.

    Args:
        session: where it comes from.
        start: makes a stream that goes on from where the last one ended.
        came: whether the service has been there before.
        endless: start another too where a stream ends, as by a service that is told to stop; the caller knows
            by what the stream brings when it is over.

    Raises:
        Error: what the service answered; Unavailable when it never was there, or is away for a minute.
    """
    away_since = 0.0
    while True:
        try:
            for each in start():
                came, away_since = True, 0.0
                yield each
            if not endless:
                return
        except Unavailable as error:
            now = time.monotonic()
            if not came or (away_since and now - away_since > _PATIENCE_S):
                raise
            if not away_since:
                away_since = now
                session.output.note(f"{error.message} (waiting for it)")
        time.sleep(_PAUSE_S)


class Patience:
    """Makes calls that may be repeated, again and again while a service restarts: up to a minute each.

    Until a call has been answered it is half of that: there may be nothing at the address.
    """

    def __init__(self, session: Session) -> None:
        """Tell through `session` what is waited for."""
        self._session = session
        self._came = False

    def __call__(self, call: Callable[[], Reply]) -> Reply:
        """Return what `call` returns.

        Raises:
            Error: what the service answered; Unavailable when it stays away.
        """
        deadline = 0.0
        while True:
            try:
                answer = call()
            except Unavailable as error:
                now = time.monotonic()
                if not deadline:
                    deadline = now + (_PATIENCE_S if self._came else _FIRST_PATIENCE_S)
                    self._session.output.note(f"{error.message} (waiting for it)")
                elif now > deadline:
                    raise
            except Error:
                self._came = True
                raise
            else:
                self._came = True
                return answer
            time.sleep(_PAUSE_S)
