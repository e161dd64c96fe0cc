"""A graph of boxes in frames within frames, drawn from the top down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from libs.cli.drawing.canvas import Canvas, fitted, text_width
from libs.cli.drawing.layers import placed

BOX_HEIGHT = 32.0
LAYER_HEIGHT = 54.0
WIDEST = 190.0
MOST_BOXES = 2_000
"""Of a column: more are not drawn, and that is said."""
_NARROWEST = 64.0
_PAD = 12.0
_HEAD = 18.0
_APART = 24.0
_WIDEST_LABEL = 320.0


@dataclass(frozen=True, slots=True)
class Box:
    """A node or a step.

    Attributes:
        first: the upper line: an operator.
        second: the lower one.
        title: shown where the pointer rests on it.
        kind: its class: "node", "compute", "raster", "host" or "fault".
        reads: earlier boxes.
        frame: where it is, by place.
        bar: how much it moves, from 0 to 1.
        faded: it leaves nothing behind.
    """

    first: str
    second: str
    title: str
    kind: str
    reads: tuple[int, ...] = ()
    frame: int = 0
    bar: float = 0.0
    faded: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """Boxes that belong together; the first of a column is the column itself, which has no border.

    Attributes:
        label: its heading.
        title: shown where the pointer rests on it.
        parent: the frame it is in, which comes before it.
        first: how many boxes come before it.
        sideways: the frames in it stand beside one another.
    """

    label: str
    title: str
    parent: int | None
    first: int
    sideways: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One graph of a picture."""

    heading: str
    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    total: int
    """How many boxes there are, those that aren't given included."""


@dataclass(slots=True)
class _Area:
    """Something laid out, from (0, 0)."""

    width: float = 0.0
    height: float = 0.0
    boxes: list[tuple[int, float, float]] = field(default_factory=list)
    """Number, and the middle of the upper edge."""
    edges: list[list[tuple[float, float]]] = field(default_factory=list)
    frames: list[tuple[int, float, float, float, float]] = field(default_factory=list)
    """Number, x, y, width, height."""
    joined: set[tuple[int, int]] = field(default_factory=set)
    """Edges that are drawn."""

    def put(self, other: _Area, x: float, y: float) -> None:
        """Put another area into this one."""
        self.boxes += [(box, left + x, top + y) for box, left, top in other.boxes]
        self.edges += [[(left + x, top + y) for left, top in points] for points in other.edges]
        self.frames += [(n, left + x, top + y, width, height) for n, left, top, width, height in other.frames]
        self.joined |= other.joined
        self.width = max(self.width, x + other.width)
        self.height = max(self.height, y + other.height)


