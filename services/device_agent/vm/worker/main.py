"""The worker's loop: a request, a reply, until the agent closes the socket."""

import contextlib
import errno
import faulthandler
import gc
import io
import json
import os
import resource
import signal
import sys
import threading
import time
from typing import Any

from isthmus.task import Context

# ruff: noqa: TID252
from . import confinement
from .asking import REFUSED, Arrays, Asker
from .failed import Failed
from .framing import PROTOCOL, read_frame, write_frame
from .imports import OwnPackages
from .model import Runtime
from .runner import Runner, describe, place_of

_AS_SLACK = 512 * 1024 * 1024
"""Shared libraries that a run may map, beyond its memory: they count as address space, not as data."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_RECURSION = sys.getrecursionlimit()


class _Meter:
    """Holds a run within its memory and measures it; opens files in /proc before they are out of reach."""

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        self._clear_refs = -1
        with contextlib.suppress(OSError):  # a kernel may be built without it
            self._clear_refs = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        self._started = 0.0
        self._base = 0
        self._room = 0
        self._resident = 0

    def rebase(self) -> None:
        """Take what the process holds now as the base of its growth."""
        self._base = self._sizes()[1]

    def begin(self, memory_bytes: int, wall_s: float) -> None:
        """Set the limits of a run."""
        address_space, data = self._sizes()
        self._room = memory_bytes
        self._resident = self._fields()[1]
        if self._clear_refs >= 0:
            os.pwrite(self._clear_refs, b"5", 0)  # restart the high-water mark
        _soft(resource.RLIMIT_DATA, data + memory_bytes)
        _soft(resource.RLIMIT_AS, address_space + memory_bytes + _AS_SLACK)
        # The agent kills at the wall time; this ends a loop when the agent itself is stopped.
        self._started = time.process_time()
        _soft(resource.RLIMIT_CPU, int(self._started + (wall_s + 5) * (os.cpu_count() or 1)) + 1)

    def end(self) -> float:
        """Lift the memory limits, so that a reply can be made; returns the CPU seconds used."""
        _soft(resource.RLIMIT_DATA, resource.RLIM_INFINITY)
        _soft(resource.RLIMIT_AS, resource.RLIM_INFINITY)
        return time.process_time() - self._started

    def growth(self) -> int:
        """Return the bytes held more than at the base."""
        return self._sizes()[1] - self._base

    def peak_rss(self) -> int:
        """Return the largest resident size since `begin` (since the start, without clear_refs), or 0.

        Not ru_maxrss: that keeps the size of the agent, from before exec.
        """
        _, _, rest = os.pread(self._status, 8192, 0).partition(b"VmHWM:")
        return int(rest.split(None, 1)[0]) * 1024 if rest else 0

    @property
    def full(self) -> bool:
        """Whether the run has come close to its limit."""
        return self.peak_rss() - self._resident > 0.9 * self._room

    def _sizes(self) -> tuple[int, int]:
        fields = self._fields()
        return fields[0], fields[5]

    def _fields(self) -> list[int]:
        """Return address space, resident, shared, text, 0 and data, in bytes."""
        return [int(field) * _PAGE for field in os.pread(self._statm, 256, 0).split()]


def _soft(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    limit = hard if value == resource.RLIM_INFINITY else value
    resource.setrlimit(which, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def main(settings: dict[str, Any]) -> None:
    """Serve the socket `settings["fd"]` until its end; never returns."""
    fd, pid = int(settings["fd"]), os.getpid()
    os.set_inheritable(fd, False)
    meter = _Meter()
    packages = OwnPackages(settings["blocked"], settings["libs"], settings["protos"])
    sys.meta_path.insert(0, packages)
    faulthandler.enable(file=2, all_threads=False)  # a crash in C leaves its place in the output
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    held = confinement.apply(settings)
    runtime, arrays = Runtime(packages, meter.growth), Arrays(meter.growth)
    runner = Runner(int(settings["max_reply_bytes"]), runtime, arrays)
    gc.collect()
    gc.freeze()
    meter.rebase()
    _reply(fd, {"hello": PROTOCOL, "confinement": held}, settings)
    while True:
        body = read_frame(fd, int(settings["max_request_bytes"]))
        if body is None:
            os._exit(0)  # whatever threads a script has left
        reply = _answer(json.loads(body), runner, meter, settings)
        if os.getpid() != pid:
            os._exit(0)  # a script has forked where nothing forbids it; only its parent speaks to the agent
        _reply(fd, reply, settings)


def _answer(
    request: dict[str, Any], runner: Runner, meter: _Meter, settings: dict[str, Any]
) -> dict[str, Any]:
    reply: dict[str, Any] = {"id": request["id"], "ok": True}
    if request["op"] == "unload":
        runner.unload(request["key"])
        return reply
    output = io.TextIOWrapper(
        io.FileIO(1, "wb", closefd=False), errors="backslashreplace", line_buffering=True
    )
    sys.stdout = sys.stderr = output
    context: Context | None = None
    asker: Asker | None = None
    if request["op"] == "load":
        runner.prepare(request)
    meter.begin(int(request["memory_bytes"]), float(request["wall_s"]))
    try:
        if request["op"] == "load":
            runner.load(request)
            reply["value"] = {}
        else:
            asker = runner.asker(int(settings["fd"]), request, int(settings["max_request_bytes"]))
            context = runner.context(request, asker)
            reply["value"] = runner.run(request, context, asker)
            reply["sends"] = [[frame.stream, frame.fields] for frame in context.frames]
    except Failed as error:
        place = place_of(error, request["key"]) if error.reason == REFUSED else ""
        reply |= {"ok": False, "reason": error.reason, "message": error.message + place}
    except BaseException as error:
        meter.end()
        reply |= _failure(error, request, meter)
    if asker is not None:
        asker.close()
        if asker.refusal and not reply["ok"]:
            reply["reason"] = REFUSED  # also when the script has made another error of it
    reply["cpu_s"] = meter.end()
    reply["peak_rss_bytes"] = meter.peak_rss()
    if context is not None:
        reply["logs"] = context.log_lines
    try:
        output.flush()
    except (OSError, ValueError):  # the script has closed it
        reply["residue"] = "stdout"
    if asker is not None and asker.broken:
        reply["residue"] = "ask"
    # A model is meant to stay.
    _tidy(reply, meter, int(settings["max_growth_bytes"]) + runner.held_bytes)
    return reply


def _failure(error: BaseException, request: dict[str, Any], meter: _Meter) -> dict[str, Any]:
    text = describe(error, request["key"])
    # CPython loses the MemoryError of a frame that it can't allocate: recursion under a raised limit.
    lost = isinstance(error, SystemError) and meter.full
    refused = isinstance(error, OSError) and error.errno == errno.ENOMEM  # mmap says it so
    if not (lost or refused or isinstance(error, MemoryError)):
        return {"ok": False, "reason": "EXCEPTION", "message": text}
    text = f"needed more than its {request['memory_bytes']} bytes of memory\n{text}"
    failure = {"ok": False, "reason": "MEMORY", "message": text}
    return failure | {"residue": "interpreter"} if lost else failure


def _tidy(reply: dict[str, Any], meter: _Meter, max_growth: int) -> None:
    """Undo what a run may have left; name in `residue` what can't be: the agent then replaces the worker."""
    sys.setrecursionlimit(_RECURSION)
    if threading.active_count() > 1:
        reply["residue"] = "threads"
    elif signal.getitimer(signal.ITIMER_REAL)[0] > 0:
        reply["residue"] = "timer"
    elif not reply["ok"] or meter.growth() > max_growth:
        gc.collect()  # a traceback's frames are gone by now; cycles may hold what they held
        if meter.growth() > max_growth:
            reply["residue"] = "memory"


def _reply(fd: int, reply: dict[str, Any], settings: dict[str, Any]) -> None:
    limit = int(settings["max_reply_bytes"])
    try:
        body = json.dumps(reply, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        body = _bad_result(reply, f"the result can't be written as JSON: {type(error).__name__}: {error}")
    if len(body) > limit:
        text = f"result, frames and logs take {len(body)} bytes as JSON, more than {limit}"
        body = _bad_result(reply, text)
    write_frame(fd, body)


def _bad_result(reply: dict[str, Any], message: str) -> bytes:
    kept = {name: reply[name] for name in ("id", "cpu_s", "peak_rss_bytes", "residue") if name in reply}
    return json.dumps(kept | {"ok": False, "reason": "BAD_RESULT", "message": message}).encode()
