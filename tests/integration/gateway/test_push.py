"""Hints: on ordinary calls and on held streams, from the deployer's feed."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest

from isthmus.deployer.v1 import push_index_pb2
from isthmus.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from libs.common.clock import SystemClock
from libs.common.identity import IdentityVerifier, load_or_create_key
from libs.common.status import error_from_rpc
from services.gateway.testing import (
    UNARY,
    FakePushIndex,
    FakeUpstream,
    bearer,
    deployer_key,
    eventually,
    gateway_config,
    make_device,
    make_key,
    running_gateway,
    serving,
    store_with,
    take_empty_snapshot,
)

OLD, NEW, NEWER = bytes(16), bytes([1]) * 16, bytes([2]) * 16
CLOCK = SystemClock()


def device_name(number=1):
    return f"tenants/default/devices/d{number}"


def change(number, digest=NEW, revoked=False):
    return push_index_pb2.DeviceChange(device=device_name(number), wanted_digest=digest, revoked=revoked)


class Echo(FakeUpstream):
    def __init__(self):
        super().__init__()
        self.on(UNARY, self._answer)

    async def _answer(self, request, context):
        if request == b"refuse":
            await context.abort(grpc.StatusCode.NOT_FOUND, "nothing")
        return request


async def hinted(channel, metadata, request=b""):
    call = channel.unary_unary(UNARY.path)(request, metadata=metadata)
    return dict(await call.trailing_metadata()).get("x-isthmus-update")


def config(folder, port, **settings):
    return gateway_config(folder, upstreams=(f"deployer=127.0.0.1:{port}",), **settings)


async def test_an_ordinary_call_carries_the_hint_while_the_profile_differs(tmp_path):
    feed = FakePushIndex()
    feed.snapshot = [change(1), change(2), change(3)]
    key = deployer_key(tmp_path)
    one, four = make_device(device_name(1), key), make_device(device_name(4), key)
    async with (
        serving(Echo(), feed) as port,
        running_gateway(config(tmp_path, port), await store_with(make_key()[0])) as (made, channel),
    ):
        await eventually(lambda: made.feed.current)
        now = CLOCK.now()
        assert await hinted(channel, one.metadata(now, OLD)) == "1"
        assert await hinted(channel, one.metadata(now, OLD), b"refuse") == "1"
        assert await hinted(channel, one.metadata(now, NEW)) is None
        assert await hinted(channel, one.metadata(now)) is None
        assert await hinted(channel, four.metadata(now, OLD)) is None
        # A key has no profile, whatever it sends.
        profile = one.metadata(now, OLD)[-1]
        assert await hinted(channel, (*bearer(make_key()[1]), profile)) is None
        feed.send(device_name(1), b"")
        await eventually(lambda: len(made.push.index) == 2)
        assert await hinted(channel, one.metadata(now, OLD)) is None
        public = load_or_create_key(tmp_path / "gateway.key").public_key()
        caller = IdentityVerifier("deployer", {"gateway": public}, CLOCK).verify(feed.tokens[0])
        assert (caller.kind, caller.principal) == ("service", "gateway")


async def test_a_malformed_profile_is_refused_with_its_name(tmp_path):
    device = make_device(device_name(), deployer_key(tmp_path))
    async with running_gateway(config(tmp_path, 9), await store_with()) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(UNARY.path)(
                b"", metadata=(*device.metadata(CLOCK.now()), ("x-isthmus-profile", "short"))
            )
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "x-isthmus-profile" in caught.value.details()


def watch(channel, device, digest=OLD):
    return gateway_pb2_grpc.PushServiceStub(channel).Watch(
        gateway_pb2.WatchRequest(profile_digest=digest), metadata=device.metadata(CLOCK.now())
    )


async def test_a_held_stream_is_hinted_at_once_and_on_each_change_of_its_device(tmp_path):
    feed = FakePushIndex()
    feed.snapshot = [change(1)]
    key = deployer_key(tmp_path)
    one, two = make_device(device_name(1), key), make_device(device_name(2), key)
    async with (
        serving(Echo(), feed) as port,
        running_gateway(config(tmp_path, port), await store_with()) as (made, channel),
    ):
        await eventually(lambda: made.feed.current)
        first, second = watch(channel, one), watch(channel, two)
        assert await first.read() == gateway_pb2.WatchResponse()
        await eventually(lambda: len(made.push.hub) == 2)
        quiet = asyncio.create_task(second.read())
        feed.send(device_name(1), NEWER)
        assert await first.read() == gateway_pb2.WatchResponse()
        feed.send(device_name(1), b"")  # it has caught up: nothing to say
        feed.send(device_name(1), OLD)  # and is rolled back to what it had when it began to watch
        assert await first.read() == gateway_pb2.WatchResponse()
        assert not quiet.done()
        feed.send(device_name(2), NEW)
        assert await quiet == gateway_pb2.WatchResponse()
        first.cancel()
        second.cancel()
        await eventually(lambda: len(made.push.hub) == 0)


async def test_a_third_stream_of_a_device_ends_its_oldest(tmp_path):
    device = make_device(device_name(), deployer_key(tmp_path))
    async with running_gateway(config(tmp_path, 9), await store_with()) as (made, channel):
        take_empty_snapshot(made)
        watches = []
        for count in (1, 2, 2):
            watches.append(watch(channel, device))
            await watches[-1].wait_for_connection()
            await eventually(lambda count=count: len(made.push.hub) == count)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watches[0].read()
        assert caught.value.code() is grpc.StatusCode.ABORTED
        assert error_from_rpc(caught.value).reason == "REPLACED"
        assert "x-isthmus-time" in dict(caught.value.trailing_metadata())
        assert len(made.push.hub) == 2
        assert not watches[1].done()


async def test_held_streams_are_bounded(tmp_path):
    key = deployer_key(tmp_path)
    async with running_gateway(config(tmp_path, 9, max_watches=3), await store_with()) as (made, channel):
        take_empty_snapshot(made)
        held = [watch(channel, make_device(device_name(number), key)) for number in range(3)]
        await eventually(lambda: len(made.push.hub) == 3)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch(channel, make_device(device_name(9), key)).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error_from_rpc(caught.value).retry_after_s
        held[0].cancel()
        await eventually(lambda: len(made.push.hub) == 2)
        held[0] = watch(channel, make_device(device_name(9), key))
        await eventually(lambda: len(made.push.hub) == 3)


async def test_only_devices_watch(tmp_path):
    key, text = make_key()
    async with running_gateway(config(tmp_path, 9), await store_with(key)) as (made, channel):
        take_empty_snapshot(made)
        stub = gateway_pb2_grpc.PushServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Watch(gateway_pb2.WatchRequest(profile_digest=OLD), metadata=bearer(text)).read()
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        device = make_device(device_name(), deployer_key(tmp_path))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watch(channel, device, b"short").read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "16" in caught.value.details()


async def test_the_feed_resumes_by_revision_and_reads_a_snapshot_when_that_is_gone(tmp_path):
    feed = FakePushIndex()
    feed.snapshot = [change(number) for number in range(10)]
    async with (
        serving(feed) as port,
        running_gateway(config(tmp_path, port), await store_with()) as (
            made,
            channel,
        ),
    ):
        device = make_device(device_name(20), deployer_key(tmp_path))
        await eventually(lambda: made.feed.current)
        feed.send(device_name(11), NEW)
        await eventually(lambda: len(made.push.index) == 11)
        revision = feed.revision

        await restarted(feed, port, made)
        assert feed.watches[-1] == revision
        assert len(made.push.index) == 11

        # The deployer has forgotten that revision; meanwhile others changed, and one was revoked.
        held = watch(channel, device)
        bad = watch(channel, make_device(device_name(21), deployer_key(tmp_path)))
        await eventually(lambda: len(made.push.hub) == 2)
        feed.snapshot = [change(20), change(21, b"", True)]
        feed.revision = 100
        feed.compacted_before = 99
        await restarted(feed, port, made)
        await eventually(lambda: feed.watches[-2:] == [revision, 0])
        await eventually(lambda: made.push.index.revision == 100)
        assert (len(made.push.index), made.push.index.revoked_count) == (1, 1)
        assert await held.read() == gateway_pb2.WatchResponse()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bad.read()
        assert error_from_rpc(caught.value).reason == "DEVICE_REVOKED"


async def test_a_storm_of_watches_all_get_their_places_and_their_hints(tmp_path):
    key, feed, count = deployer_key(tmp_path), FakePushIndex(), 300
    async with (
        serving(feed) as port,
        running_gateway(config(tmp_path, port), await store_with()) as (made, _),
        AsyncExitStack() as stack,
    ):
        await eventually(lambda: made.feed.current)
        target = f"127.0.0.1:{made.server.port}"
        option = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(target, options=option))
            for _ in range(10)
        ]
        watches = [
            watch(channels[number % 10], make_device(device_name(number), key)) for number in range(count)
        ]
        await eventually(lambda: len(made.push.hub) == count, 60)
        for number in range(count):
            feed.send(device_name(number), NEW)
        for held in watches:
            assert await held.read() == gateway_pb2.WatchResponse()
        for held in watches:
            held.cancel()
        await eventually(lambda: len(made.push.hub) == 0, 60)


async def restarted(feed, port, made):
    """Break the feed's streams, as a restart of the deployer does, and wait for the gateway to be back."""
    before = len(feed.watches)
    feed.drop()
    await eventually(lambda: len(feed.watches) > before)
    await eventually(lambda: made.feed.current)
