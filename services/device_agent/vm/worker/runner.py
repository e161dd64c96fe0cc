"""Loads tasks' scripts and runs them: one task at a time, in this process."""

import base64
import hashlib
import linecache
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.task import Context, Event

# ruff: noqa: TID252
from .asking import REFUSED, Arrays, Asker
from .failed import Failed
from .model import Model, Runtime, as_lists
from .values import BadValue, check_object

_MAX_MESSAGE = 4096
_HEAD_FRAMES, _TAIL_FRAMES = 10, 20


@dataclass(slots=True)
class _Loaded:
    task: str
    version: str
    entries: list[tuple[str, Callable[..., object]]]
    """The name of each step for messages, and the step."""
    modules: dict[tuple[str, str], types.ModuleType]
    root: Path | None
    resources: list[str]
    endpoints: dict[str, dict[str, str]]
    """Model → input → datatype."""
    model: Model | None = None
    ends_with_model: bool = False


class Runner:
    """The tasks loaded in this worker."""

    def __init__(self, max_reply_bytes: int, runtime: Runtime, arrays: Arrays) -> None:
        self._max_bytes = max_reply_bytes
        self._runtime = runtime
        self._arrays = arrays
        self._tasks: dict[str, _Loaded] = {}

    @property
    def held_bytes(self) -> int:
        """What the loaded models, the runtime and numpy keep in memory, roughly."""
        models = (task.model for task in self._tasks.values())
        held = self._runtime.held_bytes + self._arrays.held_bytes
        return held + sum(model.held_bytes for model in models if model is not None)

    def prepare(self, request: dict[str, Any]) -> None:
        """Import what a load will need besides its scripts; call it before a task's limits hold."""
        if request["plan"] is not None:
            self._runtime.prepare()
        if request["endpoints"]:
            self._arrays.prepare()

    def load(self, request: dict[str, Any]) -> None:
        """Check a task's plan, compile and import its scripts; raises Failed and leaves nothing behind."""
        key = request["key"]
        self.unload(key)
        root = request["root"]
        task = _Loaded(
            request["task"],
            request["version"],
            [],
            {},
            Path(root) if root else None,
            request["resources"],
            request["endpoints"],
        )
        self._tasks[key] = task
        try:
            if task.endpoints and self._arrays.fault:
                raise Failed("LOAD_ERROR", self._arrays.fault)
            # Before the scripts: what is wrong with the plan is then found whatever they do.
            if request["plan"] is not None and task.root is not None:
                task.model = self._runtime.load(request["plan"], task.root, int(request["memory_bytes"]))
            for script in request["scripts"]:
                module = self._module(key, task, script)
                entry = getattr(module, script["entry_point"], None)
                if not callable(entry):
                    raise Failed(
                        "LOAD_ERROR",
                        f"{script['path']} has no function {script['entry_point']!r} at its top level",
                    )
                task.entries.append((script["entry_point"], entry))
            if task.model is not None:
                self._insert_model(task, task.model, [script["phase"] for script in request["scripts"]])
        except BaseException:
            self.unload(key)
            raise

    def _insert_model(self, task: _Loaded, model: Model, phases: list[str]) -> None:
        place = phases.count("pre")
        task.entries.insert(place, (model.path, model.later if place else model.first))
        task.ends_with_model = place == len(phases)

    def unload(self, key: str) -> None:
        """Forget a task; nothing happens when it isn't loaded."""
        task = self._tasks.pop(key, None)
        if task is None:
            return
        for module in task.modules.values():
            sys.modules.pop(module.__name__, None)
            linecache.cache.pop(str(module.__file__), None)

    def _module(self, key: str, task: _Loaded, script: dict[str, Any]) -> types.ModuleType:
        path, digest = script["path"], script["digest"]
        known = task.modules.get((path, digest))
        if known is not None:
            return known  # two phases in one script share its globals
        source = base64.b64decode(script["source"])
        found = "sha256:" + hashlib.sha256(source).hexdigest()
        if found != digest:
            raise Failed("LOAD_ERROR", f"{path} has the digest {found}, not {digest}; it is not run")
        filename = f"{key}/{path}"
        module = types.ModuleType(f"task:{filename}")
        module.__file__ = filename
        lines = source.decode("utf-8", "replace").splitlines(keepends=True)
        # Without an mtime the entry stays: tracebacks show the script's lines though there is no such file.
        linecache.cache[filename] = (len(source), None, lines, filename)
        task.modules[(path, digest)] = module
        sys.modules[module.__name__] = module
        try:
            code = compile(source, filename, "exec", dont_inherit=True)
            exec(code, module.__dict__)
        except MemoryError:
            raise
        except BaseException as error:
            raise Failed("LOAD_ERROR", describe(error, key)) from None
        return module

    def asker(self, fd: int, request: dict[str, Any], max_answer: int) -> Asker:
        """Return what carries a run's requests to the agent at the socket `fd`."""
        endpoints = self._tasks[request["key"]].endpoints
        return Asker(fd, request["id"], endpoints, self._arrays, max_answer)

    def run(self, request: dict[str, Any], context: Context, asker: Asker) -> dict[str, object]:
        """Run a task's phases and return its result, checked; raises Failed, or what the script raises."""
        task = self._tasks[request["key"]]
        value: Any = None
        name = ""
        # The first phase takes the context; a later one takes the value before it too (docs/task-format.md).
        for number, (name, entry) in enumerate(task.entries):  # noqa: B007 (the last name is used below)
            value = entry(context, value) if number else entry(context)
        asker.close()
        if asker.refusal:
            raise Failed(REFUSED, asker.refusal)  # whatever the script has made of it
        if task.ends_with_model:
            value = as_lists(value)
        try:
            result = check_object(value, f"the result of {name}", self._max_bytes)
            for index, frame in enumerate(context.frames):
                check_object(frame.fields, f"frame {index} for stream {frame.stream!r}", self._max_bytes)
        except BadValue as error:
            raise Failed("BAD_RESULT", str(error)) from None
        return result

    def context(self, request: dict[str, Any], asker: Asker) -> Context:
        """Make the context of a run."""
        task = self._tasks[request["key"]]
        events = [Event(**event) for event in request["events"]]
        features = request["features"]
        return Context(task.task, task.version, events, features, task.root, task.resources, asker)


