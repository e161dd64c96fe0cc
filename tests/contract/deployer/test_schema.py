"""The migrations and the schema that the code uses say the same."""

from pathlib import Path

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from libs.common.sql import open_database
from services.deployer.app import MIGRATIONS
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


async def test_a_migrated_sqlite_has_exactly_this_schema(tmp_path: Path) -> None:
    database = await open_database(f"sqlite:///{tmp_path}/d.db", script_location=MIGRATIONS)

    def tables(connection: sa.Connection) -> dict[str, str]:
        rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {name: " ".join(sql.split()) for name, sql in rows if "alembic" not in name}

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
