"""Files that are whole after a crash: write beside, fsync, rename, fsync the folder."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from libs.common.errors import Exhausted

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What writing fails with where nothing more fits: the disk, a quota, a limit on the size of files."""
FULL = "the disk is full, or a quota or a limit on file sizes is reached"


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the errors of `NO_ROOM` inside the block into Exhausted, reason DISK_FULL."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise Exhausted(
                f"writing {path.name}: {FULL}; free some space and try again",
                reason="DISK_FULL",
                retry_after_s=30.0,
            ) from error
        raise


def fsync_dir(path: Path) -> None:
    """Make the names in folder `path` durable (creations, renames, removals).

    Raises:
        Exhausted: when the disk is full.
        OSError: when the folder can't be opened or synced.
    """
    with disk_errors(path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Put `data` at `path` durably: afterwards, and after a crash at any moment, it holds all old or all new.

    Args:
        path: where to; its folder must be there.
        data: the whole content.
        mode: permission bits of the file, whatever the umask.

    Raises:
        Exhausted: when the disk is full; what was there before is untouched.
        OSError: for any other fault of the file system.
    """
    with disk_errors(path):
        # mkstemp opens with 0600: a secret is never readable by others, not even for a moment.
        fd, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(name, path)  # noqa: PTH105 - a str, not a Path, comes from mkstemp
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)  # noqa: PTH108
            raise
    fsync_dir(path.parent)
