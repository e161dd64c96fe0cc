import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from libs.cli.main import main
from libs.cli.testing import KEY, FakeCloud, fake_cloud


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The output's lines, each with single spaces."""
        return [" ".join(line.split()) for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        """The output as one JSON value."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error of a command with --json."""
        return json.loads(self.err)["error"]


Isthmus = Callable[..., Ran]


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with fake_cloud() as cloud:
        yield cloud


@pytest.fixture
def isthmus(cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Isthmus:
    """Runs the command against the cloud."""
    monkeypatch.setenv("ISTHMUS_API_KEY", KEY)
    monkeypatch.setenv("ISTHMUS_ADDRESS", cloud.target)
    monkeypatch.setenv("ISTHMUS_TENANT", "acme")
    monkeypatch.setenv("COLUMNS", "220")

    def run(*arguments: str) -> Ran:
        capfd.readouterr()
        code = main(list(arguments))
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return run
