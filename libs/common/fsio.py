"""Files that are whole after a crash: write beside, fsync, rename, fsync the folder. And their removal."""

import contextlib
import errno
import itertools
import os
import stat
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


def remove_tree(path: Path) -> bool:
    """Remove a file, or a folder with all that is in it; return whether it is gone. Blocks.

    For folders that strangers' code wrote to. They may be nested deeper than `shutil.rmtree` can follow, have
    paths longer than the kernel takes, or forbid their owner to look inside. So each folder is moved to the
    top before it is emptied. Symlinks are removed, never followed.
    """
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            top = _open_folder(path)
            try:
                _empty(top)
            finally:
                os.close(top)
            path.rmdir()
        else:
            path.unlink()
    except OSError:
        return not os.path.lexists(path)
    return True


def _empty(top: int) -> None:
    """Remove all that is in an open folder; raises OSError for what can't be removed."""
    numbers = itertools.count()
    while True:
        with os.scandir(top) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        if not found:
            return
        for name, is_folder in found:
            if not is_folder:
                os.unlink(name, dir_fd=top)
                continue
            folder = _open_folder(name, top)
            try:
                _raise_folders(folder, top, numbers)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)


def _raise_folders(folder: int, top: int, numbers: Iterator[int]) -> None:
    """Remove the files of an open folder, and move its folders to `top`, to be emptied there."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
            continue
        os.close(_open_folder(name, folder))  # a folder that may not be written can't be moved
        for number in numbers:
            try:
                os.rename(name, f".{number}", src_dir_fd=folder, dst_dir_fd=top)
                break
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise  # else something has this name


def _open_folder(path: Path | str, parent: int | None = None) -> int:
    """Open a folder, having made sure that its owner may do everything there."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, dir_fd=parent)
    except PermissionError:
        # By way of the folder itself: `chmod` of a name would follow a symlink that takes its place.
        itself = os.open(path, flags | os.O_PATH, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{itself}", 0o700)  # noqa: PTH101
        finally:
            os.close(itself)
        return os.open(path, flags, dir_fd=parent)
    try:
        if os.fstat(fd).st_mode & 0o700 != 0o700:
            os.fchmod(fd, 0o700)
    except BaseException:
        os.close(fd)
        raise
    return fd
