"""The audit log of tenants and keys: one line at INFO of the logger `isthmus.gateway.audit` for each write.

Its fields are `audit` (true), `action`, `actor`, `resource` and what was made. Of a key's secret nothing is
in it, nor its hash.
"""

import logging
from datetime import datetime

from services.gateway.domain.keys import Key, Tenant

AUDIT_LOG = "isthmus.gateway.audit"
_log = logging.getLogger(AUDIT_LOG)


def tenant_created(actor: str, tenant: Tenant) -> None:
    """Tell that a tenant was made by `actor`, a principal."""
    _tell("tenant.create", actor, tenant.name, display_name=tenant.display_name)


def key_created(actor: str, key: Key) -> None:
    """Tell that a key was made by `actor`, a principal."""
    _tell(
        "key.create",
        actor,
        key.name,
        display_name=key.display_name,
        scopes=sorted(key.scopes),
        expire_time=_text(key.expire_time),
    )


def key_revoked(actor: str, key: Key) -> None:
    """Tell that a key was revoked by `actor`, a principal."""
    _tell("key.revoke", actor, key.name, scopes=sorted(key.scopes))


def _tell(action: str, actor: str, resource: str, **fields: object) -> None:
    told = {"audit": True, "action": action, "actor": actor, "resource": resource, **fields}
    _log.info("%s %s by %s", action, resource, actor, extra=told)


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
