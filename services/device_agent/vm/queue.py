"""Whose turn it is: a bounded queue in which tasks take turns. Pure; knows nothing of processes."""

from collections import OrderedDict, deque
from typing import Generic, Protocol, TypeVar


class Keyed(Protocol):
    """What the queue holds."""

    @property
    def key(self) -> str:
        """The task it belongs to."""
        ...


J = TypeVar("J", bound=Keyed)


class FairQueue(Generic[J]):
    """First in, first out within a task; tasks take turns, so that a backlog only delays its own task."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, deque[J]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def waiting(self, key: str) -> int:
        """Return how many jobs of this task wait."""
        return len(self._tasks.get(key, ()))

    def put(self, job: J) -> None:
        """Add `job` at the end of its task's line."""
        self._tasks.setdefault(job.key, deque()).append(job)
        self._size += 1

    def put_back(self, job: J) -> None:
        """Undo the `take` that gave `job`: it and its task come first again."""
        self._tasks.setdefault(job.key, deque()).appendleft(job)
        self._tasks.move_to_end(job.key, last=False)
        self._size += 1

    def take(self) -> J | None:
        """Take the first job of the task whose turn it is; None when nothing waits."""
        if not self._tasks:
            return None
        key, line = next(iter(self._tasks.items()))
        job = line.popleft()
        self._size -= 1
        if line:
            self._tasks.move_to_end(key)
        else:
            del self._tasks[key]
        return job

    def drop_oldest(self, key: str) -> J | None:
        """Take out the longest waiting job of this task."""
        line = self._tasks.get(key)
        if not line:
            return None
        job = line[0]
        self.remove(job)
        return job

    def remove(self, job: J) -> bool:
        """Take `job` out; False when it doesn't wait any more."""
        line = self._tasks.get(job.key)
        if line is None or job not in line:
            return False
        line.remove(job)
        self._size -= 1
        if not line:
            del self._tasks[job.key]
        return True

    def remove_all(self, key: str) -> list[J]:
        """Take out and return all jobs of this task."""
        line = self._tasks.pop(key, deque())
        self._size -= len(line)
        return list(line)
