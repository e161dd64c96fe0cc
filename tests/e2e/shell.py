"""A reader's terminal: commands of the documents, typed one by one or pasted, beside a stack of its own."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Queue

from deploy.local.layout import ROOT
from deploy.local.stack import Stack
from tests.integration.system.world import PATIENCE_S


def commands(text: str) -> list[str]:
    """Return the commands of a block of shell."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip()]


def blocks(text: str) -> list[str]:
    """Return the blocks of shell of a document."""
    return re.findall(r"```sh\n(.*?)```", text, re.DOTALL)


class Shell:
    """A bash in which commands are typed one after the other."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._count = 0

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def type(self, command: str) -> tuple[int, str]:
        """Type a command; return its exit status and what was printed meanwhile."""
        (done,) = self.paste([command])
        return done

    def paste(self, commands: Sequence[str]) -> list[tuple[int, str]]:
        """Type commands all at once, waiting for none; return each one's exit status and what it printed.

        A command that reads its standard input would swallow those behind it, as in a reader's terminal.
        """
        assert self._process.stdin is not None
        marks = [f"typed-{self._count + number}-" for number in range(len(commands))]
        self._count += len(commands)
        text = "".join(f"{command}\necho {mark}$?\n" for command, mark in zip(commands, marks, strict=True))
        self._process.stdin.write(text)
        self._process.stdin.flush()
        return [self._until(mark, command) for command, mark in zip(commands, marks, strict=True)]

    def _until(self, mark: str, command: str) -> tuple[int, str]:
        said, deadline = "", time.monotonic() + 2 * PATIENCE_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise AssertionError(f"`{command}` isn't done; so far it said:\n{said}") from None
            before, marked, status = line.partition(mark)
            said += before
            if marked:
                return int(status), said

    def close(self) -> None:
        """End it, and what it started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join(timeout=20)
        self._process.stdin.close()
        self._process.stdout.close()


class Checkout:
    """A folder that a reader takes for the checkout, with a stack of its own on other ports."""

    def __init__(self, folder: Path, offset: int) -> None:
        self.stack = Stack(folder / "var", offset)
        self._port = self.stack.gateway
        for name in (".venv", "examples"):
            (folder / name).symlink_to(ROOT / name)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")}
        self.shell = Shell(
            folder,
            clean | {"ISTHMUS_HOME": str(folder / "var"), "XDG_CONFIG_HOME": str(folder / "config")},
        )
        self._flags = f"--port-offset {offset} --without prometheus --without grafana"

    def type(self, command: str) -> tuple[int, str]:
        """Type a command of the README."""
        return self.shell.type(self._here(command))

    def paste(self, commands: Sequence[str]) -> list[tuple[int, str]]:
        """Type commands of the README, all at once."""
        return self.shell.paste([self._here(command) for command in commands])

    def _here(self, command: str) -> str:
        """Return a command for this stack's port and with what `make` would run."""
        if command.startswith("make "):
            target = command.split()[1]
            recipe = subprocess.run(
                [
                    "make",
                    "--dry-run",
                    "--no-print-directory",
                    target,
                    f"ARGS={self._flags if target == 'up' else ''}",
                ],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.splitlines()
            # The last line is the target's own; those before set the environment up, in which we are.
            command = f"(cd {ROOT} && {recipe[-1]})"
        return command.replace("127.0.0.1:7400", self._port)
