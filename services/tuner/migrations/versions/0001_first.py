"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "experiments",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("experiment", sa.String(63), primary_key=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("served", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("best_trial", sa.Integer(), nullable=False),
        sa.Column("application", sa.Text(), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.Column("end_time", sa.BigInteger(), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False),
    )
    op.create_index("experiments_by_settled", "experiments", ["settled"])
    op.create_table(
        "trials",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("experiment", sa.String(63), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("point", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("feasible", sa.Boolean(), nullable=False),
        sa.Column("start_time", sa.BigInteger(), nullable=False),
        sa.Column("end_time", sa.BigInteger(), nullable=True),
    )
    op.create_index("trials_by_state", "trials", ["state"])
    op.create_table(
        "requests",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("request_id", sa.String(64), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("experiment", sa.String(63), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
    )
