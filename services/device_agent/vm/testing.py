"""Builders for tests of whatever uses the task VM."""

import asyncio
import hashlib
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

from services.device_agent.vm.model import MIB, LoadedTask, Model, Phase, RunLimits, Script

_DEADLINE_S = 60.0


def build_script(source: str, *, phase: Phase = Phase.POST, path: str = "", entry: str = "") -> Script:
    """Build a script of dedented source; file and entry point are named after the phase."""
    data = textwrap.dedent(source).encode()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    return Script(phase, path or f"{phase.value}.py", entry or phase.value, data, digest)


def build_task(
    source: str | Mapping[Phase, str],
    *,
    task: str = "probe",
    version: str = "1",
    wall_time_s: float = 30.0,
    memory_bytes: int = 256 * MIB,
    pending_count: int = 64,
    resource_root: Path | None = None,
    resources: tuple[str, ...] = (),
    model: Model | None = None,
    endpoints: Mapping[str, Mapping[str, str]] | None = None,
) -> LoadedTask:
    """Build a task with one script, `post(context)`, or one per phase."""
    sources = {Phase.POST: source} if isinstance(source, str) else source
    scripts = tuple(build_script(text, phase=phase) for phase, text in sources.items())
    limits = RunLimits(wall_time_s, memory_bytes, pending_count)
    return LoadedTask(task, version, scripts, model, resource_root, resources, limits, endpoints or {})


def build_model(folder: Path, data: bytes, path: str = "model.plan") -> Model:
    """Put a plan into a folder, as an installed version's lies there."""
    (folder / path).write_bytes(data)
    return Model(path, "sha256:" + hashlib.sha256(data).hexdigest())


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` holds; fail with `what` after a minute."""
    try:
        async with asyncio.timeout(_DEADLINE_S):
            while not condition():  # noqa: ASYNC110 (a process's state has no event to wait for)
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"never happened: {what}") from None
