import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from libs.common.sql import open_database, open_engine
from services.deployer.app import MIGRATIONS
from services.deployer.store import Store
from services.deployer.stores.memory import MemoryStore
from services.deployer.stores.sql import SqlStore
from services.deployer.testing import sql_store

# A PostgreSQL to test against, postgresql+psycopg://USER@HOST/DATABASE; each test makes a schema in it.
POSTGRESQL = os.environ.get("ISTHMUS_TEST_POSTGRES_URL", "")
needs_postgresql = pytest.mark.skipif(not POSTGRESQL, reason="no ISTHMUS_TEST_POSTGRES_URL")


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=needs_postgresql)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "postgresql":
        schema = f"test_{uuid.uuid4().hex}"
        url = sa.make_url(POSTGRESQL)
        engine = open_engine(POSTGRESQL)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
        own = url.update_query_dict({"options": f"-csearch_path={schema}"})
        shown = own.render_as_string(hide_password=False)
        made: Store = SqlStore(await open_database(shown, script_location=MIGRATIONS))
        yield made
        await made.close()
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")
        engine.dispose()
        return
    made = MemoryStore() if request.param == "memory" else await sql_store(tmp_path)
    yield made
    await made.close()
