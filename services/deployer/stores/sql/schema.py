"""The tables. Times are microseconds since 1970; structured values are JSON texts.

A change here goes with a new file in `services/deployer/migrations/versions`; a test compares the two.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()

# SQLite counts up only in columns of exactly this type.
_COUNTED = BigInteger().with_variant(Integer, "sqlite")

tasks = Table(
    "tasks",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("task", String(63), primary_key=True),
    Column("description", Text, nullable=False),
    Column("create_time", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("sequence", _COUNTED, primary_key=True, autoincrement=True),
    Column("tenant", String(63), nullable=False),
    Column("task", String(63), nullable=False),
    Column("version", String(128), nullable=False),
    Column("manifest", LargeBinary, nullable=False),
    Column("manifest_digest", String(71), nullable=False),
    Column("create_time", BigInteger, nullable=False),
    Column("publisher", Text, nullable=False),
    Column("total_bytes", BigInteger, nullable=False),
    Column("preflight", Text),
    Column("events_digest", String(71)),
    Column("events_bytes", BigInteger),
    Index("versions_by_name", "tenant", "task", "version", unique=True),
    Index("versions_by_task", "tenant", "task", "sequence"),
    sqlite_autoincrement=True,
)

roots = Table(
    "roots",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("signed", LargeBinary, nullable=False),
    Column("expire_time", BigInteger, nullable=False),
)

tokens = Table(
    "enrolment_tokens",
    metadata,
    Column("token_hash", LargeBinary(32), primary_key=True),
    Column("tenant", String(63), nullable=False),
    Column("attributes", Text, nullable=False),
    Column("expire_time", BigInteger, nullable=False),
    Column("uses_left", BigInteger, nullable=False),
)

# Without row ids, so that a pass over a tenant's fleet reads one tree in order.
devices = Table(
    "devices",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("device", String(63), primary_key=True),
    Column("public_key", LargeBinary(32), nullable=False),
    Column("attributes", Text, nullable=False),
    Column("create_time", BigInteger, nullable=False),
    Column("last_seen_time", BigInteger, nullable=False),
    Column("reported", Text, nullable=False),
    Column("revoked", Boolean, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("set_counter", BigInteger, nullable=False),
    Column("set_digest", LargeBinary(32), nullable=False),
    sqlite_with_rowid=False,
)

releases = Table(
    "releases",
    metadata,
    Column("sequence", _COUNTED, primary_key=True, autoincrement=True),
    Column("tenant", String(63), nullable=False),
    Column("release", String(63), nullable=False),
    Column("task", String(63), nullable=False),
    Column("version", String(128), nullable=False),
    Column("policy_json", Text, nullable=False),
    Column("shares", Text, nullable=False),
    Column("gate", Text, nullable=False),
    Column("salt", LargeBinary, nullable=False),
    Column("create_time", BigInteger, nullable=False),
    Column("creator", Text, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("state_reason", Text, nullable=False),
    Column("steps", Text, nullable=False),
    Column("resume_time", BigInteger),
    Column("end_time", BigInteger),
    Column("end_counts", Text),
    Column("revision", BigInteger, nullable=False),
    Index("releases_by_name", "tenant", "release", unique=True),
    Index("releases_by_tenant", "tenant", "sequence"),
    Index("releases_by_state", "state"),
    sqlite_autoincrement=True,
)

stages = Table(
    "device_stages",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("device", String(63), primary_key=True),
    Column("release_sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("task", String(63), nullable=False),
    Column("version", String(128), nullable=False),
    Column("stage", SmallInteger, nullable=False),
    Column("failure_reason", String(64), nullable=False),
    Column("failure_message", Text, nullable=False),
    Column("time", BigInteger),
    Index("device_stages_by_release", "release_sequence", "stage"),
    Index(
        "device_stages_failed",
        "tenant",
        "device",
        sqlite_where=text("stage = 6"),
        postgresql_where=text("stage = 6"),
    ),
    sqlite_with_rowid=False,
)

reports = Table(
    "report_ids",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("device", String(63), primary_key=True),
    Column("report_id", String(64), primary_key=True),
    Column("create_time", BigInteger, nullable=False),
    Index("report_ids_by_time", "create_time"),
    sqlite_with_rowid=False,
)

blobs = Table(
    "blob_references",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("digest", String(71), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("create_time", BigInteger, nullable=False),
    Column("touch_time", BigInteger, nullable=False),
    Index("blob_references_by_digest", "digest"),
    Index("blob_references_by_time", "touch_time"),
)

pins = Table(
    "blob_pins",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("digest", String(71), primary_key=True),
    Column("resource", String(320), primary_key=True),
    Index("blob_pins_by_resource", "tenant", "resource"),
)

requests = Table(
    "past_requests",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("request_id", String(64), primary_key=True),
    Column("fingerprint", LargeBinary, nullable=False),
    Column("resource", String(320), nullable=False),
    Column("create_time", BigInteger, nullable=False),
    Index("past_requests_by_time", "create_time"),
)

audit = Table(
    "audit_entries",
    metadata,
    Column("sequence", _COUNTED, primary_key=True, autoincrement=True),
    Column("tenant", String(63), nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", String(64), nullable=False),
    Column("resource", String(320), nullable=False),
    Column("detail", Text, nullable=False),
    Column("event_time", BigInteger, nullable=False),
    Index("audit_entries_by_tenant", "tenant", "sequence"),
    Index("audit_entries_by_resource", "tenant", "resource", "sequence"),
    sqlite_autoincrement=True,
)

revisions = Table(
    "revisions",
    metadata,
    Column("what", String(16), primary_key=True),
    Column("tenant", String(63), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
