"""The tables. Times are microseconds since 1970; structured values are JSON texts.

A change here goes with a new file in `services/tuner/migrations/versions`; a test compares the two.
"""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, MetaData, String, Table, Text

metadata = MetaData()

experiments = Table(
    "experiments",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("experiment", String(63), primary_key=True),
    Column("spec", Text, nullable=False),
    Column("served", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("message", Text, nullable=False),
    Column("best_trial", Integer, nullable=False),
    Column("application", Text, nullable=False),
    Column("settled", Boolean, nullable=False),
    Column("create_time", BigInteger, nullable=False),
    Column("end_time", BigInteger, nullable=True),
    Column("revision", BigInteger, nullable=False),
    Index("experiments_by_settled", "settled"),
)

trials = Table(
    "trials",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("experiment", String(63), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("point", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("message", Text, nullable=False),
    Column("metrics", Text, nullable=False),
    Column("feasible", Boolean, nullable=False),
    Column("start_time", BigInteger, nullable=False),
    Column("end_time", BigInteger, nullable=True),
    Index("trials_by_state", "state"),
)

requests = Table(
    "requests",
    metadata,
    Column("tenant", String(63), primary_key=True),
    Column("request_id", String(64), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("experiment", String(63), nullable=False),
    Column("create_time", BigInteger, nullable=False),
)
