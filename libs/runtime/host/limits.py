"""Bounds on what a host operator may take."""

from libs.common.errors import Exhausted
from libs.common.sizes import size_text
from libs.runtime.faults import TOO_MUCH_MEMORY, TOO_MUCH_WORK


class Limits:
    """Memory and calculations that are left for an operator, and what it has taken of them."""

    def __init__(self, free_bytes: int, free_work: int | None = None) -> None:
        self._free_bytes = free_bytes
        self._free_work = free_work
        self.taken = 0
        """Bytes."""
        self.work = 0
        """Calculations, as `libs.runtime.work` counts them."""

    def take(self, size: int) -> None:
        """Count bytes that are about to be taken, each of which is a calculation, too.

        Raises Exhausted: TOO_MUCH_MEMORY where there aren't so many left, TOO_MUCH_WORK as `spend` does.
        """
        self.taken += size
        if self.taken > self._free_bytes:
            left = size_text(max(self._free_bytes, 0))
            text = f"a list, strings or an image take more than the {left} that are left"
            raise Exhausted(text, reason=TOO_MUCH_MEMORY)
        self.spend(size)

    def spend(self, work: int) -> None:
        """Count calculations that are about to be done; raises Exhausted (TOO_MUCH_WORK) beyond the bound."""
        self.work += work
        if self._free_work is not None and self.work > self._free_work:
            raise Exhausted("a call takes more calculations than it may", reason=TOO_MUCH_WORK)
