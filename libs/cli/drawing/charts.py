"""What a model takes before and after, as bars; what each step moves, and the memory that lives at it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from libs.cli.drawing.canvas import Canvas, fitted

_ROW = 17.0
_LABEL = 150.0
_HEIGHT = 90.0
_MOST_POINTS = 1_500
"""Of a chart: of more steps in a row the largest is drawn."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A figure before and after; before may not be known."""

    label: str
    before: float | None
    after: float
    texts: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Series:
    """A figure of each step."""

    heading: str
    values: tuple[int, ...]
    is_raster: tuple[bool, ...]
    texts: tuple[str, ...]
    """For each step, shown where the pointer rests on it."""
    peak: str
    """What is said at the largest one."""


def draw_pairs(canvas: Canvas, pairs: Sequence[Pair], left: float, top: float, width: float) -> float:
    """Draw two bars for each figure; return how high it all is."""
    y = top
    room = width - _LABEL - 170
    for pair in pairs:
        most = max(pair.before or 0, pair.after) or 1
        canvas.text(left, y + 11, fitted(pair.label, _LABEL - 8))
        x = left + _LABEL
        if pair.before is not None:
            canvas.rect(x, y + 1, room * pair.before / most, 6, "bar before")
        canvas.rect(x, y + 8, room * pair.after / most, 6, "bar")
        text = pair.texts[1] if pair.before is None else f"{pair.texts[0]} → {pair.texts[1]}"
        canvas.text(x + room + 10, y + 11, text, "strong")
        y += _ROW
    return y - top


def bars_height() -> float:
    """Return how high a chart of steps is, with its heading."""
    return _HEIGHT + 26


def draw_bars(canvas: Canvas, series: Series, left: float, top: float, width: float) -> None:
    """Draw a bar for each step."""
    base = _axes(canvas, series, left, top, width)
    points = _thinned(series)
    most = max(series.values, default=0) or 1
    step = width / max(len(points), 1)
    for at, index in enumerate(points):
        height = _HEIGHT * series.values[index] / most
        classes = "bar raster" if series.is_raster[index] else "bar"
        thick = max(step * 0.85, 0.5)
        canvas.rect(left + at * step, base - height, thick, height, classes, title=series.texts[index])


def draw_area(canvas: Canvas, series: Series, left: float, top: float, width: float) -> None:
    """Draw a stepped area, and mark where it is highest."""
    base = _axes(canvas, series, left, top, width)
    points = _thinned(series)
    if not points:
        return
    most = max(series.values, default=0) or 1
    step = width / len(points)
    heights = [_HEIGHT * series.values[index] / most for index in points]
    line = "".join(
        f"L{left + at * step:.1f} {base - height:.1f}H{left + (at + 1) * step:.1f}"
        for at, height in enumerate(heights)
    )
    canvas.path(f"M{left:.1f} {base:.1f}{line}V{base:.1f}Z", "area")
    canvas.path(f"M{left:.1f} {base:.1f}{line}", "line")
    highest = max(range(len(points)), key=heights.__getitem__)
    x, y = left + (highest + 0.5) * step, base - heights[highest]
    canvas.circle(x, y, 3, "dot", series.texts[points[highest]])
    classes = "small right" if x > left + width / 2 else "small"
    canvas.text(x - 6 if classes != "small" else x + 6, y + 10, series.peak, classes)


def _axes(canvas: Canvas, series: Series, left: float, top: float, width: float) -> float:
    """Draw the heading and the ground line; return the ground's y."""
    canvas.text(left, top + 11, series.heading, "strong")
    base = top + 22 + _HEIGHT
    canvas.path(f"M{left:.1f} {base:.1f}H{left + width:.1f}", "axis")
    return base


def _thinned(series: Series) -> list[int]:
    """Return which steps are drawn: all, or of each few the one with the largest value."""
    count = len(series.values)
    if count <= _MOST_POINTS:
        return list(range(count))
    ends = [count * number // _MOST_POINTS for number in range(_MOST_POINTS + 1)]
    return [max(range(start, end), key=series.values.__getitem__) for start, end in itertools.pairwise(ends)]
