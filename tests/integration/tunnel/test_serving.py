"""A device asks a real serving process through the tunnel, while that is killed, stopped and flooded."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from inference import open_inference_pb2 as oip
from libs.common.identity import load_or_create_key, publish_key
from libs.common.testing import eventually
from services.deployer.testing import Running as Deployer
from services.deployer.testing import running_deployer
from services.engine.testing_models import mlp
from services.serving.testing import Client
from tests.integration.serving.process import Process
from tests.integration.tunnel.asking import ask, connect, frame
from tests.integration.tunnel.conftest import Served, running_tunnel

X = np.linspace(-1, 1, 3 * 8, dtype=np.float32).reshape(3, 8)


@pytest.fixture
async def deployer(tmp_path: Path) -> AsyncIterator[Deployer]:
    async with running_deployer(tmp_path / "deployer") as running:
        yield running


@pytest.fixture
async def process(tmp_path: Path, deployer: Deployer) -> AsyncIterator[Process]:
    (tmp_path / "serving").mkdir()
    made = Process(tmp_path / "serving", deployer)
    key = load_or_create_key(tmp_path / "tunnel.key")
    publish_key(tmp_path / "serving" / "trust", "tunnel", key.public_key())
    yield made
    await made.end(signal.SIGKILL)


async def ready(client: Client) -> None:
    async with asyncio.timeout(60):
        while not (await client.oip.ModelReady(oip.ModelReadyRequest(name="m"))).ready:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def requests(served: Served, outcome: str) -> float:
    found = served.telemetry.registry.get_sample_value("isthmus_tunnel_requests_total", {"outcome": outcome})
    assert found is not None
    return found


async def test_a_model_answers_through_kill_9_and_a_stalled_serving(
    tmp_path: Path, process: Process, deployer: Deployer
) -> None:
    client = await process.start()
    port = int(process.target.rpartition(":")[2])
    await client.put("m")
    await client.create("m", "v1", await deployer.client().upload(mlp()))
    (expected,) = (await client.infer("m", x=X)).values()
    async with running_tunnel(tmp_path, serving_target=process.target) as served:
        device, rival = await connect(served), await connect(served, tenant="rival")
        await device.send(ask(1, X), ask(2, X[:, :5]), ask(3, X, model="n"), ask(4, X, outputs=["z"]))
        assert np.allclose(await device.result(1), expected, atol=1e-6)
        assert (await device.answer(1)).model_version == "v1"
        reasons = [(await device.answer(number)).failure_reason for number in (2, 3, 4)]
        assert reasons == ["BAD_INPUT", "MODEL_NOT_FOUND", "BAD_OUTPUT"]
        # Another tenant's device sees nothing of the model.
        await rival.send(ask(1, X))
        assert (await rival.answer(1)).failure_reason == "MODEL_NOT_FOUND"
        await rival.end()

        assert await process.end(signal.SIGKILL) == -signal.SIGKILL
        await device.send(ask(10, X), frame(1))
        assert (await device.answer(10)).failure_reason == "SERVING_UNREACHABLE"
        await device.until_acked(1)

        await ready(await process.start(port))
        number = 10
        while (await device.answer(number)).failure_reason == "SERVING_UNREACHABLE":
            await asyncio.sleep(0.05)
            number += 1
            await device.send(ask(number, X))
        assert np.allclose(await device.result(number), expected, atol=1e-6)

        process.send(signal.SIGSTOP)
        heard = set(device.answers)
        await device.send(*(ask(number, X, timeout_s=0.2) for number in range(100_001, 100_011)), frame(2))
        await device.until_acked(2)
        await eventually(lambda: requests(served, "late") == 10)
        process.send(signal.SIGCONT)
        # Answered behind the ten, whose answers would have come by now.
        await device.send(ask(200_000, X))
        assert np.allclose(await device.result(200_000), expected, atol=1e-6)
        assert set(device.answers) == heard | {200_000}
        await device.end()


async def test_many_devices_at_once(tmp_path: Path, process: Process, deployer: Deployer) -> None:
    client = await process.start()
    await client.put("m")
    await client.create("m", "v1", await deployer.client().upload(mlp()))
    (expected,) = (await client.infer("m", x=X)).values()
    async with running_tunnel(tmp_path, serving_target=process.target, max_requests=128) as served:
        devices = [await connect(served, f"phone-{number}") for number in range(10)]
        for device in devices:
            await device.send(*(ask(number, X) for number in range(1, 21)))
        answers = [await device.answer(number) for device in devices for number in range(1, 21)]
        good = [answer for answer in answers if not answer.failure_reason]
        assert {answer.failure_reason for answer in answers} <= {"", "TOO_MANY_REQUESTS"}
        assert len(good) >= 64
        for content in {answer.outputs[0].content for answer in good}:
            assert np.allclose(np.frombuffer(content, "<f4").reshape(expected.shape), expected, atol=1e-6)
        await eventually(lambda: requests(served, "answered") + requests(served, "refused") == 200)
        for device in devices:
            await device.end()
