"""The audit: who did what, when. Entries are written in the transactions of what they tell of."""

from services.deployer.domain.model import AuditEntry
from services.deployer.domain.texts import check_text
from services.deployer.store import Store

MAX_RESOURCE_BYTES = 320


class Audit:
    """What the audit API does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self, tenant: str, resource: str, before: int | None, limit: int) -> list[AuditEntry]:
        """Return entries, the newest first; of one resource unless `resource` is empty.

        Raise Invalid for a `resource` that can be none.
        """
        check_text(resource, "resource", MAX_RESOURCE_BYTES)
        return list(await self._store.read(lambda tx: tx.list_audit(tenant, resource, before, limit)))
