"""A tunnel that ends while the device writes to it."""

import asyncio

import grpc
import pytest

from isthmus.tunnel.v1 import tunnel_pb2
from libs.common.errors import Unavailable
from services.device_agent.cloud import _OpenTunnel

CONNECT = "/isthmus.tunnel.v1.TunnelService/Connect"


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.OK])
async def test_writing_after_the_end_raises_what_the_cloud_ended_it_with(code):
    async def connect(requests, context):
        async for _ in requests:
            context.set_trailing_metadata((("x-isthmus-time", "1.0"),))
            if code is not grpc.StatusCode.OK:
                await context.abort(code, "gone")
            return
        yield b""

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(
        connect, request_deserializer=tunnel_pb2.ConnectRequest.FromString
    )
    server.add_registered_method_handlers("isthmus.tunnel.v1.TunnelService", {"Connect": handler})
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream(
                CONNECT, request_serializer=tunnel_pb2.ConnectRequest.SerializeToString
            )()
            tunnel = _OpenTunnel(call)
            message = tunnel_pb2.ConnectRequest(hello=tunnel_pb2.Hello())
            await tunnel.write(message)
            async with asyncio.timeout(30):
                await call.code()
            if code is grpc.StatusCode.OK:
                with pytest.raises(Unavailable, match="closed the tunnel"):
                    await tunnel.write(message)
                return
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await tunnel.write(message)
            assert caught.value.code() is code
            assert ("x-isthmus-time", "1.0") in tuple(caught.value.trailing_metadata())
    finally:
        await server.stop(None)
