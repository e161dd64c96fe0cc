"""Writing to streams that the other end ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from libs.common.streams import send

METHOD = "/test.Streams/Talk"


@asynccontextmanager
async def talking(answer: Any) -> AsyncIterator[Any]:
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(answer)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Streams", {"Talk": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel.stream_stream(METHOD)
    finally:
        await server.stop(0)


async def until_refused(call: Any) -> None:
    while await send(call, b"more"):
        pass


async def test_what_the_other_end_ended_with_is_kept_while_messages_are_written() -> None:
    async def refuse(requests: Any, context: Any) -> AsyncIterator[bytes]:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you", (("why", "test"),))
        yield b""

    async with talking(refuse) as talk:
        for _ in range(50):
            call = talk(timeout=60.0)
            writing = asyncio.create_task(until_refused(call))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert (caught.value.code(), caught.value.details()) == (
                grpc.StatusCode.PERMISSION_DENIED,
                "not you",
            )
            assert ("why", "test") in tuple(caught.value.trailing_metadata())
            await asyncio.wait_for(writing, 60.0)


async def test_a_stream_that_ended_well_takes_no_more() -> None:
    async def one(requests: Any, context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request
            return

    async with talking(one) as talk:
        call = talk(timeout=60.0)
        assert await send(call, b"first")
        assert await call.read() == b"first"
        assert await call.read() is grpc.aio.EOF
        assert not await send(call, b"second")
        assert await call.code() is grpc.StatusCode.OK


async def test_messages_arrive_whole_and_in_order() -> None:
    async def echo(requests: Any, context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async with talking(echo) as talk:
        call = talk(timeout=60.0)
        sent = [bytes([n]) * (n * 1000) for n in range(50)]
        for message in sent:
            assert await send(call, message)
        await call.done_writing()
        assert [await call.read() for _ in sent] == sent
        assert await call.read() is grpc.aio.EOF


async def test_nobody_there_is_said_as_such() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        call = channel.stream_stream(METHOD)(timeout=60.0)
        assert not await send(call, b"hello")
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_writer_that_is_cancelled_cancels_the_call() -> None:
    async def deaf(requests: Any, context: Any) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with talking(deaf) as talk:
        call = talk(timeout=60.0)

        async def fill() -> None:
            while True:
                await send(call, bytes(1 << 20))

        filling = asyncio.create_task(fill())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(filling), 0.5)  # the other end reads nothing: it's full
        filling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await filling
        assert call.cancelled()
