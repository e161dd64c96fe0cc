"""Past requests and the audit in SQL."""

from collections.abc import Sequence

from sqlalchemy import select

from services.deployer.domain.model import AuditEntry, PastRequest
from services.deployer.stores.sql.base import Part, micros, moment
from services.deployer.stores.sql.schema import audit, requests


class LedgerPart(Part):
    """See `services.deployer.store.Tx`."""

    def get_request(self, tenant: str, request_id: str) -> PastRequest | None:
        """See `Tx`."""
        query = select(requests).where(requests.c.tenant == tenant, requests.c.request_id == request_id)
        row = self._c.execute(query).first()
        if row is None:
            return None
        return PastRequest(tenant, request_id, row.fingerprint, row.resource, moment(row.create_time))

    def add_request(self, request: PastRequest) -> None:
        """See `Tx`."""
        values = {
            "tenant": request.tenant,
            "request_id": request.request_id,
            "fingerprint": request.fingerprint,
            "resource": request.resource,
            "create_time": micros(request.create_time),
        }
        self._insert(requests, values, f"request {request.request_id}")

    def add_audit(self, entry: AuditEntry) -> None:
        """See `Tx`."""
        values = {
            "tenant": entry.tenant,
            "actor": entry.actor,
            "action": entry.action,
            "resource": entry.resource,
            "detail": entry.detail,
            "event_time": micros(entry.event_time),
        }
        self._insert(audit, values, "audit entry")

    def list_audit(self, tenant: str, resource: str, before: int | None, limit: int) -> Sequence[AuditEntry]:
        """See `Tx`."""
        query = select(audit).where(audit.c.tenant == tenant)
        if resource:
            query = query.where(audit.c.resource == resource)
        if before is not None:
            query = query.where(audit.c.sequence < before)
        rows = self._c.execute(query.order_by(audit.c.sequence.desc()).limit(limit))
        return [
            AuditEntry(
                row.tenant,
                row.actor,
                row.action,
                row.resource,
                row.detail,
                moment(row.event_time),
                row.sequence,
            )
            for row in rows
        ]
