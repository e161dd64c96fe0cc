"""What end-to-end tests share."""

from pathlib import Path

import pytest

from deploy.local.ports import free_offset
from deploy.local.stack import Stack


@pytest.fixture
def unused_port_offset(tmp_path: Path) -> int:
    """A port offset by which a stack runs beside whatever runs here."""
    return free_offset(Stack(tmp_path / "nowhere").ports())
