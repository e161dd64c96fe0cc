"""SQL stores: SQLAlchemy Core over SQLite or PostgreSQL by URL, migrated forward by Alembic. Cloud only.

database = await open_database("sqlite:///var/deployer/deployer.db", script_location=MIGRATIONS)
tasks = await database.run(lambda connection: connection.execute(select(task)).all())
await database.close()
"""

from libs.common.sql.database import Database as Database
from libs.common.sql.database import open_database as open_database
from libs.common.sql.engine import open_engine as open_engine
from libs.common.sql.lock import SqliteReplicaLock as SqliteReplicaLock
from libs.common.sql.migrations import migrate as migrate
from libs.common.sql.migrations import run_env as run_env
