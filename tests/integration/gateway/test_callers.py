"""Who gets in: keys and devices, over real connections."""

import asyncio
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isthmus.deployer.v1 import device_pb2, push_index_pb2
from isthmus.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from libs.common.clock import SystemClock
from libs.common.identity import IdentityVerifier, load_or_create_key
from libs.common.status import error_from_rpc
from libs.common.testing import FakeClock
from services.gateway.domain.routes import Method
from services.gateway.testing import (
    DOWN,
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

DEVICE = "tenants/default/devices/d1"
ENROL = "/isthmus.deployer.v1.EnrolmentService/Enrol"


class Echo(FakeUpstream):
    """Answers with the identity token it got; notes what it was sent."""

    def __init__(self):
        super().__init__()
        self.on(UNARY, self._token)
        self.on(Method(ENROL, False, False), self._token)
        self.on(DOWN, self._hold)

    async def _token(self, request, context):
        return dict(context.invocation_metadata())["x-isthmus-identity"].encode()

    async def _hold(self, request, context):
        yield b"open"
        await asyncio.Event().wait()


def who(folder, token, clock):
    public = load_or_create_key(folder / "gateway.key").public_key()
    return IdentityVerifier("deployer", {"gateway": public}, clock).verify(token.decode())


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert "x-isthmus-time" in dict(caught.value.trailing_metadata())
    return caught.value.code().name, error_from_rpc(caught.value)


async def test_a_key_becomes_an_identity_for_the_callee(tmp_path):
    key, text = make_key("acme", scopes=("tasks:read",))
    clock = FakeClock()
    async with (
        serving(Echo()) as port,
        running_gateway(
            gateway_config(tmp_path, upstreams=(f"deployer=127.0.0.1:{port}",)), await store_with(key), clock
        ) as (_, channel),
    ):
        token = await channel.unary_unary(UNARY.path)(b"", metadata=bearer(text))
        again = await channel.unary_unary(UNARY.path)(b"", metadata=bearer(text))
    identity = who(tmp_path, token, clock)
    assert (identity.tenant, identity.kind, identity.scopes) == ("acme", "user", {"tasks:read"})
    assert identity.principal == key.name
    assert again == token  # minting costs more than everything else here


@pytest.mark.parametrize(
    ("metadata", "reason", "says"),
    [
        ((), "NO_CREDENTIALS", "isk_"),
        ((("authorization", "Basic eDp5"),), "BAD_SCHEME", "Bearer"),
        ((("authorization", "Bearer isk_short_x"),), "MALFORMED_KEY", "isk_<16"),
        (bearer(make_key(number=77)[1]), "WRONG_KEY", "unknown or wrong"),
        (bearer(make_key()[1][:-1] + "f"), "WRONG_KEY", "unknown or wrong"),
        (bearer(make_key(number=1)[1]), "EXPIRED_KEY", "expired at 2026-01-01"),
        (bearer(make_key()[1]) * 2, "MALFORMED_CREDENTIALS", "more than once"),
        ((("authorization", "Device x.y.z"),), "NO_CREDENTIAL", "x-isthmus-credential"),
        (
            (("authorization", "Device x.y.z"), ("x-isthmus-credential", "a.b.c")),
            "MALFORMED_TOKEN",
            "credential",
        ),
    ],
)
async def test_strangers_are_told_what_is_wrong_but_no_secret(tmp_path, metadata, reason, says):
    clock = FakeClock()
    deployer_key(tmp_path)
    good, expired = make_key()[0], make_key(number=1, expire_time=clock.now() + timedelta(seconds=10))[0]
    async with (
        serving(Echo()) as port,
        running_gateway(
            gateway_config(tmp_path, upstreams=(f"deployer=127.0.0.1:{port}",)),
            await store_with(good, expired),
            clock,
        ) as (_, channel),
    ):
        clock.advance(11)
        code, error = await refused(channel.unary_unary(UNARY.path)(b"", metadata=metadata))
    assert (code, error.reason) == ("UNAUTHENTICATED", reason)
    assert says in error.message
    for _, value in metadata:
        assert value.partition(" ")[2] not in error.message or not value.partition(" ")[2]


async def test_enrolling_needs_no_credentials(tmp_path):
    clock = FakeClock()
    async with (
        serving(Echo()) as port,
        running_gateway(
            gateway_config(tmp_path, upstreams=(f"deployer=127.0.0.1:{port}",)), await store_with(), clock
        ) as (_, channel),
    ):
        request = device_pb2.EnrolRequest(token="t").SerializeToString()
        for metadata in ((), bearer("rubbish")):
            token = await channel.unary_unary(ENROL)(request, metadata=metadata)
            identity = who(tmp_path, token, clock)
            assert (identity.tenant, identity.principal, identity.kind) == ("", "anonymous", "device")


async def test_a_device_gets_in_until_it_is_revoked(tmp_path):
    clock, feed = FakeClock(), FakePushIndex()
    device = make_device(DEVICE, deployer_key(tmp_path))
    async with (
        serving(Echo(), feed) as port,
        running_gateway(
            gateway_config(tmp_path, upstreams=(f"deployer=127.0.0.1:{port}",)), await store_with(), clock
        ) as (made, channel),
    ):
        await eventually(lambda: made.feed.current)
        metadata = device.metadata(clock.now())
        token = await channel.unary_unary(UNARY.path)(b"", metadata=metadata)
        identity = who(tmp_path, token, clock)
        assert (identity.tenant, identity.principal, identity.kind) == ("default", DEVICE, "device")
        held = channel.unary_stream(DOWN.path)(b"", metadata=metadata)
        assert await held.read() == b"open"
        watch = gateway_pb2_grpc.PushServiceStub(channel).Watch(
            gateway_pb2.WatchRequest(profile_digest=bytes(16)), metadata=metadata
        )
        await eventually(lambda: len(made.push.hub) == 1)
        feed.send(DEVICE, b"", revoked=True)
        for ended in (held.read(), watch.read(), channel.unary_unary(UNARY.path)(b"", metadata=metadata)):
            code, error = await refused(ended)
            assert (code, error.reason) == ("UNAUTHENTICATED", "DEVICE_REVOKED")
        assert len(made.live) == 0


async def test_until_its_first_snapshot_a_gateway_lets_no_device_in_and_afterwards_serves_on(tmp_path):
    clock, feed, key = SystemClock(), FakePushIndex(), make_key()
    trusted = deployer_key(tmp_path)
    revoked, good = make_device(DEVICE, trusted), make_device(DEVICE + "2", trusted)
    feed.snapshot = [push_index_pb2.DeviceChange(device=DEVICE, revoked=True)]
    feed.hold.clear()
    async with (
        serving(Echo(), feed) as port,
        running_gateway(
            gateway_config(tmp_path, upstreams=(f"deployer=127.0.0.1:{port}",)),
            await store_with(key[0]),
            clock,
        ) as (made, channel),
    ):
        unary, health = channel.unary_unary(UNARY.path), health_pb2_grpc.HealthStub(channel)
        await eventually(lambda: bool(feed.watches))

        async def states():
            found = (await health.List(health_pb2.HealthListRequest(), metadata=bearer(key[1]))).statuses
            return {
                name: health_pb2.HealthCheckResponse.ServingStatus.Name(found[name].status)
                for name in ("", "isthmus.gateway.v1.PushService")
            }

        assert await states() == {"": "SERVING", "isthmus.gateway.v1.PushService": "NOT_SERVING"}
        for device in (revoked, good):
            metadata = device.metadata(clock.now())
            for call in (
                unary(b"", metadata=metadata),
                channel.unary_stream(DOWN.path)(b"", metadata=metadata).read(),
                gateway_pb2_grpc.PushServiceStub(channel)
                .Watch(gateway_pb2.WatchRequest(profile_digest=bytes(16)), metadata=metadata)
                .read(),
            ):
                code, error = await refused(call)
                assert (code, error.reason) == ("UNAVAILABLE", "PUSH_INDEX_NOT_READY")
                assert (error.retriable, error.retry_after_s) == (True, 1.0)
        assert await unary(b"", metadata=bearer(key[1]))  # people aren't kept waiting
        assert await channel.unary_unary(ENROL)(device_pb2.EnrolRequest().SerializeToString())

        feed.hold.set()
        await eventually(lambda: made.feed.current)
        assert await states() == {"": "SERVING", "isthmus.gateway.v1.PushService": "SERVING"}
        assert await unary(b"", metadata=good.metadata(clock.now()))
        code, error = await refused(unary(b"", metadata=revoked.metadata(clock.now())))
        assert (code, error.reason) == ("UNAUTHENTICATED", "DEVICE_REVOKED")

        # The deployer goes away, even for a new snapshot: what was known stays in force.
        feed.hold.clear()
        feed.compacted_before = feed.revision + 1
        feed.drop()
        await eventually(lambda: feed.watches[-1] == 0 and len(feed.watches) == 3)
        assert not made.feed.current
        assert await unary(b"", metadata=good.metadata(clock.now()))
        code, error = await refused(unary(b"", metadata=revoked.metadata(clock.now())))
        assert (code, error.reason) == ("UNAUTHENTICATED", "DEVICE_REVOKED")


async def test_a_revoked_key_ends_at_once_with_its_streams(tmp_path):
    admin, admin_text = make_key()
    other, other_text = make_key(number=1)
    async with (
        serving(Echo()) as port,
        running_gateway(
            gateway_config(tmp_path, upstreams=(f"deployer=127.0.0.1:{port}",)),
            await store_with(admin, other),
        ) as (_, channel),
    ):
        held = channel.unary_stream(DOWN.path)(b"", metadata=bearer(other_text))
        assert await held.read() == b"open"
        mine = channel.unary_stream(DOWN.path)(b"", metadata=bearer(admin_text))
        assert await mine.read() == b"open"
        stub = gateway_pb2_grpc.KeyServiceStub(channel)
        answer = await stub.RevokeKey(
            gateway_pb2.RevokeKeyRequest(name=other.name), metadata=bearer(admin_text)
        )
        assert answer.key.revoked
        for ended in (held.read(), channel.unary_unary(UNARY.path)(b"", metadata=bearer(other_text))):
            code, error = await refused(ended)
            assert (code, error.reason) == ("UNAUTHENTICATED", "REVOKED_KEY")
        assert mine.code is not None
        assert not mine.done()


async def test_a_key_revoked_elsewhere_ends_within_the_interval(tmp_path):
    key, text = make_key()
    store, clock = await store_with(key), FakeClock()
    async with (
        serving(Echo()) as port,
        running_gateway(
            gateway_config(tmp_path, upstreams=(f"deployer=127.0.0.1:{port}",), recheck_s=60.0), store, clock
        ) as (_, channel),
    ):
        held = channel.unary_stream(DOWN.path)(b"", metadata=bearer(text))
        assert await held.read() == b"open"
        await store.revoke_key("default", key.key_id, clock.now())
        clock.advance(61)
        code, error = await refused(held.read())
        assert (code, error.reason) == ("UNAUTHENTICATED", "REVOKED_KEY")
        code, error = await refused(channel.unary_unary(UNARY.path)(b"", metadata=bearer(text)))
        assert error.reason == "REVOKED_KEY"


async def test_the_trailer_tells_a_device_how_far_its_clock_is_off(tmp_path):
    clock = FakeClock()
    device = make_device(DEVICE, deployer_key(tmp_path))
    async with (
        serving(Echo()) as port,
        running_gateway(
            gateway_config(tmp_path, upstreams=(f"deployer=127.0.0.1:{port}",)), await store_with(), clock
        ) as (made, channel),
    ):
        take_empty_snapshot(made)
        call = channel.unary_unary(UNARY.path)
        ahead = clock.now() + timedelta(hours=1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(
                b"",
                metadata=(
                    ("authorization", f"Device {device.token(ahead)}"),
                    ("x-isthmus-credential", device.credential(clock.now())),
                ),
            )
        assert error_from_rpc(caught.value).reason == "CLOCK_SKEW"
        told = float(dict(caught.value.trailing_metadata())["x-isthmus-time"])
        assert told == clock.now().timestamp()
        corrected = datetime.fromtimestamp(told, UTC)
        assert await call(b"", metadata=device.metadata(corrected))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["", "Bearer ", "bearer ", "Device ", "DEVICE  ", "isk_"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=120),
    st.none() | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=120),
)
async def test_rubbish_is_unauthenticated_never_internal(tmp_path_factory, scheme, rest, credential):
    folder = tmp_path_factory.mktemp("g")
    deployer_key(folder)
    metadata = [("authorization", scheme + rest)]
    if credential is not None:
        metadata.append(("x-isthmus-credential", credential))
    async with running_gateway(
        gateway_config(folder, upstreams=("deployer=127.0.0.1:9",)), await store_with(make_key()[0])
    ) as (_, channel):
        code, _ = await refused(channel.unary_unary(UNARY.path)(b"", metadata=metadata))
    assert code == "UNAUTHENTICATED"


async def test_without_the_deployers_key_devices_are_asked_to_come_back(tmp_path):
    device = make_device(DEVICE, Ed25519PrivateKey.generate())
    clock = FakeClock()
    async with running_gateway(
        gateway_config(tmp_path, upstreams=("deployer=127.0.0.1:9",)), await store_with(), clock
    ) as (made, channel):
        take_empty_snapshot(made)
        code, error = await refused(
            channel.unary_unary(UNARY.path)(b"", metadata=device.metadata(clock.now()))
        )
        assert (code, error.reason) == ("UNAVAILABLE", "NO_DEPLOYER_KEY")
        # As soon as the deployer has published it, no restart is needed.
        trusted = deployer_key(tmp_path)
        known = make_device(DEVICE, trusted)
        code, error = await refused(
            channel.unary_unary(UNARY.path)(b"", metadata=known.metadata(clock.now()))
        )
        assert error.reason == "UPSTREAM_UNREACHABLE"
