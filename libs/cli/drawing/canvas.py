"""An SVG file in the making: shapes with classes, whose colours suit light and dark backgrounds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
LETTER = 0.58
"""Mean width of a letter, in sizes of the font."""

# Class: fill and line on light backgrounds, then on dark ones.
_COLOURS: dict[str, tuple[str, str, str, str]] = {
    "node": ("#f1f5f9", "#64748b", "#1e293b", "#94a3b8"),
    "compute": ("#dbeafe", "#2563eb", "#172554", "#60a5fa"),
    "raster": ("#ffedd5", "#ea580c", "#431407", "#fb923c"),
    "host": ("#dcfce7", "#16a34a", "#052e16", "#4ade80"),
    "fault": ("#fee2e2", "#dc2626", "#450a0a", "#f87171"),
    "frame": ("#f8fafc", "#94a3b8", "#0f172a", "#475569"),
}


def _style() -> str:
    light = [
        f"text{{font-family:{FONT};font-size:11px;fill:#0f172a}}",
        ".paper{fill:#ffffff}.head{font-size:17px;font-weight:600}.strong{font-weight:600}",
        ".soft{fill:#475569}.small{font-size:9px;fill:#475569}.right{text-anchor:end}.middle{text-anchor:middle}",
        ".edge{fill:none;stroke:#94a3b8;stroke-width:1}.far{fill:none;stroke:#94a3b8;stroke-width:1;"
        "stroke-dasharray:3 3;opacity:.6}",
        ".bar{fill:#2563eb}.bar.raster{fill:#ea580c;stroke:none}.bar.before{fill:#94a3b8}",
        ".area{fill:#2563eb;opacity:.25}.line{fill:none;stroke:#2563eb;stroke-width:1.2}",
        ".peak{fill:none;stroke:#dc2626;stroke-width:1}.dot{fill:#dc2626}.axis{stroke:#94a3b8;stroke-width:1}",
        ".nothing{stroke-dasharray:3 2;opacity:.7}",
    ]
    dark = [
        "text{fill:#e2e8f0}.paper{fill:#0b1120}.soft,.small{fill:#94a3b8}",
        ".edge,.far,.axis{stroke:#475569}.bar{fill:#60a5fa}.bar.raster{fill:#fb923c}.bar.before{fill:#475569}",
        ".area{fill:#60a5fa}.line{stroke:#60a5fa}.peak{stroke:#f87171}.dot{fill:#f87171}",
    ]
    for name, (fill, line, dark_fill, dark_line) in _COLOURS.items():
        light.append(f".{name}{{fill:{fill};stroke:{line}}}")
        dark.append(f".{name}{{fill:{dark_fill};stroke:{dark_line}}}")
    return "".join(light) + "@media (prefers-color-scheme:dark){" + "".join(dark) + "}"


class Canvas:
    """Collects shapes; x goes right and y down, in pixels."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        classes: str,
        *,
        radius: float = 0,
        title: str = "",
    ) -> None:
        """Draw a rectangle; `title` is shown where the pointer rests on it."""
        round_ = f' rx="{_number(radius)}"' if radius else ""
        body = f"><title>{_text(title)}</title></rect>" if title else "/>"
        self._parts.append(
            f'<rect class="{classes}" x="{_number(x)}" y="{_number(y)}" width="{_number(max(width, 0))}" '
            f'height="{_number(max(height, 0))}"{round_}{body}'
        )

    def text(self, x: float, y: float, text: str, classes: str = "") -> None:
        """Write a line; x, y is where its baseline begins."""
        class_ = f' class="{classes}"' if classes else ""
        self._parts.append(f'<text{class_} x="{_number(x)}" y="{_number(y)}">{_text(text)}</text>')

    def path(self, points: str, classes: str, title: str = "") -> None:
        """Draw a path of SVG's commands."""
        body = f"><title>{_text(title)}</title></path>" if title else "/>"
        self._parts.append(f'<path class="{classes}" d="{points}"{body}')

    def curve(self, points: Sequence[tuple[float, float]], classes: str) -> None:
        """Draw a line that leaves and reaches each point vertically."""
        x, y = points[0]
        commands = [f"M{_number(x)} {_number(y)}"]
        for next_x, next_y in points[1:]:
            middle = (y + next_y) / 2
            commands.append(
                f"C{_number(x)} {_number(middle)} {_number(next_x)} {_number(middle)} "
                f"{_number(next_x)} {_number(next_y)}"
            )
            x, y = next_x, next_y
        self.path("".join(commands), classes)

    def circle(self, x: float, y: float, radius: float, classes: str, title: str = "") -> None:
        """Draw a dot."""
        body = f"><title>{_text(title)}</title></circle>" if title else "/>"
        self._parts.append(
            f'<circle class="{classes}" cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"{body}'
        )

    def file(self, width: float, height: float, title: str) -> str:
        """Return the file: a picture of this size."""
        size = f'width="{_number(width)}" height="{_number(height)}"'
        return "".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_number(width)} '
                f'{_number(height)}" role="img"><title>{_text(title)}</title><style>{_style()}</style>',
                f'<rect class="paper" width="{_number(width)}" height="{_number(height)}"/>',
                *self._parts,
                "</svg>\n",
            )
        )


def fitted(text: str, width: float, size: float = 11) -> str:
    """Return a text cut so that it takes about `width` at most."""
    room = max(int(width / (size * LETTER)), 1)
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…"


def text_width(text: str, size: float = 11) -> float:
    """Return about how wide a text is."""
    return len(text) * size * LETTER


_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _text(text: str) -> str:
    """Return a text for XML, which has no control characters at all."""
    return escape(_FORBIDDEN.sub("\ufffd", text), quote=True)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
