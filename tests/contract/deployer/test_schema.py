"""The migrations and the schema that the code uses say the same."""

import re
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from libs.common.names import VersionName
from libs.common.sql import open_database
from services.deployer.app import MIGRATIONS
from services.deployer.stores.sql import SqlStore
from services.deployer.stores.sql.schema import metadata


def compare(connection: sa.Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return [d for d in compare_metadata(context, metadata) if "alembic_version" not in str(d)]


async def test_a_migrated_postgresql_has_exactly_this_schema(postgresql_url: str) -> None:
    database = await open_database(postgresql_url, script_location=MIGRATIONS)
    try:
        assert await database.run(compare) == []
    finally:
        await database.close()


def upgrade(connection: sa.Connection, to: str) -> None:
    """Migrate an empty database as far as a revision."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)
    with EnvironmentContext(
        config, scripts, fn=lambda revision, _: scripts._upgrade_revs(to, revision)
    ) as environment:
        environment.configure(connection=connection)
        environment.run_migrations()


STAGES = "SELECT tenant, device, release_sequence, task, version, stage, failure_reason, failure_message"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_stages_outlive_the_migration_that_gave_them_a_time(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/d.db"
    if kind == "postgresql":
        url = str(request.getfixturevalue("postgresql_url"))
    rows = [("acme", f"d{n}", 1, "genres", "1.0.0", 5 + n, "", "") for n in range(2)]
    first = await open_database(url)

    def fill(connection: sa.Connection) -> None:
        upgrade(connection, "0001")
        for row in rows:
            values = ", ".join(map(repr, row))
            connection.exec_driver_sql(f"INSERT INTO device_stages VALUES ({values})")

    try:
        await first.run(fill)
    finally:
        await first.close()
    migrated = await open_database(url, script_location=MIGRATIONS)
    try:
        found = await migrated.run(
            lambda c: [tuple(row) for row in c.exec_driver_sql(f"{STAGES}, time FROM device_stages")]
        )
        assert sorted(found) == [(*row, None) for row in rows]
        assert await migrated.run(compare) == []
    finally:
        await migrated.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_versions_outlive_the_migration_that_gave_them_preflights(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/d.db"
    if kind == "postgresql":
        url = str(request.getfixturevalue("postgresql_url"))
    first = await open_database(url)

    def fill(connection: sa.Connection) -> None:
        upgrade(connection, "0003")
        empty = "''" if kind == "sqlite" else "''::bytea"
        connection.exec_driver_sql(
            f"INSERT INTO versions VALUES (7, 'acme', 'genres', '1.0.0', {empty}, 'sha256:a', 5, 'me', 12)"
        )

    try:
        await first.run(fill)
    finally:
        await first.close()
    store = SqlStore(await open_database(url, script_location=MIGRATIONS))
    try:
        name = VersionName("acme", "genres", "1.0.0")
        found = await store.read(lambda tx: tx.get_version(name))
        assert found is not None
        assert (found.sequence, found.total_bytes, found.publisher) == (7, 12, "me")
        assert found.preflight is None
        assert await store.read(lambda tx: tx.newest_events(name.parent)) is None
    finally:
        await store.close()


async def test_a_migrated_sqlite_has_exactly_this_schema(tmp_path: Path) -> None:
    database = await open_database(f"sqlite:///{tmp_path}/d.db", script_location=MIGRATIONS)

    def tables(connection: sa.Connection) -> dict[str, str]:
        rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        # Where SQLite appends a column, other blanks stand around commas and brackets.
        return {name: re.sub(r"\s*([(),])\s*", r"\1", sql) for name, sql in rows if "alembic" not in name}

    try:
        assert await database.run(compare) == []
        migrated = await database.run(tables)
    finally:
        await database.close()
    direct = await open_database(f"sqlite:///{tmp_path}/direct.db")
    try:
        await direct.run(metadata.create_all)
        made = await direct.run(tables)
    finally:
        await direct.close()
    assert migrated == made
