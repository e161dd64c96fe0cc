"""Writes by users: repeated creates get their first answer, and a lost race is run again."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

from libs.common.errors import AlreadyExists, Conflict, Exhausted, Invalid, Unavailable
from libs.common.names import shown
from services.scheduler.domain.change import Change
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import PastRequest
from services.scheduler.store import RequestKey, Store

MAX_ID_BYTES = 64
MAX_REMEMBERED = 50_000
"""Request ids of a tenant: more than it has jobs and queues, and few for etcd."""
_TRIES = 10
T = TypeVar("T")


class Writer:
    """Commits what users ask for; any replica may."""

    def __init__(self, store: Store, mirror: Mirror, *, most_remembered: int = MAX_REMEMBERED) -> None:
        """Remember at most `most_remembered` request ids of a tenant."""
        self._store = store
        self._mirror = mirror
        self._most_remembered = most_remembered

    async def write(self, work: Callable[[], tuple[T, Change | None]]) -> tuple[T, int]:
        """Run `work` on the mirror's state and commit what it returns; again where that lost a race.

        Returns:
            What `work` returned, and the revision of the write; 0 where there was nothing to write.

        Raises:
            Conflict: when others write the same object all the time.
            Unavailable: when the store can't be reached; the write may have been made.
        """
        await self._mirror.reached(1)
        for attempt in range(_TRIES):
            seen = self._mirror.revision
            value, change = work()
            if change is None:
                return value, 0
            try:
                revision = await self._store.commit(change)
            except Conflict:
                if attempt == _TRIES - 1:
                    raise
                # The mirror lags behind whoever won by a moment.
                await self._mirror.moved(seen)
                continue
            # The caller has its answer either way; waiting only lets it read what it wrote.
            with suppress(Unavailable):
                await self._mirror.reached(revision, within_s=2.0)
            return value, revision
        raise AssertionError("the loop returns or raises")

    def earlier(self, tenant: str, request_id: str, fingerprint: str) -> str | None:
        """Return what an earlier request of this id made; None when there was none.

        Raises:
            Invalid: for an id that is too long.
            AlreadyExists: when the earlier request asked for something else.
            Exhausted: when it is new, and as many as may be are remembered.
        """
        if not request_id:
            return None
        if len(request_id.encode()) > MAX_ID_BYTES:
            raise Invalid(
                f"request_id: {shown(request_id)} is longer than {MAX_ID_BYTES} bytes; use a UUID",
                metadata={"field": "request_id"},
            )
        past = self._mirror.request(RequestKey(tenant, _digest(request_id)))
        if past is None:
            if self._mirror.request_count(tenant) >= self._most_remembered:
                raise Exhausted(
                    f"request_id: tenants/{tenant} has {self._most_remembered} ids that are remembered, each "
                    "for 7 days; leave it empty, or try again when some are older",
                    reason="TOO_MANY_REQUEST_IDS",
                )
            return None
        if past.fingerprint != fingerprint:
            raise AlreadyExists(
                f"request_id: {shown(request_id)} was used for another request, which made {past.resource}; "
                "draw a new id for each request",
                reason="REQUEST_ID_REUSED",
            )
        return past.resource


def remembered(
    tenant: str, request_id: str, fingerprint: str, resource: object, now: datetime
) -> tuple[PastRequest, ...]:
    """Return what keeps an answer for repetitions; nothing without a request id."""
    if not request_id:
        return ()
    return (PastRequest(tenant, _digest(request_id), fingerprint, str(resource), now),)


def check_etag(name: object, revision: int, etag: str) -> None:
    """Raise Conflict when a caller's etag is given and isn't the object's."""
    if etag and etag != str(revision):
        raise Conflict(
            f"etag: {shown(etag)} is not that of {name}, which is now {revision}; read it again",
            reason="STALE_ETAG",
            metadata={"etag": str(revision)},
        )


def _digest(request_id: str) -> str:
    return hashlib.sha256(request_id.encode()).hexdigest()
