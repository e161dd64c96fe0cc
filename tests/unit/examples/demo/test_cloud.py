"""How the demo types commands: again while a service is away, and never twice what was done."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.demo import cloud as module
from examples.demo.cloud import UNAVAILABLE, Cloud
from libs.common.errors import Error, Unavailable

Script = Callable[..., Cloud]


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Return a cloud whose command is a script that knows how often it ran before."""
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)

    def make(text: str, patience_s: float = 60.0) -> Cloud:
        counted = tmp_path / "count"
        script = tmp_path / "script.py"
        script.write_text(
            "import json, pathlib, sys\n"
            f"count = pathlib.Path({str(counted)!r})\n"
            "before = len(count.read_text()) if count.exists() else 0\n"
            "count.write_text('x' * (before + 1))\n"
            "def fail(code, reason):\n"
            "    sys.stderr.write(json.dumps({'error': {'reason': reason, 'message': 'why'}}) + '\\n')\n"
            "    sys.exit(code)\n" + text,
            "utf-8",
        )

        class Scripted(Cloud):
            def _command(self, arguments: object, *, as_json: bool) -> list[str]:
                super()._command(("job", "get"), as_json=as_json)
                return [sys.executable, str(script)]

        return Scripted([], patience_s)

    return make


def test_a_command_is_repeated_while_a_service_is_away(scripted: Script) -> None:
    cloud = scripted(f"before < 2 and fail({UNAVAILABLE}, 'CONNECTION_LOST')\nprint('{{\"n\": 7}}')")
    assert cloud.isthmus("job", "get", "x") == {"n": 7}
    assert cloud.repeated == 2


def test_patience_ends(scripted: Script) -> None:
    cloud = scripted(f"fail({UNAVAILABLE}, 'CONNECTION_LOST')", patience_s=0.0)
    with pytest.raises(Unavailable, match="job get: why") as caught:
        cloud.isthmus("job", "get", "x")
    assert caught.value.reason == "CONNECTION_LOST"


def test_what_a_lost_answer_has_done_is_not_an_error(scripted: Script) -> None:
    text = f"fail({UNAVAILABLE}, 'CONNECTION_LOST') if not before else fail(1, 'JOB_EXISTS')"
    assert scripted(text).isthmus("job", "submit", done=("JOB_EXISTS",)) == {}


def test_what_somebody_else_made_is_an_error(scripted: Script) -> None:
    with pytest.raises(Error, match="why") as caught:
        scripted("fail(1, 'JOB_EXISTS')").isthmus("job", "submit", done=("JOB_EXISTS",))
    assert caught.value.reason == "JOB_EXISTS"


def test_lines_are_said_as_they_come_and_a_known_failure_is_a_status(scripted: Script) -> None:
    said: list[str] = []
    cloud = scripted("sys.stderr.write('one\\ntwo\\nerror: it failed\\n')\nprint('table')\nsys.exit(1)")
    assert cloud.follow("release", "watch", say=said.append, failed=(1,)) == 1
    assert said == ["one", "two"]
    with pytest.raises(Error, match="it failed"):
        cloud.follow("release", "watch", say=said.append)


def test_a_log_comes_from_the_output(scripted: Script) -> None:
    said: list[str] = []
    assert scripted("print('epoch 1')\nprint('epoch 2')").follow("job", "logs", say=said.append) == 0
    assert said == ["epoch 1", "epoch 2"]


def test_a_command_that_hangs_is_ended(scripted: Script) -> None:
    cloud = scripted("import time\nprint('up', file=sys.stderr, flush=True)\ntime.sleep(600)")
    with pytest.raises(Error):
        cloud.follow("release", "watch", say=lambda _: None, timeout_s=3.0)
