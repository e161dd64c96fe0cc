"""Managing tenants and keys: who may make, see and revoke what. What is done is told in the audit log."""

from collections.abc import Callable, Iterable
from datetime import timedelta

from libs.common.access import require_tenant
from libs.common.clock import Clock
from libs.common.errors import Forbidden
from libs.common.identity import Identity
from libs.common.names import KeyName, TenantName, check_id
from libs.common.paging import decode_token, encode_token, page_size
from libs.common.rand import Randomness
from services.gateway.domain.audit import key_created, key_revoked, tenant_created
from services.gateway.domain.keys import (
    KEY_ID_LENGTH,
    SECRET_BYTES,
    Key,
    Tenant,
    allows,
    check_display_name,
    check_grant,
    check_request_id,
    check_scopes,
    expiry,
    format_key,
    hash_secret,
    new_secret,
)
from services.gateway.store import Store


class Admin:
    """Tenants and keys on behalf of a caller.

    Operators, that is keys of the operator's tenant with the scope "tenants:write", manage every tenant;
    everybody else sees the own tenant only, and another's as if it weren't there.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        randomness: Randomness,
        operator_tenant: str,
        on_key_changed: Callable[[Key], None],
    ) -> None:
        """`on_key_changed` is told of a key that was made or revoked, so that no cache keeps what it was."""
        self._store = store
        self._clock = clock
        self._randomness = randomness
        self._operator_tenant = operator_tenant
        self._on_key_changed = on_key_changed

    def _is_operator(self, caller: Identity) -> bool:
        return caller.tenant == self._operator_tenant and allows(caller.scopes, "tenants:write")

    def _require_operator(self, caller: Identity) -> None:
        if caller.tenant != self._operator_tenant:
            raise Forbidden(
                f"tenants are managed with keys of 'tenants/{self._operator_tenant}' only",
                reason="NOT_AN_OPERATOR",
            )

    def _require_access(self, caller: Identity, tenant: str) -> None:
        if not self._is_operator(caller):
            require_tenant(caller, tenant)

    async def create_tenant(
        self, caller: Identity, tenant_id: str, display_name: str, request_id: str
    ) -> Tenant:
        """Make a tenant; a repeated request id gets what its first request made.

        Raises:
            Forbidden: when the caller is no operator.
            Invalid: naming the field.
            AlreadyExists: when there is such a tenant, or the request id came with other values.
        """
        self._require_operator(caller)
        tenant = Tenant(
            check_id(tenant_id, "tenant_id"),
            check_display_name(display_name),
            self._clock.now(),
            check_request_id(request_id),
        )
        made = await self._store.create_tenant(tenant)
        if made == tenant:  # and not what an earlier request made
            tenant_created(caller.principal, made)
        return made

    async def list_tenants(self, caller: Identity, size: int, token: str) -> tuple[list[Tenant], str]:
        """Return a page of tenants and the token of the next one.

        Raises:
            Forbidden: when the caller is no operator.
            Invalid: when the page size or the token is wrong.
        """
        self._require_operator(caller)
        limit = page_size(size)
        found = await self._store.list_tenants(_after(token), limit + 1)
        return found[:limit], _next(found[limit - 1].tenant_id) if len(found) > limit else ""

    async def create_key(
        self,
        caller: Identity,
        parent: str,
        display_name: str,
        scopes: Iterable[str],
        ttl: timedelta | None,
    ) -> tuple[Key, str]:
        """Make a key; return it with its whole text, which is shown this once.

        Raises:
            Invalid: naming the field.
            NotFound: when there is no such tenant, or it isn't the caller's.
            Forbidden: when the key would have more scopes than the caller's.
        """
        tenant = TenantName.parse(parent, "parent").tenant
        self._require_access(caller, tenant)
        wanted = check_scopes(scopes)
        check_grant(caller.scopes, wanted)
        now = self._clock.now()
        secret = new_secret(self._randomness.bytes(SECRET_BYTES))
        key = Key(
            self._randomness.id(KEY_ID_LENGTH),
            tenant,
            check_display_name(display_name),
            wanted,
            hash_secret(secret),
            now,
            expiry(now, ttl),
        )
        await self._store.create_key(key)
        key_created(caller.principal, key)
        self._on_key_changed(key)
        return key, format_key(key.key_id, secret)

    async def list_keys(self, caller: Identity, parent: str, size: int, token: str) -> tuple[list[Key], str]:
        """Return a page of a tenant's keys and the token of the next one.

        Raises:
            Invalid: naming the field.
            NotFound: when there is no such tenant, or it isn't the caller's.
        """
        tenant = TenantName.parse(parent, "parent").tenant
        self._require_access(caller, tenant)
        limit = page_size(size)
        await self._store.get_tenant(tenant)
        found = await self._store.list_keys(tenant, _after(token), limit + 1)
        return found[:limit], _next(found[limit - 1].key_id) if len(found) > limit else ""

    async def revoke_key(self, caller: Identity, name: str) -> Key:
        """Revoke a key and return it. Repeating it changes nothing.

        Raises:
            Invalid: when the name isn't one of a key.
            NotFound: when there is no such key, or it isn't of the caller's tenant.
        """
        wanted = KeyName.parse(name)
        self._require_access(caller, wanted.tenant)
        now = self._clock.now()
        key = await self._store.revoke_key(wanted.tenant, wanted.key, now)
        if key.revoke_time == now:  # and not before
            key_revoked(caller.principal, key)
        self._on_key_changed(key)
        return key


def _after(token: str) -> str:
    return str(decode_token(token).get("after", ""))


def _next(last: str) -> str:
    return encode_token({"after": last})
