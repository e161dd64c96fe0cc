"""Whose run is next: tasks take turns, a task's oldest first, and one user's runs of a task one at a time."""

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import replace

from services.device_agent.signals import Bell
from services.device_agent.store.runs import QueuedRun

# Waiting runs of a task that are kept in memory, fresh from their trigger.
_FRESH = 16
_Line = tuple[str, str]
"""Task and user: whose runs go one after another."""


class RunQueue:
    """The waiting runs' ids.

    A run starts after the earlier runs of its task and user have ended, so that results of one user come in
    the order of the events. A user's backlog holds up nobody else: the next in turn is a task's oldest run
    among the users of whom none is in flight.
    """

    def __init__(self) -> None:
        self.bell = Bell()
        self._lines: dict[_Line, deque[QueuedRun]] = {}
        self._ready: OrderedDict[str, list[tuple[int, _Line]]] = OrderedDict()
        """By task, in turn: a heap of the first run's id of each line that may go on."""
        self._waiting: Counter[str] = Counter()
        self._in_flight: dict[int, QueuedRun] = {}
        self._busy: set[_Line] = set()
        self._dropped: set[int] = set()

    def add(self, runs: Sequence[QueuedRun], dropped: Collection[int] = ()) -> None:
        """Append runs; `dropped` ones aren't waiting any more."""
        self._dropped.update(dropped)
        for run in runs:
            # What waits for long is read again when its turn comes, to keep the memory small.
            fresh = self._waiting[run.task] < _FRESH
            line = (run.task, run.user)
            first = line not in self._lines
            self._lines.setdefault(line, deque()).append(run if fresh else replace(run, run=None))
            self._waiting[run.task] += 1
            if first and line not in self._busy:
                self._show(line)
        if runs:
            self.bell.ring()

    def take(self) -> QueuedRun | None:
        """Return the next run, which is in flight from now on; None when none may start."""
        while self._ready:
            task, heap = next(iter(self._ready.items()))
            _, line = heapq.heappop(heap)
            if not heap:
                del self._ready[task]
            run = self._pop(line)
            if run.run_id in self._dropped:
                self._dropped.discard(run.run_id)
                self._show(line)
                continue
            if heap:
                self._ready.move_to_end(task)
            self._in_flight[run.run_id] = run
            self._busy.add(line)
            return run
        return None

    def done(self, run: QueuedRun) -> None:
        """Say that a run taken has ended."""
        del self._in_flight[run.run_id]
        line = (run.task, run.user)
        self._busy.discard(line)
        self._show(line)
        self.bell.ring()

    def in_flight(self) -> list[int]:
        """Return the ids of the runs that have been taken and haven't ended."""
        return list(self._in_flight)

    def waiting(self, task: str) -> int:
        """Return how many runs of a task wait or run: an upper bound."""
        return self._waiting[task] + sum(run.task == task for run in self._in_flight.values())

    def _show(self, line: _Line) -> None:
        """Let the first run of a line, if there is one, be taken."""
        if line in self._lines:
            heapq.heappush(self._ready.setdefault(line[0], []), (self._lines[line][0].run_id, line))

    def _pop(self, line: _Line) -> QueuedRun:
        runs = self._lines[line]
        run = runs.popleft()
        if not runs:
            del self._lines[line]
        self._waiting[line[0]] -= 1
        if not self._waiting[line[0]]:
            del self._waiting[line[0]]
        return run
