"""Files that a person names: read with clear errors, checked before a service is called, written whole."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from libs.common.errors import Error, Exhausted, Invalid, NotFound, Precondition
from libs.common.fsio import fsync_dir
from libs.common.sizes import size_text

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MAX_TEXT_BYTES = 1024 * 1024
# Room that is made sure of before a service is asked for a secret that it says once.
_SECRET_BYTES = 4096


def error_from_os(error: OSError, what: str = "") -> Error:
    """Return a file system's refusal as an error that names the file, or else `what`."""
    name = what or os.fsdecode(error.filename or "") or "standard input or output"
    message = f"{name}: {error.strerror or error}"
    if isinstance(error, FileNotFoundError):
        return NotFound(message, reason="NO_FILE")
    if error.errno in _FULL:
        return Exhausted(message, reason="DISK_FULL")
    return Invalid(message, reason="BAD_FILE")


def read_text(path: Path, what: str, *, most: int = _MAX_TEXT_BYTES, instead: str = "") -> str:
    """Return the text of a file of `most` bytes; `what` says what it is, for messages.

    `instead` says what to do with a longer one.

    Raises:
        Invalid, NotFound: when it can't be read or isn't UTF-8, naming it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise error_from_os(error, f"{what} {path}") from error
    if len(data) > most:
        more = f"; {instead}" if instead else ""
        raise Invalid(f"{what} {path}: is longer than {size_text(most)}{more}", reason="TOO_LARGE")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(f"{what} {path}: isn't UTF-8 text at byte {error.start}", reason="NOT_TEXT") from error


def check_target(path: Path, flag: str, *, replace: bool = True) -> None:
    """Make sure that a file can be put at `path`; what is there stays untouched.

    Raises:
        Precondition: when it is there already and `replace` is false.
        Invalid, NotFound, Exhausted: when its folder isn't there or can't be written, or something that is no
            file is in the way; `flag` is named.
    """
    with put_at(path, flag, replace=replace, keep=False):
        pass


@contextlib.contextmanager
def put_at(
    path: Path, flag: str, *, replace: bool = True, keep: bool = True, mode: int = 0o600
) -> Iterator[BinaryIO]:
    """Open a file beside `path` that takes its place, with `mode`, when the block ends well.

    What can be found out before is found out before the block: the folder, its permissions, some room on its
    disk. Without `keep` nothing is put in place.

    Raises:
        Error: as `check_target`.
    """
    what = f"{flag} {path}"
    try:
        target = path.resolve()  # A link stays one, and what it points to is replaced.
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(target.stat().st_mode):
                raise Invalid(f"{what}: is no plain file; name one", reason="BAD_FILE")
            if not replace:
                raise Precondition(
                    f"{what}: is there already and isn't overwritten; name another file", reason="EXISTS"
                )
        # mkstemp opens with 0600: a secret is never readable by others, not even for a moment.
        fd, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", suffix=".part", dir=target.parent)
        part = Path(name)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(bytes(_SECRET_BYTES))
                file.flush()
                os.fsync(fd)
                file.seek(0)
                yield file
                file.truncate()
                os.fchmod(fd, mode)
                file.flush()
                os.fsync(fd)
            if keep:
                part.replace(target)
                fsync_dir(target.parent)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise error_from_os(error, what) from error
