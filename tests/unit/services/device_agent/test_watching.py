import asyncio
from types import SimpleNamespace

import pytest

from libs.common.errors import Unavailable
from libs.common.testing import FakeClock, FakeRandomness
from services.device_agent.backoff import Backoff
from services.device_agent.signals import Bell, Problems
from services.device_agent.watching import Watcher


class Push:
    """The push service, answering when a test has it answer."""

    def __init__(self):
        self.opened = asyncio.Event()
        self.on_answer = None
        self.answers = asyncio.Queue()

    async def watch(self, profile_digest, on_answer):
        self.on_answer = on_answer
        self.opened.set()
        while isinstance(answer := await self.answers.get(), bytes):
            yield
        raise answer


@pytest.fixture
async def world():
    clock, push, hints = FakeClock(), Push(), []
    watcher = Watcher(
        SimpleNamespace(profile_digest=bytes(16), changed=Bell()),
        push,
        SimpleNamespace(hinted=hints.append),
        clock,
        Problems(),
        Backoff(FakeRandomness(1), 1.0, 1.0),
    )
    running = asyncio.create_task(watcher.run())
    await push.opened.wait()
    yield SimpleNamespace(clock=clock, push=push, hints=hints, watcher=watcher)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def passes(clock, seconds):
    """Let time pass, and whoever waited for it go on."""
    for _ in range(10):
        await asyncio.sleep(0)
    clock.advance(seconds)
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_stream_that_was_answered_and_not_refused_for_a_while_is_connected(world):
    await passes(world.clock, 60.0)
    assert not world.watcher.connected  # the path may swallow everything
    world.push.on_answer()
    await passes(world.clock, 1.0)
    assert not world.watcher.connected
    await passes(world.clock, 1.5)
    assert world.watcher.connected
    assert world.hints == []


async def test_a_hint_is_passed_on_and_a_refusal_ends_the_connection(world):
    world.push.on_answer()
    world.push.answers.put_nowait(b"hint")
    await passes(world.clock, 0.0)
    assert (world.hints, world.watcher.connected) == ([bytes(16)], True)
    world.push.opened.clear()
    world.push.answers.put_nowait(Unavailable("later", retry_after_s=1.0))
    await passes(world.clock, 0.0)
    assert not world.watcher.connected
    await passes(world.clock, 5.0)
    await asyncio.wait_for(world.push.opened.wait(), 10)
