"""Whose models a caller means."""

from libs.common.access import require_tenant
from libs.common.errors import Forbidden
from libs.common.identity import current_identity
from libs.common.names import TenantName


def caller_tenant() -> str:
    """Return the caller's tenant; for a service, the one on whose behalf it calls.

    Raises:
        Forbidden: for a service that calls on nobody's behalf.
    """
    identity = current_identity()
    if identity.kind != "service":
        return identity.tenant
    words = identity.on_behalf_of.split("/")
    if len(words) < 2 or words[0] != "tenants":
        raise Forbidden(
            f"the service {identity.principal!r} calls on behalf of no tenant", reason="NO_TENANT"
        )
    return TenantName.parse("/".join(words[:2]), "on_behalf_of").tenant


def require_own(tenant: str) -> str:
    """Return `tenant` if it is the caller's; raise NotFound otherwise."""
    require_tenant(current_identity(), tenant)
    return tenant
