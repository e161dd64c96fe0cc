"""The simulator's RPC."""

# ruff: noqa: N802 - gRPC names the methods

from typing import Any, TypeAlias

import grpc

from isthmus.device_agent.v1 import simulator_pb2, simulator_pb2_grpc
from libs.common.access import require_tenant
from libs.common.clock import Clock
from libs.common.identity import current_identity
from services.device_agent.simulator import convert
from services.device_agent.simulator.simulations import Simulations

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class SimulatorService(simulator_pb2_grpc.SimulatorServiceServicer):
    """Tries versions."""

    def __init__(self, simulations: Simulations, clock: Clock) -> None:
        self._simulations = simulations
        self._clock = clock

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        simulator_pb2_grpc.add_SimulatorServiceServicer_to_server(self, server)

    async def Simulate(
        self, request: simulator_pb2.SimulateRequest, context: Context
    ) -> simulator_pb2.SimulateResponse:
        """See the proto."""
        wanted = convert.wanted(request)
        require_tenant(current_identity(), wanted.task.tenant)
        verdict = await self._simulations.simulate(
            wanted.task, wanted.payload, wanted.manifest, wanted.events
        )
        preflight = convert.preflight(verdict, wanted.events, self._clock.now())
        return simulator_pb2.SimulateResponse(preflight=preflight)
