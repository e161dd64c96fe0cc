"""The demo's way to the cloud: the same `isthmus` command that a person types."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from libs.common.errors import Error, Unavailable

UNAVAILABLE = 5
"""Exit status of a command that found a service away."""
_PAUSE_S = 0.5
_LONGEST_S = 240.0

Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(slots=True)
class Cloud:
    """Runs `isthmus` commands and reads their JSON; one that finds a service away is run again."""

    flags: list[str]
    """Flags before every command: gateway, key, tenant."""
    patience_s: float = 60.0
    """How long a service may be away."""
    typed: list[str] = field(default_factory=list)
    """Every command so far, as a person would type it."""
    repeated: int = 0
    """How often one was run again."""
    _followed_now: set[subprocess.Popen[str]] = field(default_factory=set)

    def close(self) -> None:
        """End the commands that are being followed: on an interruption nobody waits for them."""
        for process in list(self._followed_now):
            process.kill()

    def isthmus(self, *arguments: str, timeout_s: float = _LONGEST_S, done: Collection[str] = ()) -> Any:
        """Run a command and return its JSON value.

        Args:
            arguments: the command.
            timeout_s: how long one run of it may take.
            done: reasons of an error by which a repeated command learns that the run before has done it,
                though no answer came; {} is returned then.

        Raises:
            Error: with what the command said, when it failed.
        """
        return json.loads(self._run(arguments, timeout_s, done) or "{}")

    def lines(self, *arguments: str, timeout_s: float = _LONGEST_S) -> list[dict[str, Any]]:
        """Run a command and return its JSON Lines.

        Raises:
            Error: with what the command said, when it failed.
        """
        return [json.loads(line) for line in self._run(arguments, timeout_s, ()).splitlines()]

    def follow(
        self, *arguments: str, say: Say, failed: Collection[int] = (), timeout_s: float = _LONGEST_S
    ) -> int:
        """Run a command that tells people what goes on; say each line as it comes, and return its status.

        What it prints at the end isn't said: the lines come from its standard error, or, where it writes
        none, from its output.

        Args:
            arguments: the command.
            say: told each line.
            failed: exit statuses beside 0 that the caller deals with.
            timeout_s: how long one run of it may take.

        Raises:
            Error: with what the command said, when it failed otherwise.
        """

        def once() -> int:
            status, said = self._followed(arguments, say, timeout_s)
            if status and status not in failed:
                raise self._error(status, said)
            return status

        return self._again(once)

    def _followed(self, arguments: Sequence[str], say: Say, timeout_s: float) -> tuple[int, str]:
        command = self._command(arguments, as_json=False)
        logs = arguments[:2] == ("job", "logs")
        with tempfile.TemporaryFile("w+") as rest:
            out, err = (subprocess.PIPE, rest) if logs else (rest, subprocess.PIPE)
            last = ""
            with subprocess.Popen(command, stdout=out, stderr=err, text=True, env=_environment()) as process:
                self._followed_now.add(process)
                overdue = threading.Timer(timeout_s, process.kill)
                overdue.start()
                try:
                    pipe = process.stdout if logs else process.stderr
                    assert pipe is not None
                    for line in pipe:
                        last = line.rstrip()
                        # What a failure says is the caller's to tell.
                        if last and not last.startswith("error: "):
                            say(last)
                    process.wait()
                finally:
                    overdue.cancel()
                    process.kill()
                    self._followed_now.discard(process)
            rest.seek(0)
            return process.returncode, rest.read() if logs else last

    def _command(self, arguments: Sequence[str], *, as_json: bool) -> list[str]:
        self.typed.append("isthmus " + " ".join(arguments))
        return [sys.executable, "-m", "libs.cli.main", *self.flags, *(["--json"] * as_json), *arguments]

    def _error(self, code: int, said: str) -> Error:
        kind = Unavailable if code == UNAVAILABLE else Error
        command = self.typed[-1]
        try:
            error = json.loads(said.splitlines()[-1])["error"]
            return kind(f"{command}: {error['message']}", reason=error["reason"])
        except (ValueError, KeyError, IndexError, TypeError):
            return kind(f"{command}: exit {code}: {said.strip().removeprefix('error: ')[-2000:]}")

    def _run(self, arguments: Sequence[str], timeout_s: float, done: Collection[str]) -> str:
        before = self.repeated

        def once() -> str:
            command = self._command(arguments, as_json=True)
            try:
                ended = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    timeout=timeout_s,
                    check=False,
                    env=_environment(),
                )
            except subprocess.TimeoutExpired as error:
                raise Error(f"{self.typed[-1]}: not done within {timeout_s:g} s") from error
            if ended.returncode:
                failure = self._error(ended.returncode, ended.stderr)
                if failure.reason in done and self.repeated > before:
                    return ""
                raise failure
            return ended.stdout

        return self._again(once)

    def _again(self, once: Callable[[], T]) -> T:
        """Return what a command returns; run it anew while a service is away."""
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                return once()
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            self.repeated += 1
            time.sleep(_PAUSE_S)


def _environment() -> dict[str, str]:
    """Return the environment without what would come before the flags."""
    return {name: value for name, value in os.environ.items() if name != "ISTHMUS_API_KEY"}
