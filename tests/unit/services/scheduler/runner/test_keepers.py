"""Starting keepers; what they do is in `test_shim` and in the integration tests."""

import os
from pathlib import Path

import pytest

from services.scheduler.runner.folder import Folders
from services.scheduler.runner.keepers import Keeper


def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    folder = Folders(tmp_path).make("uid-1-0", b"")
    (folder.path / "shim.err").mkdir()  # can't be opened for writing
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all that is wanted
    lock = folder.take_lock()
    assert lock is not None
    with pytest.raises(IsADirectoryError):
        Keeper.start(folder, lock)
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    free = folder.take_lock()
    assert free is not None, "the lock was given back"
    os.close(free)
