"""Events from a file of JSON lines: on from where it stopped, no faster than they can be used.

A line that is no event is counted, told with its number, and skipped.
"""

import asyncio
import os
import stat
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from libs.common.clock import Clock
from libs.common.errors import Exhausted, Invalid, Unavailable
from libs.task.event import Event, event_from_json
from services.device_agent.ingest import Ingest, check_app_event
from services.device_agent.queueing import RunQueue
from services.device_agent.signals import Problems
from services.device_agent.store import events as event_store
from services.device_agent.store.bad_rows import BAD_ROW
from services.device_agent.store.database import Database
from services.device_agent.store.events import FilePosition
from services.device_agent.store.trouble import passes
from services.device_agent.tasks import Tasks
from services.device_agent.triggering import Triggerer

# A line holds an event of at most 64 KiB, with room for however its JSON is written.
MAX_LINE_BYTES = 256 * 1024
_BLOCK_BYTES = 64 * 1024
_CHUNK = 512
_FOLLOW_S = 0.5
_RETRY_S = 1.0
_SHOWN_FAULTS = 3
_FILE = "events file"
_LINES = "events file lines"


@dataclass(frozen=True, slots=True)
class Chunk:
    """What some lines held, and where the next one begins."""

    events: list[Event]
    ends: list[FilePosition]
    """Behind each event."""
    faults: list[str]
    position: FilePosition
    """Behind the last line."""


class Lines:
    """Cuts blocks of bytes into lines and lines into events. Pure; keeps a line that isn't whole yet."""

    def __init__(self, position: FilePosition) -> None:
        self.position = position
        self._rest = b""
        self._too_long = False

    @property
    def pending(self) -> bool:
        """Whether part of a line is kept."""
        return bool(self._rest) or self._too_long

    def feed(self, block: bytes, *, final: bool = False) -> list[Chunk]:
        """Take the next bytes; `final` makes the rest a line. Returns chunks of at most 512 lines."""
        lines = (self._rest + block).split(b"\n")
        self._rest = lines.pop()
        if final and (self._rest or self._too_long):
            lines.append(self._rest)
            self._rest = b""
        chunks = [self._chunk(lines[at : at + _CHUNK], final) for at in range(0, len(lines), _CHUNK)]
        if len(self._rest) > MAX_LINE_BYTES:
            # Its bytes are counted when its end comes; until then nothing of it need be kept.
            self._skip(len(self._rest))
        return chunks

    def _skip(self, count: int) -> None:
        self.position = replace(self.position, offset=self.position.offset + count)
        self._rest = b""
        self._too_long = True

    def _chunk(self, lines: Sequence[bytes], final: bool) -> Chunk:
        events: list[Event] = []
        ends: list[FilePosition] = []
        faults: list[str] = []
        offset, number = self.position.offset, self.position.line
        for line in lines:
            offset, number = offset + len(line) + 1, number + 1
            if self._too_long or len(line) > MAX_LINE_BYTES:
                self._too_long = False
                faults.append(f"line {number}: longer than {MAX_LINE_BYTES} bytes")
            elif line.strip():
                self._parse(line, number, events, faults)
                if len(events) > len(ends):
                    ends.append(replace(self.position, offset=offset, line=number))
        self.position = replace(self.position, offset=offset, line=number)
        return Chunk(events, ends, faults, self.position)

    @staticmethod
    def _parse(line: bytes, number: int, events: list[Event], faults: list[str]) -> None:
        try:
            events.append(check_app_event(event_from_json(line), f"line {number}"))
        except BAD_ROW as error:
            faults.append(f"line {number}: can't be read ({type(error).__name__})")
        except Invalid as error:
            # A line is one line: of the place within it only the column says something.
            message = error.message.removeprefix(f"line {number}: ")
            place = message.removeprefix("event: line 1, ")
            faults.append(f"line {number}{', ' if place != message else ': '}{place}")


