"""A task VM with real workers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from libs.common.clock import SystemClock
from libs.common.rand import SystemRandomness
from services.device_agent.vm import Execution, Outcome, TaskVm, VmConfig
from services.device_agent.vm.testing import build_task

MakeVm = Callable[..., Awaitable[TaskVm]]
RunOnce = Callable[..., Awaitable[Outcome]]


@pytest.fixture
async def make_vm(tmp_path: Path) -> AsyncIterator[MakeVm]:
    """Start VMs with a config that differs from the defaults as asked; close them in the end."""
    started: list[TaskVm] = []

    async def make(**changes: Any) -> TaskVm:
        config = VmConfig(**{"scratch_dir": tmp_path / "scratch", "max_restart_delay_s": 0.01, **changes})
        vm = TaskVm(config, clock=SystemClock(), randomness=SystemRandomness())
        started.append(vm)
        await vm.start()
        return vm

    yield make
    for vm in started:
        await vm.close()


@pytest.fixture
async def vm(make_vm: MakeVm) -> TaskVm:
    """A VM with one worker, so that a test knows who runs what."""
    return await make_vm(workers=1)


@pytest.fixture
def run(vm: TaskVm) -> RunOnce:
    """Load a script, which must succeed, and run it once on `vm`."""

    async def once(source: Any, **task: Any) -> Outcome:
        loaded = build_task(source, **task)
        outcome = await vm.load(loaded)
        assert outcome.ok, outcome
        return await vm.execute(Execution(loaded.task, loaded.version))

    return once
