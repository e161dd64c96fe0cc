"""What the gateway itself answers: each call is converted, answered by the domain, and converted back."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from isthmus.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from libs.common.identity import current_identity
from services.gateway.convert import to_key, to_profile_digest, to_tenant, to_timedelta
from services.gateway.domain.admin import Admin
from services.gateway.domain.callers import require_device
from services.gateway.domain.live import LiveStreams
from services.gateway.domain.push import PushState
from services.gateway.visit import Stamp, current_visit

Context = grpc.aio.ServicerContext[Any, Any]


class TenantService(gateway_pb2_grpc.TenantServiceServicer):
    """Tenants, for operators."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        gateway_pb2_grpc.add_TenantServiceServicer_to_server(self, server)

    async def CreateTenant(  # noqa: N802
        self, request: gateway_pb2.CreateTenantRequest, context: Context
    ) -> gateway_pb2.CreateTenantResponse:
        """Make a tenant."""
        tenant = await self._admin.create_tenant(
            current_identity(), request.tenant_id, request.display_name, request.request_id
        )
        return gateway_pb2.CreateTenantResponse(tenant=to_tenant(tenant))

    async def ListTenants(  # noqa: N802
        self, request: gateway_pb2.ListTenantsRequest, context: Context
    ) -> gateway_pb2.ListTenantsResponse:
        """List tenants by name."""
        tenants, token = await self._admin.list_tenants(
            current_identity(), request.page_size, request.page_token
        )
        return gateway_pb2.ListTenantsResponse(tenants=map(to_tenant, tenants), next_page_token=token)


class KeyService(gateway_pb2_grpc.KeyServiceServicer):
    """API keys of a tenant."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        gateway_pb2_grpc.add_KeyServiceServicer_to_server(self, server)

    async def CreateKey(  # noqa: N802
        self, request: gateway_pb2.CreateKeyRequest, context: Context
    ) -> gateway_pb2.CreateKeyResponse:
        """Make a key."""
        ttl = to_timedelta(request.ttl, "ttl") if request.HasField("ttl") else None
        key, text = await self._admin.create_key(
            current_identity(), request.parent, request.display_name, request.scopes, ttl
        )
        return gateway_pb2.CreateKeyResponse(key=to_key(key), secret=text)

    async def ListKeys(  # noqa: N802
        self, request: gateway_pb2.ListKeysRequest, context: Context
    ) -> gateway_pb2.ListKeysResponse:
        """List a tenant's keys by name."""
        keys, token = await self._admin.list_keys(
            current_identity(), request.parent, request.page_size, request.page_token
        )
        return gateway_pb2.ListKeysResponse(keys=map(to_key, keys), next_page_token=token)

    async def RevokeKey(  # noqa: N802
        self, request: gateway_pb2.RevokeKeyRequest, context: Context
    ) -> gateway_pb2.RevokeKeyResponse:
        """Revoke a key."""
        key = await self._admin.revoke_key(current_identity(), request.name)
        return gateway_pb2.RevokeKeyResponse(key=to_key(key))


class PushService(gateway_pb2_grpc.PushServiceServicer):
    """Hints for idle devices."""

    def __init__(self, push: PushState, live: LiveStreams, stamp: Stamp) -> None:
        self._push = push
        self._live = live
        self._stamp = stamp

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        gateway_pb2_grpc.add_PushServiceServicer_to_server(self, server)

    async def Watch(  # noqa: N802
        self, request: gateway_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[gateway_pb2.WatchResponse]:
        """Send a hint whenever the calling device should pull."""
        digest, caller = to_profile_digest(request.profile_digest), current_visit().caller
        device = require_device(caller)
        with (
            self._stamp.at_the_end(context),
            self._push.hub.waiting(device, digest) as waiter,
            self._live.open(caller, waiter.end),
        ):
            # So that the device knows at once that its stream is held; the first hint may be days away.
            await context.send_initial_metadata(())
            async for _ in self._push.hints(waiter):
                self._stamp.count_hint("stream")
                yield gateway_pb2.WatchResponse()
