"""kill -9 of a real serving process: what was acknowledged is served again, what wasn't is cleared away."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from inference import open_inference_pb2 as oip
from isthmus.serving.v1 import model_pb2 as pb
from services.deployer.testing import Running as Deployer
from services.serving.testing import Client
from services.serving.testing_models import scale
from tests.integration.serving.process import Process

X = np.ones((1, 4), np.float32)


@pytest.fixture
async def process(tmp_path: Path, deployer: Deployer) -> AsyncIterator[Process]:
    (tmp_path / "process").mkdir()
    made = Process(tmp_path / "process", deployer)
    yield made
    await made.end(signal.SIGKILL)


async def ready(client: Client, model: str) -> None:
    async with asyncio.timeout(60):
        while not (await client.oip.ModelReady(oip.ModelReadyRequest(name=model))).ready:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_killed_process_serves_again_what_it_served(process: Process, deployer: Deployer) -> None:
    client = await process.start()
    await client.put("m", pb.ServingConfig(max_batch_rows=9))
    for factor in (1, 2):
        await client.create("m", f"v{factor}", await deployer.client().upload(scale(float(factor))))
    # It dies while a version is being made, at a moment that isn't known.
    blob = await deployer.client().upload(scale(3.0))
    making = asyncio.get_running_loop().create_task(client.create("m", "v3", blob))
    await asyncio.sleep(0.02)
    assert await process.end(signal.SIGKILL) == -signal.SIGKILL
    (made,) = await asyncio.gather(making, return_exceptions=True)
    acknowledged = isinstance(made, pb.ModelVersion)

    client = await process.start()
    await ready(client, "m")
    found = await client.versions("m")
    assert list(found)[-2:] == ["v2", "v1"]
    if acknowledged:
        assert "v3" in found
    live = (await client.get("m")).live_version
    assert live == next(iter(found))
    assert (await client.infer("m", x=X))["y"][0, 0] == int(live[1:])
    assert (await client.get("m")).config.max_batch_rows == 9
    # What was half made doesn't stand in the way.
    if "v3" not in found:
        await client.create("m", "v3", blob)
    assert (await client.infer("m", x=X))["y"][0, 0] == 3
    assert await process.end(signal.SIGTERM) == 0


async def test_a_process_told_to_stop_answers_what_it_has_taken(process: Process, deployer: Deployer) -> None:
    client = await process.start()
    config = pb.ServingConfig(max_batch_rows=64, queue_capacity=8)
    config.max_batch_delay.FromMilliseconds(4000)
    await client.put("m", config)
    await client.create("m", "v1", await deployer.client().upload(scale(2.0)))
    calls = [asyncio.get_running_loop().create_task(client.infer("m", x=X)) for _ in range(9)]
    # One is too many: when it is refused, the others wait in the queue.
    (refused,), taken = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(grpc.aio.AioRpcError, match="8 requests wait"):
        await refused
    process.send(signal.SIGTERM)
    assert [answer["y"][0, 0] for answer in await asyncio.gather(*taken)] == [2.0] * 8
    assert await process.ended() == 0
