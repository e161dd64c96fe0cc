"""Pins are found by what pins."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    op.create_index("blob_pins_by_resource", "blob_pins", ["tenant", "resource"])
