import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
# Presses Ctrl-C while a module is being imported, then runs what the installed script runs.
PRESSED = """
import os, signal, sys
from importlib import import_module
class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Presses())
sys.argv[1:] = {arguments!r}
sys.exit(getattr(import_module({start!r}), {function!r})())
"""


def entry() -> tuple[str, str]:
    start, _, function = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"][
        "isthmus"
    ].partition(":")
    return start, function


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )


@pytest.mark.parametrize(
    "module", ["click", "google.protobuf", "grpc._cython", "libs.cli.main", "libs.cli.groups.task"]
)
def test_ctrl_c_while_the_command_is_imported_ends_it_quietly(module: str) -> None:
    start, function = entry()
    arguments = ["task", "list", "--help"]
    done = run(PRESSED.format(module=module, arguments=arguments, start=start, function=function))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_command_ends_as_it_does_without_a_signal() -> None:
    start, function = entry()
    done = run(PRESSED.format(module="nothing", arguments=["--help"], start=start, function=function))
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: isthmus" in done.stdout


def test_what_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    start, function = entry()
    code = PRESSED.format(module="click", arguments=["--help"], start=start, function=function)
    done = run(code.replace("sys.meta_path", "signal.signal(signal.SIGINT, signal.SIG_IGN); sys.meta_path"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: isthmus" in done.stdout


def test_no_table_library_is_imported_before_there_is_a_table() -> None:
    done = run("import sys, libs.cli.groups.task; print(sorted({'rich', 'numpy'} & set(sys.modules)))")
    assert done.stdout.strip() == "[]", done.stderr
