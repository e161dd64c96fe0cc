"""Runs workers, each a process that makes one plan, and believes nothing of what they say unread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from libs.common import errors
from libs.common.errors import Error, Exhausted, Internal, Invalid
from libs.common.rand import Randomness
from services.engine.domain.model import STAGES, Made, Stage, Verdict
from services.engine.domain.origins_json import origins_from_json
from services.engine.worker import JOB, MODEL, PLAN

PROGRAM = (sys.executable, "-m", "services.engine.worker")
_LONGEST_LINE = 1 << 20
_MOST_LINES = 64
_LONGEST_TEXT = 4096
_RETRY_S = 2.0
_NO_SIZES: Mapping[str, int] = MappingProxyType({})
_ERRORS = "stderr.txt"
_log = logging.getLogger("isthmus.engine.crew")
_KNOWN = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, Error) and kind is not Error
}


class Crew:
    """A bounded number of workers at once; more wait in a bounded queue, and more yet are refused.

    Folders of work lie in `folder`, which is this crew's alone: what a killed service left is removed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        randomness: Randomness,
        producer: str,
        workers: int,
        waiting: int,
        memory_bytes: int,
        cpu_s: int,
        wall_s: float,
    ) -> None:
        self._folder = folder
        self._randomness = randomness
        self._producer = producer
        self._slots = asyncio.Semaphore(workers)
        self._room = workers + waiting
        self._busy = 0
        self._memory_bytes = memory_bytes
        self._cpu_s = cpu_s
        self._wall_s = wall_s
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    @property
    def busy(self) -> int:
        """How many jobs run or wait."""
        return self._busy

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[Path]:
        """Give a folder for one job, as soon as a worker is free; the caller puts `model.onnx` there.

        Raises:
            Exhausted: when too many wait already.
        """
        if self._busy >= self._room:
            raise Exhausted(
                f"{self._busy} models are being worked on or wait; try again later",
                reason="ENGINE_BUSY",
                retry_after_s=_RETRY_S,
            )
        self._busy += 1
        try:
            async with self._slots:
                folder = self._folder / self._randomness.id(16)
                await asyncio.to_thread(folder.mkdir, 0o700)
                try:
                    yield folder
                finally:
                    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        finally:
            self._busy -= 1

    async def make(
        self,
        folder: Path,
        dimensions: Mapping[str, tuple[int, int]],
        *,
        verify: bool,
        sizes: Mapping[str, int] = _NO_SIZES,
    ) -> AsyncGenerator[Stage | Made, None]:
        """Work on the model in `folder`: yield each stage that ends, then what was made.

        Figures of what was decomposed are those at `sizes`.

        Closing the iterator kills the worker.

        Raises:
            Invalid: when the model can't be read or run, takes too much time or memory, or crashes it.
            Precondition: PLAN_DISAGREES.
            Internal: for a fault of the engine.
        """
        job = {
            "parent": os.getpid(),
            "dimensions": {name: list(bounds) for name, bounds in dimensions.items()},
            "producer": self._producer,
            "verify": verify,
            "sizes": dict(sizes),
            "memory_bytes": self._memory_bytes,
            "cpu_s": self._cpu_s,
        }
        await asyncio.to_thread((folder / JOB).write_text, json.dumps(job))
        process = await _started(folder)
        last, end = "start", asyncio.get_running_loop().time() + self._wall_s
        try:
            for _ in range(_MOST_LINES):
                line = await _next_line(process, end)
                if not line:
                    break
                event = _parsed(line)
                if "stage" in event:
                    stage = _stage(event)
                    last = stage.name
                    yield stage
                elif "error" in event:
                    raise _error(event)
                else:
                    yield await asyncio.to_thread(_made, event, folder, verify)
                    return
        except TimeoutError:
            raise Invalid(
                f"the model took more than {self._wall_s:g} s, {_after(last)}; make it smaller",
                reason="MODEL_TOO_SLOW",
            ) from None
        except (ValueError, LookupError, TypeError, AttributeError, OSError):
            raise Internal(
                f"the engine's worker spoke nonsense, {_after(last)}", reason="WORKER_FAILED"
            ) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()
        said = await asyncio.to_thread(_last_words, folder)
        _log.warning("a worker ended with status %s, %s: %s", process.returncode, _after(last), said)
        raise _crashed(process.returncode, last)


async def _started(folder: Path) -> asyncio.subprocess.Process:
    errors_file = await asyncio.to_thread((folder / _ERRORS).open, "wb")
    try:
        return await asyncio.create_subprocess_exec(
            *PROGRAM,
            str(folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors_file,
            env=_environment(),
            limit=_LONGEST_LINE,
        )
    finally:
        errors_file.close()


def _last_words(folder: Path) -> str:
    """Return the end of what a worker wrote to standard error: for the log, never for callers."""
    with (folder / _ERRORS).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_TEXT))
        return file.read(_LONGEST_TEXT).decode(errors="replace")


async def _next_line(process: asyncio.subprocess.Process, end: float) -> bytes:
    """Return the next line, or nothing once the process has ended; raises TimeoutError."""
    assert process.stdout is not None
    async with asyncio.timeout_at(end):
        line = await process.stdout.readline()
        if not line:
            await process.wait()
        return line


def _after(last: str) -> str:
    return f"in the stage after {last!r}" if last != "start" else "at its start"


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    return {**kept, **threads, "PYTHONDONTWRITEBYTECODE": "1"}


def _parsed(line: bytes) -> Mapping[str, Any]:
    event = json.loads(line)
    if not isinstance(event, dict):
        raise ValueError("a worker's line is no object")
    return event


def _stage(event: Mapping[str, Any]) -> Stage:
    name, elapsed_s, summary = event["stage"], event.get("elapsed_s"), event.get("summary")
    if name not in STAGES or not isinstance(elapsed_s, float) or not 0 <= elapsed_s < 1e6:
        raise ValueError("a worker's stage is malformed")
    return Stage(name, elapsed_s, str(summary)[:_LONGEST_TEXT])


def _error(event: Mapping[str, Any]) -> Error:
    kind = _KNOWN.get(str(event["error"]), Internal)
    metadata = event.get("metadata")
    pairs = metadata.items() if isinstance(metadata, dict) else ()
    return kind(
        str(event.get("message"))[:_LONGEST_TEXT],
        reason=str(event.get("reason"))[:64],
        metadata={str(key)[:64]: str(value)[:_LONGEST_TEXT] for key, value in pairs},
    )


def _made(event: Mapping[str, Any], folder: Path, verified: bool) -> Made:
    result = event["result"]
    error, comparisons = float(result["max_error"]), int(result["comparisons"])
    if not math.isfinite(error):
        raise ValueError("a worker's error is malformed")
    return Made(
        plan=(folder / PLAN).read_bytes(),
        origins=origins_from_json(result["origins"]),
        verdict=Verdict(error, comparisons) if verified else None,
    )


def _crashed(status: int | None, last: str) -> Error:
    where = _after(last)
    if status is not None and -status == signal.SIGXCPU:
        return Invalid(f"the model took too much processor time, {where}", reason="MODEL_TOO_SLOW")
    if status is not None and status < 0:
        name = signal.Signals(-status).name
        return Invalid(
            f"the model made the engine's worker crash ({name}), {where}; is the file whole?",
            reason="MODEL_CRASHES",
        )
    return Internal(f"the engine's worker ended with status {status}, {where}", reason="WORKER_FAILED")


__all__ = ["MODEL", "Crew"]
