"""The store in SQL: SQLite in one process, or PostgreSQL for any number of replicas."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError

from libs.common.errors import Unavailable
from libs.common.sql import Database
from services.deployer.store import Tx
from services.deployer.stores.sql.blobs import BlobsPart
from services.deployer.stores.sql.catalogue import CataloguePart
from services.deployer.stores.sql.fleet import FleetPart
from services.deployer.stores.sql.ledger import LedgerPart
from services.deployer.stores.sql.releases import ReleasesPart

T = TypeVar("T")

# In each round of those that want the same row, one wins.
_ATTEMPTS = 30
_PAUSE_S = 0.002
_TOGETHER = 64


class SqlTx(CataloguePart, FleetPart, ReleasesPart, BlobsPart, LedgerPart):
    """A transaction; see `services.deployer.store.Tx`."""


class SqlStore:
    """Runs transactions on a database's threads; see `services.deployer.store.Store`.

    SQLite runs one at a time. Those that write and wait together are committed together, each inside a
    savepoint of its own, so that many devices share the cost of making their reports durable. PostgreSQL
    runs them side by side at isolation level SERIALIZABLE, and one that it refuses is tried again.
    """

    def __init__(self, database: Database) -> None:
        """Own `database`, which was migrated to this version's schema."""
        self._database = database
        self._waiting: list[_Waiting[Any]] = []
        self._committer: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[Tx], T]) -> T:
        """See `Store`."""
        if self._database.dialect == "postgresql":
            return await self._serializable(work, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        waiting: _Waiting[T] = _Waiting(work, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._committer is None:
            self._committer = asyncio.create_task(self._commit_all())
        return await waiting.done

    async def read(self, work: Callable[[Tx], T]) -> T:
        """See `Store`."""
        if self._database.dialect == "postgresql":
            mode = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
            return await self._serializable(work, mode)
        return await self._database.run(lambda connection: work(SqlTx(connection)))

    async def _serializable(self, work: Callable[[Tx], T], mode: str) -> T:
        def transact(connection: Connection) -> T:
            connection.exec_driver_sql(mode)
            return work(SqlTx(connection))

        for attempt in range(_ATTEMPTS):
            try:
                return await self._database.run(transact)
            except Unavailable as error:
                # A serialization failure or a deadlock: nothing happened, and another may come through now.
                if error.reason != "DATABASE_BUSY" or attempt == _ATTEMPTS - 1:
                    raise
            await asyncio.sleep(_PAUSE_S * attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _commit_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_TOGETHER], self._waiting[_TOGETHER:]
                await self._commit(batch)
        finally:
            self._committer = None

    async def _commit(self, batch: Sequence["_Waiting[Any]"]) -> None:
        def transact(connection: Connection) -> list[tuple[Any, Exception | None]]:
            return [_attempt(connection, waiting.work) for waiting in batch]

        outcomes: Sequence[tuple[Any, Exception | None]]
        try:
            outcomes = await self._database.run(transact)
        except Exception as error:
            # Nothing of the batch is durable. Each caller learns why.
            outcomes = [(None, error)] * len(batch)
        for waiting, (result, fault) in zip(batch, outcomes, strict=True):
            if waiting.done.done():
                continue  # its caller was cancelled
            if fault is None:
                waiting.done.set_result(result)
            else:
                waiting.done.set_exception(fault)

    async def close(self) -> None:
        """See `Store`."""
        if self._committer is not None:
            await self._committer
        await self._database.close()


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[T]):
    """A transaction that waits to be committed with others."""

    work: Callable[[Tx], T]
    done: "asyncio.Future[T]"


def _attempt(connection: Connection, work: Callable[[Tx], T]) -> tuple[T | None, Exception | None]:
    """Run one transaction of a batch; what it wrote is undone when it raises."""
    savepoint = connection.begin_nested()
    try:
        result = work(SqlTx(connection))
    except DBAPIError as error:
        if not isinstance(error, IntegrityError):
            raise  # the disk, the file, a lock: it concerns the whole batch
        savepoint.rollback()
        return None, error
    except Exception as error:
        savepoint.rollback()
        return None, error
    savepoint.commit()
    return result, None
