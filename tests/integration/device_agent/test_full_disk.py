"""A device without room: nothing ends, writes are refused, reads and status go on, and it heals by itself.

The room is taken and given by RLIMIT_FSIZE, to which the kernel holds every write of a real agent process.
"""

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from libs.common.errors import Exhausted
from libs.common.fsio import FULL
from libs.common.status import error_from_rpc
from services.device_agent.app import Agent
from services.device_agent.signals import Bell
from services.device_agent.testing.app import App, event, running
from services.device_agent.testing.tasks import task

NONE, UNLIMITED = 4096, resource.RLIM_INFINITY


class Process:
    """An agent process, and the room that its files have."""

    def __init__(self, process: asyncio.subprocess.Process, app: App) -> None:
        self.process = process
        self.app = app
        self.lines: list[str] = []
        self.told = Bell()

    async def read_log(self) -> None:
        async for line in self.process.stderr:
            self.lines.append(line.decode())
            self.told.ring()

    async def until_logged(self, text: str) -> str:
        seen = self.told.rings
        while not (found := [line for line in self.lines if text in line]):
            seen = await self.told.wait(seen)
        return found[0]

    def room(self, size_bytes: int) -> None:
        _, most = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size_bytes, most))

    async def refusal(self, *events) -> Exhausted:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await self.app.send(*events)
        return error_from_rpc(refused.value)


@asynccontextmanager
async def agent_process(settings, room: int = UNLIMITED) -> AsyncIterator[Process]:
    arguments = ["--state-dir", str(settings.state_dir), "--gateway-target", settings.gateway_target]
    if settings.gateway_target:
        arguments += ["--device-id", "d1", "--plaintext"]
    environ = {
        **os.environ,
        "ISTHMUS_DEVICE_AGENT_ENROLMENT_TOKEN": settings.enrolment_token,
        "ISTHMUS_DEVICE_AGENT_HOUSEKEEPING_S": "0.2",
        "ISTHMUS_DEVICE_AGENT_RETRY_INITIAL_S": "0.02",
        "ISTHMUS_DEVICE_AGENT_RETRY_MAX_S": "0.2",
        "ISTHMUS_DEVICE_AGENT_VM_WORKERS": "1",
        "ISTHMUS_DEVICE_AGENT_DISK_RESERVE_BYTES": "0",
    }
    # The limit is set before the agent starts, by a shell in its place: its own files meet it from the first.
    limit = "unlimited" if room == UNLIMITED else str(room // 1024)
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", f'ulimit -S -f {limit}; exec "$0" -m services.device_agent "$@"', sys.executable,
        *arguments, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    app = App(settings.socket)
    agent = Process(process, app)
    log = asyncio.create_task(agent.read_log())
    try:
        yield agent
        assert process.returncode is None, "the agent has ended by itself"
    finally:
        await app.channel.close()
        if process.returncode is None:
            process.terminate()
        status = await process.wait()
        await log
        print("".join(agent.lines))
    assert status == 0


async def until_up(settings, process: Process) -> None:
    while not settings.socket.exists():
        assert process.process.returncode is None
        await asyncio.sleep(0.02)


async def test_writes_are_refused_reads_go_on_and_it_heals(cloud, agent_config):
    settings = agent_config()
    cloud.publish(task())
    await cloud.want("d1", {"hello": "1"})
    async with agent_process(settings) as agent:
        await until_up(settings, agent)
        await agent.app.until_state("hello@1", "ACTIVE")
        await agent.app.go(user="ann")
        assert len(await agent.app.results(1)) == 1

        agent.room(NONE)
        for number in range(3):
            error = await agent.refusal(event("go", f"full-{number}", "bob", text="x" * 5000))
            assert (type(error), error.reason) == (Exhausted, "DISK_FULL")
            assert FULL in error.message
        status = await agent.app.until_problem(FULL)
        assert status.counters.event_count == 1
        assert len(await agent.app.all_results()) == 1

        # What is there to be pulled waits for room as well.
        cloud.publish(task(version="2", source="def run(context):\n    return {'two': 2}\n"))
        await cloud.want("d1", {"hello": "2"})
        await agent.app.until_problem("pull")

        agent.room(UNLIMITED)
        await agent.app.until_state("hello@2", "ACTIVE")
        await agent.app.go(first=1, user="ann")
        assert len(await agent.app.results(2)) == 2
        await agent.app.until(lambda status: not status.problems)


async def test_a_run_that_was_made_waits_for_room_and_is_not_made_again(cloud, agent_config, monkeypatch):
    settings = agent_config()
    cloud.publish(task())
    await cloud.want("d1", {"hello": "1"})
    agent = Agent(settings)
    made = []
    execute = agent.vm.execute

    async def execute_and_lose_the_disk(execution):
        outcome = await execute(execution)
        await agent.database.run(lambda c: c.execute("PRAGMA query_only=1"), durable=False)
        made.append(execution)
        return outcome

    monkeypatch.setattr(agent.vm, "execute", execute_and_lose_the_disk)
    async with running(agent) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go(user="ann")
        await app.until_problem("can't be used for now")
        assert await app.all_results() == []
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await app.go(first=1)
        assert error_from_rpc(refused.value).reason == "STORE_IO"
        await agent.database.run(lambda c: c.execute("PRAGMA query_only=0"), durable=False)
        (result,) = await app.results(1)
        assert (result.user, len(made)) == ("ann", 1)
        await app.until(lambda status: not status.problems)


async def test_a_restart_without_room_serves_what_it_can(cloud, agent_config):
    settings = agent_config()
    cloud.publish(task())
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(settings)) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go(user="ann")
        await app.results(1)
    # Room for the store's shared memory and nothing more.
    async with agent_process(settings, room=32 * 1024) as agent:
        await until_up(settings, agent)
        assert len(await agent.app.all_results()) == 1
        error = await agent.refusal(event("go", "full", "bob", text="x" * 60_000))
        assert error.reason == "DISK_FULL"
        agent.room(UNLIMITED)
        await agent.app.go(first=1, user="ann")
        assert len(await agent.app.results(2)) == 2


async def test_a_start_without_any_room_waits_and_says_so_and_can_be_ended(agent_config):
    settings = agent_config(gateway_target="")
    async with agent_process(settings, room=0) as agent:
        assert FULL in await agent.until_logged("the start waits")
        assert not settings.socket.exists()
    async with agent_process(settings, room=0) as agent:
        await agent.until_logged("the start waits")
        agent.room(UNLIMITED)
        await until_up(settings, agent)
        await agent.app.send(event("go", "one"))
