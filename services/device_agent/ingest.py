"""Events in: checked, then durable, then acknowledged."""

import re
import sqlite3
from collections.abc import Sequence

from libs.common.errors import Exhausted, Invalid
from libs.task.event import Event, check_event
from services.device_agent.identity import CloudClock
from services.device_agent.signals import Bell
from services.device_agent.store import events as event_store
from services.device_agent.store.database import Database
from services.device_agent.store.events import FilePosition
from services.device_agent.tracing import Spans

MAX_BATCH = 1000
MAX_ID_BYTES = 64
MAX_USER_BYTES = 128
_TYPE = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Ingest:
    """Checks events and stores them; whoever gets an answer can forget them."""

    def __init__(
        self,
        database: Database,
        triggers: Bell,
        cloud_clock: CloudClock,
        max_unprocessed: int,
        spans: Spans,
    ) -> None:
        self._database = database
        self._triggers = triggers
        # Retention goes by when events came in: by a clock that doesn't jump.
        self._clock = cloud_clock
        self._max_unprocessed = max_unprocessed
        self._spans = spans

    async def add(
        self, events: Sequence[Event], position: tuple[str, FilePosition] | None = None
    ) -> tuple[int, int]:
        """Store checked events durably; return how many were new and how many were there by their id.

        Raises:
            Exhausted: when too many wait for their triggers (BACKLOG), or the disk is full (DISK_FULL).
        """
        now_s = self._clock.now_s()
        traceparent = self._spans.current()

        def work(connection: sqlite3.Connection) -> tuple[int, int]:
            if event_store.backlog(connection) + len(events) > self._max_unprocessed:
                raise Exhausted(
                    f"{self._max_unprocessed} events wait to be processed, the limit; try again in a moment",
                    reason="BACKLOG",
                    retry_after_s=1.0,
                )
            return event_store.add_events(connection, events, now_s, position, traceparent)

        counts = await self._database.run(work)
        self._triggers.ring()
        return counts


def check_app_event(event: Event, where: str) -> Event:
    """Return an event if it keeps the limits of `libs.task.event` and those of the store.

    Raises:
        Invalid: naming `where` and the member.
    """
    try:
        check_event(event)
    except Invalid as error:
        raise Invalid(f"{where}: {error.message}", reason=error.reason, metadata=error.metadata) from None
    if not _TYPE.fullmatch(event.type):
        raise Invalid(
            f"{where}: type: {event.type[:80]!r} is not of [A-Za-z0-9._-]{{1,64}}", reason="BAD_TYPE"
        )
    for name, text, most in (
        ("event_id", event.event_id, MAX_ID_BYTES),
        ("user", event.user, MAX_USER_BYTES),
    ):
        if len(text.encode()) > most:
            raise Invalid(
                f"{where}: {name}: has {len(text.encode())} bytes, more than {most}", reason="TOO_LARGE"
            )
    return event
