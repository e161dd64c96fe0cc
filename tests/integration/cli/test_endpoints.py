"""Endpoints and experiments by the command, on real serving and a real tuner behind a real gateway."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.local.stack import Stack
from services.serving.testing_models import scale
from tests.integration.system.world import (
    UNAVAILABLE,
    WITHOUT,
    CommandFailed,
    run_isthmus,
    running_stack,
    until,
)

pytestmark = pytest.mark.timeout(300)

COMMAND = Path(sys.executable).with_name("isthmus")
QUICK = ("--concurrency", "2", "--duration", "1s")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack(without=(*WITHOUT, "engine", "scheduler", "simulator")) as stack:
        yield stack


def isthmus(stack: Stack, *arguments: str) -> Any:
    """Run a command that prints one JSON value; return it."""
    flags = ["--gateway", stack.gateway, "--api-key-file", str(stack.admin_key_file), "--json"]
    (found,) = run_isthmus(*flags, *arguments)
    return found


def patiently(stack: Stack, *arguments: str) -> Any:
    """Run such a command, again while a service is away; return what it printed."""

    def done() -> Any:
        try:
            return isthmus(stack, *arguments)
        except CommandFailed as error:
            if error.status != UNAVAILABLE:
                raise
            return None

    return until(f"{arguments} to be answered", done)


def model(folder: Path, factor: float) -> str:
    path = folder / f"scale-{factor}.onnx"
    path.write_bytes(scale(factor, 2))
    return str(path)


def asked(stack: Stack, endpoint: str, *flags: str) -> Any:
    return isthmus(stack, "endpoint", "infer", endpoint, "--inputs", '{"x": [[1, 2.5]]}', *flags)["y"]


def test_versions_are_deployed_switched_and_survive_a_kill(stack: Stack, tmp_path: Path) -> None:
    first = isthmus(stack, "endpoint", "deploy", "scale", model(tmp_path, 2.0))
    assert (first["outcome"], first["state"]) == ("deployed", "STATE_READY")
    assert first["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    assert asked(stack, "scale") == [[2.0, 5.0]]
    second = isthmus(stack, "endpoint", "deploy", "scale", model(tmp_path, 3.0))
    assert second["previous_version"] == "v1"
    assert (asked(stack, "scale"), asked(stack, "scale", "--version", "v1")) == ([[3.0, 7.5]], [[2.0, 5.0]])
    assert isthmus(stack, "endpoint", "deploy", "scale", model(tmp_path, 3.0))["outcome"] == "unchanged"
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(CommandFailed, match="it is no ONNX model"):
        isthmus(stack, "endpoint", "deploy", "scale", str(broken))
    assert asked(stack, "scale") == [[3.0, 7.5]]
    assert isthmus(stack, "endpoint", "switch", "scale", "v1")["live_version"] == "v1"
    put = isthmus(stack, "endpoint", "put", "scale", "--max-batch-rows", "8", "--max-batch-delay", "1ms")
    assert (put["outcome"], put["live_version"], put["config"]["max_batch_rows"]) == ("configured", "v1", 8)
    stack.kill("serving")
    versions = patiently(stack, "endpoint", "versions", "scale")
    assert [each["name"].rpartition("/")[2] for each in versions] == ["v2", "v1"]
    found = patiently(stack, "endpoint", "infer", "scale", "--inputs", '{"x": [[1, 2.5]]}')
    assert found == {"y": [[2.0, 5.0]]}
    assert isthmus(stack, "endpoint", "get", "scale")["config"]["max_batch_rows"] == 8
    (stats,) = [each for each in isthmus(stack, "endpoint", "stats", "scale") if each["version"] == "v1"]
    assert stats["inference_count"] == 1


def test_a_deployment_outlives_restarts_of_what_it_needs(stack: Stack, tmp_path: Path) -> None:
    for number, service in enumerate(("serving", "deployer", "gateway"), 1):
        stack.kill(service)
        done = isthmus(stack, "endpoint", "deploy", "restarted", model(tmp_path, float(number)))
        assert (done["outcome"], done["name"].rpartition("/")[2]) == ("deployed", f"v{number}")
    assert asked(stack, "restarted") == [[3.0, 7.5]]


def test_what_would_break_callers_or_can_not_be_loaded_changes_nothing(stack: Stack, tmp_path: Path) -> None:
    empty, wider = tmp_path / "empty.onnx", tmp_path / "wider.onnx"
    empty.write_bytes(b"")
    wider.write_bytes(scale(1.0, 5))
    with pytest.raises(CommandFailed, match=r"empty\.onnx: it is empty; export the model again"):
        isthmus(stack, "endpoint", "deploy", "none", str(empty))
    assert "none" not in [each["name"].rpartition("/")[2] for each in isthmus(stack, "endpoint", "list")]
    isthmus(stack, "endpoint", "deploy", "narrow", model(tmp_path, 2.0))
    with pytest.raises(CommandFailed, match="--allow-other-signature"):
        isthmus(stack, "endpoint", "deploy", "narrow", str(wider))
    assert asked(stack, "narrow") == [[2.0, 5.0]]
    allowed = isthmus(stack, "endpoint", "deploy", "narrow", str(wider), "--allow-other-signature")
    assert allowed["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 5]}]


def test_mistakes_are_told_by_name(stack: Stack) -> None:
    with pytest.raises(CommandFailed, match="no model 'scal'; did you mean 'scale'") as refused:
        asked(stack, "scal")
    assert refused.value.status == 4
    with pytest.raises(CommandFailed, match="input 'x': has the shape"):
        isthmus(stack, "endpoint", "infer", "scale", "--inputs", '{"x": [[1]]}')
    with pytest.raises(CommandFailed, match="did you mean 'max_batch_rows'"):
        isthmus(stack, "tune", "run", "scale", "--vary", "max_batch_row=1,2")


def test_an_experiment_is_followed_over_the_death_of_the_tuner_and_applied(stack: Stack) -> None:
    """Each trial is told once, and the command's status is that of the application."""
    flags = ["--gateway", stack.gateway, "--api-key-file", str(stack.admin_key_file)]
    command = [
        str(COMMAND),
        *flags,
        "tune",
        "run",
        "scale",
        "--id",
        "e1",
        "--vary",
        "max_batch_rows=1,8",
        *QUICK,
    ]
    with (
        tempfile.TemporaryFile("w+") as out,
        subprocess.Popen(
            [*command, "--apply"], stdout=out, stderr=subprocess.PIPE, text=True, env=_environment()
        ) as process,
    ):
        assert process.stderr is not None
        try:
            said = ""
            for line in process.stderr:
                said += line
                if "] 1/2" in line:
                    stack.kill("tuner")
            status = process.wait(timeout=120)
        finally:
            process.kill()
        out.seek(0)
        shown = out.read()
    assert [mark in said for mark in ("] 1/2", "] 2/2", "] 3/2")] == [True, True, False], said
    assert "(waiting for it)" in said
    found = isthmus(stack, "tune", "get", "e1")
    assert (found["state"], found["succeeded_count"]) == ("STATE_SUCCEEDED", 2)
    state = found["application"]["state"]
    # On a machine that is busy with other things it may do worse by chance.
    assert (state, status) in [("STATE_APPLIED", 0), ("STATE_ROLLED_BACK", 1)], shown + said
    best = found["best_trial"]
    assert f"trial {best} {state.removeprefix('STATE_')}" in " ".join(shown.split())
    trials = isthmus(stack, "tune", "trials", "e1")
    assert {each["point"]["max_batch_rows"] for each in trials} == {1, 8}
    rows = isthmus(stack, "endpoint", "get", "scale")["config"]["max_batch_rows"]
    assert rows == (trials[best - 1]["point"]["max_batch_rows"] if status == 0 else 8)
    assert isthmus(stack, "tune", "delete", "e1") == {"deleted": "tenants/default/experiments/e1"}


def test_taking_the_stack_down_takes_trials_along(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(
        "model: scale\n"
        "parameters: [{name: instance_count, values: [1, 2]}]\n"
        "objective: {metric: goodput_rps}\n"
        "load: {concurrency: 1, duration: 10m}\n"
    )
    assert isthmus(stack, "tune", "run", "--file", str(file))["state"] == "STATE_RUNNING"
    home = str(stack.layout.home)
    until("an instance on trial", lambda: [each for each in _processes(home) if "/tuner/trials" in each])
    stack.down()
    assert _processes(home) == []


def _processes(home: str) -> list[str]:
    """Return the command lines of processes that work in a stack's home."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return [each for each in found if home in each]


def _environment() -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")}
    return {**mine, "TERM": "dumb"}