class FileReader:
    """Reads a file, or the standard input, into the store.

    Attributes:
        finished: set when the file has ended (never, when it is followed).
        bad_lines: how many lines were no events, since the agent started.
    """

    def __init__(
        self,
        path: str,
        database: Database,
        ingest: Ingest,
        tasks: Tasks,
        triggerer: Triggerer,
        queue: RunQueue,
        clock: Clock,
        problems: Problems,
        *,
        follow: bool,
        speed: float,
    ) -> None:
        self.finished = asyncio.Event()
        self.bad_lines = 0
        self._path = path
        self._name = str(Path(path).absolute())
        self._database = database
        self._ingest = ingest
        self._tasks = tasks
        self._triggerer = triggerer
        self._queue = queue
        self._clock = clock
        self._problems = problems
        self._follow = follow
        self._speed = speed
        self._faults: deque[str] = deque(maxlen=_SHOWN_FAULTS)
        self._paced_from: tuple[float, float] | None = None

    async def run(self) -> None:
        """Read to the end, or for ever when the file is followed."""
        if self._path == "-":
            await self._read_stdin()
        else:
            while await self._read_path():
                pass
        self.finished.set()

    async def _read_stdin(self) -> None:
        # Nothing remembers a position here: what a restart reads again is told apart by its ids.
        lines = Lines(FilePosition(0, 0, 0))
        async for block in _blocks(sys.stdin.buffer):
            for chunk in lines.feed(block):
                await self._take(chunk, stored=False)
        for chunk in lines.feed(b"", final=True):
            await self._take(chunk, stored=False)

    async def _read_path(self) -> bool:
        """Open and read the file; return whether to do so again: it isn't there yet, or another one is."""
        try:
            file = await asyncio.to_thread(_open_regular, self._path)
        except OSError as error:
            self._problems.set(_FILE, f"{self._path}: {error.strerror or error}", "EVENTS_FILE")
            await self._clock.sleep(_RETRY_S)
            return True
        self._problems.clear(_FILE)
        with file:
            return await self._read_file(file)

    async def _read_file(self, file: BinaryIO) -> bool:
        status = os.fstat(file.fileno())
        known = await self._database.insist(
            lambda connection: event_store.file_position(connection, self._name), durable=False
        )
        position = FilePosition(status.st_ino, 0, 0)
        # Another file by that name, or one that was cut, is read from its start.
        if known is not None and known.inode == status.st_ino and known.offset <= status.st_size:
            position = known
        await asyncio.to_thread(file.seek, position.offset)
        lines = Lines(position)
        while True:
            block = await asyncio.to_thread(file.read, _BLOCK_BYTES)
            final = not block and not self._follow
            for chunk in lines.feed(block, final=final):
                await self._take(chunk)
            if final:
                return False
            if not block:
                await self._clock.sleep(_FOLLOW_S)
                if await asyncio.to_thread(_replaced, self._path, status.st_ino, file.tell()):
                    return True

    async def _take(self, chunk: Chunk, *, stored: bool = True) -> None:
        """Store a chunk's events in as small groups as the runs that they may trigger allow.

        The position behind a group is stored with it, so that a restart goes on with the next event.
        """
        self._tell(chunk.faults)
        at = 0
        while True:
            count = await self._room(chunk.events[at:])
            group, at = chunk.events[at : at + count], at + count
            done = at >= len(chunk.events)
            position = chunk.position if done else chunk.ends[at - 1]
            await self._add(group, position if stored else None)
            if done:
                return

    async def _add(self, events: list[Event], position: FilePosition | None) -> None:
        while True:
            try:
                await self._ingest.add(events, None if position is None else (self._name, position))
                return
            except BAD_ROW as error:
                if len(events) > 1:  # the others must not suffer for one of them
                    for event in events[:-1]:
                        await self._add([event], None)
                    events = events[-1:]
                    continue
                line = position.line if position is not None else "?"
                self._tell([f"line {line} or just before: can't be stored ({type(error).__name__})"])
                events = []
            except (Exhausted, Unavailable) as error:
                if error.reason != "BACKLOG" and not passes(error):
                    raise
                self._problems.set(_FILE, error.message, error.reason)
                await self._clock.sleep(error.retry_after_s or _RETRY_S)
                self._problems.clear(_FILE)

    async def _room(self, events: Sequence[Event]) -> int:
        """Wait until the next events may go, and return how many at once.

        With a speed they are spaced as their times were, divided by it. Without one they come as fast as they
        are used: runs beyond a task's limit would be dropped, so no more go than half of that limit could
        take, should every event trigger it.
        """
        if self._speed > 0:
            return await self._pace(events)
        while True:
            freed, done = self._queue.bell.rings, self._triggerer.done.rings
            limits = self._tasks.pending_limits()
            if not limits:
                return _CHUNK
            if await self._database.insist(event_store.backlog, durable=False):
                await self._triggerer.done.wait(done)
                continue
            waiting = {task: self._queue.waiting(task) for task in limits}
            room = min(limit // 2 - waiting[task] for task, limit in limits.items())
            if room > 0 or not any(waiting.values()):
                return max(1, min(_CHUNK, room))
            await self._queue.bell.wait(freed)

    async def _pace(self, events: Sequence[Event]) -> int:
        if not events:
            return 0
        first = events[0].time_s
        if self._paced_from is None:
            self._paced_from = (first, self._clock.monotonic())
        start_s, began = self._paced_from
        await self._clock.sleep(began + (first - start_s) / self._speed - self._clock.monotonic())
        due_s = start_s + (self._clock.monotonic() - began) * self._speed
        return max(1, next((i for i, event in enumerate(events) if event.time_s > due_s), len(events)))

    def _tell(self, faults: list[str]) -> None:
        if not faults:
            return
        self.bad_lines += len(faults)
        self._faults.extend(faults)
        shown = "; ".join(self._faults)
        self._problems.set(_LINES, f"{self.bad_lines} lines are no events, the last: {shown}", "BAD_LINE")


def _open_regular(path: str) -> BinaryIO:
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise OSError(f"{path} is no plain file; give - and connect it to the standard input")
    return Path(path).open("rb")


def _replaced(path: str, inode: int, offset: int) -> bool:
    try:
        now = Path(path).stat()
    except FileNotFoundError:
        return False
    return now.st_ino != inode or now.st_size < offset


async def _blocks(stream: BinaryIO) -> AsyncIterator[bytes]:
    """Yield what comes out of a stream. A pipe or terminal is never read on a thread that could hang."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    try:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stream)
    except ValueError:  # a plain file: reading it doesn't wait
        while block := await asyncio.to_thread(stream.read, _BLOCK_BYTES):
            yield block
        return
    try:
        while block := await reader.read(_BLOCK_BYTES):
            yield block
    finally:
        transport.close()
