import asyncio
from contextlib import ExitStack

import pytest

from libs.common.errors import Conflict, Exhausted, Unauthenticated
from services.gateway.domain.hints import HintHub
from services.gateway.domain.push import PushState
from services.gateway.domain.push_index import Change, Fingerprints

ONE, TWO, OLD, NEW = b"1" * 16, b"2" * 16, bytes(16), b"n" * 16


async def test_waking_reaches_one_device_and_coalesces():
    hub = HintHub(10)
    with hub.waiting(ONE, OLD) as one, hub.waiting(TWO, OLD) as two:
        hub.wake(ONE)
        hub.wake(ONE)
        await one.wait()
        again, other = asyncio.create_task(one.wait()), asyncio.create_task(two.wait())
        await asyncio.sleep(0)
        assert not again.done()
        assert not other.done()
        hub.wake(TWO)
        await other
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
    assert (len(hub), hub.waiters()) == (0, [])


async def test_the_third_stream_of_a_device_ends_its_first():
    hub = HintHub(2)
    with ExitStack() as stack:
        first = stack.enter_context(hub.waiting(ONE, OLD))
        second = stack.enter_context(hub.waiting(ONE, OLD))
        third = stack.enter_context(hub.waiting(ONE, OLD))  # within the limit: the first one's place is free
        with pytest.raises(Conflict, match="newer"):
            await first.wait()
        assert hub.waiters() == [second, third]
    assert len(hub) == 0


def test_the_limit_is_over_all_devices_and_places_come_back():
    hub = HintHub(1)
    with hub.waiting(ONE, OLD), pytest.raises(Exhausted) as caught, hub.waiting(TWO, OLD):
        pass
    assert caught.value.retry_after_s
    with hub.waiting(TWO, OLD):
        assert len(hub) == 1


@pytest.fixture
def revoked():
    return []


@pytest.fixture
def push(revoked):
    return PushState(Fingerprints(b"k" * 32), HintHub(10), revoked.append, lambda: revoked.append("all"))


async def hints(push, waiter):
    return [await anext(push.hints(waiter))]


async def test_a_stream_is_hinted_at_once_when_its_profile_differs(push):
    push.apply([Change("d", NEW)])
    with push.hub.waiting(push.fingerprints.of("d"), OLD) as waiter:
        await asyncio.wait_for(hints(push, waiter), 10)


async def test_catching_up_is_no_hint_but_every_new_wish_is(push):
    with push.hub.waiting(push.fingerprints.of("d"), OLD) as waiter:
        stream = push.hints(waiter)
        hint = asyncio.create_task(anext(stream))
        push.apply([Change("other", NEW)])
        push.apply([Change("d", None)])
        await asyncio.sleep(0)
        assert not hint.done()
        push.apply([Change("d", OLD)])  # what it had at first isn't what it has now
        await asyncio.wait_for(hint, 10)
        await stream.aclose()


async def test_a_new_snapshot_hints_whom_it_concerns(push, revoked):
    with (
        push.hub.waiting(push.fingerprints.of("d"), OLD) as concerned,
        push.hub.waiting(push.fingerprints.of("e"), OLD) as other,
    ):
        index = push.new_index()
        index.apply(Change("d", NEW))
        index.apply(Change("e", OLD))
        push.replace(index)
        assert revoked == ["all"]
        await asyncio.wait_for(concerned.wait(), 10)
        waiting = asyncio.create_task(other.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        other.end(Unauthenticated("bye"))
        with pytest.raises(Unauthenticated):
            await waiting


def test_a_revocation_is_passed_on_by_name(push, revoked):
    push.apply([Change("d", None, revoked=True)])
    assert revoked == ["d"]
    push.replace(push.index)
    with pytest.raises(Unauthenticated) as caught:
        push.admit(push.fingerprints.of("d"))
    assert caught.value.reason == "DEVICE_REVOKED"
    push.admit(push.fingerprints.of("e"))
