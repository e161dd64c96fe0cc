"""Vertical composition: what reads a raster's output reads the raster's sources instead.

Sound, not complete: where the algebra of `digits` can't prove where elements come from, the raster stays.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.domain.bounds import Bounds
from services.engine.domain.check_program import MAX_RANK
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.merge.digits import Digit, Weight, carry, digits_of
from services.engine.domain.merge.regions import Lane, canonical, lanes_of, ordered, region_of
from services.engine.domain.program import MoveRegion, RasterInstruction, ValueView, whole

MAX_REGIONS = 64
"""Of one composed raster; beyond it the producer stays a raster of its own."""
_MOST_SPLITS = 2 * MAX_RANK


@dataclass(frozen=True, slots=True)
class Composed:
    """What a region became: regions in the order to write them, and whether the producer's fill shows."""

    regions: tuple[MoveRegion, ...]
    fills: bool


@dataclass(frozen=True, slots=True)
class _Part:
    """What a reader gets of one region: a region, None where nothing; `whole` where that is all it reads."""

    region: MoveRegion | None
    whole: bool


def compose_region(region: MoveRegion, producer: RasterInstruction, bounds: Bounds) -> Composed | None:
    """Return `region`, which reads what `producer` writes, as regions that read the producer's sources.

    None where that isn't proved possible.
    """
    parts = _parts(region, producer, bounds, split=True)
    if parts is None or len(parts) > MAX_REGIONS:
        return None
    covered = any(part.whole for part in parts)
    regions = tuple(canonical(part.region, bounds) for part in parts if part.region is not None)
    return Composed(regions, fills=producer.fill is not None and not covered)


def compose_view(view: ValueView, producer: RasterInstruction, bounds: Bounds) -> ValueView | None:
    """Return `view`, of what `producer` writes, as a view of one of its sources, of the same shape.

    None where it reads several sources or the fill, or where that isn't proved possible.
    """
    region = MoveRegion(view, Extent.of(0), tuple(Extent.of(0) for _ in view.axes))
    parts = _parts(region, producer, bounds, split=False)
    if parts is None or len(parts) != 1 or not parts[0].whole or parts[0].region is None:
        return None
    return parts[0].region.source


def reshaped(view: ValueView, shape: tuple[Extent, ...], bounds: Bounds) -> ValueView | None:
    """Return a view of the same elements in the same order, in another shape.

    None where its strides don't allow that, or aren't proved to.
    """
    dense = RasterInstruction(view.value, (MoveRegion(view, Extent.of(0), contiguous_strides(view.shape)),))
    return compose_view(whole(view.value, shape), dense, bounds)


def _parts(
    region: MoveRegion, producer: RasterInstruction, bounds: Bounds, *, split: bool
) -> list[_Part] | None:
    parts: list[_Part] = []
    for written in producer.regions:
        part = _through(region, written, bounds, split=split)
        if part is None:
            return None
        if part.whole:
            # Later regions win: what came before this one doesn't show.
            parts.clear()
        if part.region is not None:
            parts.append(part)
    return parts


def _through(region: MoveRegion, written: MoveRegion, bounds: Bounds, *, split: bool) -> _Part | None:
    """Return what `region` reads of what `written` wrote; None where it isn't known."""
    found = _weights(canonical(written, bounds), bounds)
    if found is None:
        return None
    base, source, weights = found
    lanes = lanes_of(region)
    for _ in range(_MOST_SPLITS):
        sizes = tuple(lane.size for lane in lanes)
        digits = digits_of(region.source.offset - base, tuple(lane.source for lane in lanes), weights)
        if digits is None:
            return None
        if all(_inside(digit, sizes, weight, bounds) for digit, weight in zip(digits, weights, strict=True)):
            return _Part(_reading(region, lanes, digits, weights, written.source.value, source), whole=True)
        unique = carry(digits, sizes, weights, bounds)
        if unique is not None:
            part = _restricted(region, lanes, unique, weights, written.source.value, source, bounds)
            if split or part is None or part.region is None or part.whole:
                return part
            return None
        if not split:
            return None
        wider = _split(lanes, digits, weights, bounds)
        if wider is None or len(wider) > MAX_RANK:
            return None
        lanes = wider
    return None


def _weights(written: MoveRegion, bounds: Bounds) -> tuple[Extent, Extent, tuple[Weight, ...]] | None:
    """Return (first element written, first element read, weights) of a region; None for an odd one."""
    base, source, lanes = written.destination_offset, written.source.offset, []
    for lane in lanes_of(written):
        if not bounds.at_least(lane.destination, 1):
            if not bounds.at_least(-lane.destination, 1):
                return None
            # Backwards in the destination: the same from its other end.
            base = base + lane.destination * (lane.size - 1)
            source = source + lane.source * (lane.size - 1)
            lane = Lane(lane.size, -lane.source, -lane.destination)
        lanes.append(lane)
    lanes = ordered(lanes, bounds)
    one = Extent.of(1)
    if not lanes or lanes[-1].destination != one:
        lanes.append(Lane(one, Extent.of(0), one))
    weights: list[Weight] = []
    for lane in lanes:
        # What writes an element twice has no inverse.
        if weights and not bounds.at_least(weights[-1].weight, lane.size * lane.destination):
            return None
        radix = weights[-1].weight.exact_quotient(lane.destination) if weights else None
        weights.append(Weight(lane.destination, lane.size, lane.source, radix))
    return base, source, tuple(weights)


