"""A device asks through the door: gateway, tunnel and serving, each with its own check of who calls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from isthmus.tunnel.v1 import tunnel_pb2_grpc
from libs.common.clock import SystemClock
from libs.common.identity import load_or_create_key
from libs.common.status import error_from_rpc
from libs.common.testing import eventually, running_server
from services.gateway.testing import (
    FakeDevice,
    deployer_key,
    gateway_config,
    make_device,
    running_gateway,
    store_with,
    take_empty_snapshot,
)
from services.gateway.tunnel.testing import FakeServing
from services.serving.access import ACCESS
from tests.integration.tunnel.asking import HELLO, Asker, ask, frame
from tests.integration.tunnel.conftest import running_tunnel


class World:
    def __init__(
        self, serving: FakeServing, stub: tunnel_pb2_grpc.TunnelServiceStub, device: FakeDevice
    ) -> None:
        self.serving = serving
        self._stub = stub
        self._device = device

    async def connect(self) -> Asker:
        metadata = self._device.metadata(SystemClock().now())
        asker = Asker(self._stub.Connect(metadata=metadata))
        await asker.send(HELLO)
        await asker.until_acked(0)
        return asker


@asynccontextmanager
async def _world(folder: Path) -> AsyncIterator[World]:
    serving = FakeServing()
    trusted = {"tunnel": load_or_create_key(folder / "tunnel.key").public_key()}
    async with (
        running_server(serving, identity=None, access=ACCESS, audience="serving", trusted=trusted) as channel,
        running_tunnel(folder, serving_target=channel.target) as tunnel,
        running_gateway(
            gateway_config(folder, upstreams=(f"tunnel=127.0.0.1:{tunnel.server.port}",)), await store_with()
        ) as (made, door),
    ):
        take_empty_snapshot(made)
        device = make_device("tenants/acme/devices/phone-1", deployer_key(folder))
        yield World(serving, tunnel_pb2_grpc.TunnelServiceStub(door), device)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    # The gateway reads whom it trusts when it starts.
    (tmp_path / "trust").mkdir()
    deployer_key(tmp_path)
    async with _world(tmp_path) as made:
        yield made


async def test_requests_and_frames_pass_the_gateway_side_by_side(world: World) -> None:
    asker = await world.connect()
    for number in range(1, 51):
        await asker.send(frame(number), ask(number))
        await asker.result(number)
    await asker.until_acked(50)
    assert {caller.on_behalf_of for caller in world.serving.callers} == {"tenants/acme/devices/phone-1"}
    await asker.end()


async def test_serving_hears_through_the_gateway_that_a_device_has_gone(world: World) -> None:
    world.serving.gate.clear()
    asker = await world.connect()
    await asker.send(ask(1))
    await eventually(lambda: len(world.serving.callers) == 1)
    await asker.end()
    await eventually(lambda: world.serving.cancelled == 1)


async def test_a_fence_reaches_the_device_through_the_gateway(world: World) -> None:
    world.serving.gate.clear()
    older = await world.connect()
    await older.send(ask(1))
    await eventually(lambda: len(world.serving.callers) == 1)
    newer = await world.connect()
    failed = await older.ended()
    assert failed is not None
    assert error_from_rpc(failed).reason == "FENCED"
    world.serving.gate.set()
    await newer.send(ask(1))
    await newer.result(1)
    await newer.end()
