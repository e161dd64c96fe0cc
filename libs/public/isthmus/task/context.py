"""The context of one run: what woke the task, what it may read, where its output goes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy import ndarray

MAX_FRAMES = 256
MAX_LOG_CHARACTERS = 64 * 1024
MAX_ASKS = 64
MAX_ASK_INPUTS = 32
MAX_ASK_S = 30.0

_UNITS = {"ms": 0.001, "s": 1.0}
_TIMEOUT = re.compile(r"([0-9]{1,5})(ms|s)")


class TaskError(Exception):
    """The script used its context wrongly; the message says how."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to one user at one moment."""

    event_id: str
    type: str
    page: str
    user: str
    time_s: float
    """Event time in Unix seconds, by the device's clock."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """JSON scalars, or lists of scalars, by name."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return the field `name`, or `default` when the event hasn't got it."""
        return self.fields.get(name, default)


@dataclass(frozen=True, slots=True)
class Frame:
    """What `Context.send` queued."""

    stream: str
    fields: dict[str, Any]


class Asker(Protocol):
    """Whoever carries a request to a model in the cloud; a test may put in a function of its own."""

    def __call__(
        self, model: str, inputs: Mapping[str, Any], timeout_s: float, outputs: Sequence[str]
    ) -> tuple[dict[str, ndarray] | None, str]:
        """Return the outputs, or None and why there are none."""
        ...


class Context:
    """One run of a task. Made by whoever runs the script: the device agent, the simulator, or a test.

    Args:
        task: the task's id.
        version: its version.
        events: the events that matched the trigger, in order.
        features: the results of the stream pipeline, by feature name.
        resource_root: the folder that holds the task's resources.
        resources: the paths that the manifest declares; None lets every file under `resource_root` be read.
        asker: carries requests to models in the cloud; None answers none.
    """

    def __init__(
        self,
        task: str,
        version: str,
        events: Sequence[Event] = (),
        features: Mapping[str, Any] | None = None,
        resource_root: Path | None = None,
        resources: Sequence[str] | None = None,
        asker: Asker | None = None,
    ) -> None:
        self.task = task
        self.version = version
        self.events = list(events)
        self.features: dict[str, Any] = dict(features or {})
        self._resource_root = resource_root
        self._resources = None if resources is None else sorted(resources)
        self._frames: list[Frame] = []
        self._log: list[str] = []
        self._log_room = MAX_LOG_CHARACTERS
        self._asker = asker
        self._asks = 0

    @property
    def user(self) -> str:
        """The user whose events woke the task; empty without events."""
        return self.events[-1].user if self.events else ""

    def resource(self, path: str) -> Path:
        """Return where the resource `path` of the manifest lies on this device.

        Raises TaskError for a path that the manifest doesn't declare.
        """
        relative = PurePosixPath(path)
        if self._resource_root is None:
            raise TaskError(f"this task has no resources, so no {path!r}")
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise TaskError(f"resource path {path!r} must be relative and without '..'")
        if self._resources is not None and str(relative) not in self._resources:
            names = ", ".join(self._resources[:20]) or "none"
            raise TaskError(f"the manifest declares no resource {path!r}; it declares: {names}")
        return self._resource_root / relative

    def send(self, stream: str, fields: Mapping[str, Any]) -> None:
        """Queue a frame for the cloud; it leaves after the run has succeeded.

        The agent refuses the whole frame when the manifest's stream doesn't declare each of its fields.
        Raises TaskError when `fields` is no mapping with text keys, or beyond 256 frames in a run.
        """
        if not isinstance(stream, str) or not isinstance(fields, Mapping):
            raise TaskError("send takes a stream name and a mapping of fields")
        if not all(isinstance(name, str) for name in fields):
            raise TaskError("the field names of a frame must be text")
        if len(self._frames) >= MAX_FRAMES:
            raise TaskError(f"a run may send at most {MAX_FRAMES} frames")
        self._frames.append(Frame(stream, dict(fields)))

    def ask(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        timeout: str = "200ms",
        outputs: Sequence[str] | None = None,
    ) -> dict[str, ndarray] | None:
        """Ask a model in the cloud and wait for its answer: its outputs by name, or None.

        None means that there is no answer: the device isn't connected, the cloud couldn't or wouldn't
        answer, or not in time; the run's log says which. The time counts for the run's wall time.

        Args:
            model: one of the manifest's `endpoints`.
            inputs: number, nested list or numpy array by input name, converted to the declared datatype.
            timeout: how long to wait, "1ms" to "30s".
            outputs: names of the outputs that are wanted; None means all.

        Raises TaskError for a malformed call, or beyond 64 calls in a run. What the manifest doesn't declare,
        or a value that doesn't convert, sends nothing and ends the run with BAD_REQUEST.
        """
        if not isinstance(model, str) or not isinstance(inputs, Mapping):
            raise TaskError("ask takes the name of a model and a mapping of inputs")
        if not 1 <= len(inputs) <= MAX_ASK_INPUTS or not all(isinstance(name, str) for name in inputs):
            raise TaskError(f"ask takes 1 to {MAX_ASK_INPUTS} inputs, each with a text as its name")
        names = [] if outputs is None else outputs
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise TaskError("outputs is a list of names")
        if len(names) > MAX_ASK_INPUTS:
            raise TaskError(f"ask takes at most {MAX_ASK_INPUTS} outputs")
        match = _TIMEOUT.fullmatch(timeout) if isinstance(timeout, str) else None
        timeout_s = int(match[1]) * _UNITS[match[2]] if match else 0.0
        if not 0 < timeout_s <= MAX_ASK_S:
            raise TaskError(f'timeout is a text from "1ms" to "30s", such as "200ms"; not {timeout!r:.40}')
        if self._asks >= MAX_ASKS:
            raise TaskError(f"a run may ask at most {MAX_ASKS} times")
        self._asks += 1
        if self._asker is None:
            answer, why = None, "nothing answers here"
        else:
            answer, why = self._asker(model, inputs, timeout_s, list(names))
        if answer is None:
            self.log(f"ask {model}: {why}")
        return answer

    def log(self, text: object) -> None:
        """Add a line to the run's log, which stays on the device; beyond 64 Ki characters it is cut."""
        if self._log_room <= 0:
            return
        line = str(text)[: self._log_room]
        self._log.append(line)
        self._log_room -= len(line) + 1

    @property
    def frames(self) -> list[Frame]:
        """What the run has queued so far, for whoever runs it."""
        return list(self._frames)

    @property
    def log_lines(self) -> list[str]:
        """What the run has logged so far, for whoever runs it."""
        return list(self._log)
