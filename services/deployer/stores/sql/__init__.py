"""The store in SQL: SQLite in one process, or PostgreSQL for any number of replicas."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from libs.common.errors import Unavailable
from libs.common.sql import Database
from services.deployer.store import Tx
from services.deployer.stores.sql.blobs import BlobsPart
from services.deployer.stores.sql.catalogue import CataloguePart
from services.deployer.stores.sql.fleet import FleetPart
from services.deployer.stores.sql.ledger import LedgerPart
from services.deployer.stores.sql.releases import ReleasesPart

T = TypeVar("T")

_ATTEMPTS = 5
# PostgreSQL: serialization failure, deadlock. The transaction did nothing and may be tried again.
_AGAIN = frozenset({"40001", "40P01"})


class SqlTx(CataloguePart, FleetPart, ReleasesPart, BlobsPart, LedgerPart):
    """A transaction; see `services.deployer.store.Tx`."""


class SqlStore:
    """Runs transactions on a database's threads; see `services.deployer.store.Store`.

    SQLite runs one at a time, those that read too. PostgreSQL runs them at isolation level SERIALIZABLE, and
    one that it refuses is tried again.
    """

    def __init__(self, database: Database) -> None:
        """Own `database`, which was migrated to this version's schema."""
        self._database = database

    async def run(self, work: Callable[[Tx], T]) -> T:
        """See `Store`."""
        return await self._run(work, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")

    async def read(self, work: Callable[[Tx], T]) -> T:
        """See `Store`."""
        return await self._run(work, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    async def _run(self, work: Callable[[Tx], T], postgresql_mode: str) -> T:
        def transact(connection: Connection) -> T:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(postgresql_mode)
            return work(SqlTx(connection))

        for _ in range(_ATTEMPTS):
            try:
                return await self._database.run(transact)
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", "") not in _AGAIN:
                    raise
        raise Unavailable("the database is busy; try again", reason="DATABASE_BUSY", retry_after_s=1.0)

    async def close(self) -> None:
        """See `Store`."""
        await self._database.close()
