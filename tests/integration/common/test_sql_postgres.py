"""The same guarantees over PostgreSQL, where its server is installed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import IntegrityError

from libs.common.errors import Precondition, Unavailable
from libs.common.sql import Database, open_database

FIRST = """
from alembic import op
import sqlalchemy as sa
revision = "0001"
down_revision = None
def upgrade():
    op.create_table("thing", sa.Column("name", sa.Text, primary_key=True), sa.Column("n", sa.Integer))
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text("from libs.common.sql import run_env\n\nrun_env()\n")
    (tmp_path / "versions" / "0001_thing.py").write_text(FIRST)
    return tmp_path


@pytest_asyncio.fixture
async def database(postgresql_url: str, scripts: Path) -> AsyncIterator[Database]:
    opened = await open_database(postgresql_url, script_location=scripts)
    yield opened
    await opened.close()


def count(connection: Connection) -> int:
    return int(connection.execute(text("SELECT count(*) FROM thing")).scalar_one())


async def test_replicas_that_start_together_migrate_once(postgresql_url: str, scripts: Path) -> None:
    opening = (open_database(postgresql_url, script_location=scripts) for _ in range(3))
    databases = await asyncio.gather(*opening)
    assert [await database.run(count) for database in databases] == [0, 0, 0]
    for database in databases:
        await database.close()


async def test_a_transaction_is_whole_or_not_at_all(database: Database) -> None:
    def twice(connection: Connection) -> None:
        connection.execute(text("INSERT INTO thing VALUES ('a', 0)"))
        connection.execute(text("INSERT INTO thing VALUES ('a', 0)"))

    with pytest.raises(IntegrityError):
        await database.run(twice)
    assert await database.run(count) == 0


async def test_concurrent_compare_and_set_loses_nothing(database: Database) -> None:
    await database.run(lambda c: c.execute(text("INSERT INTO thing VALUES ('a', 0)")).rowcount)

    def bump(connection: Connection) -> bool:
        n = connection.execute(text("SELECT n FROM thing")).scalar_one()
        update = text("UPDATE thing SET n = :new WHERE n = :old")
        return connection.execute(update, {"new": n + 1, "old": n}).rowcount == 1

    async def until_done() -> None:
        while not await database.run(bump):
            pass

    await asyncio.gather(*(until_done() for _ in range(20)))
    assert await database.run(lambda c: c.execute(text("SELECT n FROM thing")).scalar_one()) == 20


async def test_a_connection_that_broke_is_replaced(database: Database) -> None:
    def kill_own(connection: Connection) -> None:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(Unavailable) as caught:
        await database.run(kill_own)
    assert caught.value.reason == "DATABASE_AWAY"
    assert await database.run(count) == 0


async def test_a_database_that_is_not_there_is_unavailable(postgresql_url: str, scripts: Path) -> None:
    nowhere = make_url(postgresql_url).set(port=1).render_as_string(hide_password=False)
    with pytest.raises(Unavailable, match="doesn't answer"):
        await open_database(nowhere, script_location=scripts)


async def test_a_newer_database_is_refused(database: Database, postgresql_url: str, scripts: Path) -> None:
    await database.run(lambda c: c.execute(text("UPDATE alembic_version SET version_num = '9'")).rowcount)
    with pytest.raises(Precondition, match="newer version"):
        await open_database(postgresql_url, script_location=scripts)
