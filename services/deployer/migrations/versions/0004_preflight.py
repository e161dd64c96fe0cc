"""How a version did before it was published, and the recorded events that it was tried over."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; the versions that are there were never tried."""
    op.add_column("versions", sa.Column("preflight", sa.Text()))
    op.add_column("versions", sa.Column("events_digest", sa.String(71)))
    op.add_column("versions", sa.Column("events_bytes", sa.BigInteger()))
