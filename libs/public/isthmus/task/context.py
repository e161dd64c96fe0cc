"""The context of one run: what woke the task, what it may read, where its output goes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

MAX_FRAMES = 256
MAX_LOG_CHARACTERS = 64 * 1024


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


class Context:
    """One run of a task. Made by whoever runs the script: the device agent, the simulator, or a test.

    Args:
        task: the task's id.
        version: its version.
        events: the events that matched the trigger, in order.
        features: the results of the stream pipeline, by feature name.
        resource_root: the folder that holds the task's resources.
        resources: the paths that the manifest declares; None lets every file under `resource_root` be read.
    """

    def __init__(
        self,
        task: str,
        version: str,
        events: Sequence[Event] = (),
        features: Mapping[str, Any] | None = None,
        resource_root: Path | None = None,
        resources: Sequence[str] | None = None,
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
