"""Bounds on what a host operator may take."""

from libs.common.errors import Exhausted
from libs.common.sizes import size_text
from libs.runtime.faults import TOO_MUCH_MEMORY


class Limits:
    """Memory that is left for an operator, and what it has taken."""

    def __init__(self, free_bytes: int) -> None:
        self._free = free_bytes
        self.taken = 0

    def take(self, size: int) -> None:
        """Count what is about to be taken; raises Exhausted (TOO_MUCH_MEMORY) where there isn't so much."""
        self.taken += size
        if self.taken > self._free:
            left = size_text(max(self._free, 0))
            text = f"a list, strings or an image take more than the {left} that are left"
            raise Exhausted(text, reason=TOO_MUCH_MEMORY)
