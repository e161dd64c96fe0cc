"""A task's model: its plan, read and checked once, run by `libs.runtime` between the scripts.

The runtime, and numpy with it, is imported when the first task with a model is loaded: workers that run
scripts alone stay small.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.task import Context

# ruff: noqa: TID252
from .failed import Failed
from .imports import OwnPackages

if TYPE_CHECKING:
    from libs.runtime.program import Program

_MAX_BINDINGS = 2
"""Of one task: more sizes than that in turn would only keep memory."""


class Runtime:
    """Loads plans; `prepare` comes first."""

    def __init__(self, packages: OwnPackages, held: Callable[[], int]) -> None:
        """Take the importer, and what tells how much memory this process holds more than at its start."""
        self._packages = packages
        self._held = held
        self._make: Callable[[bytes, int], Program] | None = None
        self._error: type[Any] = Exception
        self._fault = ""
        self.held_bytes = 0
        """Of the runtime itself."""

    def prepare(self) -> None:
        """Import the runtime unless that is done: outside a task's limits, so that it counts for none."""
        if self._make is not None:
            return
        before = self._held()
        try:
            self._make, self._error = self._import()
        except ImportError as error:
            self._fault = f"this device can't run models: {error}"[:1000]
        self.held_bytes = max(0, self._held() - before)

    def load(self, plan: Mapping[str, Any], root: Path, memory_bytes: int) -> Model:
        """Read, verify and check a plan; raise Failed, LOAD_ERROR, for anything wrong with it."""
        path, digest = plan["path"], plan["digest"]
        if self._make is None:
            raise Failed("LOAD_ERROR", self._fault)
        before = self._held()
        try:
            data = (root / path).read_bytes()
        except OSError as error:
            raise Failed("LOAD_ERROR", f"{path} can't be read: {error.strerror}") from None
        found = "sha256:" + hashlib.sha256(data).hexdigest()
        if found != digest:
            raise Failed("LOAD_ERROR", f"{path} has the digest {found}, not {digest}; it is not run")
        try:
            program = self._make(data, memory_bytes)
        except self._error as error:
            raise Failed("LOAD_ERROR", f"{path}: {error.message}") from None
        del data
        return Model(path, program, self._error, max(0, self._held() - before))

    def _import(self) -> tuple[Callable[[bytes, int], Program], type[Any]]:
        with self._packages.lent():
            from libs.common.errors import Error
            from libs.runtime.codec import decode
            from libs.runtime.program import Program, warm_up

        def make(data: bytes, memory_bytes: int) -> Program:
            return Program(decode(data), max_buffer_bytes=memory_bytes, max_bindings=_MAX_BINDINGS)

        warm_up()
        return make, Error


class Model:
    """A loaded plan, as a step of a run.

    Attributes:
        path: of the plan, for messages.
        held_bytes: what it keeps in memory, roughly.
    """

    def __init__(self, path: str, program: Program, error: type[Any], held_bytes: int) -> None:
        self.path = path
        self.held_bytes = held_bytes
        self._program = program
        self._error = error

    def first(self, context: Context) -> dict[str, Any]:
        """Run on the pipeline's features: the input "clicks.count" is the output `count` of `clicks`."""
        found = {
            f"{name}.{output}": value
            for name, outputs in context.features.items()
            if isinstance(outputs, dict)
            for output, value in outputs.items()
        }
        wanted = {spec.name for spec in self._program.inputs}
        return self.later(context, {name: value for name, value in found.items() if name in wanted})

    def later(self, _context: Context, value: Any) -> dict[str, Any]:
        """Run on what the phase before returned; return the outputs as arrays.

        Raises Failed: BAD_INPUT, MEMORY, or LOAD_ERROR for a plan that isn't sound at these sizes.
        """
        try:
            return self._program.run(value)
        except self._error as error:
            reasons = {"BAD_INPUT": "BAD_INPUT", "TOO_MUCH_MEMORY": "MEMORY"}
            reason = reasons.get(error.reason, "LOAD_ERROR")
            raise Failed(reason, f"{self.path}: {error.message}"[:4096]) from None


def as_lists(outputs: Mapping[str, Any]) -> dict[str, object]:
    """Return the outputs of a model as JSON holds them: sequences are lists, nothing is None."""
    return {name: _as_lists(value) for name, value in outputs.items()}


def _as_lists(value: Any) -> object:
    if isinstance(value, list):
        return [_as_lists(item) for item in value]
    return None if value is None else value.tolist()
