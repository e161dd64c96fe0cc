"""Tenants and API keys."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables of tenants and keys. Times are microseconds since 1970, UTC."""
    op.create_table(
        "tenants",
        sa.Column("tenant_id", sa.String(63), primary_key=True),
        sa.Column("display_name", sa.String(256), nullable=False),
        sa.Column("create_time_us", sa.BigInteger, nullable=False),
        sa.Column("request_id", sa.String(36), unique=True),
    )
    op.create_table(
        "keys",
        sa.Column("key_id", sa.String(63), primary_key=True),
        sa.Column("tenant_id", sa.String(63), sa.ForeignKey("tenants.tenant_id"), nullable=False),
        sa.Column("display_name", sa.String(256), nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("create_time_us", sa.BigInteger, nullable=False),
        sa.Column("expire_time_us", sa.BigInteger),
        sa.Column("revoke_time_us", sa.BigInteger),
    )
    op.create_index("keys_by_tenant", "keys", ["tenant_id", "key_id"])
