"""Regions in one canonical form: no axes of size 1, neighbours that run on merged, outermost first.

Equal movements mostly come out equal, and fewer axes leave more to what composes regions.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.domain.bounds import Bounds
from services.engine.domain.extents import Extent
from services.engine.domain.program import MoveRegion, ValueView, ViewAxis


@dataclass(frozen=True, slots=True)
class Lane:
    """One axis of a region: how many, and the steps in the source and in the destination."""

    size: Extent
    source: Extent
    destination: Extent


def lanes_of(region: MoveRegion) -> list[Lane]:
    """Return the axes of a region."""
    pairs = zip(region.source.axes, region.destination_strides, strict=True)
    return [Lane(axis.size, axis.stride, stride) for axis, stride in pairs]


def region_of(value: int, source: Extent, destination: Extent, lanes: list[Lane]) -> MoveRegion:
    """Return a region that reads `value` from element `source` and writes from element `destination`."""
    axes = tuple(ViewAxis(lane.size, lane.source) for lane in lanes)
    return MoveRegion(ValueView(value, source, axes), destination, tuple(lane.destination for lane in lanes))


def canonical(region: MoveRegion, bounds: Bounds) -> MoveRegion:
    """Return the same movement in canonical form."""
    lanes = ordered([lane for lane in lanes_of(region) if lane.size.constant != 1], bounds)
    merged: list[Lane] = []
    for lane in lanes:
        if merged and _runs_on(merged[-1], lane):
            lane = Lane(merged.pop().size * lane.size, lane.source, lane.destination)
        merged.append(lane)
    return region_of(region.source.value, region.source.offset, region.destination_offset, merged)


def ordered(lanes: list[Lane], bounds: Bounds) -> list[Lane]:
    """Return the lanes with the largest step in the destination first, by a sample of the dimensions."""
    sizes = {name: min(high, max(low, 3)) for name, (low, high) in bounds.ranges.items()}
    return sorted(lanes, key=lambda lane: -abs(lane.destination.evaluate(sizes)))


def _runs_on(outer: Lane, inner: Lane) -> bool:
    return outer.source == inner.source * inner.size and outer.destination == inner.destination * inner.size


def is_dense(view: ValueView) -> bool:
    """Tell whether a view's axes are those of a dense row-major array, wherever it starts."""
    step = Extent.of(1)
    for axis in reversed(view.axes):
        if axis.stride != step and axis.size.constant != 1:
            return False
        step = step * axis.size
    return True
