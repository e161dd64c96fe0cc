"""How often which values are there, and images made evenly bright by that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.borders import padded
from libs.compute.image.pixels import (
    channels_of,
    constant,
    describe,
    floor,
    height_width,
    image,
    listed,
    masked,
    maximum,
    minimum,
    pair,
    planes,
    read,
    real,
    reduced,
    restored,
    rint,
    running_sum,
    saturate,
    static,
    take,
    where,
    whole,
)
from libs.compute.tensor import Tensor, tensors_of

__all__ = ["CLAHE", "calcBackProject", "calcHist", "createCLAHE", "equalizeHist"]

_MOST_BINS = 1 << 24
_DIMENSIONS = 8


def counted(index: Tensor, size: int, held: Tensor | None = None, dtype: str = "int32") -> Tensor:
    """Return how often each of the integers 0 … size - 1 is there, or is where `held` says 1."""
    flat = index.reshape((-1,)).astype("int32")
    once = constant(flat, np.ones(1), dtype)
    ones = Tensor(flat.backend, flat.backend.broadcast(once.value, tuple(flat.shape)))
    if held is not None:
        ones = held.reshape((-1,)).astype(dtype)
    start = constant(flat, np.zeros(size), dtype)
    b = flat.backend
    return Tensor(b, b.scatter("scatter_add", start.value, flat.value, ones.value))


def _bins(
    call: str, images: Any, channels: Any, sizes: Any, ranges: Any
) -> tuple[list[Tensor], list[int], list[tuple[float, float]]]:
    several = listed(call, "images", images)
    if not several:
        raise Invalid(f"{call}: images is empty")
    found = tensors_of(*(image(call, "images", each, ("uint8", "uint16", "float32")) for each in several))
    every = []
    for each in found:
        if each.dtype != found[0].dtype or height_width(each) != height_width(found[0]):
            raise Invalid(f"{call}: images {describe(found[0])} and {describe(each)} don't go together")
        every += [planes(each)[:, :, number] for number in range(channels_of(each))]
    counts = [whole(call, "histSize", size, 1, _MOST_BINS) for size in listed(call, "histSize", sizes)]
    numbers = [
        whole(call, "channels", number, 0, len(every) - 1) for number in listed(call, "channels", channels)
    ]
    if not 0 < len(counts) <= _DIMENSIONS or len(numbers) != len(counts) or math.prod(counts) > _MOST_BINS:
        raise Invalid(
            f"{call}: channels and histSize say how many bins each of 1 to {_DIMENSIONS} channels has, "
            f"at most {_MOST_BINS} in all; they are {list(channels)} and {list(sizes)}"
        )
    limits = [real(call, "ranges", number) for number in listed(call, "ranges", ranges)]
    if not limits and found[0].dtype == "uint8":
        limits = [0.0, 256.0] * len(counts)
    if len(limits) != 2 * len(counts) or any(
        low >= high for low, high in zip(limits[::2], limits[1::2], strict=True)
    ):
        raise Invalid(f"{call}: ranges is {list(ranges)}; it holds a lower and a higher end for each channel")
    pairs = list(zip(limits[::2], limits[1::2], strict=True))
    return [every[number] for number in numbers], counts, pairs


def _placed(
    chosen_: Sequence[Tensor], counts: Sequence[int], pairs: Sequence[tuple[float, float]]
) -> tuple[Tensor, Tensor]:
    """Return the bin of each pixel, counted through all dimensions, and whether it has one."""
    index: Tensor | None = None
    inside: Tensor | None = None
    for plane, count, (low, high) in zip(chosen_, counts, pairs, strict=True):
        scale = count / (high - low)
        at = floor(plane.astype("float64") * scale - low * scale).astype("int32")
        within = (at >= 0) & (at < count)
        at = minimum(maximum(at, constant(at, 0)), constant(at, count - 1))
        index = at if index is None else index * count + at
        inside = within if inside is None else inside & within
    assert index is not None
    assert inside is not None
    return index, inside


def calcHist(
    images: Any, channels: Sequence[int], mask: Any, histSize: Sequence[int], ranges: Sequence[float]
) -> Tensor:
    """Return how many pixels lie in each bin, float32 [bins, …], one axis for each of `channels`.

    Bins are equally wide; `ranges` holds the lower end and the higher, which doesn't belong to it, for each.

    OpenCV: exact.
    """
    call = "calcHist"
    picked, counts, pairs = _bins(call, images, channels, histSize, ranges)
    index, inside = _placed(picked, counts, pairs)
    held = masked(call, mask, index)
    if held is not None:
        inside, held = tensors_of(inside, held)
        inside = inside & held.reshape(held.shape[:2])
    return counted(index, int(np.prod(counts)), inside).astype("float32").reshape(tuple(counts))


def calcBackProject(
    images: Any, channels: Sequence[int], hist: Any, ranges: Sequence[float], scale: float
) -> Tensor:
    """Return scale times the count of each pixel's bin, in the images' type, [height, width].

    hist: float32 [bins, …], one axis for each of `channels`. Outside of all bins, it is 0.

    OpenCV: exact.
    """
    call = "calcBackProject"
    table = read(call, "hist", hist)
    bins = static(call, "hist", table)
    if table.dtype != "float32" or not bins or 0 in bins:
        raise Invalid(f"{call}: hist is {describe(table)}; it is float32 [bins, …], as calcHist gives it")
    own = image(call, "images", images[0] if isinstance(images, (list, tuple)) and images else images)
    picked, counts, pairs = _bins(call, images, channels, list(bins), ranges)
    index, inside = _placed(picked, counts, pairs)
    index, inside, table = tensors_of(index, inside, table)
    found = take(table.reshape((-1,)), index, 0) * real(call, "scale", scale)
    return saturate(where(inside, found, constant(found, 0)), own.dtype)


def equalizeHist(src: Any) -> Tensor:
    """Return a uint8 image of one channel in which all levels are about as frequent.

    OpenCV: exact.
    """
    tensor = image("equalizeHist", "src", src, ("uint8",), (1,))
    height, width = height_width(tensor)
    total = height * width
    counts = counted(tensor, 256)
    running = running_sum(counts, 0).astype("float32")
    # Those of the first level that is there.
    first = reduced("reduce_min", where(running > 0, running, constant(running, total)), (0,))
    flat = first == total
    rest = where(flat, constant(first, 1), constant(first, total) - first)
    scale = constant(first, 255) / rest
    table = saturate((running - first) * scale, "uint8")
    levels = constant(running, np.arange(256), "uint8")
    index = tensor.astype("int32")
    return take(where(flat, levels, table), index, 0)


class CLAHE:
    """Equalises parts of an image, with a limit on how much, as OpenCV's class does. See `createCLAHE`."""

    def __init__(self, clipLimit: float, tileGridSize: tuple[int, int]) -> None:
        self._limit = clipLimit
        self._tiles = tileGridSize

    def apply(self, src: Any) -> Tensor:
        """Return a uint8 or uint16 image of one channel, equalised."""
        call = "CLAHE.apply"
        tensor = image(call, "src", src, ("uint8", "uint16"), (1,))
        levels = 256 if tensor.dtype == "uint8" else 65536
        across, down = self._tiles
        height, width = height_width(tensor)
        x = planes(tensor)
        if width % across or height % down:
            edges = (0, down - height % down, 0, across - width % across)
            x = padded(x, edges, c.BORDER_REFLECT_101)
        size = int(x.shape[0]) // down, int(x.shape[1]) // across
        tables = self._tables(x, size, levels)
        return restored(_between_tiles(planes(tensor), tables, size, self._tiles), tensor)

    def _tables(self, x: Tensor, size: tuple[int, int], levels: int) -> Tensor:
        """Return what becomes of each level in each tile, float32 [tiles, levels]."""
        across, down = self._tiles
        tile = constant(
            x,
            (np.arange(down * size[0]) // size[0]).reshape(-1, 1, 1) * across
            + (np.arange(across * size[1]) // size[1]).reshape(1, -1, 1),
            "int32",
        )
        tiles = across * down
        counts = counted(tile * levels + x.astype("int32"), tiles * levels).reshape((tiles, levels))
        area = size[0] * size[1]
        if self._limit > 0:
            limit = max(int(self._limit * area / levels), 1)
            counts = _limited(counts, limit, levels)
        scale = np.float32(levels - 1) / np.float32(area)
        return rint(running_sum(counts, 1).astype("float32") * float(scale))


def _limited(counts: Tensor, limit: int, levels: int) -> Tensor:
    """Return counts cut off at a limit, and what was cut off spread over all levels, the rest at steps."""
    kept = minimum(counts, constant(counts, limit))
    clipped = reduced("reduce_sum", counts - kept, (1,), keep=True)
    each = floor(clipped.astype("float64") * (1 / levels)).astype("int32")
    rest = clipped - each * levels
    # Every `step`th level gets one more until none is left.
    step = floor(constant(rest, levels, "float64") / maximum(rest, constant(rest, 1)).astype("float64"))
    step = maximum(step, constant(step, 1))
    at = constant(step, np.arange(levels).reshape(1, -1))
    turn = floor(at / step)
    on_step: Tensor = at == turn * step
    gets = on_step & (turn < rest.astype("float64"))
    return kept + each + gets.astype("int32")


def _between_tiles(x: Tensor, tables: Tensor, size: tuple[int, int], tiles: tuple[int, int]) -> Tensor:
    """Return each pixel by the tables of the four tiles around it, weighed by how near they are."""
    across, down = tiles
    height, width = height_width(x)
    levels = int(tables.shape[1])
    flat, index = tables.reshape((-1,)), x.astype("int32")
    parts = []
    for count, length, tile in ((height, size[0], down), (width, size[1], across)):
        at = (np.arange(count, dtype=np.float32) * np.float32(1 / length) - np.float32(0.5)).astype(
            np.float32
        )
        low = np.floor(at).astype(np.int64)
        share = (at - low).astype(np.float32)
        parts.append((np.clip(low, 0, tile - 1), np.clip(low + 1, 0, tile - 1), share))
    (top, bottom, by_row), (left, right, by_column) = parts
    rows = []
    for row in (top, bottom):
        found = []
        for column in (left, right):
            start = (row.reshape(-1, 1, 1) * across + column.reshape(1, -1, 1)) * levels
            found.append(take(flat, index + constant(index, start), 0))
        aside = constant(flat, by_column.reshape(1, -1, 1))
        rows.append(found[0] * (1 - aside) + found[1] * aside)
    below = constant(flat, by_row.reshape(-1, 1, 1))
    return saturate(rows[0] * (1 - below) + rows[1] * below, x.dtype)


def createCLAHE(clipLimit: float = 40.0, tileGridSize: tuple[int, int] = (8, 8)) -> CLAHE:
    """Return an equaliser for `apply`: tiles (across, down), counts limited to clipLimit times their mean.

    OpenCV: exact.
    """
    call = "createCLAHE"
    return CLAHE(real(call, "clipLimit", clipLimit), pair(call, "tileGridSize", tileGridSize, 1, 256))
