"""`isthmus blob`: files up and down, checked."""

from pathlib import Path

import pytest

from libs.cli.testing import FakeCloud
from tests.unit.libs.cli.groups.conftest import Isthmus


def test_a_file_goes_up_and_comes_down_again(cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path) -> None:
    file, out = tmp_path / "file", tmp_path / "out"
    file.write_bytes(bytes(range(256)) * 5000)
    stored = isthmus("blob", "put", str(file), "--json").json
    assert cloud.blobs[stored["digest"]] == file.read_bytes()
    got = isthmus("blob", "get", stored["digest"], "--out", str(out), "--json")
    assert got.json == {"digest": stored["digest"], "size_bytes": 1_280_000, "file": str(out)}
    assert out.read_bytes() == file.read_bytes()


def test_other_bytes_than_the_digest_says_are_refused(
    cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path
) -> None:
    digest = cloud.put(b"as it was").digest
    cloud.blobs[digest] = b"as it is!"
    ran = isthmus("blob", "get", digest, "--out", str(tmp_path / "out"))
    assert ran.code != 0
    assert f"expected {digest}" in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("get", "sha256:gone", "--out", "{folder}/out"), 4, "sha256:gone: not found"),
        (("get", "sha256:gone", "--out", "/nowhere/out"), 4, "--out /nowhere/out: No such file"),
        (("put", "{folder}/nothing"), 4, "/nothing: No such file"),
        (("put", "/dev/null"), 2, "/dev/null: is no plain file"),
    ],
)
def test_what_is_wrong_is_told(
    isthmus: Isthmus, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ran = isthmus("blob", *(each.format(folder=tmp_path) for each in arguments))
    assert ran.code == code, ran.err
    assert said in ran.err


def test_progress_is_told_once_for_each_tenth(isthmus: Isthmus, tmp_path: Path) -> None:
    file = tmp_path / "large"
    with file.open("wb") as large:
        large.truncate(40 * 512 * 1024)
    ran = isthmus("blob", "put", str(file))
    assert ran.err.splitlines() == [f"large: {percent} %" for percent in range(10, 101, 10)]
    half = tmp_path / "half"
    half.write_bytes(bytes(8 * 512 * 1024))
    assert isthmus("blob", "put", str(half)).err == ""
