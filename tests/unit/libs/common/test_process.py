import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from libs.common.config import ServiceConfig
from libs.common.errors import Precondition
from libs.common.logs import JsonFormatter
from libs.common.process import EXIT_CONFIG, EXIT_FAILED, run_service


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ServiceConfig):
    """Settings of a service under test."""

    password: str = field(default="", metadata={"help": "for the peer", "secret": True})


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    for handler in root.handlers[:]:
        if isinstance(handler.formatter, JsonFormatter):
            root.removeHandler(handler)


async def serve(config: Config) -> None:
    logging.getLogger("isthmus.test").info("serving as %s", config.password)


def test_it_logs_its_settings_without_secrets_and_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_service("echo", Config, serve, ["--port", "7"], {"ISTHMUS_ECHO_PASSWORD": "hunter2"}) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["message"], first["service"]) == ("starting", "echo")
    assert first["config"]["port"] == 7
    assert first["config"]["password"] == "***"
    assert second["message"] == "serving as hunter2"


def test_help_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_service("echo", Config, serve, ["--help"], {}) == 0
    assert "ISTHMUS_ECHO_PASSWORD" in capsys.readouterr().out


def test_wrong_settings_are_told_at_once_and_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    async def never(config: Config) -> None:
        raise AssertionError("it ran")

    assert run_service("echo", Config, never, ["--prot", "7", "--log-level", "LOUD"], {}) == EXIT_CONFIG
    told = capsys.readouterr().err
    assert "did you mean '--port'?" in told
    assert "LOUD" in told


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Precondition("port: 7 is taken; choose another", reason="PORT_TAKEN"), "port: 7 is taken"),
        (FileNotFoundError(2, "No such file or directory", "server.pem"), "server.pem"),
    ],
)
def test_a_start_that_fails_is_one_line_without_a_traceback(
    fault: Exception, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(config: Config) -> None:
        raise fault

    assert run_service("echo", Config, fail, [], {}) == EXIT_FAILED
    *_, last = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert last["level"] == "ERROR"
    assert last["message"].startswith("can't start: ")
    assert words in last["message"]
    assert "exception" not in last


def test_being_interrupted_is_no_failure() -> None:
    async def interrupted(config: Config) -> None:
        raise KeyboardInterrupt

    assert run_service("echo", Config, interrupted, [], {}) == 0


def test_a_fault_of_ours_is_not_hidden() -> None:
    async def broken(config: Config) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_service("echo", Config, broken, [], {})
