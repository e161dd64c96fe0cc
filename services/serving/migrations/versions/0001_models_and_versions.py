"""Models and versions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables of models and versions. Times are microseconds since 1970, UTC."""
    op.create_table(
        "serving_models",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("model", sa.String(63), primary_key=True),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("live", sa.String(128), nullable=False),
        sa.Column("unloaded", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("create_time_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "serving_versions",
        sa.Column(
            "sequence",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("model", sa.String(63), nullable=False),
        sa.Column("version", sa.String(128), nullable=False),
        sa.Column("platform", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("create_time_us", sa.BigInteger, nullable=False),
        sa.Column("request_id", sa.String(36), nullable=False),
        sa.Column("committed", sa.Boolean, nullable=False),
        sa.UniqueConstraint("tenant", "model", "version"),
        sa.ForeignKeyConstraint(
            ["tenant", "model"], ["serving_models.tenant", "serving_models.model"], ondelete="CASCADE"
        ),
        sqlite_autoincrement=True,
    )
