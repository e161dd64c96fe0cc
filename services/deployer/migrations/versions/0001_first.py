"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_COUNTED = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make every table."""
    op.create_table(
        "audit_entries",
        sa.Column("sequence", _COUNTED, primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("resource", sa.String(320), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("event_time", sa.BigInteger(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_entries_by_resource", "audit_entries", ["tenant", "resource", "sequence"])
    op.create_index("audit_entries_by_tenant", "audit_entries", ["tenant", "sequence"])
    op.create_table(
        "blob_pins",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("digest", sa.String(71), primary_key=True),
        sa.Column("resource", sa.String(320), primary_key=True),
    )
    op.create_table(
        "blob_references",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("digest", sa.String(71), primary_key=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.Column("touch_time", sa.BigInteger(), nullable=False),
    )
    op.create_index("blob_references_by_digest", "blob_references", ["digest"])
    op.create_index("blob_references_by_time", "blob_references", ["touch_time"])
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
        sqlite_with_rowid=False,
    )
    op.create_index("device_stages_by_release", "device_stages", ["release_sequence", "stage"])
    op.create_index(
        "device_stages_failed",
        "device_stages",
        ["tenant", "device"],
        sqlite_where=sa.text("stage = 6"),
        postgresql_where=sa.text("stage = 6"),
    )
    op.create_table(
        "devices",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("device", sa.String(63), primary_key=True),
        sa.Column("public_key", sa.LargeBinary(32), nullable=False),
        sa.Column("attributes", sa.Text(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_time", sa.BigInteger(), nullable=False),
        sa.Column("reported", sa.Text(), nullable=False),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("set_counter", sa.BigInteger(), nullable=False),
        sa.Column("set_digest", sa.LargeBinary(32), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "enrolment_tokens",
        sa.Column("token_hash", sa.LargeBinary(32), primary_key=True),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("attributes", sa.Text(), nullable=False),
        sa.Column("expire_time", sa.BigInteger(), nullable=False),
        sa.Column("uses_left", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "past_requests",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("request_id", sa.String(64), primary_key=True),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("resource", sa.String(320), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
    )
    op.create_index("past_requests_by_time", "past_requests", ["create_time"])
    op.create_table(
        "releases",
        sa.Column("sequence", _COUNTED, primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("release", sa.String(63), nullable=False),
        sa.Column("task", sa.String(63), nullable=False),
        sa.Column("version", sa.String(128), nullable=False),
        sa.Column("policy_json", sa.Text(), nullable=False),
        sa.Column("shares", sa.Text(), nullable=False),
        sa.Column("gate", sa.Text(), nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.Column("creator", sa.Text(), nullable=False),
        sa.Column("state", sa.SmallInteger(), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=False),
        sa.Column("steps", sa.Text(), nullable=False),
        sa.Column("resume_time", sa.BigInteger()),
        sa.Column("end_time", sa.BigInteger()),
        sa.Column("end_counts", sa.Text()),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("releases_by_name", "releases", ["tenant", "release"], unique=True)
    op.create_index("releases_by_state", "releases", ["state"])
    op.create_index("releases_by_tenant", "releases", ["tenant", "sequence"])
    op.create_table(
        "report_ids",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("device", sa.String(63), primary_key=True),
        sa.Column("report_id", sa.String(64), primary_key=True),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("report_ids_by_time", "report_ids", ["create_time"])
    op.create_table(
        "revisions",
        sa.Column("what", sa.String(16), primary_key=True),
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("value", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "roots",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("version", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("signed", sa.LargeBinary(), nullable=False),
        sa.Column("expire_time", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "tasks",
        sa.Column("tenant", sa.String(63), primary_key=True),
        sa.Column("task", sa.String(63), primary_key=True),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "versions",
        sa.Column("sequence", _COUNTED, primary_key=True, autoincrement=True),
        sa.Column("tenant", sa.String(63), nullable=False),
        sa.Column("task", sa.String(63), nullable=False),
        sa.Column("version", sa.String(128), nullable=False),
        sa.Column("manifest", sa.LargeBinary(), nullable=False),
        sa.Column("manifest_digest", sa.String(71), nullable=False),
        sa.Column("create_time", sa.BigInteger(), nullable=False),
        sa.Column("publisher", sa.Text(), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("versions_by_name", "versions", ["tenant", "task", "version"], unique=True)
    op.create_index("versions_by_task", "versions", ["tenant", "task", "sequence"])
