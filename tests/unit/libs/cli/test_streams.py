"""The command as a process whose output can't be written, or that nobody reads."""

import subprocess
import sys
from pathlib import Path

import pytest

ISTHMUS = [sys.executable, "-m", "libs.cli.main"]


def run(arguments: list[str], output: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    with Path(output).open("wb") as stdout:
        return subprocess.run(
            [*ISTHMUS, *arguments],
            cwd=tmp_path,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )


@pytest.mark.parametrize("arguments", [["--help"], ["task", "init", "clicks"], ["completion", "bash"]])
def test_a_full_disk_is_said_in_one_line(arguments: list[str], tmp_path: Path) -> None:
    done = run(arguments, "/dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard ")
    assert done.stderr.endswith("No space left on device\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["task", "init", "clicks"]])
def test_a_reader_that_has_gone_is_no_fault(arguments: list[str], tmp_path: Path) -> None:
    child = subprocess.Popen(
        [*ISTHMUS, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.close()
    _, said = child.communicate(timeout=120)
    assert (child.returncode, said) == (0, b"")
