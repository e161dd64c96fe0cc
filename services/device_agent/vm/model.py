"""What goes into the task VM and what comes out of it. No IO."""

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from libs.task.event import Event
from libs.task.tensor import Tensor

MIB = 1024 * 1024


class Phase(StrEnum):
    """A step of a task's run."""

    PRE = "pre"
    """Before the model, if there is one."""
    POST = "post"


class Reason(StrEnum):
    """Why a run has no result."""

    EXCEPTION = "EXCEPTION"
    """The script raised; the message is the traceback, script lines only."""
    TIMEOUT = "TIMEOUT"
    """It ran longer than its wall time and was killed."""
    MEMORY = "MEMORY"
    """It needed more memory than its limit."""
    CRASH = "CRASH"
    """Its process ended, by a signal or on its own, or broke the protocol."""
    BAD_INPUT = "BAD_INPUT"
    """What came before the model isn't what its plan takes, or has no result."""
    BAD_REQUEST = "BAD_REQUEST"
    """It asked a model in the cloud for what its manifest doesn't declare, or with what doesn't convert."""
    BAD_RESULT = "BAD_RESULT"
    """It returned, or sent, what isn't a JSON object within the limits."""
    LOAD_ERROR = "LOAD_ERROR"
    """Its scripts don't match their digests, don't compile, fail when imported, or lack the entry point;
    its plan doesn't match, can't be read by this agent, or isn't sound."""
    UNLOADED = "UNLOADED"
    """The version was unloaded while the run waited; nothing of it ran."""


@dataclass(frozen=True, slots=True)
class Script:
    """One phase's script: verified bytes, whose digest the worker checks again."""

    phase: Phase
    path: str
    """File name shown in tracebacks, such as "pre.py"."""
    entry_point: str
    """Name of a top-level function."""
    source: bytes
    digest: str
    """"sha256:" and 64 hex digits."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model as the engine's plan: a verified file, whose digest the worker checks again."""

    path: str
    """Below the task's resource root."""
    digest: str


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What one run may use."""

    wall_time_s: float = 1.0
    memory_bytes: int = 256 * MIB
    """Private memory that a run may add to its process."""
    pending_count: int = 64
    """Runs that may wait; beyond it the oldest waiting one is dropped."""


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task version, ready to run."""

    task: str
    version: str
    scripts: tuple[Script, ...]
    """In the order in which they run."""
    model: Model | None = None
    """Runs behind the script of PRE and before that of POST; it needs a `resource_root`."""
    resource_root: Path | None = None
    """Folder that holds the verified resources; it must lie in one of `VmConfig.readable`."""
    resources: tuple[str, ...] = ()
    """Paths below it that the manifest declares."""
    limits: RunLimits = RunLimits()
    endpoints: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Models that it may ask: model → input → datatype to convert to. Needs numpy."""

    @property
    def key(self) -> str:
        """`name@version`."""
        return f"{self.task}@{self.version}"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a script gave to `context.ask`; the caller checks it against the manifest."""

    model: str
    inputs: tuple[Tensor, ...]
    """An input that the task doesn't declare has no datatype and no content."""
    timeout_s: float
    outputs: tuple[str, ...] = ()
    """Those that are wanted; empty means all."""

    @property
    def size(self) -> int:
        """Bytes of its inputs."""
        return sum(len(tensor.content) for tensor in self.inputs)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a script gets for an `Ask`."""

    outputs: tuple[Tensor, ...] | None = None
    why: str = ""
    """Why there is no answer, for the run's log."""
    refusal: str = ""
    """Why it must not be asked: the run fails with BAD_REQUEST. Empty when it may."""


Answerer = Callable[[Ask], Awaitable[Reply]]
"""Answers what a run asks; returns within the ask's time and raises nothing."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One run to make."""

    task: str
    version: str
    events: Sequence[Event] = ()
    """What the trigger matched, first step first."""
    features: Mapping[str, object] = field(default_factory=dict)
    """What the stream pipeline has computed; JSON values."""
    answer: Answerer | None = None
    """Answers what the scripts ask; None answers nothing."""

    @property
    def key(self) -> str:
        """`name@version`."""
        return f"{self.task}@{self.version}"


@dataclass(frozen=True, slots=True)
class Sent:
    """What a script gave to `context.send`; the caller checks it against the manifest."""

    stream: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. Sends count only when it succeeded: a failed run sends nothing."""

    value: Mapping[str, object] | None
    """The result; None when the run failed. Empty for `load`."""
    reason: Reason | None = None
    """None when the run succeeded."""
    message: str = ""
    """For people: what went wrong, in which line."""
    sends: tuple[Sent, ...] = ()
    logs: tuple[str, ...] = ()
    """Texts given to `context.log`, the first of them within a bound."""
    output: str = ""
    """The end of what the scripts wrote to stdout and stderr, within a bound."""
    wall_s: float = 0.0
    """From handing the run to a worker until its answer; loading and waiting not counted."""
    cpu_s: float = 0.0
    peak_rss_bytes: int = 0
    """Largest resident size of the worker during the run; 0 where unknown."""

    @property
    def ok(self) -> bool:
        """Whether there is a result."""
        return self.reason is None


@dataclass(frozen=True, slots=True)
class VmConfig:
    """How the VM runs. Times in seconds, sizes in bytes."""

    scratch_dir: Path
    """Where workers get their private folders (0700, removed with the worker). This VM's alone: what an
    earlier one has left there is removed at the start."""
    readable: tuple[Path, ...] = ()
    """Folders that scripts may read besides the Python installation: where tasks' resources lie."""
    workers: int = min(2, os.cpu_count() or 1)
    python: str = sys.executable
    start_timeout_s: float = 10.0
    load_timeout_s: float = 10.0
    """Module bodies may import numpy: seconds on a slow device."""
    place_timeout_s: float = 0.5
    """How long a run past its time may take to tell where it is before it is killed."""
    max_wait_s: float = 30.0
    """Longest wait in the queue."""
    max_queued: int = 1024
    """Waiting runs of all tasks together."""
    max_request_bytes: int = 8 * MIB
    max_reply_bytes: int = MIB
    """Result, sends and logs of one run, as JSON; one ask."""
    max_asks: int = 64
    """Requests that one run may make."""
    max_output_bytes: int = 16 * 1024
    max_file_bytes: int = 64 * MIB
    """Largest file that a script may write in its folder."""
    max_memory_bytes: int = 4096 * MIB
    """No task's limit goes beyond."""
    max_growth_bytes: int = 128 * MIB
    """A worker that holds this much more after a run than when it started is replaced."""
    max_tasks_per_worker: int = 16
    """Versions kept loaded in one worker; the one unused longest goes first."""
    restart_delay_s: float = 0.05
    """Longest wait before the second restart in a row; doubles up to `max_restart_delay_s`, with jitter."""
    max_restart_delay_s: float = 5.0
    confine: bool = True
    """Give up sockets, processes and files where the kernel can (seccomp, Landlock)."""


@dataclass(frozen=True, slots=True)
class VmStats:
    """What the VM does now and has done since it was made."""

    workers: int
    """Alive and ready."""
    queued: int
    running: int
    tasks: int
    starts: int
    """Workers started."""
    deaths: Mapping[str, int]
    """Workers that ended, by cause: crash, timeout, memory, cancelled, protocol, retired, idle, closed."""
    outcomes: Mapping[str, int]
    """Runs by outcome: OK or a `Reason`."""
    dropped: int
    """Waiting runs that were dropped: too many of one task, or waited too long."""
    confinement: tuple[str, ...]
    """What holds in the workers: some of pdeathsig, rlimits, seccomp, landlock."""
