"""Processes end with the block that runs them."""

import asyncio

import pytest

from services.tuner.processes import running


async def test_a_process_has_ended_however_often_its_caller_is_cancelled() -> None:
    begun: asyncio.Future[asyncio.subprocess.Process] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        # It reads what never comes.
        async with running("fileinput", ["-"], stdin=asyncio.subprocess.PIPE) as process:
            begun.set_result(process)
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(work())
    process = await asyncio.wait_for(begun, 60)
    assert process.returncode is None
    for _ in range(4):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert process.returncode is not None


async def test_a_process_has_ended_when_its_block_has() -> None:
    async with running("fileinput", ["-"], stdin=asyncio.subprocess.PIPE) as process:
        pass
    assert process.returncode is not None
