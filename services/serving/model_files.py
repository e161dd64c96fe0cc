"""Models' files on this machine's disk, named by their digests; checked whenever one is loaded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Set
from pathlib import Path
from weakref import WeakValueDictionary

from libs.common.blobs import BlobRef
from services.serving.domain.repository import Blobs

_log = logging.getLogger("isthmus.serving.files")


class ModelFiles:
    """See `services.serving.domain.repository.Files`."""

    def __init__(self, folder: Path, blobs: Blobs) -> None:
        """Keep files in `folder`, which is made; take what is missing from `blobs`."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._blobs = blobs
        self._held: Counter[str] = Counter()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def held(self, tenant: str, ref: BlobRef) -> AsyncIterator[Path]:
        """See `Files`."""
        self._held[ref.digest] += 1
        try:
            yield await self._fetch(tenant, ref)
        finally:
            self._held[ref.digest] -= 1
            if not self._held[ref.digest]:
                del self._held[ref.digest]

    async def _fetch(self, tenant: str, ref: BlobRef) -> Path:
        path = self._folder / ref.digest.removeprefix("sha256:")
        async with self._lock(ref.digest):
            if not await asyncio.to_thread(_is_whole, path, ref):
                await self._blobs.download(tenant, ref, path)
        return path

    async def keep_only(self, digests: Set[str]) -> None:
        """See `Files`."""
        kept = {digest.removeprefix("sha256:") for digest in digests}
        for path in await asyncio.to_thread(lambda: list(self._folder.iterdir())):
            if path.name not in kept:
                await self._remove(path)

    async def _remove(self, path: Path) -> None:
        digest = f"sha256:{path.name}"
        # Who begins to hold it meanwhile waits for the lock, and then finds that it must be brought again.
        async with self._lock(digest):
            # A download in hand has a name of its own, and its digest is held.
            if digest in self._held or (path.name.endswith(".part") and self._held):
                return
            _log.info("removing a file that no version needs", extra={"file": path.name})
            try:
                await asyncio.to_thread(path.unlink, missing_ok=True)
            except OSError as error:
                _log.warning("a file that no version needs can't be removed: %s", error)

    def _lock(self, digest: str) -> asyncio.Lock:
        return self._locks.setdefault(digest, asyncio.Lock())


def _is_whole(path: Path, ref: BlobRef) -> bool:
    try:
        return path.stat().st_size == ref.size_bytes and BlobRef.of_file(path) == ref
    except FileNotFoundError:
        return False
