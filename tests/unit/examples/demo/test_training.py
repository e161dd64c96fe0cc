"""What the demo says when training doesn't come to an end, or to a good one."""

from pathlib import Path
from typing import Any

import pytest

from examples.demo import click
from examples.demo.cloud import Cloud
from examples.demo.movielens import Film, MovieLens, Rating
from examples.demo.report import Report
from libs.common.errors import Error, Precondition, Unavailable

DATA = MovieLens({"1": Film("1", "One", "1990", [])}, {"u": [Rating("u", "1", 1.0, 2.0, 5.0)]})


class ScriptedCloud(Cloud):
    """Answers as a cloud whose job goes through states, one with each reading of it."""

    def __init__(self, *states: str, log: str = "") -> None:
        super().__init__([])
        self._states = list(states)
        self._log = log
        self.submitted: tuple[str, ...] = ()

    def isthmus(self, *arguments: str, timeout_s: float = 120.0) -> Any:
        """Answer a command."""
        match arguments[:2]:
            case ("job", "submit"):
                self.submitted = arguments
                return {}
            case ("job", "watch"):
                raise Error("it failed", reason="JOB_NOT_SUCCEEDED")
            case ("job", "explain"):
                return {"summary": "there is no node."}
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        status = {
            "state": state,
            "reason": "EXIT_CODE",
            "message": "exit code 7",
            "reservation": "tenants/t/r/1",
        }
        return {"status": status | {"workers": [{"node": "nodes/n"}]}}

    def lines(self, *arguments: str, timeout_s: float = 120.0) -> list[dict[str, Any]]:
        """Answer with the log."""
        assert arguments[:2] == ("job", "logs")
        return [{"text": self._log}]

    def stream(self, *arguments: str) -> Any:
        """Bring the log in pieces that don't end where lines do."""
        yield from ({"text": self._log[at : at + 7]} for at in range(0, len(self._log), 7))


def train(cloud: Cloud, home: Path, said: list[str]) -> None:
    """Go as far as the scenario."""
    click.ClickModel(DATA, epochs=3).scenario(cloud, home, said.append, Report("test"))


def test_a_job_that_fails_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    cloud = ScriptedCloud("STATE_PENDING", "STATE_FAILED", log="no module named torch\n")
    with pytest.raises(
        Precondition, match=r"(?s)STATE_FAILED: EXIT_CODE: exit code 7\nno module named torch"
    ):
        train(cloud, tmp_path, [])
    assert cloud.submitted[-8:] == (
        *("--", "python", "-m", "click_model", "ratings.csv", "items.csv", "--epochs", "3"),
    )
    assert f"click_model/network.py={click.PROGRAM / 'network.py'}" in cloud.submitted


def test_lines_are_said_whole_while_the_job_runs(tmp_path: Path) -> None:
    said: list[str] = []
    log = "first line of all\nsecond\nthird is longer than a piece\n"
    cloud = ScriptedCloud("STATE_STARTING", "STATE_RUNNING", "STATE_FAILED", log=log)
    with pytest.raises(Precondition, match="exit code 7"):
        train(cloud, tmp_path, said)
    assert [line.strip() for line in said if line.startswith("  ")] == log.splitlines()
    assert "starting" in said[0]


def test_a_job_that_never_starts_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click, "_START_S", 0.0)
    with pytest.raises(Unavailable, match=r"didn't start within 0 s: there is no node\."):
        train(ScriptedCloud("STATE_PENDING"), tmp_path, [])
