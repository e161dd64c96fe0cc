"""The RPCs for node runners."""

# ruff: noqa: N802 - gRPC names the methods

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from isthmus.scheduler.v1 import runner_pb2 as wire
from isthmus.scheduler.v1 import runner_pb2_grpc
from services.scheduler import convert_runner
from services.scheduler.domain.controller import Controller
from services.scheduler.domain.logs import Logs
from services.scheduler.service import Context


class RunnerService(runner_pb2_grpc.RunnerServiceServicer):
    """Connections of runners, and the logs that they send."""

    def __init__(self, controller: Controller, logs: Logs) -> None:
        self._controller = controller
        self._logs = logs

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        runner_pb2_grpc.add_RunnerServiceServicer_to_server(self, server)

    async def Attach(
        self, request_iterator: AsyncIterator[wire.AttachRequest], context: Context
    ) -> AsyncIterator[wire.AttachResponse]:
        """See the proto."""
        messages = (convert_runner.from_runner(message) async for message in request_iterator)
        async with aclosing(self._controller.attach(messages)) as orders:
            async for order in orders:
                yield convert_runner.to_runner(order)

    async def AppendLog(self, request: wire.AppendLogRequest, context: Context) -> wire.AppendLogResponse:
        """See the proto."""
        self._controller.require_leader()
        size = await self._logs.append(
            convert_runner.worker_id(request.id), request.offset_bytes, request.data, last=request.last
        )
        return wire.AppendLogResponse(offset_bytes=size)
