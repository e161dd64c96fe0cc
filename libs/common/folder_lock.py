"""One process for one folder: two that write to the same would spoil each other's files."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from libs.common.errors import Precondition


@contextlib.contextmanager
def held_folder(folder: Path, service: str, flag: str = "--data-dir") -> Iterator[None]:
    """Keep a folder for this process inside the block; the kernel lets go of it when the process dies.

    Args:
        folder: which; it must be there.
        service: the process's name, for the lock file `<service>.lock` and the message.
        flag: what says the folder.

    Raises:
        Precondition: when another process holds it, with reason DATA_DIR_TAKEN.
    """
    fd = os.open(folder / f"{service}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Precondition(
                f"{flag}: another {service} uses {folder}; stop it, or give this one its own folder",
                reason="DATA_DIR_TAKEN",
            ) from None
        yield
    finally:
        # The file stays: removing it would let two processes lock two files of the same name.
        os.close(fd)
