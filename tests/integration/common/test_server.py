import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from libs.common import errors
from libs.common.access import Access
from libs.common.client import error_from_rpc, rpc_errors
from libs.common.config import ServiceConfig
from libs.common.echo import CHAT, COUNT, ECHO, JOIN, EchoService, EchoStub
from libs.common.errors import Error
from libs.common.identity import Identity, current_identity
from libs.common.status import CODES
from libs.common.testing import counted, eventually, running_server, wait_for_count


def text(value: str) -> StringValue:
    return StringValue(value=value)


async def texts(*values: str) -> AsyncIterator[StringValue]:
    for value in values:
        yield text(value)


async def failing(stub: EchoStub, method: str, value: str = "x") -> grpc.aio.AioRpcError:
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        ECHO: lambda: stub.echo(text(value)),
        JOIN: lambda: stub.join(texts(value)),
        COUNT: lambda: _drain(stub.count(text(value))),
        CHAT: lambda: _drain(stub.chat(texts(value))),
    }
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await calls[method]()
    return caught.value


async def _drain(call: Any) -> list[str]:
    return [message.value async for message in call]


async def test_all_four_arities_answer() -> None:
    async with running_server(EchoService()) as channel:
        stub = EchoStub(channel)
        assert (await stub.echo(text("hallo"))).value == "hallo"
        assert (await stub.join(texts("a", "b"))).value == "a,b"
        assert await _drain(stub.chat(texts("a", "b"))) == ["a", "b"]
        counting = stub.count(text("n"))
        assert [(await counting.read()).value for _ in range(3)] == ["n"] * 3
        counting.cancel()
        for method in (ECHO, JOIN, CHAT):
            await wait_for_count(channel.telemetry, method, "OK")
        await wait_for_count(channel.telemetry, COUNT, "CANCELLED")
        assert counted(channel.telemetry, COUNT, "OK") == 0


@pytest.mark.parametrize("method", [ECHO, JOIN, COUNT, CHAT])
@pytest.mark.parametrize("kind", list(CODES))
async def test_each_error_arrives_as_it_was_raised(kind: type[Error], method: str) -> None:
    async def act(value: str) -> str:
        raise kind("no 'x' — ünïcode", reason="NO_X", metadata={"field": "x"}, retry_after_s=1.5)

    async with running_server(EchoService(act)) as channel:
        raised = await failing(EchoStub(channel), method)
        assert raised.code() is CODES[kind]
        assert raised.details() == "no 'x' — ünïcode"
        error = error_from_rpc(raised)
        assert type(error) is kind
        assert (error.message, error.reason, dict(error.metadata), error.retry_after_s) == (
            "no 'x' — ünïcode",
            "NO_X",
            {"field": "x"},
            1.5,
        )
        await wait_for_count(channel.telemetry, method, CODES[kind].name)


@pytest.mark.parametrize("method", [ECHO, JOIN, COUNT, CHAT])
async def test_an_unknown_exception_is_internal_with_a_fixed_text_and_one_traceback(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(value: str) -> str:
        raise KeyError("secret detail")

    async with running_server(EchoService(act)) as channel:
        with caplog.at_level(logging.INFO, "isthmus"):
            raised = await failing(EchoStub(channel), method)
    assert raised.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(raised.details())
    assert [record.exc_info is not None for record in caplog.records if "Echo" in record.message] == [
        True,
        False,
    ]
    assert "secret detail" in caplog.text


async def test_an_expected_error_is_logged_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def act(value: str) -> str:
        raise errors.NotFound("no x")

    async with running_server(EchoService(act)) as channel:
        with caplog.at_level(logging.INFO, "isthmus"):
            await failing(EchoStub(channel), ECHO)
    assert "no x" in caplog.text
    assert all(record.exc_info is None for record in caplog.records)


@pytest.mark.parametrize("method", [ECHO, JOIN, COUNT, CHAT])
async def test_bytes_that_are_no_message_are_the_callers_fault(method: str) -> None:
    async def junk() -> AsyncIterator[bytes]:
        yield b"\xff\xff\xff"

    async with running_server(EchoService()) as channel:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            ECHO: lambda: channel.unary_unary(ECHO)(b"\xff\xff\xff"),
            JOIN: lambda: channel.stream_unary(JOIN)(junk()),
            COUNT: lambda: _drain(channel.unary_stream(COUNT)(b"\xff\xff\xff")),
            CHAT: lambda: _drain(channel.stream_stream(CHAT)(junk())),
        }
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await calls[method]()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error_from_rpc(caught.value).reason == "UNDECODABLE_REQUEST"


