"""Memory that the registers of a call hold: counted while it is there, however many registers share it."""

import weakref
from typing import Any

from libs.runtime.kernels.fault import Array
from libs.runtime.pool import BindingPool

STRING_BYTES = 56
"""What a str takes beside its characters, and its place in an array, about."""
_ITEM_BYTES = 8
_ENTRY_BYTES = 400
"""What an array or list takes beside its elements, about, and its entry here."""


class Items(list[Any]):
    """A sequence or optional in a register. A list of its own class, so that the ledger can see it go."""

    __slots__ = ("__weakref__",)


def bytes_of(value: Array | Items) -> int:
    """Return what an array or list takes, what a list's items take apart."""
    if isinstance(value, Items):
        return _ITEM_BYTES * len(value)
    if value.dtype.hasobject:
        return sum(STRING_BYTES + len(text) for text in value.reshape(-1))
    return value.nbytes


class Ledger:
    """What one call holds, taken from the memory of a pool. For one thread.

    Whatever is made is entered once; it leaves by itself when the last register, list or round that has it
    lets it go.
    """

    __slots__ = ("_pool", "_reserved", "_sizes", "bytes")

    def __init__(self, pool: BindingPool) -> None:
        self._pool = pool
        self._reserved = 0
        self._sizes: dict[int, tuple[Any, int]] = {}
        """By the number of the weak reference: that and the bytes."""
        self.bytes = 0
        """Held now."""

    def room(self, size: int) -> None:
        """Make sure that `size` bytes more may be taken.

        Raises Exhausted (TOO_MUCH_MEMORY) where the pool hasn't that much left.
        """
        wanted = self.bytes + size
        if wanted > self._reserved:
            self._pool.reserve(wanted - self._reserved)
            self._reserved = wanted

    def enter(self, value: Array | Items, size: int) -> None:
        """Count an array or list of `size` bytes for as long as anything refers to it."""
        size += _ENTRY_BYTES
        self.room(size)
        reference = weakref.ref(value, self._left)
        self._sizes[id(reference)] = reference, size
        self.bytes += size

    def _left(self, reference: Any) -> None:
        self.bytes -= self._sizes.pop(id(reference))[1]

    def trim(self) -> None:
        """Give back what isn't held any more, for others to take."""
        if self._reserved > self.bytes:
            self._pool.release(self._reserved - self.bytes)
            self._reserved = self.bytes

    def close(self) -> None:
        """Give everything back; nothing is counted after that."""
        self._sizes.clear()
        self._pool.release(self._reserved)
        self._reserved = self.bytes = 0
