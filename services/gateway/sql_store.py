"""Tenants and API keys in SQLite or PostgreSQL."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from libs.common.sql import Database, open_database
from services.gateway.domain.keys import Key, Tenant
from services.gateway.store import key_exists, key_not_found, same_request, tenant_exists, tenant_not_found

MIGRATIONS = Path(__file__).with_name("migrations")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_metadata = sa.MetaData()
_tenants = sa.Table(
    "tenants",
    _metadata,
    sa.Column("tenant_id", sa.String(63), primary_key=True),
    sa.Column("display_name", sa.String(256), nullable=False),
    sa.Column("create_time_us", sa.BigInteger, nullable=False),
    sa.Column("request_id", sa.String(36), unique=True),
)
_keys = sa.Table(
    "keys",
    _metadata,
    sa.Column("key_id", sa.String(63), primary_key=True),
    sa.Column("tenant_id", sa.String(63), sa.ForeignKey("tenants.tenant_id"), nullable=False),
    sa.Column("display_name", sa.String(256), nullable=False),
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("secret_hash", sa.LargeBinary(32), nullable=False),
    sa.Column("create_time_us", sa.BigInteger, nullable=False),
    sa.Column("expire_time_us", sa.BigInteger),
    sa.Column("revoke_time_us", sa.BigInteger),
)


def _to_us(time: datetime | None) -> int | None:
    return None if time is None else (time - _EPOCH) // _MICROSECOND


def _time(us: int) -> datetime:
    return _EPOCH + us * _MICROSECOND


def _optional_time(us: int | None) -> datetime | None:
    return None if us is None else _time(us)


def _tenant(row: Any) -> Tenant:
    return Tenant(row.tenant_id, row.display_name, _time(row.create_time_us), row.request_id or "")


def _key(row: Any) -> Key:
    return Key(
        row.key_id,
        row.tenant_id,
        row.display_name,
        frozenset(row.scopes.split()),
        bytes(row.secret_hash),
        _time(row.create_time_us),
        _optional_time(row.expire_time_us),
        _optional_time(row.revoke_time_us),
    )


class SqlStore:
    """`services.gateway.store.Store` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_tenant(self, tenant: Tenant) -> Tenant:
        """Store a tenant."""

        def insert(connection: Connection) -> None:
            connection.execute(
                _tenants.insert().values(
                    tenant_id=tenant.tenant_id,
                    display_name=tenant.display_name,
                    create_time_us=_to_us(tenant.create_time),
                    request_id=tenant.request_id or None,
                )
            )

        def made_by_request(connection: Connection) -> Tenant | None:
            if not tenant.request_id:
                return None
            query = sa.select(_tenants).where(_tenants.c.request_id == tenant.request_id)
            row = connection.execute(query).one_or_none()
            return None if row is None else _tenant(row)

        try:
            await self._database.run(insert)
        except IntegrityError:
            # By the same request, perhaps on another gateway, or by another.
            stored = await self._database.run(made_by_request)
            if stored is None:
                raise tenant_exists(tenant.tenant_id) from None
            return same_request(stored, tenant)
        return tenant

    async def get_tenant(self, tenant_id: str) -> Tenant:
        """Return a tenant."""
        query = sa.select(_tenants).where(_tenants.c.tenant_id == tenant_id)
        row = await self._database.run(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise tenant_not_found(tenant_id)
        return _tenant(row)

    async def list_tenants(self, after: str, limit: int) -> list[Tenant]:
        """Return tenants."""
        query = (
            sa.select(_tenants)
            .where(_tenants.c.tenant_id > after)
            .order_by(_tenants.c.tenant_id)
            .limit(limit)
        )
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        return [_tenant(row) for row in rows]

    async def create_key(self, key: Key) -> None:
        """Store a key."""

        def insert(connection: Connection) -> None:
            connection.execute(
                _keys.insert().values(
                    key_id=key.key_id,
                    tenant_id=key.tenant,
                    display_name=key.display_name,
                    scopes=" ".join(sorted(key.scopes)),
                    secret_hash=key.secret_hash,
                    create_time_us=_to_us(key.create_time),
                    expire_time_us=_to_us(key.expire_time),
                    revoke_time_us=_to_us(key.revoke_time),
                )
            )

        await self.get_tenant(key.tenant)  # tenants are never deleted
        try:
            await self._database.run(insert)
        except IntegrityError:
            raise key_exists(key.key_id) from None

    async def find_key(self, key_id: str) -> Key | None:
        """Return a key."""
        query = sa.select(_keys).where(_keys.c.key_id == key_id)
        row = await self._database.run(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else _key(row)

    async def list_keys(self, tenant: str, after: str, limit: int) -> list[Key]:
        """Return a tenant's keys."""
        query = (
            sa.select(_keys)
            .where(_keys.c.tenant_id == tenant, _keys.c.key_id > after)
            .order_by(_keys.c.key_id)
            .limit(limit)
        )
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        return [_key(row) for row in rows]

    async def revoke_key(self, tenant: str, key_id: str, now: datetime) -> Key:
        """Mark a key as revoked."""
        own = (_keys.c.tenant_id == tenant) & (_keys.c.key_id == key_id)

        def revoke(connection: Connection) -> Any:
            connection.execute(
                _keys.update().where(own, _keys.c.revoke_time_us.is_(None)).values(revoke_time_us=_to_us(now))
            )
            return connection.execute(sa.select(_keys).where(own)).one_or_none()

        row = await self._database.run(revoke)
        if row is None:
            raise key_not_found(tenant, key_id)
        return _key(row)

    async def close(self) -> None:
        """Close the database."""
        await self._database.close()


async def open_store(url: str) -> SqlStore:
    """Open the database, bring its tables up to date, and hold it against a second gateway (SQLite).

    Raises:
        Invalid: when the URL can't be used.
        Precondition: when another gateway uses the SQLite file, or a newer one has migrated it.
    """
    return SqlStore(await open_database(url, script_location=MIGRATIONS))
