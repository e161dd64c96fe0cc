"""etcd in the stack: there for the scheduler alone, and asked for clearly where it isn't installed."""

from pathlib import Path

import pytest

from deploy.local import stack as stack_module
from deploy.local.errors import StackError
from deploy.local.stack import Stack
from libs.common.errors import Precondition

WITHOUT = ("grafana", "prometheus")


def missing() -> Path:
    raise Precondition("etcd isn't installed", reason="NO_ETCD")


def test_a_machine_without_etcd_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_module, "find_etcd", missing)
    with pytest.raises(
        StackError, match=r"etcd isn't installed; or leave the scheduler out.*--without scheduler"
    ):
        Stack(tmp_path, without=WITHOUT, environ={}).processes()


def test_without_the_scheduler_nobody_asks_for_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_module, "find_etcd", missing)
    found = Stack(tmp_path, without=(*WITHOUT, "scheduler"), environ={})
    names = {process.name for process in found.processes()}
    assert {"deployer", "engine", "gateway"} < names
    assert not {"etcd", "scheduler", "runner"} & names
    assert not {7379, 7378, 8379} & set(found.ports())


def test_etcd_comes_first_and_is_no_service_of_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_module, "find_etcd", lambda: Path("/opt/etcd"))
    found = Stack(tmp_path, without=WITHOUT, environ={})
    etcd, *others = found.processes()
    assert (etcd.name, etcd.command[0]) == ("etcd", "/opt/etcd")
    assert etcd.start_order < min(process.start_order for process in others)
    assert "etcd" not in found.endpoints
    assert {7379, 7378, 8379} <= set(found.ports())
