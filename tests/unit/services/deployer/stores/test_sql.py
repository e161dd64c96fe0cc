"""What only the SQL store has: commits shared by many, and a database that fails."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa

from libs.common.errors import Exhausted
from libs.common.names import TaskName
from libs.common.sql import Database, open_engine
from libs.common.testing import START
from services.deployer.domain.model import Task
from services.deployer.store import Tx
from services.deployer.stores.sql import SqlStore
from services.deployer.stores.sql.schema import metadata


@pytest.fixture
async def engine() -> AsyncIterator[sa.Engine]:
    made = open_engine("sqlite://")
    with made.begin() as connection:
        metadata.create_all(connection)
    yield made
    made.dispose()


def adding(name: str) -> "object":
    return lambda tx: tx.add_task(Task(TaskName("acme", name), "", START))


async def test_transactions_that_wait_together_are_committed_together(engine: sa.Engine) -> None:
    commits = []
    sa.event.listen(engine, "commit", commits.append)
    store = SqlStore(Database(engine))
    await asyncio.gather(*(store.run(adding(f"t{i}")) for i in range(50)))  # type: ignore[arg-type]
    assert len(commits) < 5
    assert len(await store.read(lambda tx: tx.list_tasks("acme", "", 100))) == 50
    await store.close()


async def test_when_the_commit_fails_everyone_is_told_and_nothing_is_there(engine: sa.Engine) -> None:
    class Full(Exception):
        sqlite_errorname = "SQLITE_FULL"

    failing = [True]

    def refuse(connection: sa.Connection) -> None:
        if failing[0]:
            raise sa.exc.OperationalError("COMMIT", {}, Full())

    sa.event.listen(engine, "commit", refuse)
    store = SqlStore(Database(engine))
    outcomes = await asyncio.gather(
        *(store.run(adding(f"t{i}")) for i in range(5)),  # type: ignore[arg-type]
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [Exhausted] * 5
    failing[0] = False

    def tasks(tx: Tx) -> list[Task]:
        return list(tx.list_tasks("acme", "", 100))

    assert await store.read(tasks) == []
    await store.run(adding("later"))  # type: ignore[arg-type]
    assert len(await store.read(tasks)) == 1
    await store.close()
