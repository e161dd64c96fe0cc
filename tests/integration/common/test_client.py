import asyncio
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.wrappers_pb2 import StringValue
from grpc._cython import cygrpc

from libs.common import client as client_module
from libs.common import server as server_module
from libs.common.access import Access
from libs.common.client import (
    RetryPolicy,
    ServiceIdentity,
    channel_options,
    create_channel,
    create_service_channel,
    on_behalf_of,
    retry,
    rpc_errors,
)
from libs.common.clock import SystemClock
from libs.common.config import ServiceConfig
from libs.common.echo import CHAT, COUNT, ECHO, JOIN, EchoService, EchoStub
from libs.common.errors import NotFound, Unavailable
from libs.common.identity import IdentityIssuer, current_identity
from libs.common.server import server_options
from libs.common.testing import USER, FakeRandomness, running_server

ROOT = Path(__file__).resolve().parents[3]


def text(value: str) -> StringValue:
    return StringValue(value=value)


async def test_a_call_without_a_timeout_gets_the_channels() -> None:
    async def act(value: str) -> str:
        await asyncio.Event().wait()
        return value

    async with (
        running_server(EchoService(act)) as server,
        create_channel(server.target, default_deadline_s=0.05) as channel,
    ):
        token = ("x-isthmus-identity", server.issuer.mint(USER, server.audience))
        stub = EchoStub(channel.with_metadata(lambda method, given: [token]))
        with pytest.raises(Unavailable) as caught, rpc_errors():
            await stub.echo(text("x"))
        assert caught.value.reason == "DEADLINE_EXCEEDED"


async def test_a_service_calls_as_itself_on_behalf_of_a_resource() -> None:
    async def act(value: str) -> str:
        identity = current_identity()
        return f"{identity.kind} {identity.principal} {identity.on_behalf_of}"

    key = Ed25519PrivateKey.generate()
    rules = {method: Access(callers=frozenset({"deployer"})) for method in (ECHO, COUNT, JOIN, CHAT)}
    trusted = {"deployer": key.public_key(), "tuner": key.public_key()}
    async with running_server(EchoService(act), access=rules, trusted=trusted) as server:
        identity = ServiceIdentity(IdentityIssuer("deployer", key, SystemClock()), server.audience)
        async with create_channel(server.target, identity=identity) as channel:
            stub = EchoStub(channel)
            with on_behalf_of("tenants/acme/releases/r1"):
                assert (await stub.echo(text("x"))).value == "service deployer tenants/acme/releases/r1"
                assert (await stub.count(text("x")).read()).value.startswith("service deployer tenants/")
            assert (await stub.echo(text("x"))).value == "service deployer "
        tuner = IdentityIssuer("tuner", key, SystemClock())
        async with create_service_channel(server.target, tuner, server.audience) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await EchoStub(channel).echo(text("x"))
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_token_for_another_service_is_refused() -> None:
    key = Ed25519PrivateKey.generate()
    rules = {ECHO: Access(callers=frozenset({"deployer"}))}
    async with running_server(EchoService(), access=rules, trusted={"deployer": key.public_key()}) as server:
        identity = ServiceIdentity(IdentityIssuer("deployer", key, SystemClock()), "tunnel")
        async with create_channel(server.target, identity=identity) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="this is 'test'"):
                await EchoStub(channel).echo(text("x"))


async def test_retry_gets_an_answer_from_a_server_that_recovers() -> None:
    failures = 2

    async def act(value: str) -> str:
        nonlocal failures
        if failures:
            failures -= 1
            raise Unavailable("not yet")
        return value

    async with running_server(EchoService(act)) as channel:
        stub = EchoStub(channel)
        answer = await retry(
            lambda: stub.echo(text("x")),
            idempotent=True,
            clock=SystemClock(),
            randomness=FakeRandomness(),
            policy=RetryPolicy(base_s=0.001),
        )
        assert answer.value == "x"


async def test_nobody_at_the_other_end_is_unavailable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{free.getsockname()[1]}"
        async with create_channel(target) as channel:
            with pytest.raises(Unavailable), rpc_errors():
                await EchoStub(channel).echo(text("x"))


async def test_an_oversized_message_does_not_leave() -> None:
    async with (
        running_server(EchoService()) as server,
        create_channel(server.target, max_message_bytes=1000) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await EchoStub(channel).echo(text("x" * 2000))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_calls_over_a_unix_socket(tmp_path: object) -> None:
    address = f"unix:{tmp_path}/s"
    async with running_server(EchoService(), config=ServiceConfig(host=address)) as server:
        token = server.issuer.mint(USER, server.audience)
        async with create_channel(address) as channel:
            call = EchoStub(channel).echo(text("x"), metadata=(("x-isthmus-identity", token),))
            assert (await call).value == "x"


async def test_writing_to_a_stream_by_hand_works_through_our_channel() -> None:
    async with running_server(EchoService()) as channel:
        call = EchoStub(channel).chat()
        for word in ("a", "b"):
            await call.write(text(word))
            assert (await call.read()).value == word
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK


async def test_an_error_in_the_middle_of_a_stream_ends_it_with_its_status() -> None:
    async def act(value: str) -> str:
        if value == "bad":
            raise NotFound("no bad", reason="NO_BAD")
        return value

    async def words() -> AsyncIterator[StringValue]:
        # Nothing after the bad one: grpc.aio shows a write to a call that has ended as a fault of its own.
        for word in ("good", "bad"):
            yield text(word)

    async with running_server(EchoService(act)) as channel:
        seen = []
        call = EchoStub(channel).chat(words())
        seen.append((await call.read()).value)
        with pytest.raises(NotFound) as caught, rpc_errors():
            await call.read()
        assert (seen, caught.value.reason) == (["good"], "NO_BAD")


def test_grpc_knows_every_argument_of_ours() -> None:
    # It takes no notice of one that it doesn't know, a misspelt one above all.
    library = Path(cygrpc.__file__).read_bytes()
    sources = [path for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py")]
    written = {
        name for path in sources for name in re.findall(r'\("(grpc\.[a-z0-9_.]+)",', path.read_text("utf-8"))
    }
    assert {name for name, _ in (*channel_options(), *server_options(ServiceConfig()))} <= written
    assert [name for name in sorted(written) if name.encode() not in library] == []


async def test_a_silent_stream_outlives_the_pings_of_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (client_module, server_module):
        monkeypatch.setattr(module, "KEEPALIVE_TIME_MS", 1_000)
    async with running_server(EchoService()) as channel:
        call = EchoStub(channel).chat()
        await call.write(text("before"))
        assert (await call.read()).value == "before"
        # By its own rule a server cuts off who pings a silent connection three times within five minutes.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(reading := asyncio.ensure_future(call.read())), 7.0)
        await call.write(text("after"))
        assert (await reading).value == "after"