async def test_an_oversized_message_is_refused_with_its_size_and_the_limit() -> None:
    async with running_server(EchoService(), config=ServiceConfig(max_message_bytes=10_000)) as channel:
        raised = await failing(EchoStub(channel), ECHO, "x" * 20_000)
        assert raised.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "10000" in str(raised.details())
        assert (await EchoStub(channel).echo(text("still here"))).value == "still here"


async def test_a_call_that_is_given_up_counts_as_cancelled() -> None:
    started = asyncio.Event()

    async def act(value: str) -> str:
        started.set()
        await asyncio.Event().wait()
        return value

    async with running_server(EchoService(act)) as channel:
        stub = EchoStub(channel)
        calls: dict[str, Callable[[], Any]] = {
            ECHO: lambda: stub.echo(text("x")),
            COUNT: lambda: stub.count(text("x")),
            JOIN: lambda: stub.join(texts("x")),
            CHAT: lambda: stub.chat(texts("x")),
        }
        for method, make in calls.items():
            started.clear()
            call = make()
            reading = asyncio.ensure_future(call.read()) if method in (COUNT, CHAT) else None
            await asyncio.wait_for(started.wait(), 30)
            call.cancel()
            await wait_for_count(channel.telemetry, method, "CANCELLED")
            assert counted(channel.telemetry, method, "OK") == 0
            if reading is not None:
                await asyncio.gather(reading, return_exceptions=True)


async def test_a_handler_that_swallows_the_cancellation_counts_as_cancelled_all_the_same() -> None:
    started = asyncio.Event()

    async def act(value: str) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "too late"
        return value

    async with running_server(EchoService(act)) as channel:
        call = EchoStub(channel).echo(text("x"))
        waiting = asyncio.ensure_future(_outcome(call))
        await asyncio.wait_for(started.wait(), 30)
        call.cancel()
        await waiting
        await wait_for_count(channel.telemetry, ECHO, "CANCELLED")
        assert counted(channel.telemetry, ECHO, "OK") == 0


async def _outcome(call: Any) -> object:
    try:
        return await call
    except asyncio.CancelledError:
        return "cancelled"


