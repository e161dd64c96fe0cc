"""The demo's way to the cloud: the same `isthmus` command that a person types."""

from __future__ import annotations

import json
import subprocess
import sys
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

    def isthmus(self, *arguments: str, timeout_s: float = 120.0) -> dict[str, Any]:
        """Run a command and return its JSON object.

        Raises:
            Error: with what the command said, when it failed.
        """
        found: dict[str, Any] = json.loads(self._run(*arguments, timeout_s=timeout_s) or "{}")
        return found

    def lines(self, *arguments: str, timeout_s: float = 120.0) -> list[dict[str, Any]]:
        """Run a command and return its JSON Lines.

        Raises:
            Error: with what the command said, when it failed.
        """
        return [json.loads(line) for line in self._run(*arguments, timeout_s=timeout_s).splitlines()]

    def _run(self, *arguments: str, timeout_s: float) -> str:
        self.typed.append("isthmus " + " ".join(arguments))
        command = [sys.executable, "-m", "libs.cli.main", *self.flags, "--json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode:
            try:
                error = json.loads(done.stderr.splitlines()[-1])["error"]
                raise Error(f"{self.typed[-1]}: {error['message']}", reason=error["reason"])
            except (ValueError, KeyError, IndexError):
                raise Error(f"{self.typed[-1]}: exit {done.returncode}: {done.stderr[-2000:]}") from None
        return done.stdout
