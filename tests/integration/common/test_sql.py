import asyncio
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError, OperationalError

from libs.common.errors import Exhausted, Invalid, Precondition
from libs.common.sql import Database, SqliteReplicaLock, migrate, open_database, open_engine

ENV = "from libs.common.sql import run_env\n\nrun_env()\n"
FIRST = """
from alembic import op
import sqlalchemy as sa
revision = "0001"
down_revision = None
def upgrade():
    op.create_table("thing", sa.Column("name", sa.Text, primary_key=True), sa.Column("n", sa.Integer))
"""
SECOND = """
from alembic import op
import sqlalchemy as sa
revision = "0002"
down_revision = "0001"
def upgrade():
    op.create_table("part", sa.Column("of", sa.Text, sa.ForeignKey("thing.name"), primary_key=True))
"""
BROKEN = SECOND + "    raise RuntimeError('half-way')\n"


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "100% scripts"
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text(ENV)
    (folder / "versions" / "0001_thing.py").write_text(FIRST)
    return folder


@pytest_asyncio.fixture
async def database(tmp_path: Path, scripts: Path) -> AsyncIterator[Database]:
    opened = await open_database(f"sqlite:///{tmp_path}/db/a.db", script_location=scripts)
    yield opened
    await opened.close()


def count(connection: Connection) -> int:
    return int(connection.execute(text("SELECT count(*) FROM thing")).scalar_one())


def add(name: str) -> Callable[[Connection], int]:
    return lambda connection: (
        connection.execute(text("INSERT INTO thing (name, n) VALUES (:name, 0)"), {"name": name}).rowcount
    )


async def test_sqlite_is_set_up_to_keep_what_it_commits(database: Database) -> None:
    def pragmas(connection: Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]

    assert await database.run(pragmas) == ["wal", 2, 1, 5000]


async def test_a_transaction_is_whole_or_not_at_all(database: Database) -> None:
    await database.run(add("a"))

    def two(connection: Connection) -> None:
        connection.execute(text("INSERT INTO thing (name) VALUES ('b')"))
        connection.execute(text("INSERT INTO thing (name) VALUES ('a')"))

    with pytest.raises(IntegrityError):
        await database.run(two)
    assert await database.run(count) == 1


async def test_concurrent_read_modify_writes_lose_nothing(database: Database) -> None:
    await database.run(add("a"))

    def bump(connection: Connection) -> None:
        n = connection.execute(text("SELECT n FROM thing WHERE name = 'a'")).scalar_one()
        connection.execute(text("UPDATE thing SET n = :n WHERE name = 'a'"), {"n": n + 1})

    await asyncio.gather(*(database.run(bump) for _ in range(50)))
    assert await database.run(lambda c: c.execute(text("SELECT n FROM thing")).scalar_one()) == 50


async def test_what_was_committed_is_there_after_opening_again(tmp_path: Path, scripts: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    first = await open_database(url, script_location=scripts)
    await first.run(add("a"))
    await first.close()
    (scripts / "versions" / "0002_part.py").write_text(SECOND)
    second = await open_database(url, script_location=scripts)
    try:
        assert await second.run(count) == 1
        with pytest.raises(IntegrityError):
            await second.run(lambda c: c.execute(text("INSERT INTO part VALUES ('missing')")).rowcount)
    finally:
        await second.close()


async def test_a_broken_migration_leaves_the_schema_as_it_was(tmp_path: Path, scripts: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    (scripts / "versions" / "0002_part.py").write_text(BROKEN)
    with pytest.raises(RuntimeError, match="half-way"):
        await open_database(url, script_location=scripts)
    database = await open_database(url)
    try:
        tables = await database.run(
            lambda c: c.execute(text("SELECT name FROM sqlite_master")).scalars().all()
        )
        assert tables == []
    finally:
        await database.close()


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path, scripts: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/a.db")
    try:
        migrate(engine, scripts)
        migrate(engine, scripts)
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        with pytest.raises(Precondition, match="newer version"):
            migrate(engine, scripts)
    finally:
        engine.dispose()


async def test_a_full_disk_is_said_to_be_full(database: Database) -> None:
    def fill(connection: Connection) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        for n in range(1000):
            connection.execute(
                text("INSERT INTO thing (name) VALUES (:name)"), {"name": f"{n}-" + "x" * 1000}
            )

    with pytest.raises(
        Exhausted, match=r"the service's disk that holds its database, a\.db, is full"
    ) as caught:
        await database.run(fill)
    assert caught.value.reason == "DISK_FULL"
    assert "free some space" in caught.value.message
    assert await database.run(count) == 0


@pytest.mark.parametrize("name", ["SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_TRUNCATE"])
async def test_a_quota_or_a_limit_on_file_sizes_is_a_full_disk_too(scripts: Path, name: str) -> None:
    def fails(connection: Connection) -> None:
        fault = sqlite3.OperationalError("disk I/O error")
        fault.sqlite_errorcode, fault.sqlite_errorname = getattr(sqlite3, name), name
        raise OperationalError("INSERT", {}, fault)

    database = await open_database("sqlite://", script_location=scripts)
    with pytest.raises(Exhausted) as full:
        await database.run(fails)
    assert full.value.reason == "DISK_FULL"
    await database.close()


async def test_one_in_memory_is_shared_by_all_transactions(scripts: Path) -> None:
    database = await open_database("sqlite://", script_location=scripts)
    try:
        await database.run(add("a"))
        assert await database.run(count) == 1
    finally:
        await database.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "no URL"),
        ("mysql://root:hunter2@h/d", "mysql"),
        ("postgresql+nosuch://u:hunter2@h/d", "postgresql"),
    ],
)
def test_a_url_that_cant_be_used_is_refused_without_its_password(url: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        open_engine(url)
    assert "hunter2" not in caught.value.message


HOLDER = """
    import sys, pathlib
    from libs.common.sql import SqliteReplicaLock
    lock = SqliteReplicaLock(pathlib.Path(sys.argv[1])).acquire()
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(Precondition, match=f"process {holder.pid} uses") as caught:
                SqliteReplicaLock(path).acquire()
            assert caught.value.reason == "SECOND_REPLICA"
        finally:
            holder.kill()
            holder.wait()
    lock = SqliteReplicaLock(path).acquire()
    lock.release()
    lock.release()


async def test_a_refused_replica_leaves_nothing_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    first = await open_database(url)
    with pytest.raises(Precondition):
        await open_database(url)
    await first.close()
    await (await open_database(url)).close()
