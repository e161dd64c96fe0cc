"""Plans kept on disk between calls and restarts: one file each, whole or not at all, within a bound.

A file holds a line of JSON with the digest of the plan, then the plan. What isn't whole, or isn't what its
digest says, is removed and made again: losing a plan costs time only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import threading
from pathlib import Path

from libs.common.fsio import write_atomic
from services.engine.domain.model import Made, Verdict
from services.engine.domain.origins_json import origins_from_json, origins_to_json

_SUFFIX = ".plan"
_LONGEST_HEAD = 1 << 20


class PlanCache:
    """See `services.engine.domain.optimiser.Cache`; `folder` is this cache's alone."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Open or make the cache; what a crash left half-written is removed."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.suffix != _SUFFIX:
                path.unlink(missing_ok=True)
        self._shrink()

    async def get(self, key: str) -> Made | None:
        """See `Cache`."""
        return await asyncio.to_thread(self._get, key)

    async def put(self, key: str, made: Made) -> None:
        """See `Cache`; a plan that isn't compared or too large for the cache isn't kept."""
        await asyncio.to_thread(self._put, key, made)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def _get(self, key: str) -> Made | None:
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        made = _decoded(content)
        with contextlib.suppress(FileNotFoundError):
            if made is None:
                path.unlink()
            else:
                # What has been used last stays longest.
                os.utime(path)
        return made

    def _put(self, key: str, made: Made) -> None:
        if made.verdict is None:
            return
        content = _encoded(made, made.verdict)
        if len(content) > self._max_bytes:
            return
        with self._lock:
            write_atomic(self._path(key), content)
            self._shrink()

    def _shrink(self) -> None:
        files = sorted(
            (
                (stat.st_mtime_ns, stat.st_size, path)
                for path in self._folder.glob(f"*{_SUFFIX}")
                if (stat := path.stat())
            ),
            reverse=True,
        )
        total = 0
        for _, size, path in files:
            total += size
            if total > self._max_bytes:
                path.unlink(missing_ok=True)


def _encoded(made: Made, verdict: Verdict) -> bytes:
    head = {
        "digest": hashlib.sha256(made.plan).hexdigest(),
        "origins": origins_to_json(made.origins),
        "max_error": verdict.max_error,
        "comparisons": verdict.comparisons,
    }
    return json.dumps(head).encode() + b"\n" + made.plan


def _decoded(content: bytes) -> Made | None:
    head, newline, plan = content.partition(b"\n")
    try:
        if not newline or len(head) > _LONGEST_HEAD:
            return None
        fields = json.loads(head)
        if fields["digest"] != hashlib.sha256(plan).hexdigest():
            return None
        verdict = Verdict(float(fields["max_error"]), int(fields["comparisons"]))
        return Made(plan, origins_from_json(fields["origins"]), verdict)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
