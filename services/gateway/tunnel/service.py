"""The tunnel on gRPC: convert, one call of the domain, convert."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from isthmus.tunnel.v1 import tunnel_pb2, tunnel_pb2_grpc
from libs.common.identity import current_identity
from services.gateway.tunnel import convert
from services.gateway.tunnel.domain.export import export
from services.gateway.tunnel.domain.tunnel import Tunnel
from services.gateway.tunnel.store.log import Log

Context = grpc.aio.ServicerContext[Any, Any]


class TunnelService(tunnel_pb2_grpc.TunnelServiceServicer):
    """For devices."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        tunnel_pb2_grpc.add_TunnelServiceServicer_to_server(self, server)

    async def Connect(  # noqa: N802
        self, request_iterator: AsyncIterator[tunnel_pb2.ConnectRequest], context: Context
    ) -> AsyncIterator[tunnel_pb2.ConnectResponse]:
        """Take a device's frames and ack them; answer its requests."""
        device = convert.device_of(current_identity())
        messages = convert.from_requests(request_iterator, device)
        async with aclosing(self._tunnel.connect(device, messages)) as replies:
            async for reply in replies:
                yield convert.to_connect_response(reply)


class ExportService(tunnel_pb2_grpc.ExportServiceServicer):
    """For people and programs of a tenant."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        tunnel_pb2_grpc.add_ExportServiceServicer_to_server(self, server)

    async def Export(  # noqa: N802
        self, request: tunnel_pb2.ExportRequest, context: Context
    ) -> AsyncIterator[tunnel_pb2.ExportResponse]:
        """Stream a tenant's records."""
        selection = convert.from_export_request(request, current_identity())
        pages = export(self._log, selection, position=request.position, follow=request.follow)
        async with aclosing(pages):
            async for page in pages:
                yield convert.to_export_response(page)
