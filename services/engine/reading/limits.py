"""What a model may hold: hostile files must cost neither time nor memory."""

MOST_BYTES = 512 << 20
MOST_NODES = 100_000
MOST_CONSTANTS = 100_000
MOST_PORTS = 1024
"""Inputs, and outputs, of the model."""
MOST_AXES = 8
MOST_DIMENSIONS = 64
"""Symbolic ones."""
MOST_ITEMS = 1 << 20
"""Of an attribute that is a list."""
LONGEST_NAME = 4096
LONGEST_TEXT = 1 << 16
"""Of an attribute, in bytes."""
OLDEST_OPSET = 7


def shown(name: str) -> str:
    """Return a name for a message: quoted, and cut where it is long."""
    return repr(name if len(name) <= 120 else name[:117] + "...")
