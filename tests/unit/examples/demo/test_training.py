"""What the demo says when training doesn't come to an end, or to a good one."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from examples.demo import training
from examples.demo.click import TRAIN, ClickModel
from examples.demo.cloud import Cloud, Say
from examples.demo.movielens import Film, MovieLens, Rating
from examples.demo.plan import QUICK
from examples.demo.progress import Progress
from examples.demo.report import Report
from examples.demo.story import titles
from libs.common.errors import Error, Precondition

DATA = MovieLens({"1": Film("1", "One", "1990", [])}, {"u": [Rating("u", "1", 1.0, 2.0, 5.0)]})
CLICK = ClickModel(DATA, QUICK)


class ScriptedCloud(Cloud):
    """Answers as a cloud whose job fails, after having written a log."""

    def __init__(self, log: str = "", broken: Error | None = None) -> None:
        super().__init__([])
        self._log = log
        self._broken = broken
        self.submitted: tuple[str, ...] = ()

    def isthmus(self, *arguments: str, timeout_s: float = 0, done: Collection[str] = ()) -> Any:
        """Answer a command."""
        if arguments[:2] == ("job", "submit"):
            self.submitted = arguments
            assert done == ("JOB_EXISTS",)
            return {}
        assert arguments[:2] == ("job", "get")
        return {"status": {"state": "STATE_FAILED", "reason": "EXIT_CODE", "message": "exit code 7"}}

    def lines(self, *arguments: str, timeout_s: float = 0) -> list[dict[str, Any]]:
        """Answer with the log."""
        assert arguments[:2] == ("job", "logs")
        return [{"text": self._log}]

    def follow(self, *arguments: str, say: Say, failed: Collection[int] = (), timeout_s: float = 0) -> int:
        """Say the log, or how the job is."""
        if arguments[:2] == ("job", "watch"):
            say("click-model  STARTING")
            return 1
        if self._broken:
            raise self._broken
        for line in self._log.splitlines():
            say(line)
        return 0


class Heard(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(titles(CLICK))
        self.said: list[str] = []
        self.shares: list[float | None] = []

    def _tell(self, text: str) -> None:
        self.said.append(text)
        if text.startswith("  "):
            self.shares.append(self.steps[TRAIN].share)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def train(heard: Heard, tmp_path: Path) -> Callable[[Cloud], object]:
    """Go as far as the scenario."""
    return lambda cloud: CLICK.scenario(cloud, tmp_path, heard, Report("test"))


def test_a_job_that_fails_at_once_is_told_with_its_log(train: Callable[[Cloud], object]) -> None:
    cloud = ScriptedCloud(log="no module named torch\n")
    with pytest.raises(
        Precondition, match=r"(?s)STATE_FAILED: EXIT_CODE: exit code 7\nno module named torch"
    ):
        train(cloud)
    command = cloud.submitted[cloud.submitted.index("--") :]
    assert command == (
        *("--", "python", "-m", "click_model", "ratings.csv", "items.csv", "--epochs", "1"),
        *("--ranker-epochs", "1", "--ranker-networks", "1"),
    )
    assert f"click_model/network.py={training.PROGRAM / 'network.py'}" in cloud.submitted
    for name in ("model=model.onnx", "ranker=ranker.onnx", "cascade=cascade.json"):
        assert name in cloud.submitted


def test_what_the_job_writes_is_said_and_counted(train: Callable[[Cloud], object], heard: Heard) -> None:
    log = [
        "epoch 1 of 1: training loss 0.6, validation AUC 0.7",
        "ranker, epoch 1 of 1: training loss 0.6",
        "something else of 1",
        "epoch 1 of 1: training loss 0.6",
        "ranker, epoch 1 of 1: training loss 0.6",
    ]
    with pytest.raises(Precondition, match="exit code 7"):
        train(ScriptedCloud(log="\n".join(log)))
    assert [line.strip() for line in heard.said if line.startswith("  ")] == log
    assert "click-model  STARTING" in heard.said
    assert heard.steps[TRAIN].share == 1.0
    # As it is before each of the lines.
    assert heard.shares == [None, 0.25, 0.5, 0.5, 0.75]


def test_a_log_that_can_not_be_read_ends_the_step(train: Callable[[Cloud], object]) -> None:
    with pytest.raises(Error, match="nobody home"):
        train(ScriptedCloud(broken=Error("nobody home")))
