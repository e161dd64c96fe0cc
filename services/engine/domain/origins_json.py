"""`Origins` as JSON: what a worker tells, and what the cache keeps beside a plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from services.engine.domain.explanation import MOST_NODES, Figures, NodeText, Origins

MOST_NODES_BYTES = 512 * 1024
"""Of the nodes told: the first ones of a large model."""
_LARGEST = 1 << 64
_LONGEST_NAME = 4096
_COUNTS = (
    "regions",
    "moved_bytes",
    "raster_bytes",
    "calculations",
    "peak_bytes",
    "planned_bytes",
    "unshared_bytes",
)


def origins_to_json(origins: Origins) -> dict[str, Any]:
    """Return origins as JSON-able values."""
    nodes, room = [], MOST_NODES_BYTES
    for node in origins.nodes:
        told = [node.name, node.operator, list(node.reads), node.written, node.inside]
        room -= len(json.dumps(told)) + 2
        if room < 0:
            break
        nodes.append(told)
    before = origins.before
    return {
        "operators": dict(origins.operators),
        "rasters": origins.rasters,
        "nodes": nodes,
        "before": None
        if before is None
        else {"operators": dict(before.operators)}
        | {name: min(getattr(before, name), _LARGEST - 1) for name in _COUNTS},
    }


def origins_from_json(fields: Mapping[str, Any]) -> Origins:
    """Return origins from JSON that isn't trusted.

    Raises ValueError, LookupError, TypeError or AttributeError for what isn't of that form.
    """
    rows = fields["nodes"]
    if not isinstance(rows, list) or len(rows) > MOST_NODES:
        raise ValueError("nodes are no list, or too many")
    before = fields["before"]
    return Origins(
        operators=_counts(fields["operators"]),
        rasters=_count(fields["rasters"]),
        before=None
        if before is None
        else Figures(_counts(before["operators"]), *(_count(before[name]) for name in _COUNTS)),
        nodes=tuple(_node(row, place) for place, row in enumerate(rows)),
    )


def _node(row: Any, place: int) -> NodeText:
    name, operator, reads, written, inside = row
    if not isinstance(name, str) or not isinstance(operator, str) or not isinstance(reads, list):
        raise TypeError("a node is malformed")
    if max(len(name), len(operator)) > _LONGEST_NAME:
        raise ValueError("a node's name is too long")
    earlier = [_count(read) for read in reads]
    outer = None if inside is None else _count(inside)
    if any(read >= place for read in (*earlier, *(() if outer is None else (outer,)))):
        raise ValueError("a node reads a later one")
    return NodeText(name, operator, tuple(earlier), _count(written), outer)


def _counts(fields: Any) -> dict[str, int]:
    return {str(name): _count(count) for name, count in fields.items()}


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise ValueError("a count is malformed")
    return value
