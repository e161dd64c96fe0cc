"""Health of the gateway and, through it, of the services behind it.

Anybody may ask for the overall health (""), as probes do. By name ("gateway", "deployer", a full service
name) only known callers may. The health of a service behind the door is asked of itself, at most once a
second. A part of the gateway may wait for something while the rest serves.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.common.clock import Clock
from libs.common.errors import NotFound
from libs.common.health import Health
from libs.common.names import shown
from libs.common.suggest import did_you_mean
from services.gateway.upstreams import Upstreams
from services.gateway.visit import current_visit

_GATEWAY = "gateway"
_WATCH_INTERVAL_S = 1.0
Status = int
Context = grpc.aio.ServicerContext[Any, Any]


class DoorHealth(Health, health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """`grpc.health.v1.Health` at the door."""

    def __init__(
        self,
        services: Iterable[str],
        conditions: Mapping[str, Callable[[], bool]],
        upstreams: Upstreams,
        clock: Clock,
    ) -> None:
        """`services`: full names of the gateway's own; `conditions`: what some of them need to serve."""
        super().__init__(())
        self._own = frozenset(("", _GATEWAY, *services))
        self._unwell: set[str] = set(self._own)
        self._conditions = conditions
        self._upstreams = upstreams
        self._clock = clock

    def report(self) -> Mapping[str, bool]:
        """Say whether the gateway itself serves (""), and each of its services that need something for it."""
        return {name: self._serves(name) for name in ("", *self._conditions)}

    def _serves(self, name: str) -> bool:
        needs = self._conditions.get(name)
        return name not in self._unwell and (needs is None or needs())

    def add_to(self, server: Any) -> None:
        """Register with `server`."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    async def serving(self) -> None:
        """Say SERVING for everything that is the gateway's own."""
        self._unwell.clear()

    async def not_serving(self) -> None:
        """Say NOT_SERVING for everything that is the gateway's own."""
        self._unwell = set(self._own)

    async def set(self, service: str, serving: bool) -> None:
        """Say whether one of the gateway's own services is well."""
        if serving:
            self._unwell.discard(service)
        else:
            self._unwell.add(service)

    async def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """Say how a service is.

        Raises:
            Unauthenticated: when a stranger asks by name.
            NotFound: when there is no such service.
        """
        return health_pb2.HealthCheckResponse(status=await self._status(request.service))

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Say how a service is, now and whenever that changes; SERVICE_UNKNOWN where there is none."""
        told: Status | None = None
        while True:
            try:
                status = await self._status(request.service)
            except NotFound:
                status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status)
            await self._clock.sleep(_WATCH_INTERVAL_S)

    async def List(  # noqa: N802
        self, request: health_pb2.HealthListRequest, context: Context
    ) -> health_pb2.HealthListResponse:
        """Say how everything is: overall, the gateway and its parts, and each service behind it."""
        names = ("", _GATEWAY, *self._conditions, *self._upstreams)
        return health_pb2.HealthListResponse(
            statuses={name: health_pb2.HealthCheckResponse(status=await self._status(name)) for name in names}
        )

    async def _status(self, name: str) -> Status:
        if name:
            current_visit()
        if name in self._own:
            states = health_pb2.HealthCheckResponse
            return int(states.SERVING if self._serves(name) else states.NOT_SERVING)
        words = name.split(".")
        upstream = self._upstreams.get(words[1] if words[0] == "isthmus" and len(words) == 4 else name)
        if upstream is None:
            known = (*self._own, *self._upstreams)
            raise NotFound(f"service: {shown(name)} is unknown here{did_you_mean(name, known)}")
        return await upstream.health()
