"""Overload, deadlines and callers that give up, over real gRPC and a backend that waits for the test."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from isthmus.serving.v1 import model_pb2 as pb
from libs.common.client import Channel
from libs.common.shares import Shares
from libs.common.testing import eventually
from services.deployer.testing import Running as Deployer
from services.serving.domain.model import ModelKey
from services.serving.testing import (
    Client,
    FakeBackend,
    FakeLoader,
    Running,
    infer_request,
    running_serving,
)

X = np.ones((1, 2), np.float32)
KEY = ModelKey("acme", "m")


class Rig:
    def __init__(self, running: Running, client: Client, backend: FakeBackend) -> None:
        self.running, self.client, self.backend = running, client, backend

    @property
    def waiting(self) -> int:
        return self.running.serving.plane.deployment(KEY, "").batcher.waiting

    def ask(self, deadline_s: float | None = 60.0) -> asyncio.Task:
        return asyncio.get_running_loop().create_task(self.client.infer("m", x=X, deadline_s=deadline_s))

    async def busy(self) -> asyncio.Task:
        runs = len(self.backend.runs)
        self.backend.gate.clear()
        task = self.ask()
        await eventually(lambda: len(self.backend.runs) == runs + 1)
        return task


@pytest.fixture
async def rig(tmp_path: Path, deployer: Deployer, to_deployer: Channel) -> AsyncIterator[Rig]:
    backend = FakeBackend()
    loader = FakeLoader(lambda content: backend)
    async with running_serving(tmp_path / "serving", to_deployer, loader=loader) as running:
        client = running.client()
        await client.put("m", pb.ServingConfig(max_batch_rows=8, queue_capacity=4))
        await client.create("m", "v1", await deployer.client().upload(b"a model"))
        yield Rig(running, client, backend)
        backend.gate.set()


async def test_overload_is_refused_at_once_and_the_rest_is_answered(rig: Rig) -> None:
    first = await rig.busy()
    waiting = [rig.ask() for _ in range(4)]
    await eventually(lambda: rig.waiting == 4)
    with pytest.raises(grpc.aio.AioRpcError, match="4 requests wait") as caught:
        await rig.ask()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    rig.backend.gate.set()
    for answer in await asyncio.gather(first, *waiting):
        assert answer["y"].tolist() == [[2.0, 2.0]]
    assert rig.backend.runs[-2:] == [(1, 2), (4, 2)]
    labels = {"tenant": "acme", "model": "m", "version": "v1"}
    value = rig.running.metrics.get_sample_value
    assert value("isthmus_serving_requests_total", {**labels, "outcome": "queue_full"}) == 1
    assert value("isthmus_serving_requests_total", {**labels, "outcome": "success"}) == 5


async def test_callers_that_give_up_are_not_computed_and_harm_nobody(rig: Rig) -> None:
    first = await rig.busy()
    waiting = [rig.ask() for _ in range(3)]
    await eventually(lambda: rig.waiting == 3)
    waiting[1].cancel()
    await eventually(lambda: rig.waiting == 2)
    rig.backend.gate.set()
    for answer in await asyncio.gather(first, waiting[0], waiting[2]):
        assert answer["y"].tolist() == [[2.0, 2.0]]
    assert rig.backend.runs[-1] == (2, 2)


async def test_a_request_whose_deadline_passed_is_not_computed(rig: Rig) -> None:
    first = await rig.busy()
    runs = len(rig.backend.runs)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.ask(0.2)
    assert caught.value.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
    await eventually(lambda: rig.waiting == 0)
    rig.backend.gate.set()
    await first
    assert len(rig.backend.runs) == runs


async def test_a_new_configuration_drains_the_old(rig: Rig) -> None:
    first = await rig.busy()
    waiting = [rig.ask() for _ in range(3)]
    await eventually(lambda: rig.waiting == 3)
    await rig.client.put("m", pb.ServingConfig(max_batch_rows=4, queue_capacity=9))
    # The new one has taken over, and the old still has its requests.
    assert rig.waiting == 0
    after = rig.ask()
    rig.backend.gate.set()
    for answer in await asyncio.gather(first, *waiting, after):
        assert answer["y"].tolist() == [[2.0, 2.0]]


async def test_too_many_bytes_in_hand_are_refused(rig: Rig) -> None:
    size = infer_request("m", {"x": X}).ByteSize()
    # A tenant alone has half.
    rig.running.serving.plane._held = Shares(4 * size + size // 2)
    first = await rig.busy()
    second = rig.ask()
    await eventually(lambda: rig.waiting == 1)
    with pytest.raises(
        grpc.aio.AioRpcError, match=f"requests hold {2 * size} bytes of this tenant's"
    ) as caught:
        await rig.ask()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    rig.backend.gate.set()
    await asyncio.gather(first, second)
    assert rig.running.serving.plane.held_bytes == 0
