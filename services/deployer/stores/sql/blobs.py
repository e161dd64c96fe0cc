"""Blob references and pins in SQL."""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import and_, exists, select

from services.deployer.domain.model import BlobRecord, BlobRef
from services.deployer.stores.sql.base import Part, micros, moment
from services.deployer.stores.sql.schema import blobs, pins


class BlobsPart(Part):
    """See `services.deployer.store.Tx`."""

    def put_blob(self, tenant: str, blob: BlobRef, now: datetime) -> BlobRecord:
        """See `Tx`."""
        time = micros(now)
        insert = self._upsert(blobs).values(
            tenant=tenant,
            digest=blob.digest,
            size_bytes=blob.size_bytes,
            create_time=time,
            touch_time=time,
        )
        touched = {"touch_time": time}
        self._c.execute(insert.on_conflict_do_update(index_elements=["tenant", "digest"], set_=touched))
        record = self.get_blob(tenant, blob.digest)
        assert record is not None
        return record

    def get_blob(self, tenant: str, digest: str) -> BlobRecord | None:
        """See `Tx`."""
        query = select(blobs).where(blobs.c.tenant == tenant, blobs.c.digest == digest)
        row = self._c.execute(query).first()
        if row is None:
            return None
        pinned = self._count(pins, pins.c.tenant == tenant, pins.c.digest == digest)
        blob = BlobRef(digest, row.size_bytes)
        return BlobRecord(tenant, blob, moment(row.create_time), moment(row.touch_time), pinned)

    def pin_blobs(self, tenant: str, resource: str, digests: Collection[str]) -> None:
        """See `Tx`."""
        if digests:
            rows = [{"tenant": tenant, "digest": digest, "resource": resource} for digest in digests]
            self._c.execute(self._upsert(pins).on_conflict_do_nothing(), rows)

    def unpin_blobs(self, tenant: str, resource: str, now: datetime) -> int:
        """See `Tx`."""
        ours = and_(pins.c.tenant == tenant, pins.c.resource == resource)
        pinned = select(pins.c.digest).where(ours)
        self._c.execute(
            blobs.update()
            .where(blobs.c.tenant == tenant, blobs.c.digest.in_(pinned))
            .values(touch_time=micros(now))
        )
        return self._c.execute(pins.delete().where(ours)).rowcount

    def drop_unpinned_blobs(self, before: datetime, limit: int) -> Sequence[str]:
        """See `Tx`."""
        pinned = exists().where(pins.c.tenant == blobs.c.tenant, pins.c.digest == blobs.c.digest)
        query = select(blobs.c.tenant, blobs.c.digest).where(blobs.c.touch_time < micros(before), ~pinned)
        old = self._c.execute(query.order_by(blobs.c.tenant, blobs.c.digest).limit(limit)).all()
        for tenant, digest in old:
            self._c.execute(blobs.delete().where(and_(blobs.c.tenant == tenant, blobs.c.digest == digest)))
        return [digest for _, digest in old]

    def blob_in_use(self, digest: str) -> bool:
        """See `Tx`."""
        return (
            self._c.execute(select(blobs.c.tenant).where(blobs.c.digest == digest).limit(1)).first()
            is not None
        )
