"""Tells those who watch an experiment that something of it changed."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from libs.common.names import ExperimentName


class Board:
    """Wakes watchers. Lives on one event loop; what changed is read from the store."""

    def __init__(self) -> None:
        self._events: dict[ExperimentName, set[asyncio.Event]] = {}

    @contextmanager
    def following(self, name: ExperimentName) -> Iterator[asyncio.Event]:
        """Give an event that is set at each change inside the block."""
        event = asyncio.Event()
        self._events.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            mine = self._events[name]
            mine.discard(event)
            if not mine:
                del self._events[name]

    def changed(self, name: ExperimentName) -> None:
        """Wake whoever follows an experiment."""
        for event in self._events.get(name, ()):
            event.set()
