"""Models and versions in SQLite or PostgreSQL."""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from libs.common.blobs import BlobRef
from libs.common.sql import Database, open_database
from services.serving.domain.model import Model, ModelKey, Platform, ServingConfig, Version
from services.serving.store import model_not_found, stale, version_exists, version_not_found

MIGRATIONS = Path(__file__).with_name("migrations")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_metadata = sa.MetaData()
_models = sa.Table(
    "serving_models",
    _metadata,
    sa.Column("tenant", sa.String(63), primary_key=True),
    sa.Column("model", sa.String(63), primary_key=True),
    sa.Column("config", sa.Text, nullable=False),
    sa.Column("live", sa.String(128), nullable=False),
    sa.Column("unloaded", sa.Boolean, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("create_time_us", sa.BigInteger, nullable=False),
)
_versions = sa.Table(
    "serving_versions",
    _metadata,
    sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("tenant", sa.String(63), nullable=False),
    sa.Column("model", sa.String(63), nullable=False),
    sa.Column("version", sa.String(128), nullable=False),
    sa.Column("platform", sa.String(16), nullable=False),
    sa.Column("digest", sa.String(71), nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("create_time_us", sa.BigInteger, nullable=False),
    sa.Column("request_id", sa.String(36), nullable=False),
    sa.Column("committed", sa.Boolean, nullable=False),
)


def _us(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def _to_model(row: Any) -> Model:
    return Model(
        ModelKey(row.tenant, row.model),
        ServingConfig(**json.loads(row.config)),
        _EPOCH + row.create_time_us * _MICROSECOND,
        row.live,
        row.unloaded,
        row.revision,
    )


def _to_version(row: Any) -> Version:
    return Version(
        ModelKey(row.tenant, row.model),
        row.version,
        Platform(row.platform),
        BlobRef(row.digest, row.size_bytes),
        _EPOCH + row.create_time_us * _MICROSECOND,
        row.request_id,
        row.sequence,
        row.committed,
    )


def _is_model(key: ModelKey) -> sa.ColumnElement[bool]:
    return (_models.c.tenant == key.tenant) & (_models.c.model == key.model)


def _of_model(key: ModelKey) -> sa.ColumnElement[bool]:
    return (_versions.c.tenant == key.tenant) & (_versions.c.model == key.model)


def _is_version(key: ModelKey, version: str) -> sa.ColumnElement[bool]:
    return _of_model(key) & (_versions.c.version == version)


def _write_model(connection: Connection, model: Model, expected: int) -> Model:
    values = {
        "config": json.dumps(asdict(model.config)),
        "live": model.live,
        "unloaded": model.unloaded,
        "revision": expected + 1,
        "create_time_us": _us(model.create_time),
    }
    if expected:
        written = connection.execute(
            _models.update().where(_is_model(model.key), _models.c.revision == expected).values(**values)
        )
        if written.rowcount != 1:
            raise stale(model.key)
    else:
        connection.execute(_models.insert().values(tenant=model.key.tenant, model=model.key.model, **values))
    return replace(model, revision=expected + 1)


class SqlStore:
    """`services.serving.store.Store` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_model(self, model: Model, expected: int) -> Model:
        """See `Store`."""
        try:
            return await self._database.run(lambda connection: _write_model(connection, model, expected))
        except IntegrityError:
            raise stale(model.key) from None

    async def get_model(self, key: ModelKey) -> Model:
        """See `Store`."""
        query = sa.select(_models).where(_is_model(key))
        row = await self._database.run(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise model_not_found(key)
        return _to_model(row)

    async def list_models(self, tenant: str, after: str, limit: int) -> list[Model]:
        """See `Store`."""
        query = sa.select(_models).where(_models.c.tenant == tenant, _models.c.model > after)
        query = query.order_by(_models.c.model).limit(limit)
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        return [_to_model(row) for row in rows]

    async def all_models(self) -> list[Model]:
        """See `Store`."""
        query = sa.select(_models).order_by(_models.c.tenant, _models.c.model)
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        return [_to_model(row) for row in rows]

    async def delete_model(self, key: ModelKey) -> None:
        """See `Store`."""

        def delete(connection: Connection) -> None:
            connection.execute(_versions.delete().where(_of_model(key)))
            connection.execute(_models.delete().where(_is_model(key)))

        await self._database.run(delete)

    async def add_version(self, version: Version) -> Version:
        """See `Store`."""

        def insert(connection: Connection) -> Version:
            if (
                connection.execute(sa.select(_models.c.model).where(_is_model(version.key))).one_or_none()
                is None
            ):
                raise model_not_found(version.key)
            done = connection.execute(
                _versions.insert().values(
                    tenant=version.key.tenant,
                    model=version.key.model,
                    version=version.version,
                    platform=version.platform.value,
                    digest=version.blob.digest,
                    size_bytes=version.blob.size_bytes,
                    create_time_us=_us(version.create_time),
                    request_id=version.request_id,
                    committed=False,
                )
            )
            primary = done.inserted_primary_key
            assert primary is not None
            return replace(version, sequence=primary[0], committed=False)

        try:
            return await self._database.run(insert)
        except IntegrityError:
            raise version_exists(version) from None

    async def commit_version(self, version: Version, model: Model) -> Model:
        """See `Store`."""

        def commit(connection: Connection) -> Model:
            committed = connection.execute(
                _versions.update().where(_is_version(version.key, version.version)).values(committed=True)
            )
            if committed.rowcount != 1:
                raise version_not_found(version.key, version.version)
            return _write_model(connection, model, model.revision)

        return await self._database.run(commit)

    async def withdraw_versions(self, versions: Iterable[Version]) -> None:
        """See `Store`."""
        chosen = list(versions)

        def withdraw(connection: Connection) -> None:
            for version in chosen:
                connection.execute(
                    _versions.update()
                    .where(_is_version(version.key, version.version))
                    .values(committed=False)
                )

        await self._database.run(withdraw)

    async def remove_version(self, version: Version) -> None:
        """See `Store`."""
        statement = _versions.delete().where(_is_version(version.key, version.version))
        await self._database.run(lambda connection: connection.execute(statement) and None)

    async def get_version(self, key: ModelKey, version: str) -> Version:
        """See `Store`."""
        query = sa.select(_versions).where(_is_version(key, version), _versions.c.committed)
        row = await self._database.run(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            raise version_not_found(key, version)
        return _to_version(row)

    async def list_versions(self, key: ModelKey, before: int, limit: int) -> list[Version]:
        """See `Store`."""
        query = sa.select(_versions).where(_of_model(key), _versions.c.committed)
        if before:
            query = query.where(_versions.c.sequence < before)
        query = query.order_by(_versions.c.sequence.desc()).limit(limit)
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        return [_to_version(row) for row in rows]

    async def all_versions(self, key: ModelKey | None = None) -> list[Version]:
        """See `Store`."""
        query = sa.select(_versions).order_by(_versions.c.sequence)
        if key is not None:
            query = query.where(_of_model(key))
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        return [_to_version(row) for row in rows]

    async def close(self) -> None:
        """Close the database."""
        await self._database.close()


async def open_store(url: str) -> SqlStore:
    """Open the database, bring its tables up to date, and hold it against a second process (SQLite).

    Raises:
        Invalid: when the URL can't be used.
        Precondition: when another process uses the SQLite file, or a newer one has migrated it.
    """
    return SqlStore(await open_database(url, script_location=MIGRATIONS))
