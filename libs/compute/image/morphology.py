"""Smallest and largest pixels of windows of any form."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.arithmetic import as_mask, subtract
from libs.compute.image.borders import border_type, padded
from libs.compute.image.filters import WITHOUT_WRAP, along
from libs.compute.image.kernels import anchor_of
from libs.compute.image.pixels import (
    MOST_TAPS,
    REAL,
    apply,
    channels_of,
    chosen,
    colour,
    height_width,
    image,
    known,
    planes,
    restored,
    whole,
)
from libs.compute.tensor import Tensor

__all__ = ["dilate", "erode", "morphologyEx"]

_TYPES = ("uint8", "uint16", "int16", "float32", "float64")
_MOST_ITERATIONS = 1 << 12
Element = npt.NDArray[np.bool_]


def erode(
    src: Any,
    kernel: Any,
    anchor: tuple[int, int] = (-1, -1),
    iterations: int = 1,
    borderType: int = c.BORDER_CONSTANT,
    borderValue: Any = None,
) -> Tensor:
    """Return the smallest pixel under the kernel's elements that aren't 0; a kernel of None is 3 by 3.

    Where borderValue is None, what lies beyond a constant border doesn't count.

    OpenCV: exact.
    """
    return _eroded("erode", src, kernel, anchor, iterations, borderType, borderValue)


def dilate(
    src: Any,
    kernel: Any,
    anchor: tuple[int, int] = (-1, -1),
    iterations: int = 1,
    borderType: int = c.BORDER_CONSTANT,
    borderValue: Any = None,
) -> Tensor:
    """Return the largest pixel under the kernel's elements that aren't 0; a kernel of None is 3 by 3.

    Where borderValue is None, what lies beyond a constant border doesn't count.

    OpenCV: exact.
    """
    return _dilated("dilate", src, kernel, anchor, iterations, borderType, borderValue)


def _eroded(call: str, *arguments: Any) -> Tensor:
    return _extreme(call, "min", *arguments)


def _dilated(call: str, *arguments: Any) -> Tensor:
    return _extreme(call, "max", *arguments)


def _element(call: str, kernel: Any) -> Element:
    if kernel is None:
        return np.ones((3, 3), np.bool_)
    found = known(call, "kernel", kernel)
    if found.ndim == 1:
        found = found.reshape(-1, 1)
    if found.ndim != 2 or not 0 < found.size <= MOST_TAPS:
        raise Invalid(
            f"{call}: kernel has shape {list(found.shape)}; it is [height, width], at most {MOST_TAPS}"
        )
    return np.asarray(found != 0)


def _extreme(
    call: str,
    operator: str,
    src: Any,
    kernel: Any,
    anchor: Any,
    iterations: Any,
    borderType: Any,
    borderValue: Any,
) -> Tensor:
    tensor = image(call, "src", src, _TYPES)
    element = _element(call, kernel)
    height, width = element.shape
    x_at, y_at = anchor_of(call, anchor, width, height)
    rounds = whole(call, "iterations", iterations, 0, _MOST_ITERATIONS)
    kind = border_type(call, "borderType", borderType, WITHOUT_WRAP)
    if borderValue is None:
        value = _neutral(operator, tensor.dtype)
        filling: tuple[float, ...] = (value,) * channels_of(tensor)
    else:
        filling = colour(call, "borderValue", borderValue, channels_of(tensor))
    if rounds == 0:
        return tensor
    x = planes(tensor)
    if element.all():
        # Many rounds of a whole window are one of a larger one.
        size = (height + (rounds - 1) * (height - 1), width + (rounds - 1) * (width - 1))
        return restored(_of_box(operator, x, size, (y_at * rounds, x_at * rounds), (kind, filling)), tensor)
    for _ in range(rounds):
        x = _of_form(operator, x, element, (y_at, x_at), (kind, filling))
    return restored(x, tensor)


def _neutral(operator: str, dtype: str) -> float:
    if dtype in REAL:
        limit = np.finfo(dtype)
        return float(limit.max if operator == "min" else limit.min)
    numbers = np.iinfo(dtype)
    return int(numbers.max if operator == "min" else numbers.min)


def _around(
    x: Tensor, size: tuple[int, int], anchor: tuple[int, int], border: tuple[int, tuple[float, ...]]
) -> Tensor:
    edges = (anchor[0], size[0] - 1 - anchor[0], anchor[1], size[1] - 1 - anchor[1])
    return padded(x, edges, border[0], border[1])


def _of_box(
    operator: str,
    x: Tensor,
    size: tuple[int, int],
    anchor: tuple[int, int],
    border: tuple[int, tuple[float, ...]],
) -> Tensor:
    counts = height_width(x)
    wide = _around(x, size, anchor, border)
    for axis in (1, 0):
        wide = _of_line(operator, wide, axis, size[axis], counts[axis])
    return wide


def _of_line(operator: str, x: Tensor, axis: int, size: int, count: int) -> Tensor:
    """Return the extreme of each `size` neighbours along an axis, from those of 1, 2, 4, … of them."""
    length, reach = int(x.shape[axis]), 1
    while reach * 2 <= size:
        length -= reach
        x = apply(operator, along(x, axis, 0, length), along(x, axis, reach, length))
        reach *= 2
    first = along(x, axis, 0, count)
    return first if reach == size else apply(operator, first, along(x, axis, size - reach, count))


def _of_form(
    operator: str,
    x: Tensor,
    element: Element,
    anchor: tuple[int, int],
    border: tuple[int, tuple[float, ...]],
) -> Tensor:
    height, width = height_width(x)
    wide = _around(x, (element.shape[0], element.shape[1]), anchor, border)
    total = None
    for row, column in np.argwhere(element).tolist():
        window = along(along(wide, 0, row, height), 1, column, width)
        total = window if total is None else apply(operator, total, window)
    # A window of nothing is that of its anchor.
    return x if total is None else total


def morphologyEx(
    src: Any,
    op: int,
    kernel: Any,
    anchor: tuple[int, int] = (-1, -1),
    iterations: int = 1,
    borderType: int = c.BORDER_CONSTANT,
    borderValue: Any = None,
) -> Tensor:
    """Return what erode and dilate make up, as `op` says: MORPH_OPEN, _CLOSE, _GRADIENT, _TOPHAT, _BLACKHAT.

    MORPH_HITMISS looks for a form in a uint8 image of one channel: 1 in the kernel for any but 0, -1 for 0.

    OpenCV: exact.
    """
    call = "morphologyEx"
    kind = chosen(call, "op", op, range(8))
    rest = (anchor, iterations, borderType, borderValue)
    if kind == c.MORPH_HITMISS:
        return _hit_or_miss(call, src, kernel, rest)
    if kind == c.MORPH_ERODE:
        return _eroded(call, src, kernel, *rest)
    if kind == c.MORPH_DILATE:
        return _dilated(call, src, kernel, *rest)
    if kind == c.MORPH_GRADIENT:
        return subtract(_dilated(call, src, kernel, *rest), _eroded(call, src, kernel, *rest))
    if kind in (c.MORPH_OPEN, c.MORPH_TOPHAT):
        opened = _dilated(call, _eroded(call, src, kernel, *rest), kernel, *rest)
        return opened if kind == c.MORPH_OPEN else subtract(src, opened)
    closed = _eroded(call, _dilated(call, src, kernel, *rest), kernel, *rest)
    return closed if kind == c.MORPH_CLOSE else subtract(closed, src)


def _hit_or_miss(call: str, src: Any, kernel: Any, rest: tuple[Any, ...]) -> Tensor:
    tensor = image(call, "src", src, ("uint8",), (1,))
    found = known(call, "kernel", kernel)
    wanted, unwanted = found == 1, found == -1
    made = None
    for form, x in ((wanted, tensor), (unwanted, as_mask(tensor == 0))):
        if form.any():
            hit = _eroded(call, x, form, *rest)
            made = hit if made is None else apply("and", made, hit)
    return as_mask(tensor == tensor) if made is None else made
