"""Migrations: a database is brought forward on its own when a service starts, whole or not at all.

A service keeps its Alembic scripts in one folder; their `env.py` is two lines:

    from libs.common.sql import run_env

    run_env()
"""

from pathlib import Path
from typing import cast

import alembic.command
import alembic.context
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import Connection, Engine, text

from libs.common.errors import Precondition

# Any number will do, as long as nobody else locks it in the same database.
_POSTGRES_LOCK = 0x69737468


def migrate(engine: Engine, script_location: Path | str) -> None:
    """Run the scripts in `script_location` that this database hasn't seen, in one transaction; blocks.

    Of several replicas that start at once, one migrates and the others wait.

    Raises:
        Precondition: when a newer version of the service has migrated the database, or no scripts are there.
    """
    config = Config()
    # Alembic reads the option with interpolation: a percent sign in a path must be doubled.
    config.set_main_option("script_location", str(script_location).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _POSTGRES_LOCK})
        config.attributes["connection"] = connection
        try:
            alembic.command.upgrade(config, "head")
        except CommandError as error:
            raise Precondition(
                f"the database can't be migrated: {error}; it may come from a newer version of this service",
                reason="MIGRATION_FAILED",
            ) from error


def run_env() -> None:
    """Be the body of an Alembic `env.py`: run the scripts on the connection that `migrate` gives."""
    context = alembic.context
    connection = cast("Connection", context.config.attributes["connection"])
    # The transaction is that of `migrate`: all scripts or none.
    context.configure(connection=connection, transactional_ddl=True, transaction_per_migration=False)
    with context.begin_transaction():
        context.run_migrations()
