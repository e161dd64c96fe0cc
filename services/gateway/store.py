"""Tenants and API keys: what is asked of a store, and one in memory."""

import bisect
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from libs.common.errors import AlreadyExists, NotFound
from services.gateway.domain.keys import Key, Tenant


class Store(Protocol):
    """Keeps tenants and keys.

    Any number of tasks may call it at once, and several gateways may share one. What a write has returned is
    durable and seen by every later read. Times are stored to the microsecond. Ids are checked by the caller.
    Lists come in the order of ids, after `after` (exclusive; "" starts), at most `limit` of them.
    """

    async def create_tenant(self, tenant: Tenant) -> Tenant:
        """Store a tenant; with a `request_id` seen before, return what that request stored.

        Raises:
            AlreadyExists: when there is a tenant of that id, or the request id came with other values.
        """
        ...

    async def get_tenant(self, tenant_id: str) -> Tenant:
        """Return a tenant; raise NotFound when there is none."""
        ...

    async def list_tenants(self, after: str, limit: int) -> list[Tenant]:
        """Return tenants."""
        ...

    async def create_key(self, key: Key) -> None:
        """Store a key.

        Raises:
            NotFound: when there is no such tenant.
            AlreadyExists: when the key id is taken, by whatever tenant.
        """
        ...

    async def find_key(self, key_id: str) -> Key | None:
        """Return a key of any tenant, or None."""
        ...

    async def list_keys(self, tenant: str, after: str, limit: int) -> list[Key]:
        """Return a tenant's keys, the revoked and expired ones included."""
        ...

    async def revoke_key(self, tenant: str, key_id: str, now: datetime) -> Key:
        """Mark a key as revoked and return it; one that is revoked already keeps its time.

        Raises:
            NotFound: when the tenant has no such key.
        """
        ...

    async def close(self) -> None:
        """Release what the store holds."""
        ...


def tenant_not_found(tenant_id: str) -> NotFound:
    """Return the error for a tenant that isn't there."""
    return NotFound(f"there is no tenant 'tenants/{tenant_id}'", reason="TENANT_NOT_FOUND")


def key_not_found(tenant: str, key_id: str) -> NotFound:
    """Return the error for a key that isn't there."""
    return NotFound(f"there is no key 'tenants/{tenant}/keys/{key_id}'", reason="KEY_NOT_FOUND")


def same_request(stored: Tenant, wanted: Tenant) -> Tenant:
    """Return what a repeated request stored; raise AlreadyExists when it asked for something else."""
    if (stored.tenant_id, stored.display_name) != (wanted.tenant_id, wanted.display_name):
        raise AlreadyExists(
            f"request_id: {wanted.request_id!r} made {stored.name!r} already; use a new UUID",
            reason="REQUEST_ID_REUSED",
        )
    return stored


def tenant_exists(tenant_id: str) -> AlreadyExists:
    """Return the error for a tenant id that is taken."""
    return AlreadyExists(f"tenant_id: 'tenants/{tenant_id}' exists already", reason="TENANT_EXISTS")


def key_exists(key_id: str) -> AlreadyExists:
    """Return the error for a key id that is taken."""
    return AlreadyExists(f"the key id {key_id!r} is taken", reason="KEY_EXISTS")


class MemoryStore:
    """A store that forgets everything with the process."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._keys: dict[str, Key] = {}

    async def create_tenant(self, tenant: Tenant) -> Tenant:
        """Store a tenant."""
        for stored in self._tenants.values():
            if tenant.request_id and stored.request_id == tenant.request_id:
                return same_request(stored, tenant)
        if tenant.tenant_id in self._tenants:
            raise tenant_exists(tenant.tenant_id)
        self._tenants[tenant.tenant_id] = tenant
        return tenant

    async def get_tenant(self, tenant_id: str) -> Tenant:
        """Return a tenant."""
        if tenant_id not in self._tenants:
            raise tenant_not_found(tenant_id)
        return self._tenants[tenant_id]

    async def list_tenants(self, after: str, limit: int) -> list[Tenant]:
        """Return tenants."""
        return [self._tenants[name] for name in _page(self._tenants, after, limit)]

    async def create_key(self, key: Key) -> None:
        """Store a key."""
        await self.get_tenant(key.tenant)
        if key.key_id in self._keys:
            raise key_exists(key.key_id)
        self._keys[key.key_id] = key

    async def find_key(self, key_id: str) -> Key | None:
        """Return a key."""
        return self._keys.get(key_id)

    async def list_keys(self, tenant: str, after: str, limit: int) -> list[Key]:
        """Return a tenant's keys."""
        own = {key.key_id: key for key in self._keys.values() if key.tenant == tenant}
        return [own[name] for name in _page(own, after, limit)]

    async def revoke_key(self, tenant: str, key_id: str, now: datetime) -> Key:
        """Mark a key as revoked."""
        key = self._keys.get(key_id)
        if key is None or key.tenant != tenant:
            raise key_not_found(tenant, key_id)
        if key.revoke_time is None:
            key = self._keys[key_id] = replace(key, revoke_time=now)
        return key

    async def close(self) -> None:
        """Forget everything."""


def _page(items: Mapping[str, object], after: str, limit: int) -> list[str]:
    names = sorted(items)
    start = bisect.bisect_right(names, after)
    return names[start : start + limit]
