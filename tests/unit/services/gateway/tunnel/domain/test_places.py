"""How many requests may be open, of a connection, of a tenant and of all; and for how long."""

import asyncio

import pytest

from libs.common.testing import eventually
from services.gateway.tunnel.domain.frame import Device
from services.gateway.tunnel.domain.requests import Fate
from services.gateway.tunnel.testing import predicted, request
from tests.unit.services.gateway.tunnel.domain.asking_world import World


@pytest.fixture
def world() -> World:
    return World()


async def test_more_than_may_be_open_are_refused_at_once(world: World) -> None:
    world.models.gate.clear()
    device = world.connect()
    device.send(*(request(number) for number in range(1, 19)))
    await device.answered(2)
    assert device.reasons == [(17, "TOO_MANY_REQUESTS"), (18, "TOO_MANY_REQUESTS")]
    assert world.recorder.requests == 16
    world.models.gate.set()
    await device.answered(18)
    device.send(request(19), None)
    await device.task
    assert device.answers[-1] == predicted(19)


async def test_all_connections_together_are_bounded() -> None:
    world = World(requests_in_all=6)
    world.models.gate.clear()
    one, two = world.connect(), world.connect(Device("acme", "phone-2"))
    one.send(request(1), request(2))
    await eventually(lambda: len(world.models.asked) == 2)
    two.send(request(1), request(2))
    await two.answered()
    assert two.reasons == [(2, "TOO_MANY_REQUESTS")]
    assert "3 requests of your tenant's devices" in two.answers[0].failure_message
    one.task.cancel()
    await asyncio.gather(one.task, return_exceptions=True)
    two.send(request(3))
    await eventually(lambda: len(world.models.asked) == 4)
    assert world.recorder.requests == 2
    world.models.gate.set()
    two.send(None)
    await two.task


async def test_a_tenant_whose_model_is_stalled_leaves_places_to_others() -> None:
    world = World(requests_in_all=64)
    world.models.gate.clear()
    stalled = [world.connect(Device("acme", f"phone-{number}")) for number in range(8)]
    for device in stalled:
        device.send(*(request(number, timeout_s=30.0) for number in range(1, 17)))
    await eventually(lambda: len(world.models.asked) + sum(len(d.answers) for d in stalled) == 8 * 16)
    assert len(world.models.asked) == world.recorder.requests == 32
    world.models.gate = asyncio.Event()
    world.models.gate.set()
    other = world.connect(Device("rival", "phone-1"))
    other.send(*(request(number) for number in range(1, 17)), None)
    await other.task
    assert [answer.failure_reason for answer in other.answers] == [""] * 16


async def test_answers_that_nobody_reads_hold_their_places_no_longer_than_they_are_good_for() -> None:
    world = World(requests_in_all=4)
    deaf = world.connect()
    deaf.send(request(1))
    await deaf.answered()
    deaf.reading.clear()
    deaf.send(request(2))
    await deaf.answered(2)  # handed over; what comes behind it waits
    deaf.send(request(3, timeout_s=2.0), request(4, timeout_s=5.0))
    await eventually(lambda: len(world.models.asked) == 4)
    other = world.connect(Device("acme", "phone-2"))
    other.send(request(1))
    await other.answered()
    assert other.reasons == [(1, "TOO_MANY_REQUESTS")]
    world.clock.advance(2.0)
    await eventually(lambda: world.recorder.requests == 1)
    assert world.recorder.fates[-1] is Fate.LATE
    other.send(request(2))
    assert (await other.answered(2))[1] == predicted(2)
    deaf.reading.set()
    deaf.send(None)
    await deaf.task
    assert deaf.answers == [predicted(1), predicted(2), predicted(4)]
    assert world.recorder.requests == 0
    assert world.clock.sleepers == 0


async def test_who_reads_no_answers_is_not_read(world: World) -> None:
    device = world.connect(tunnel=world.over(None))
    device.send(request(1))
    await device.answered()
    device.reading.clear()
    device.send(request(2))
    await device.answered(2)
    device.send(*(request(number) for number in range(3, 1001)), None)
    for _ in range(2000):
        await asyncio.sleep(0)
    assert device.taken == 1 + 2 + 64
    device.reading.set()
    await device.task
    assert [answer.id for answer in device.answers] == list(range(1, 1001))
