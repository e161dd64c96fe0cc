"""What a model may hold: hostile files must cost neither time nor memory."""

MOST_BYTES = 512 << 20
"""Of the file, and of the files that hold its data."""
MOST_CONSTANT_BYTES = 1 << 30
"""Of all constants as arrays: what is packed or sparse in a file takes more in memory."""
MOST_STRINGS = 1 << 21
"""Of all constants and attributes that hold strings."""
MOST_NODES = 100_000
"""Those of bodies and functions counted."""
MOST_CONSTANTS = 100_000
MOST_PORTS = 1024
"""Inputs, and outputs, of the model or a body."""
MOST_AXES = 8
MOST_DIMENSIONS = 64
"""Symbolic ones."""
MOST_ITEMS = 1 << 20
"""Of an attribute that is a list."""
DEEPEST = 32
"""Graphs within graphs."""
DEEPEST_TYPE = 8
"""Sequences of optionals of sequences …"""
LONGEST_NAME = 4096
LONGEST_TEXT = 1 << 16
"""Of an attribute, in bytes."""
OLDEST_OPSET = 7
"""That is read as it is; older ones are converted."""


def shown(name: str) -> str:
    """Return a name for a message: quoted, and cut where it is long."""
    return repr(name if len(name) <= 120 else name[:117] + "...")
