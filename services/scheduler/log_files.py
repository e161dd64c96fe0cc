"""Logs in files: `<folder>/<tenant>/<uid>/<attempt>/<rank>/<offset of its first byte>`, in segments.

When a log is larger than what is kept of one, its oldest segment goes: the newest part is what people
look for. A file `complete` says that nothing more comes. Sizes follow from the files alone, so that a
crash leaves nothing to mend: bytes that were written but not answered for are simply there.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from libs.common.fsio import disk_errors, fsync_dir
from services.scheduler.domain.logs import LogKey, LogPart

_SEGMENTS = 8
_COMPLETE = "complete"


class SegmentedLogFiles:
    """See `services.scheduler.domain.logs.LogFiles`."""

    def __init__(self, folder: Path, *, keep_bytes: int) -> None:
        """Keep at least `keep_bytes` of each log, and at most an eighth more, below `folder`."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._segment_bytes = max(1, keep_bytes // _SEGMENTS)

    def append(self, key: LogKey, offset: int, data: bytes, *, last: bool) -> int:
        """See `LogFiles`."""
        folder = self._of(key)
        with disk_errors(folder):
            if not folder.is_dir():
                folder.mkdir(parents=True, mode=0o700)
                for parent in (folder, *folder.parents[:3]):
                    fsync_dir(parent.parent)
        starts = _starts(folder)
        size = _size(folder, starts)
        if offset > size:
            return size
        new = data[size - offset :]
        while new:
            if not starts or size - starts[-1] >= self._segment_bytes:
                starts.append(size)
            room = starts[-1] + self._segment_bytes - size
            _write(folder / _name(starts[-1]), new[:room], is_new=size == starts[-1])
            size += len(new[:room])
            new = new[room:]
        while len(starts) > _SEGMENTS + 1:
            (folder / _name(starts.pop(0))).unlink(missing_ok=True)
        if last:
            (folder / _COMPLETE).touch()
            fsync_dir(folder)
        return size

    def read(self, key: LogKey, offset: int, most: int) -> LogPart | None:
        """See `LogFiles`."""
        folder = self._of(key)
        # What the marker says must hold of what is read after it.
        complete = (folder / _COMPLETE).exists()
        starts = _starts(folder)
        if not starts:
            return LogPart(0, b"", complete) if folder.is_dir() else None
        size = _size(folder, starts)
        if offset >= size:
            return LogPart(size, b"", complete)
        offset = max(offset, starts[0])
        start = max(s for s in starts if s <= offset)
        try:
            with (folder / _name(start)).open("rb") as file:
                file.seek(offset - start)
                data = file.read(most)
        except FileNotFoundError:
            # It was the oldest, and went meanwhile.
            return self.read(key, offset + 1, most)
        return LogPart(offset, data)

    def forget(self, tenant: str, job_uid: str) -> None:
        """See `LogFiles`."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._folder / tenant / job_uid)

    def jobs(self) -> list[tuple[str, str]]:
        """See `LogFiles`."""
        return [(job.parent.name, job.name) for job in self._folder.glob("*/*") if job.is_dir()]

    def _of(self, key: LogKey) -> Path:
        return self._folder / key.tenant / key.job_uid / str(key.attempt) / str(key.rank)


def _name(start: int) -> str:
    return f"{start:020d}"


def _starts(folder: Path) -> list[int]:
    try:
        return sorted(int(entry) for entry in os.listdir(folder) if entry.isdecimal())  # noqa: PTH208
    except FileNotFoundError:
        return []


def _size(folder: Path, starts: list[int]) -> int:
    return starts[-1] + (folder / _name(starts[-1])).stat().st_size if starts else 0


def _write(path: Path, data: bytes, *, is_new: bool) -> None:
    with disk_errors(path):
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            fsync_dir(path.parent)
