import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from libs.common.errors import Exhausted
from libs.common.fsio import fsync_dir, remove_tree, write_atomic


def test_the_file_holds_the_data_with_the_mode_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        write_atomic(tmp_path / "a", b"one")
        write_atomic(tmp_path / "b", b"two", mode=0o600)
    finally:
        os.umask(old)
    assert (tmp_path / "a").read_bytes() == b"one"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_leaves_the_old_content_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"old")

    def full(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Exhausted, match="disk is full") as caught:
        write_atomic(path, b"new")
    assert caught.value.reason == "DISK_FULL"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_another_fault_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "missing" / "a", b"x")
    with pytest.raises(FileNotFoundError):
        fsync_dir(tmp_path / "missing")


def test_a_crash_before_the_rename_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"old")

    def crash(source: str, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_tree_is_removed_and_what_its_links_point_to_stays(tmp_path: Path) -> None:
    kept, tree = tmp_path / "kept", tmp_path / "tree"
    kept.mkdir()
    (kept / "file").write_bytes(b"x")
    for name in ("a/b/c", "a/d", ".0", "e/.1"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").write_bytes(b"x")
    (tree / ".2").write_bytes(b"x")
    (tree / "a" / "link").symlink_to(kept)
    (tree / "link").symlink_to(kept / "file")
    assert remove_tree(tree)
    assert list(tmp_path.iterdir()) == [kept]
    assert remove_tree(tree)
    (tmp_path / "alone").symlink_to(kept)
    assert remove_tree(tmp_path / "alone")
    assert (kept / "file").read_bytes() == b"x"
    assert remove_tree(kept / "file")
    assert list(kept.iterdir()) == []


@pytest.mark.parametrize("name", ["d", "d" * 250])
def test_a_tree_that_is_deeper_than_python_recurses_is_removed(tmp_path: Path, name: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    there = os.open(tree, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir(name, dir_fd=there)
        below = os.open(name, os.O_RDONLY, dir_fd=there)
        os.close(there)
        there = below
    os.close(there)
    assert remove_tree(tree)
    assert not tree.exists()


def as_nobody(folder: Path, work: Callable[[], bool]) -> bool:
    """Return what `work` returns when a user without root's rights does it in `folder`."""
    if os.geteuid():
        raise AssertionError("only root can be somebody else")
    os.chown(folder, 65534, 65534)
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(folder)
            os.setgid(65534)
            os.setuid(65534)
            # Who changes users may not see its own /proc/self/fd; who was this user all along may.
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_folders_that_forbid_their_owner_to_look_are_removed(tmp_path: Path) -> None:
    def work() -> bool:
        for name in ("closed", "blind", "fixed"):
            Path("tree", name, "inner").mkdir(parents=True)
        Path("tree/closed").chmod(0)
        Path("tree/blind").chmod(0o300)
        Path("tree/fixed").chmod(0o500)
        Path("tree").chmod(0o500)
        return remove_tree(Path("tree")) and not Path("tree").exists()

    assert as_nobody(tmp_path, work)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_what_cannot_be_removed_is_said(tmp_path: Path) -> None:
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    assert as_nobody(tmp_path, lambda: not remove_tree(Path("tree")))
    assert (tmp_path / "tree" / "inner").exists()
