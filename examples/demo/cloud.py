"""The demo's way to the cloud: the same `isthmus` command that a person types."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from libs.common.errors import Error


@dataclass(slots=True)
class Cloud:
    """Runs `isthmus` commands and reads their JSON."""

    flags: list[str]
    """Flags before every command: gateway, key, tenant."""
    typed: list[str] = field(default_factory=list)
    """Every command so far, as a person would type it."""

    def isthmus(self, *arguments: str, timeout_s: float = 120.0) -> Any:
        """Run a command and return its JSON value.

        Raises:
            Error: with what the command said, when it failed.
        """
        return json.loads(self._run(*arguments, timeout_s=timeout_s) or "{}")

    def lines(self, *arguments: str, timeout_s: float = 120.0) -> list[dict[str, Any]]:
        """Run a command and return its JSON Lines.

        Raises:
            Error: with what the command said, when it failed.
        """
        return [json.loads(line) for line in self._run(*arguments, timeout_s=timeout_s).splitlines()]

    def stream(self, *arguments: str) -> Iterator[dict[str, Any]]:
        """Run a command and yield its JSON Lines as they come.

        Raises:
            Error: with what the command said, when it failed.
        """
        command = self._command(arguments)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                for line in process.stdout:
                    yield json.loads(line)
                said = process.stderr.read()
            finally:
                process.terminate()
        if process.returncode:
            raise self._error(process.returncode, said)

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        self.typed.append("isthmus " + " ".join(arguments))
        return [sys.executable, "-m", "libs.cli.main", *self.flags, "--json", *arguments]

    def _error(self, code: int, said: str) -> Error:
        try:
            error = json.loads(said.splitlines()[-1])["error"]
            return Error(f"{self.typed[-1]}: {error['message']}", reason=error["reason"])
        except (ValueError, KeyError, IndexError):
            return Error(f"{self.typed[-1]}: exit {code}: {said[-2000:]}")

    def _run(self, *arguments: str, timeout_s: float) -> str:
        command = self._command(arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode:
            raise self._error(done.returncode, done.stderr)
        return done.stdout
