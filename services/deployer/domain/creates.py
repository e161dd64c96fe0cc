"""Creates that can be repeated: a request id gets its first answer again."""

from datetime import datetime

from libs.common.errors import AlreadyExists
from libs.common.names import shown
from services.deployer.domain.model import PastRequest
from services.deployer.domain.texts import check_text
from services.deployer.store import Tx

MAX_ID_BYTES = 64


def earlier_answer(tx: Tx, tenant: str, request_id: str, fingerprint: bytes) -> str | None:
    """Return the resource that an earlier request of this id made, or None.

    Raises:
        Invalid: for an id longer than 64 bytes.
        AlreadyExists: when the earlier request asked for something else.
    """
    if not request_id:
        return None
    check_text(request_id, "request_id", MAX_ID_BYTES)
    past = tx.get_request(tenant, request_id)
    if past is None:
        return None
    if past.fingerprint != fingerprint:
        raise AlreadyExists(
            f"request_id: {shown(request_id)} was used for another request, which made {past.resource}; "
            "draw a new id for each request",
            reason="REQUEST_ID_REUSED",
        )
    return past.resource


def remember(
    tx: Tx, tenant: str, request_id: str, fingerprint: bytes, resource: object, now: datetime
) -> None:
    """Keep an answer for repetitions of its request; nothing without a request id."""
    if request_id:
        tx.add_request(PastRequest(tenant, request_id, fingerprint, str(resource), now))
