"""A whole picture: what a model takes, its graph before and after, and what its steps move and hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libs.cli.drawing.canvas import Canvas, fitted, text_width
from libs.cli.drawing.charts import Pair, Series, bars_height, draw_area, draw_bars, draw_pairs
from libs.cli.drawing.columns import Column, ColumnLayout

_MARGIN = 24.0
_BETWEEN = 64.0
_NARROWEST = 760.0
_CHARTS_WIDTH = 1_600.0
_WIDEST_STEP = 40.0
_LEGEND = (
    ("node", "ONNX node"),
    ("compute", "atomic operator"),
    ("raster", "raster: moves data"),
    ("host", "host operator"),
    ("fault", "can't be read"),
)


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn: nothing of it needs fonts, scripts or files from elsewhere."""

    title: str
    subtitle: str
    pairs: tuple[Pair, ...] = ()
    columns: tuple[Column, ...] = ()
    moved: Series | None = None
    memory: Series | None = None


def draw(picture: Picture) -> str:
    """Return the picture as an SVG file."""
    canvas = Canvas()
    layouts = [ColumnLayout(column) for column in picture.columns]
    width = sum(layout.width for layout in layouts) + _BETWEEN * max(len(layouts) - 1, 0)
    width = max(width, _NARROWEST)
    canvas.text(_MARGIN, _MARGIN + 14, fitted(picture.title, width, 17), "head")
    canvas.text(_MARGIN, _MARGIN + 32, fitted(picture.subtitle, width), "soft")
    y = _MARGIN + 48
    if picture.pairs:
        y += draw_pairs(canvas, picture.pairs, _MARGIN, y, min(width, _NARROWEST)) + 16
    for series, chart in ((picture.moved, draw_bars), (picture.memory, draw_area)):
        if series is not None and series.values:
            chart(canvas, series, _MARGIN, y, min(width, _CHARTS_WIDTH, _WIDEST_STEP * len(series.values)))
            y += bars_height() + 16
    y = _legend(canvas, {box.kind for column in picture.columns for box in column.boxes}, y)
    bottom = y
    x = _MARGIN + max(0.0, (width - _total(layouts)) / 2)
    for column, layout in zip(picture.columns, layouts, strict=True):
        canvas.text(x, y + 12, column.heading, "strong")
        layout.draw(canvas, x, y + 26)
        end = y + 26 + layout.height
        if layout.missing:
            end += 20
            canvas.text(x, end, f"… and {layout.missing:,} more", "soft")
        bottom = max(bottom, end)
        x += layout.width + _BETWEEN
    return canvas.file(width + 2 * _MARGIN, bottom + _MARGIN, picture.title)


def _total(layouts: Sequence[ColumnLayout]) -> float:
    return sum(layout.width for layout in layouts) + _BETWEEN * max(len(layouts) - 1, 0)


def _legend(canvas: Canvas, kinds: set[str], y: float) -> float:
    x = _MARGIN
    for kind, label in _LEGEND:
        if kind in kinds:
            canvas.rect(x, y, 18, 11, kind, radius=5.5 if kind == "raster" else 2)
            canvas.text(x + 24, y + 9, label, "soft")
            x += 24 + text_width(label) + 24
    return y + 28 if x > _MARGIN else y
