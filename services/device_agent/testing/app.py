"""A running agent and an app that speaks to it, for tests."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from isthmus.device_agent.v1 import device_agent_pb2 as pb
from isthmus.device_agent.v1 import device_agent_pb2_grpc
from libs.common.client import create_channel
from services.device_agent.app import Agent
from services.device_agent.config import AgentConfig
from services.device_agent.testing.cloud import TOKEN, FakeCloud


def config(state_dir: Path, cloud: FakeCloud | None = None, **settings: Any) -> AgentConfig:
    """Build a configuration for tests: fast retries, no gateway unless there is a cloud."""
    values: dict[str, Any] = {
        "state_dir": state_dir,
        "device_id": "d1",
        "gateway_target": f"127.0.0.1:{cloud.port}" if cloud is not None else "",
        "plaintext": True,
        "enrolment_token": TOKEN,
        "retry_initial_s": 0.02,
        "retry_max_s": 0.2,
        "hint_jitter_s": 0.0,
        "fenced_wait_s": 0.2,
        "shutdown_grace_s": 0.5,
        "vm_workers": 1,
        "disk_reserve_bytes": 0,
    }
    return AgentConfig(**(values | settings))


class App:
    """An app on the device: speaks to an agent over its socket."""

    def __init__(self, socket: Path) -> None:
        self.channel = create_channel(f"unix:{socket}")
        self.stub = device_agent_pb2_grpc.AgentServiceStub(self.channel)

    async def send(self, *events: pb.Event) -> pb.SendEventsResponse:
        """Hand events over."""
        response: pb.SendEventsResponse = await self.stub.SendEvents(pb.SendEventsRequest(events=events))
        return response

    async def go(self, count: int = 1, *, first: int = 0, user: str = "u1", **fields: Any) -> None:
        """Hand over so many "go" events, with ids from go-<first> on."""
        await self.send(*(event("go", f"go-{first + i}", user, **fields) for i in range(count)))

    async def results(self, count: int, *, task: str = "", after: int = 0) -> list[pb.WatchResultsResponse]:
        """Wait for so many results."""
        found: list[pb.WatchResultsResponse] = []
        call = self.stub.WatchResults(pb.WatchResultsRequest(task=task, after_sequence=after))
        try:
            async for result in call:
                found.append(result)
                if len(found) == count:
                    break
        finally:
            call.cancel()
        return found

    async def all_results(self, task: str = "") -> list[pb.WatchResultsResponse]:
        """Return the results that are there."""
        call = self.stub.WatchResults(pb.WatchResultsRequest(task=task, no_follow=True))
        return [result async for result in call]

    async def status(self) -> pb.GetStatusResponse:
        """Return the agent's status."""
        response: pb.GetStatusResponse = await self.stub.GetStatus(pb.GetStatusRequest())
        return response

    async def until(self, condition: Callable[[pb.GetStatusResponse], bool]) -> pb.GetStatusResponse:
        """Wait until the status meets a condition."""
        while not condition(status := await self.status()):  # noqa: ASYNC110 - nothing tells of a change
            await asyncio.sleep(0.02)
        return status

    async def until_state(self, key: str, state: str) -> pb.GetStatusResponse:
        """Wait until `task@version` is in a state."""
        return await self.until(lambda status: states(status).get(key) == state)

    async def until_problem(self, text: str) -> pb.GetStatusResponse:
        """Wait until one of the problems contains a text."""
        return await self.until(lambda status: any(text in problem for problem in status.problems))


def states(status: pb.GetStatusResponse) -> dict[str, str]:
    """Return the state of each `task@version`."""
    return {f"{task.task}@{task.version}": task.state for task in status.tasks}


def event(
    type_: str, event_id: str = "", user: str = "u1", time_s: float | None = None, **fields: Any
) -> pb.Event:
    """Build an event; its time is that of its arrival unless given."""
    message = pb.Event(event_id=event_id, type=type_, user=user, fields_json=json.dumps(fields))
    if time_s is not None:
        message.event_time.FromNanoseconds(round(time_s * 1e9))
    return message


@asynccontextmanager
async def running(agent: Agent) -> AsyncIterator[App]:
    """Run an agent in this process; ends it on the way out, and raises what ended it before."""
    try:
        await agent.start()
        loop = asyncio.create_task(agent.run())
        app = App(agent.config.socket)
        try:
            yield app
        finally:
            await app.channel.close()
            loop.cancel()
            (outcome,) = await asyncio.gather(loop, return_exceptions=True)
            if isinstance(outcome, Exception):
                raise outcome
    finally:
        await agent.close()
