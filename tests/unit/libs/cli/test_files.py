"""Files that a person names: refused before a service is asked, put in place whole, never lost."""

import errno
import os
from pathlib import Path

import pytest

from libs.cli.files import check_target, error_from_os, put_at, read_text
from libs.common.errors import Error, Exhausted, Invalid, NotFound, Precondition


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a.txt"), NotFound, "a.txt: No such"),
        (PermissionError(errno.EACCES, "Permission denied", b"a.txt"), Invalid, "a.txt: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), Exhausted, "standard input or output: No space"),
    ],
)
def test_a_file_systems_refusal_names_the_file(error: OSError, kind: type[Error], text: str) -> None:
    found = error_from_os(error)
    assert type(found) is kind
    assert found.message.startswith(text)


def test_what_was_written_takes_its_place_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with put_at(path, "--out") as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    def refused() -> None:
        with put_at(tmp_path / "out", "--out") as file:
            file.write(b"new")
            raise Precondition("the service said no")

    with pytest.raises(Precondition, match="the service said no"):
        refused()
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    with put_at(tmp_path / "link", "--out", mode=0o644) as file:
        file.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "x"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o644


def test_what_is_there_is_kept_unless_it_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("precious")
    with pytest.raises(Precondition, match=r"--out .*is there already"):
        check_target(path, "--out", replace=False)
    check_target(path, "--out")
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("path", ["/dev/full", "/dev/null", "missing/out", "file/out", "/proc/out"])
def test_where_no_file_can_be_put_is_refused_by_name(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Error, match=f"--out .*{path}"):
        check_target(tmp_path / path, "--out")


def test_text_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(NotFound, match=r"API key file .*key: No such file"):
        read_text(path, "API key file")
    path.write_bytes(b"ab\xff\xfe")
    with pytest.raises(Invalid, match=r"API key file .*key: isn't UTF-8 text at byte 2"):
        read_text(path, "API key file")
    with pytest.raises(Invalid, match="API key file /dev/zero: is longer than"):
        read_text(Path("/dev/zero"), "API key file")
    path.write_bytes(b"\xef\xbb\xbfabc")
    assert read_text(path, "API key file") == "abc"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(Invalid, match="Permission denied"):
        check_target(tmp_path / "out", "--out")
