"""The file operations that a segment needs; a test puts a full or failing disk in their place."""

import os
from pathlib import Path
from typing import Protocol


class DiskFile(Protocol):
    """An open file, written at explicit positions."""

    def write_at(self, position: int, data: bytes) -> None:
        """Write all of `data`; raises OSError, possibly after having written a part."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...

    def sync(self) -> None:
        """Return once all that was written is durable."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


class Disk(Protocol):
    """Opens files for writing."""

    def create(self, path: Path) -> DiskFile:
        """Create a new, empty file; raises FileExistsError."""
        ...

    def open(self, path: Path) -> DiskFile:
        """Open a file that exists."""
        ...


class SystemFile:
    """A file of the operating system."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write_at(self, position: int, data: bytes) -> None:
        """Write all of `data`, however many calls that takes."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, position)
            view = view[written:]
            position += written

    def truncate(self, size: int) -> None:
        """Cut the file."""
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """Sync data and size; times don't matter."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


class SystemDisk:
    """The machine's disk."""

    def create(self, path: Path) -> SystemFile:
        """Create a file that only we may read."""
        return SystemFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def open(self, path: Path) -> SystemFile:
        """Open for writing at positions."""
        return SystemFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))
