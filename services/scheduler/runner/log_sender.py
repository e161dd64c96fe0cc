"""Brings what a worker writes to the scheduler, in order, from where the scheduler has it."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from libs.common.clock import Clock

PIECE_BYTES = 256 * 1024
# How often a log that may grow is looked at, in seconds.
_LOOK_S = 0.1

Append = Callable[[int, bytes, bool], Awaitable[int]]
"""(offset, data, whether nothing more comes) → bytes that are durable."""


class LogSender:
    """Sends one log; what was sent before a restart isn't sent again."""

    def __init__(self, path: Path, append: Append, clock: Clock, bytes_per_s: float) -> None:
        """Send `path` by `append`, at most so many bytes a second."""
        self._path = path
        self._append = append
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._complete = asyncio.Event()

    def complete(self) -> None:
        """Say that the file won't grow any more."""
        self._complete.set()

    async def run(self) -> None:
        """Send until all of a completed file is durable over there.

        Raises:
            Error: when the scheduler doesn't want it.
        """
        offset = 0
        while True:
            complete = self._complete.is_set()
            data = await asyncio.to_thread(_read, self._path, offset)
            last = complete and len(data) < PIECE_BYTES
            if data or last:
                durable = await self._append(offset, data, last)
                if last and durable >= offset + len(data):
                    return
                offset = durable
                await self._clock.sleep(len(data) / self._bytes_per_s)
            if not complete and len(data) < PIECE_BYTES:
                await self._grown()

    async def _grown(self) -> None:
        """Wait a while, less when the file is complete before."""
        waiting = asyncio.ensure_future(self._complete.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(_LOOK_S))
        try:
            await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            sleeping.cancel()


def _read(path: Path, offset: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, PIECE_BYTES, offset)
    finally:
        os.close(fd)