class ColumnLayout:
    """A column laid out; draw it with its upper left corner anywhere."""

    def __init__(self, column: Column) -> None:
        boxes = column.boxes[:MOST_BOXES]
        self._column = column
        self._boxes = boxes
        self._widths = [_width(box) for box in boxes]
        self._children: list[list[int]] = [[] for _ in column.frames]
        for number, frame in enumerate(column.frames):
            if frame.parent is not None and frame.first <= len(boxes):
                self._children[frame.parent].append(number)
        self._members: list[list[int]] = [[] for _ in column.frames]
        for number, box in enumerate(boxes):
            self._members[box.frame].append(number)
        self._area = self._frame(0)
        self.width = max(self._area.width, text_width(column.heading, 13))
        self.height = self._area.height

    @property
    def missing(self) -> int:
        """How many boxes aren't drawn."""
        return self._column.total - len(self._boxes)

    # ---- laying out ----
    def _frame(self, number: int) -> _Area:
        areas = list(self._items(number))
        whole = _Area()
        if self._column.frames[number].sideways:
            x = 0.0
            for area in areas:
                whole.put(area, x, 0)
                x = whole.width + _APART
        else:
            widest = max((area.width for area in areas), default=0.0)
            y = 0.0
            for area in areas:
                whole.put(area, (widest - area.width) / 2, y)
                y = whole.height + _APART
        if number == 0:
            return whole
        framed = _Area()
        wanted = min(text_width(self._column.frames[number].label) + 12, _WIDEST_LABEL)
        inner = max(whole.width, wanted)
        framed.put(whole, _PAD + (inner - whole.width) / 2, _HEAD + _PAD / 2)
        framed.width = inner + 2 * _PAD
        framed.height = whole.height + _HEAD + 1.5 * _PAD
        framed.frames.insert(0, (number, 0, 0, framed.width, framed.height))
        return framed

    def _items(self, number: int) -> Iterator[_Area]:
        """Yield graphs of boxes, and frames, in order."""
        members = self._members[number]
        start = 0
        for child in self._children[number]:
            first = self._column.frames[child].first
            end = next((at for at in range(start, len(members)) if members[at] >= first), len(members))
            if end > start:
                yield self._graph(members[start:end])
            start = end
            yield self._frame(child)
        if start < len(members):
            yield self._graph(members[start:])

    def _graph(self, members: Sequence[int]) -> _Area:
        places = {box: at for at, box in enumerate(members)}
        reads = [[places[read] for read in self._boxes[box].reads if read in places] for box in members]
        found = placed(reads, [self._widths[box] for box in members])
        area = _Area(found.width, max(found.depth - 1, 0) * LAYER_HEIGHT + BOX_HEIGHT)
        for box, x, layer in zip(members, found.centres, found.layers, strict=True):
            area.boxes.append((box, x, layer * LAYER_HEIGHT))
        for edge in found.edges:
            source, target = members[edge.source], members[edge.target]
            area.joined.add((source, target))
            start = (found.centres[edge.source], found.layers[edge.source] * LAYER_HEIGHT + BOX_HEIGHT)
            points = [start]
            for x, level in edge.bends:
                points += [(x, level * LAYER_HEIGHT), (x, level * LAYER_HEIGHT + BOX_HEIGHT)]
            end = (found.centres[edge.target], found.layers[edge.target] * LAYER_HEIGHT)
            area.edges.append([*points, end])
        return area

    # ---- drawing ----
    def draw(self, canvas: Canvas, left: float, top: float) -> None:
        """Draw everything."""
        area = _Area()
        area.put(self._area, left, top)
        for number, edge, upper, width, height in area.frames:
            frame = self._column.frames[number]
            canvas.rect(edge, upper, width, height, "frame", radius=6, title=frame.title)
            canvas.text(edge + _PAD, upper + 14, fitted(frame.label, width - 2 * _PAD), "soft")
        places = {box: (x, y) for box, x, y in area.boxes}
        for box in places:
            for read in self._boxes[box].reads:
                if read in places and (read, box) not in area.joined:
                    (x, y), end = places[read], places[box]
                    canvas.curve([(x, y + BOX_HEIGHT), end], "far")
        for points in area.edges:
            canvas.curve(points, "edge")
        for number, (x, y) in places.items():
            self._draw_box(canvas, number, x, y)

    def _draw_box(self, canvas: Canvas, number: int, x: float, y: float) -> None:
        box, width = self._boxes[number], self._widths[number]
        classes = f"{box.kind} nothing" if box.faded else box.kind
        left = x - width / 2
        # Rasters are round, so that they are told apart without colours.
        radius = BOX_HEIGHT / 2 if box.kind == "raster" else 4
        canvas.rect(left, y, width, BOX_HEIGHT, classes, radius=radius, title=box.title)
        canvas.text(x, y + 13, fitted(box.first, width - 8), "strong middle")
        canvas.text(x, y + 25, fitted(box.second, width - 8, 9), "small middle")
        if box.bar > 0:
            bar = "bar raster" if box.kind == "raster" else "bar"
            canvas.rect(left, y + BOX_HEIGHT + 2, max(width * box.bar, 1), 3, bar)


def _width(box: Box) -> float:
    wanted = max(text_width(box.first) * 1.05, text_width(box.second, 9)) + 14
    return min(max(wanted, _NARROWEST), WIDEST)