async def test_the_callers_deadline_ends_the_handler_and_is_counted_as_such() -> None:
    async def act(value: str) -> str:
        await asyncio.Event().wait()
        return value

    async with running_server(EchoService(act)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await EchoStub(channel).echo(text("x"), timeout=0.1)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert error_from_rpc(caught.value).reason == "DEADLINE_EXCEEDED"
        await wait_for_count(channel.telemetry, ECHO, "DEADLINE_EXCEEDED")


async def test_a_unary_call_without_a_deadline_gets_the_servers() -> None:
    async def act(value: str) -> str:
        await asyncio.Event().wait()
        return value

    config = ServiceConfig(max_unary_s=0.05)
    async with running_server(EchoService(act), config=config, trailers=lambda: (("at", "12.5"),)) as channel:
        async with grpc.aio.insecure_channel(channel.target) as bare:
            token = channel.issuer.mint(
                Identity("acme", "k", "user", frozenset("*"), "gateway"), channel.audience
            )
            echo: Any = bare.unary_unary(ECHO)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await echo(b"", metadata=(("x-isthmus-identity", token),))
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "0.05 s" in str(caught.value.details())
        assert ("at", "12.5") in list(caught.value.trailing_metadata() or ())
        await wait_for_count(channel.telemetry, ECHO, "DEADLINE_EXCEEDED")


async def test_a_timeout_of_the_handlers_own_is_not_taken_for_the_deadline() -> None:
    async def act(value: str) -> str:
        raise TimeoutError("of something inside")

    async with running_server(EchoService(act)) as channel:
        assert (await failing(EchoStub(channel), ECHO)).code() is grpc.StatusCode.INTERNAL


async def test_more_calls_than_the_limit_are_refused_early_and_the_others_go_on() -> None:
    gate = asyncio.Event()
    running = 0

    async def act(value: str) -> str:
        nonlocal running
        running += 1
        await gate.wait()
        return value

    async with running_server(EchoService(act), config=ServiceConfig(max_unary_in_flight=2)) as channel:
        stub = EchoStub(channel)
        held = [asyncio.ensure_future(_value(stub.echo(text(str(n))))) for n in range(2)]
        await eventually(lambda: running == 2)
        raised = await failing(stub, ECHO)
        assert raised.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error_from_rpc(raised).retry_after_s == 0.5
        gate.set()
        assert await asyncio.gather(*held) == ["0", "1"]
        assert (await stub.echo(text("again"))).value == "again"


async def _value(call: Any) -> str:
    return str((await call).value)


@pytest.mark.parametrize(
    ("method", "hint"),
    [
        ("/isthmus.testing.v1.EchoService/Ecko", ECHO),
        ("/isthmus.testing.v1.EchService/Echo", ECHO),
        ("/grpc.health.v1.Health/Chek", "/grpc.health.v1.Health/Check"),
    ],
)
async def test_an_unknown_method_is_unimplemented_with_a_suggestion(method: str, hint: str) -> None:
    async with running_server(EchoService(), identity=None) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(method)(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert f"did you mean '{hint}'?" in str(caught.value.details())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/zzz/qqq")(b"")
        assert "no such method here" in str(caught.value.details())
        await wait_for_count(channel.telemetry, "/unknown/unknown", "UNIMPLEMENTED", 2)


ALICE = Identity("acme", "tenants/acme/keys/alice", "user", frozenset({"tasks:read"}), "gateway")


async def test_the_handler_sees_who_calls_and_the_rules_hold() -> None:
    async def act(value: str) -> str:
        return current_identity().principal

    rules = {
        ECHO: Access("tasks:read"),
        JOIN: Access("tasks:write"),
        COUNT: Access("tasks:read", kinds=frozenset({"device"})),
    }
    async with running_server(EchoService(act), access=rules, identity=ALICE) as channel:
        stub = EchoStub(channel)
        assert (await stub.echo(text("x"))).value == ALICE.principal
        for method, reason in ((JOIN, "MISSING_SCOPE"), (COUNT, "WRONG_KIND"), (CHAT, "NO_ACCESS_RULE")):
            raised = await failing(stub, method)
            assert raised.code() is grpc.StatusCode.PERMISSION_DENIED
            assert error_from_rpc(raised).reason == reason
        raised = await failing(EchoStub(channel.anonymous()), ECHO)
        assert raised.code() is grpc.StatusCode.UNAUTHENTICATED
        stranger = channel.anonymous().with_metadata(lambda method, given: [("x-isthmus-identity", "forged")])
        assert (await failing(EchoStub(stranger), ECHO)).code() is grpc.StatusCode.UNAUTHENTICATED


async def test_too_many_response_streams_are_refused_early_and_a_place_comes_free() -> None:
    async with running_server(EchoService(), config=ServiceConfig(max_streams=2)) as channel:
        stub = EchoStub(channel)
        held = [stub.count(text("a")), stub.count(text("b"))]
        for call in held:
            assert (await call.read()).value in ("a", "b")
        for method in (COUNT, CHAT):
            error = error_from_rpc(await failing(stub, method))
            assert (type(error), error.reason) == (errors.Exhausted, "TOO_MANY_CALLS")
            assert error.retry_after_s
        assert (await stub.echo(text("unary calls have room of their own"))).value
        held[0].cancel()
        await wait_for_count(channel.telemetry, COUNT, "CANCELLED")
        assert await _drain(stub.chat(texts("c"))) == ["c"]
        held[1].cancel()
        await wait_for_count(channel.telemetry, COUNT, "CANCELLED", 2)


async def test_concurrent_callers_never_see_one_another() -> None:
    async def act(value: str) -> str:
        before = current_identity().principal
        await asyncio.sleep(0)
        assert current_identity().principal == before
        return before

    async with running_server(EchoService(act)) as channel:
        people = [Identity("acme", f"p{n}", "user", frozenset({"*"}), "gateway") for n in range(20)]
        stubs = [EchoStub(channel.acting_as(person)) for person in people]
        answers = await asyncio.gather(*(_value(stub.echo(text("x"))) for stub in stubs for _ in range(5)))
        assert answers == [person.principal for person in people for _ in range(5)]


async def test_an_error_of_a_service_behind_is_not_passed_on_as_ours() -> None:
    async def denied(value: str) -> str:
        raise errors.Forbidden("deployer may not")

    async def busy(value: str) -> str:
        raise errors.Exhausted("busy", retry_after_s=3.0)

    for behind, code in ((denied, grpc.StatusCode.INTERNAL), (busy, grpc.StatusCode.UNAVAILABLE)):
        async with running_server(EchoService(behind)) as upstream:
            stub = EchoStub(upstream)

            async def act(value: str, stub: EchoStub = stub) -> str:
                return await _value(stub.echo(text(value)))

            async with running_server(EchoService(act)) as channel:
                raised = await failing(EchoStub(channel), ECHO)
                assert raised.code() is code


async def test_rpc_errors_gives_the_taxonomy_to_callers() -> None:
    async def act(value: str) -> str:
        raise errors.Conflict("stale", reason="ETAG_MISMATCH")

    async with running_server(EchoService(act)) as channel:
        with pytest.raises(errors.Conflict, match="stale"), rpc_errors():
            await EchoStub(channel).echo(text("x"))


async def test_trailers_come_with_answers_and_with_errors() -> None:
    async def act(value: str) -> str:
        if value == "bad":
            raise errors.Invalid("bad")
        return value

    async with running_server(EchoService(act), trailers=lambda: (("x-isthmus-time", "12.5"),)) as channel:
        call = EchoStub(channel).echo(text("good"))
        await call
        assert ("x-isthmus-time", "12.5") in list(await call.trailing_metadata())
        raised = await failing(EchoStub(channel), ECHO, "bad")
        assert ("x-isthmus-time", "12.5") in list(raised.trailing_metadata())
        assert error_from_rpc(raised).message == "bad"
        raised = await failing(EchoStub(channel.anonymous()), ECHO)
        assert ("x-isthmus-time", "12.5") in list(raised.trailing_metadata())
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await channel.unary_unary("/isthmus.testing.v1.EchoService/Ecko")(b"")
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert ("x-isthmus-time", "12.5") in list(unknown.value.trailing_metadata() or ())


async def test_a_huge_message_and_huge_metadata_still_arrive_as_a_status() -> None:
    async def act(value: str) -> str:
        raise errors.Invalid("ü" * 100_000, metadata={f"k{n}": "v" * 10_000 for n in range(100)})

    async with running_server(EchoService(act)) as channel:
        raised = await failing(EchoStub(channel), ECHO)
        assert raised.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error_from_rpc(raised).reason == "INVALID"


class Refusing(EchoService):
    """Refuses a request stream before it reads from it."""

    async def _join(self, requests: AsyncIterator[StringValue], context: Any) -> StringValue:
        raise errors.Forbidden("not you", reason="NOT_YOU")


async def test_a_stream_may_be_refused_before_it_is_read() -> None:
    async with running_server(Refusing()) as channel:
        error = await failing(EchoStub(channel), JOIN)
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    # A reader of gRPC's that was made and never awaited would warn here, and warnings are errors.
    gc.collect()
