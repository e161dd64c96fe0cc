"""Whether a gang's start can be written in one transaction, beside what its nodes hold already."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from libs.common.names import NodeName
from services.scheduler.domain import lifecycle
from services.scheduler.domain.change import Change
from services.scheduler.domain.objects import Job, Node
from services.scheduler.domain.placement import Placed

Fits = Callable[[Change], bool]
"""Tells whether a change can be written in one transaction."""
_FEW_HOLDINGS = 100
"""On a gang's nodes: so few aren't worth measuring."""


def crowded(fits: Fits, job: Job, placed: Placed, nodes: Mapping[NodeName, Node], now: datetime) -> bool:
    """Tell whether only what the nodes hold keeps a gang from starting there."""
    touched = {room.name: nodes[room.name] for room in placed.rooms}
    if sum(len(node.holdings) for node in touched.values()) <= _FEW_HOLDINGS:
        return False
    return not fits(_attempt(job, placed, touched, now)) and fits_emptied(fits, job, placed, touched, now)


def fits_emptied(fits: Fits, job: Job, placed: Placed, nodes: Mapping[NodeName, Node], now: datetime) -> bool:
    """Tell whether a gang could start there if nothing else ran on these nodes."""
    return fits(
        _attempt(job, placed, {name: replace(node, holdings=()) for name, node in nodes.items()}, now)
    )


def _attempt(job: Job, placed: Placed, nodes: Mapping[NodeName, Node], now: datetime) -> Change:
    # As large as a real one, whose term and id aren't known here.
    return lifecycle.start(job, placed, nodes, 1 << 62, "x" * 32, now)
