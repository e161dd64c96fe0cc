"""When a device's stage was told.

SQLite appends a column behind the table's own constraints, so that a migrated file would read otherwise than
a new one; there the table is made anew.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_OLD = "device_stages_0001"
_KEPT = "tenant, device, release_sequence, task, version, stage, failure_reason, failure_message"


def upgrade() -> None:
    """Add the column; the stages that are there have no time."""
    if op.get_bind().dialect.name != "sqlite":
        op.add_column("device_stages", sa.Column("time", sa.BigInteger()))
        return
    op.drop_index("device_stages_by_release", "device_stages")
    op.drop_index("device_stages_failed", "device_stages")
    op.rename_table("device_stages", _OLD)
    op.create_table(
        "device_stages",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("device", sa.String(63), primary_key=True),
        sa.Column("release_sequence", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("task", sa.String(63), nullable=False),
        sa.Column("version", sa.String(128), nullable=False),
        sa.Column("stage", sa.SmallInteger(), nullable=False),
        sa.Column("failure_reason", sa.String(64), nullable=False),
        sa.Column("failure_message", sa.Text(), nullable=False),
        sa.Column("time", sa.BigInteger()),
        sqlite_with_rowid=False,
    )
    op.execute(f"INSERT INTO device_stages ({_KEPT}) SELECT {_KEPT} FROM {_OLD}")
    op.drop_table(_OLD)
    op.create_index("device_stages_by_release", "device_stages", ["release_sequence", "stage"])
    op.create_index(
        "device_stages_failed", "device_stages", ["tenant", "device"], sqlite_where=sa.text("stage = 6")
    )
