"""Health and reflection: what a server says of itself to probes and to grpcurl.

Both packages are imported only when a server is made: a device need not have them, and then lacks the
services.
"""

from collections.abc import Iterable
from typing import Any

HEALTH = "grpc.health.v1.Health"
REFLECTIONS = frozenset({"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"})


class Health:
    """`grpc.health.v1.Health`: overall under "", and for each service under its name."""

    def __init__(self, services: Iterable[str]) -> None:
        self._names = ("", *services)
        self._servicer: Any = None
        try:
            from grpc_health.v1 import health
        except ImportError:
            return
        self._servicer = health.aio.HealthServicer()

    def add_to(self, server: Any) -> None:
        """Register with `server` where the package is installed; NOT_SERVING until `serving`."""
        if self._servicer is not None:
            from grpc_health.v1 import health_pb2_grpc

            health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def serving(self) -> None:
        """Say SERVING for everything."""
        for name in self._names:
            await self.set(name, True)

    async def not_serving(self) -> None:
        """Say NOT_SERVING for everything, for good: a server that stops doesn't come back."""
        if self._servicer is not None:
            await self._servicer.enter_graceful_shutdown()

    async def set(self, service: str, serving: bool) -> None:
        """Say whether one service is well; "" stands for all of them."""
        if self._servicer is None:
            return
        from grpc_health.v1 import health_pb2

        states = health_pb2.HealthCheckResponse.ServingStatus
        await self._servicer.set(service, states.SERVING if serving else states.NOT_SERVING)


def add_reflection(server: Any, services: Iterable[str]) -> None:
    """Serve the descriptors of these services where the package is installed."""
    try:
        from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
    except ImportError:
        return
    names = sorted({*services, reflection.SERVICE_NAME, HEALTH})
    servicer = reflection.aio.ReflectionServicer(names)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
