import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local import topology
from deploy.local.ports import free_offset
from deploy.local.stack import Stack

FAKE = Path(__file__).with_name("fake_service.py")
WITHOUT = ("engine", "grafana", "prometheus", "scheduler", "serving", "simulator")


@pytest.fixture
def fake_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put processes that only serve their health in the services' places."""
    real = topology.services

    def services(*arguments):  # type: ignore[no-untyped-def]
        return [
            dataclasses.replace(process, command=(sys.executable, str(FAKE), process.name))
            for process in real(*arguments)
        ]

    monkeypatch.setattr(topology, "services", services)


@pytest.fixture
def offset(tmp_path: Path) -> int:
    """A port offset by which a stack runs beside whatever runs here."""
    return free_offset(Stack(tmp_path / "nowhere").ports())


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Makes stacks that are down again after the test."""
    made: list[Stack] = []

    def make(offset: int, name: str = "home", tls: bool = False, **environ: str) -> Stack:
        stack = Stack(tmp_path / name, offset, without=WITHOUT, tls=tls, environ={**os.environ, **environ})
        made.append(stack)
        return stack

    yield make
    for stack in made:
        stack.down()
