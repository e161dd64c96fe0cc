"""A bounded cache: when full, it drops what came in first."""

from collections.abc import Iterable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Cache(Generic[K, V]):
    """A dictionary of at most `size` entries. Reading costs no more than a dictionary's."""

    __slots__ = ("_entries", "_size", "get")

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: dict[K, V] = {}
        #: get(key) -> the value, or None.
        self.get = self._entries.get

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: K, value: V) -> None:
        """Store a value."""
        entries = self._entries
        if key not in entries and len(entries) >= self._size:
            del entries[next(iter(entries))]
        entries[key] = value

    def pop(self, key: K) -> None:
        """Drop an entry if it is there."""
        self._entries.pop(key, None)

    def values(self) -> Iterable[V]:
        """Return the values, a view."""
        return self._entries.values()
