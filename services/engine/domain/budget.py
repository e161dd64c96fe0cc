"""A bound on the memory that calls under way hold between them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from libs.common.errors import Exhausted
from libs.common.sizes import size_text

_RETRY_S = 2.0


class Budget:
    """Bytes that may be held at once. Not for several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = 0

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Count `size` bytes for the length of the block.

        One call alone may hold any size. Raises Exhausted where others leave too little.
        """
        if self._held and self._held + size > self._max_bytes:
            raise Exhausted(
                f"plans of {size_text(self._held)} are being read; {size_text(size)} more exceed "
                f"{size_text(self._max_bytes)}; try again later",
                reason="ENGINE_BUSY",
                retry_after_s=_RETRY_S,
            )
        self._held += size
        try:
            yield
        finally:
            self._held -= size