def describe(error: BaseException, key: str) -> str:
    """Return the traceback of `error` with the script's own lines only, at most 4 KiB, its end kept."""
    if isinstance(error, SystemExit):
        place = place_of(error, key)
        return f"the script called sys.exit({error.code!r}){place}; return from the entry point instead"
    report = traceback.TracebackException(type(error), error, error.__traceback__, limit=0, compact=True)
    _keep_script_frames(report, error, key)
    text = "".join(report.format()).strip()
    return text if len(text) <= _MAX_MESSAGE else "..." + text[3 - _MAX_MESSAGE :]


def _keep_script_frames(report: traceback.TracebackException, error: BaseException, key: str) -> None:
    """Give `report`, and the causes it shows, the frames that lie in the task's scripts."""
    pairs: list[tuple[traceback.TracebackException | None, BaseException | None]] = [(report, error)]
    while pairs:
        shown, raised = pairs.pop()
        if shown is None or raised is None:
            continue
        frames = list(_script_frames(raised.__traceback__, key))
        if len(frames) > _HEAD_FRAMES + _TAIL_FRAMES:
            frames = frames[:_HEAD_FRAMES] + frames[-_TAIL_FRAMES:]
        shown.stack = traceback.StackSummary.extract(iter(frames))
        pairs.append((shown.__cause__, raised.__cause__))
        pairs.append((shown.__context__, raised.__context__))


def _script_frames(tb: types.TracebackType | None, key: str) -> Iterator[tuple[types.FrameType, int]]:
    prefix = f"{key}/"
    while tb is not None:
        if tb.tb_frame.f_code.co_filename.startswith(prefix):
            yield tb.tb_frame, tb.tb_lineno
        tb = tb.tb_next


def place_of(error: BaseException, key: str) -> str:
    """Return where in the script an error was raised, for the end of a message; "" outside of it."""
    frames = list(_script_frames(error.__traceback__, key))
    if not frames:
        return ""
    frame, line = frames[-1]
    return f" in {frame.f_code.co_filename}, line {line}"