def _inside(digit: Digit, sizes: tuple[Extent, ...], weight: Weight, bounds: Bounds) -> bool:
    span = digit.span(sizes, bounds)
    return span is not None and bounds.at_least(span[0], 0) and bounds.at_least(weight.size - 1 - span[1], 0)


def _outside(digit: Digit, sizes: tuple[Extent, ...], weight: Weight, bounds: Bounds) -> bool:
    span = digit.span(sizes, bounds)
    return span is not None and (bounds.at_least(-1 - span[1], 0) or bounds.at_least(span[0], weight.size))


def _reading(
    region: MoveRegion,
    lanes: list[Lane],
    digits: list[Digit],
    weights: tuple[Weight, ...],
    value: int,
    source: Extent,
) -> MoveRegion:
    """Return the region with its source taken from where the digits point."""
    for digit, weight in zip(digits, weights, strict=True):
        source = source + digit.constant * weight.source
    read = []
    for k, lane in enumerate(lanes):
        stride = Extent.of(0)
        for digit, weight in zip(digits, weights, strict=True):
            stride = stride + digit.factors[k] * weight.source
        read.append(Lane(lane.size, stride, lane.destination))
    return region_of(value, source, region.destination_offset, read)


def _restricted(
    region: MoveRegion,
    lanes: list[Lane],
    digits: list[Digit],
    weights: tuple[Weight, ...],
    value: int,
    source: Extent,
    bounds: Bounds,
) -> _Part | None:
    """Return the part of the reader's box whose (unique) digits lie in the written box."""
    sizes = tuple(lane.size for lane in lanes)
    pairs = list(zip(digits, weights, strict=True))
    if any(_outside(digit, sizes, weight, bounds) for digit, weight in pairs):
        return _Part(None, whole=False)
    ranges = [(Extent.of(0), lane.size) for lane in lanes]
    whole = True
    for digit, weight in pairs:
        if _inside(digit, sizes, weight, bounds):
            continue
        whole = False
        moving = [k for k, factor in enumerate(digit.factors) if factor.terms]
        if len(moving) != 1 or digit.factors[moving[0]] not in (Extent.of(1), Extent.of(-1)):
            return None
        (k,) = moving
        if digit.factors[k] == Extent.of(1):
            first, last = -digit.constant, weight.size - digit.constant
        else:
            first, last = digit.constant - weight.size + 1, digit.constant + 1
        low, high = _larger(ranges[k][0], first, bounds), _smaller(ranges[k][1], last, bounds)
        if low is None or high is None or not bounds.at_least(high, low):
            return None
        ranges[k] = (low, high)
    result = _reading(region, lanes, digits, weights, value, source)
    offset, destination, cut = result.source.offset, result.destination_offset, []
    for lane, (low, high) in zip(lanes_of(result), ranges, strict=True):
        offset, destination = offset + low * lane.source, destination + low * lane.destination
        cut.append(Lane(high - low, lane.source, lane.destination))
    return _Part(region_of(value, offset, destination, cut), whole)


def _larger(a: Extent, b: Extent, bounds: Bounds) -> Extent | None:
    return a if bounds.at_least(a, b) else b if bounds.at_least(b, a) else None


def _smaller(a: Extent, b: Extent, bounds: Bounds) -> Extent | None:
    return a if bounds.at_least(b, a) else b if bounds.at_least(a, b) else None


def _split(
    lanes: list[Lane], digits: list[Digit], weights: tuple[Weight, ...], bounds: Bounds
) -> list[Lane] | None:
    """Return the lanes with one that runs over a radix split there, innermost digit first."""
    for digit, weight in zip(reversed(digits), reversed(weights), strict=True):
        if weight.radix is None:
            continue
        for k, (factor, lane) in enumerate(zip(digit.factors, lanes, strict=True)):
            if not factor.terms or bounds.at_least(weight.radix - 1 - factor * (lane.size - 1), 0):
                continue
            inner = weight.radix.exact_quotient(factor)
            outer = lane.size.exact_quotient(inner) if inner is not None else None
            if inner is None or outer is None or not bounds.at_least(inner, 1) or outer.constant == 1:
                continue
            return [
                *lanes[:k],
                Lane(outer, lane.source * inner, lane.destination * inner),
                Lane(inner, lane.source, lane.destination),
                *lanes[k + 1 :],
            ]
    return None
