"""Calls through the door, of all four shapes, to fake services on real connections."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from libs.common.clock import SystemClock
from libs.common.errors import Unauthenticated, Unavailable
from libs.common.identity import IdentityVerifier
from libs.common.status import DETAILS_TRAILER, code_of, details_of, error_from_rpc
from services.gateway.testing import (
    BOTH,
    DOWN,
    UNARY,
    UP,
    FakeUpstream,
    bearer,
    eventually,
    gateway_config,
    make_key,
    running_gateway,
    serving,
    store_with,
)

KEY, TEXT = make_key()
ME = bearer(TEXT)


def through(config_folder: Path, port: int, **settings):
    return gateway_config(config_folder, upstreams=(f"deployer=127.0.0.1:{port}",), **settings)


async def test_a_unary_call_arrives_as_it_was_sent_and_so_does_its_answer(tmp_path):
    upstream, seen = FakeUpstream(), {}

    async def answer(request, context):
        seen["request"], seen["metadata"] = request, dict(context.invocation_metadata())
        await context.send_initial_metadata((("x-first", "1"), ("x-first-bin", b"\0\xff")))
        context.set_trailing_metadata((("x-last", "2"),))
        return request[::-1]

    upstream.on(UNARY, answer)
    async with (
        serving(upstream) as port,
        running_gateway(through(tmp_path, port), await store_with(KEY)) as (_, channel),
    ):
        call = channel.unary_unary(UNARY.path)(
            b"\0abc", metadata=(*ME, ("x-mine", "yes"), ("x-b-bin", b"\1"))
        )
        assert await call == b"cba\0"
        first = dict(await call.initial_metadata())
        last = dict(await call.trailing_metadata())
    assert seen["request"] == b"\0abc"
    assert seen["metadata"]["x-mine"] == "yes"
    assert seen["metadata"]["x-b-bin"] == b"\1"
    assert (first["x-first"], first["x-first-bin"], last["x-last"]) == ("1", b"\0\xff", "2")


async def test_metadata_of_this_hop_stay_here_and_nobody_brings_an_identity(tmp_path):
    upstream, seen = FakeUpstream(), []

    async def answer(request, context):
        seen.extend(context.invocation_metadata())
        return b""

    upstream.on(UNARY, answer)
    forged = (
        ("x-isthmus-identity", "forged"),
        ("x-isthmus-credential", "whatever"),
        ("x-isthmus-profile", "A" * 22),
    )
    async with (
        serving(upstream) as port,
        running_gateway(through(tmp_path, port), await store_with(KEY)) as (_, channel),
    ):
        await channel.unary_unary(UNARY.path)(b"", metadata=(*ME, *forged))
    names = [name for name, _ in seen]
    assert names.count("x-isthmus-identity") == 1
    assert dict(seen)["x-isthmus-identity"] != "forged"
    assert not {"authorization", "x-isthmus-credential", "x-isthmus-profile"} & set(names)
    assert TEXT not in repr(seen)


async def test_the_trace_goes_on_behind_the_door(tmp_path):
    upstream, seen = FakeUpstream(), []

    async def answer(request, context):
        seen.append(dict(context.invocation_metadata())["traceparent"])
        return b""

    upstream.on(UNARY, answer)
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with (
        serving(upstream) as port,
        running_gateway(through(tmp_path, port), await store_with(KEY)) as (_, channel),
    ):
        call = channel.unary_unary(UNARY.path)
        await call(b"", metadata=(*ME, ("traceparent", f"00-{trace_id}-00f067aa0ba902b7-01")))
        await call(b"", metadata=ME)  # a call without a trace starts one, to join the logs by
    assert seen[0].split("-")[1] == trace_id
    assert seen[1].split("-")[1] not in (trace_id, "0" * 32)


async def test_streams_of_every_shape_pass_in_order(tmp_path):
    upstream = FakeUpstream()

    async def down(request, context):
        for number in range(200):
            yield request + str(number).encode()

    async def up(requests, context):
        return b",".join([request async for request in requests])

    async def both(requests, context):
        async for request in requests:
            yield request.upper()

    upstream.on(DOWN, down)
    upstream.on(UP, up)
    upstream.on(BOTH, both)
    words = [f"w{number}".encode() for number in range(200)]
    async with (
        serving(upstream) as port,
        running_gateway(through(tmp_path, port), await store_with(KEY)) as (made, channel),
    ):
        down_call = channel.unary_stream(DOWN.path)(b"n", metadata=ME)
        assert [message async for message in down_call] == [f"n{number}".encode() for number in range(200)]
        assert "x-isthmus-time" in dict(await down_call.trailing_metadata())
        assert await channel.stream_unary(UP.path)(iter(words), metadata=ME) == b",".join(words)
        both_call = channel.stream_stream(BOTH.path)(metadata=ME)
        for word in words:  # ping-pong: nothing waits for the other side to finish
            await both_call.write(word)
            assert await both_call.read() == word.upper()
        await both_call.done_writing()
        assert await both_call.read() is grpc.aio.EOF
        assert await both_call.code() is grpc.StatusCode.OK
        await eventually(lambda: len(made.live) == 0)


@pytest.mark.parametrize("method", [UNARY, DOWN, UP, BOTH], ids=lambda method: method.name)
async def test_a_refusal_comes_back_unchanged(tmp_path, method):
    upstream = FakeUpstream()
    status = status_pb2.Status(code=9, message="no: π")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="BECAUSE", domain="d"))

    async def refuse(request, context):
        await context.abort(
            grpc.StatusCode.FAILED_PRECONDITION,
            "no: π",
            (("grpc-status-details-bin", status.SerializeToString()), ("x-more", "1")),
        )

    async def refuse_stream(request, context):
        await refuse(request, context)
        yield b""

    upstream.on(method, refuse_stream if method.server_streaming else refuse)
    async with (
        serving(upstream) as port,
        running_gateway(through(tmp_path, port), await store_with(KEY)) as (_, channel),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call_once(channel, method)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "no: π"
    trailers = dict(caught.value.trailing_metadata())
    assert trailers["x-more"] == "1"
    assert "x-isthmus-time" in trailers
    assert error_from_rpc(caught.value).reason == "BECAUSE"


async def call_once(channel, method, request=b"", **options):
    """Make one call of any shape and return its (last) response."""
    options.setdefault("metadata", ME)
    if method.client_streaming and method.server_streaming:
        call = channel.stream_stream(method.path)(iter([request]), **options)
    elif method.client_streaming:
        return await channel.stream_unary(method.path)(iter([request]), **options)
    elif method.server_streaming:
        call = channel.unary_stream(method.path)(request, **options)
    else:
        return await channel.unary_unary(method.path)(request, **options)
    return [response async for response in call]


@pytest.mark.parametrize("method", [UNARY, DOWN, UP, BOTH], ids=lambda method: method.name)
async def test_a_deadline_passes_through(tmp_path, method):
    upstream, left = FakeUpstream(), asyncio.Queue()
    ended = asyncio.Event()

    async def hang(request, context):
        left.put_nowait(context.time_remaining())
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def hang_stream(request, context):
        await hang(request, context)
        yield b""

    upstream.on(method, hang_stream if method.server_streaming else hang)
    async with (
        serving(upstream) as port,
        running_gateway(through(tmp_path, port), await store_with(KEY)) as (made, channel),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call_once(channel, method, timeout=1.5)
        await ended.wait()
        await eventually(lambda: len(made.live) == 0)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0 < left.get_nowait() < 2  # gRPC rounds deadlines up


async def test_a_unary_call_without_a_deadline_gets_one(tmp_path):
    upstream, left = FakeUpstream(), []

    async def answer(request, context):
        left.append(context.time_remaining())
        return b""

    upstream.on(UNARY, answer)
    async with (
        serving(upstream) as port,
        running_gateway(through(tmp_path, port, max_unary_s=7.0), await store_with(KEY)) as (_, channel),
    ):
        await channel.unary_unary(UNARY.path)(b"", metadata=ME)
    assert 0 < left[0] < 8


@pytest.mark.parametrize("method", [UNARY, DOWN, UP, BOTH], ids=lambda method: method.name)
async def test_whoever_gives_up_ends_the_call_behind_the_door_too(tmp_path, method):
    upstream, started, ended = FakeUpstream(), asyncio.Event(), asyncio.Event()

    async def hang(request, context):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def hang_stream(request, context):
        await hang(request, context)
        yield b""

    upstream.on(method, hang_stream if method.server_streaming else hang)
    async with (
        serving(upstream) as port,
        running_gateway(through(tmp_path, port), await store_with(KEY)) as (made, channel),
    ):
        calling = asyncio.create_task(call_once(channel, method))
        await started.wait()
        calling.cancel()
        await asyncio.wait_for(ended.wait(), 20)
        await asyncio.gather(calling, return_exceptions=True)
        await eventually(lambda: len(made.live) == 0)

        def counted():
            name = {"grpc_service": method.service, "grpc_method": method.name}
            registry = made.server.telemetry.registry
            return registry.get_sample_value("grpc_server_handled_total", {**name, "grpc_code": "CANCELLED"})

        await eventually(lambda: counted() == 1)


async def test_a_big_message_passes_and_a_bigger_one_is_refused(tmp_path):
    upstream = FakeUpstream()

    async def answer(request, context):
        return request

    upstream.on(UNARY, answer)
    async with (
        serving(upstream) as port,
        running_gateway(through(tmp_path, port, max_message_bytes=2**20), await store_with(KEY)) as (
            _,
            channel,
        ),
    ):
        big = bytes(2**20 - 100)
        assert await channel.unary_unary(UNARY.path)(big, metadata=ME) == big
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(UNARY.path)(bytes(2**20 + 1), metadata=ME)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"has {2**20 + 1} bytes, and {2**20} are allowed" in caught.value.details()


async def test_a_service_that_is_away_is_named_and_found_again(tmp_path):
    upstream = FakeUpstream()

    async def answer(request, context):
        return b"here"

    async def stream(request, context):
        yield b"one"
        await asyncio.Event().wait()

    upstream.on(UNARY, answer)
    upstream.on(DOWN, stream)
    async with serving(upstream) as port:
        pass
    async with running_gateway(through(tmp_path, port), await store_with(KEY)) as (made, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(UNARY.path)(b"", metadata=ME)
        error = error_from_rpc(caught.value)
        assert isinstance(error, Unavailable)
        assert error.reason == "UPSTREAM_UNREACHABLE"
        assert "'deployer'" in error.message
        assert error.retry_after_s
        async with serving(upstream, port=port):
            await answered(channel)
            held = channel.unary_stream(DOWN.path)(b"", metadata=ME)
            assert await held.read() == b"one"
        with pytest.raises(grpc.aio.AioRpcError) as caught:  # killed in the middle of a stream
            await held.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        async with serving(upstream, port=port):
            await answered(channel)
        await eventually(lambda: len(made.live) == 0)


@pytest.mark.parametrize("method", [UNARY, DOWN, UP, BOTH], ids=lambda method: method.name)
async def test_a_service_that_stops_in_the_middle_of_a_call_was_away(tmp_path, method):
    upstream, started = FakeUpstream(), asyncio.Event()

    async def hang(request, context):
        started.set()
        await asyncio.Event().wait()

    async def hang_stream(request, context):
        await hang(request, context)
        yield b""

    upstream.on(method, hang_stream if method.server_streaming else hang)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(upstream))
        async with running_gateway(through(tmp_path, port), await store_with(KEY)) as (_, channel):
            calling = asyncio.create_task(call_once(channel, method))
            await started.wait()
            await stack.aclose()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await calling
    error = error_from_rpc(caught.value)
    assert (caught.value.code(), error.reason) == (grpc.StatusCode.UNAVAILABLE, "UPSTREAM_UNREACHABLE")
    assert error.retry_after_s


async def answered(channel):
    """Wait until a call comes through."""
    async with asyncio.timeout(30):
        while True:
            try:
                assert await channel.unary_unary(UNARY.path)(b"", metadata=ME) == b"here"
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.05)


async def test_a_slow_reader_holds_the_writer_back(tmp_path):
    upstream, sent = FakeUpstream(), []

    async def flood(request, context):
        for number in range(2000):
            sent.append(number)
            yield bytes(64 * 1024)

    upstream.on(DOWN, flood)
    async with (
        serving(upstream) as port,
        running_gateway(through(tmp_path, port), await store_with(KEY)) as (_, channel),
    ):
        call = channel.unary_stream(DOWN.path)(b"", metadata=ME)
        await call.read()
        before = -1
        while len(sent) != before:  # until the flood stands still
            before = len(sent)
            await asyncio.sleep(0.3)
        assert len(sent) < 1000
        received = 1
        while await call.read() is not grpc.aio.EOF:
            received += 1
        assert received == 2000


@pytest.mark.parametrize(
    ("path", "guess"),
    [
        ("/isthmus.deployer.v1.TaskServise/GetTask", "isthmus.deployer.v1.TaskService/GetTask"),
        ("/isthmus.deployer.v1.TaskService/GetTsk", "isthmus.deployer.v1.TaskService/GetTask"),
        ("/isthmus.deploy.v1.TaskService/GetTask", "isthmus.deployer.v1.TaskService/GetTask"),
        ("/nothing.like.it.at.all/Q", ""),
    ],
)
async def test_a_misspelt_method_is_told_what_was_meant(tmp_path, path, guess):
    async with running_gateway(through(tmp_path, 9), await store_with(KEY)) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(path)(b"", metadata=ME)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert guess in caught.value.details()
    assert ("did you mean" in caught.value.details()) == bool(guess)
    assert "x-isthmus-time" in dict(caught.value.trailing_metadata())


async def test_a_service_that_does_not_believe_the_gateway_is_no_fault_of_the_caller(tmp_path):
    """A caller told UNAUTHENTICATED would throw its own good credential away."""
    upstream = FakeUpstream()
    verifier = IdentityVerifier("deployer", {}, SystemClock())

    async def refuse(request, context):
        try:
            if request == b"token":
                raise Unauthenticated("token: is used up", reason="TOKEN_USED_UP")
            await verifier.authenticate(UNARY.path, context.invocation_metadata())
        except Unauthenticated as error:
            trailers = ((DETAILS_TRAILER, details_of(error, "deployer")),)
            await context.abort(code_of(error), error.message, trailers)

    async def refuse_stream(request, context):
        await refuse(request, context)
        yield b""

    upstream.on(UNARY, refuse)
    upstream.on(DOWN, refuse_stream)
    async with (
        serving(upstream) as port,
        running_gateway(through(tmp_path, port), await store_with(KEY)) as (_, channel),
    ):
        for call in (
            channel.unary_unary(UNARY.path)(b"", metadata=ME),
            channel.unary_stream(DOWN.path)(b"", metadata=ME).read(),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            error = error_from_rpc(caught.value)
            assert (caught.value.code().name, error.reason) == ("UNAVAILABLE", "UPSTREAM_MISTRUST")
            assert "deployer" in error.message
            assert error.metadata["cause"] == "BAD_IDENTITY"
            assert error.retry_after_s
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(UNARY.path)(b"token", metadata=ME)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert error_from_rpc(caught.value).reason == "TOKEN_USED_UP"


async def test_a_service_without_a_route_is_unimplemented(tmp_path):
    async with running_gateway(gateway_config(tmp_path), await store_with(KEY)) as (_, channel):
        for path in (
            "/isthmus.deployer.v1.TaskService/GetTask",
            "/isthmus.device_agent.v1.AgentService/GetStatus",
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(path)(b"", metadata=ME)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_hundreds_of_streams_at_once_all_get_through(tmp_path):
    upstream = FakeUpstream()

    async def both(requests, context):
        async for request in requests:
            yield request

    upstream.on(BOTH, both)

    async def visit(channel, number):
        call = channel.stream_stream(BOTH.path)(metadata=ME)
        word = str(number).encode()
        await call.write(word)
        assert await call.read() == word
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK

    async with (
        serving(upstream) as port,
        running_gateway(through(tmp_path, port), await store_with(KEY)) as (made, channel),
    ):
        await asyncio.gather(*(visit(channel, number) for number in range(400)))
        await eventually(lambda: len(made.live) == 0)
