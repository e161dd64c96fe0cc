"""Bounds on what callers bring, and the checks of it."""

from __future__ import annotations

from collections.abc import Mapping

from libs.common.errors import Invalid
from libs.common.names import shown

MAX_MODEL_BYTES = 512 * 1024**2
"""Of an ONNX file."""
MAX_PLAN_BYTES = 600 * 1024**2
"""Of a plan: its constants and little else."""
MAX_EXTERNAL_FILES = 1024
"""That a model keeps its data in."""
MAX_DIMENSIONS = 64
MAX_DIMENSION = 2**31 - 1
DEFAULT_BOUNDS = (1, 4096)
_LONGEST_NAME = 256
_LONGEST_PATH = 1024


def check_dimensions(dimensions: list[tuple[str, int, int]]) -> Mapping[str, tuple[int, int]]:
    """Return bounds by name, in order of the names; a 0 stands for the default.

    Raises:
        Invalid: naming the dimension, for bounds that are no range, too large or given twice.
    """
    if len(dimensions) > MAX_DIMENSIONS:
        raise Invalid(f"dimensions: {len(dimensions)} are more than {MAX_DIMENSIONS}", reason="TOO_MANY")
    found: dict[str, tuple[int, int]] = {}
    for index, (name, low, high) in enumerate(dimensions):
        field = f"dimensions[{index}]"
        if not name or len(name) > _LONGEST_NAME:
            raise _bad(f"{field}.name: has {len(name)} characters; use 1 to {_LONGEST_NAME}", field)
        if name in found:
            raise _bad(f"{field}.name: {shown(name)} comes twice", field)
        low = low or DEFAULT_BOUNDS[0]
        high = high or max(low, DEFAULT_BOUNDS[1])
        if not 1 <= low <= high <= MAX_DIMENSION:
            raise _bad(
                f"{field}: {shown(name)} from {low} to {high} is no range; use 1 to {MAX_DIMENSION}, "
                "the minimum first",
                field,
            )
        found[name] = (low, high)
    return dict(sorted(found.items()))


def check_external_path(path: str) -> str:
    """Return a path within the folder of a model, which a file with its data has there.

    Raises Invalid for what is no relative path of plain parts: it would lead elsewhere, or differ by system.
    """
    parts = path.split("/")
    if (
        not 0 < len(path) <= _LONGEST_PATH
        or any(part in ("", ".", "..") or len(part) > _LONGEST_NAME for part in parts)
        or any(ord(letter) < 32 or letter in "\\\x7f" for letter in path)
        or (len(parts[0]) == 2 and parts[0][1] == ":")
        or not path.isprintable()
    ):
        raise Invalid(
            f"{shown(path)} is the name of no file in the model's folder: use a relative path with '/' and "
            "without '..'",
            reason="BAD_PATH",
        )
    return path


def _bad(text: str, field: str) -> Invalid:
    return Invalid(text, reason="BAD_DIMENSION", metadata={"field": field})
