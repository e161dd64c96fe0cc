"""Images turned, bent and cut out: every pixel of the result is read at a place of the source."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.borders import border_type
from libs.compute.image.pixels import (
    MOST_ELEMENTS,
    MOST_SIDE,
    PIXELS,
    channels_of,
    check_type,
    chosen,
    colour,
    constant,
    describe,
    floor,
    image,
    known,
    pair,
    planes,
    read,
    real,
    restored,
    rint,
    saturate,
    spread,
    static,
    where,
)
from libs.compute.image.sampling import GRID, KINDS, Border, grid, matrix_of, on_grid, sampled
from libs.compute.tensor import Tensor, asarray, tensors_of

__all__ = [
    "getAffineTransform",
    "getPerspectiveTransform",
    "getRectSubPix",
    "getRotationMatrix2D",
    "invertAffineTransform",
    "perspectiveTransform",
    "remap",
    "transform",
    "warpAffine",
    "warpPerspective",
]

_TYPES = ("uint8", "uint16", "int16", "float32", "float64")


def _flags(call: str, flags: Any) -> tuple[int, bool]:
    """Return the interpolation, and whether the matrix leads from the result to the source."""
    options = [kind | turned for kind in _ALL for turned in (0, c.WARP_INVERSE_MAP)]
    number = chosen(call, "flags", flags, options)
    kind = number & ~c.WARP_INVERSE_MAP
    # The warps take INTER_AREA as INTER_LINEAR.
    return (c.INTER_LINEAR if kind == c.INTER_AREA else kind), bool(number & c.WARP_INVERSE_MAP)


_ALL = (*KINDS, c.INTER_AREA)


def _target(call: str, name: str, size: Any, tensor: Tensor) -> tuple[int, int]:
    width, height = pair(call, name, size, 1, MOST_SIDE)
    if width * height * channels_of(tensor) > MOST_ELEMENTS:
        raise Invalid(f"{call}: {name} is {size!r}; the result has at most {MOST_ELEMENTS} elements")
    return width, height


def _border(call: str, kind: Any, value: Any, tensor: Tensor) -> Border:
    filling = colour(call, "borderValue", value, channels_of(tensor))
    return border_type(call, "borderMode", kind), filling


def _matrix(call: str, name: str, thing: Any, rows: int, columns: int) -> Tensor:
    found = read(call, name, thing)
    check_type(call, name, found, (*PIXELS, "int64"))
    if static(call, name, found) != (rows, columns):
        raise Invalid(f"{call}: {name} is {describe(found)}; it is a matrix [{rows}, {columns}]")
    return found.astype("float64")


def _prepared(
    call: str, src: Any, M: Any, rows: int, dsize: Any, flags: Any, border: tuple[Any, Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, Border]:
    """Return image, map [rows, 3] from result to source, the result's x and y, interpolation and border."""
    tensor = image(call, "src", src, _TYPES)
    tensor, matrix = tensors_of(tensor, _matrix(call, "M", M, rows, 3))
    kind, inverse = _flags(call, flags)
    width, height = _target(call, "dsize", dsize, tensor)
    around = _border(call, *border, tensor)
    if not inverse:
        matrix = _inverted(matrix) if rows == 2 else _inverted_3(matrix)
    return tensor, matrix, *grid(tensor, height, width), kind, around


def warpAffine(
    src: Any,
    M: Any,
    dsize: tuple[int, int],
    flags: int = c.INTER_LINEAR,
    borderMode: int = c.BORDER_CONSTANT,
    borderValue: Any = 0,
) -> Tensor:
    """Return src moved by M [2, 3], in an image of dsize = (width, height).

    OpenCV: within 1 for integers, 1e-4 for floats; by INTER_NEAREST but for places half way between pixels,
    which float32 decides there. By INTER_LANCZOS4 both read at 32nds of a pixel; so does OpenCV by
    INTER_LINEAR from int16, float64 and two channels, where this reads exactly.
    """
    tensor, m, x, y, kind, border = _prepared(
        "warpAffine", src, M, 2, dsize, flags, (borderMode, borderValue)
    )
    if kind == c.INTER_LANCZOS4:
        # In 1024ths first, as OpenCV steps along rows.
        places = [
            floor((rint(row[0] * x * 1024.0) + rint((row[1] * y + row[2]) * 1024.0) + GRID / 2) * (1 / GRID))
            for row in (m[0], m[1])
        ]
        across, down = (place.astype("int32") for place in places)
        return restored(on_grid(planes(tensor), across, down, border), tensor)
    across, down = (row[0] * x + row[1] * y + row[2] for row in (m[0], m[1]))
    return restored(sampled(planes(tensor), across, down, kind, border), tensor)


def _inverted(m: Tensor) -> Tensor:
    """Return the inverse of a map [2, 3]; of one that has none, 0."""
    a, b, x, d, e, y = (m[row, column] for row in range(2) for column in range(3))
    by = a * e - b * d
    factor = _reciprocal(by)
    first, second, third, fourth = e * factor, -b * factor, -d * factor, a * factor
    return matrix_of([[first, second, -(first * x + second * y)], [third, fourth, -(third * x + fourth * y)]])


def _reciprocal(x: Tensor) -> Tensor:
    """Return 1 / x, and 0 of 0."""
    nothing = x == 0
    return where(nothing, x, 1 / where(nothing, x + 1, x))


def warpPerspective(
    src: Any,
    M: Any,
    dsize: tuple[int, int],
    flags: int = c.INTER_LINEAR,
    borderMode: int = c.BORDER_CONSTANT,
    borderValue: Any = 0,
) -> Tensor:
    """Return src moved by M [3, 3], a homography, in an image of dsize = (width, height).

    OpenCV: as warpAffine.
    """
    tensor, m, x, y, kind, border = _prepared(
        "warpPerspective", src, M, 3, dsize, flags, (borderMode, borderValue)
    )
    across, down, depth = (row[0] * x + row[1] * y + row[2] for row in (m[0], m[1], m[2]))
    by = _reciprocal(depth)
    return restored(sampled(planes(tensor), across * by, down * by, kind, border), tensor)


def _inverted_3(m: Tensor) -> Tensor:
    """Return the inverse of a matrix [3, 3] by its minors; of one that has none, 0."""
    rows = []
    for row in range(3):
        line = []
        for column in range(3):
            a, b = ((column + 1) % 3, (column + 2) % 3)
            p, q = ((row + 1) % 3, (row + 2) % 3)
            line.append(m[a, p] * m[b, q] - m[a, q] * m[b, p])
        rows.append(line)
    by = _reciprocal(m[0, 0] * rows[0][0] + m[0, 1] * rows[1][0] + m[0, 2] * rows[2][0])
    return matrix_of([[each * by for each in line] for line in rows])


def remap(
    src: Any,
    map1: Any,
    map2: Any,
    interpolation: int,
    borderMode: int = c.BORDER_CONSTANT,
    borderValue: Any = 0,
) -> Tensor:
    """Return src read at x = map1, y = map2, float32 [rows, columns]; or both in map1 [rows, columns, 2].

    OpenCV: as warpAffine.
    """
    call = "remap"
    tensor = image(call, "src", src, _TYPES)
    kind = chosen(call, "interpolation", interpolation, _ALL)
    kind = c.INTER_LINEAR if kind == c.INTER_AREA else kind
    border = _border(call, borderMode, borderValue, tensor)
    if map2 is None:
        both = image(call, "map1", map1, ("float32", "int16"), (2,))
        across, down = both[:, :, 0], both[:, :, 1]
    else:
        across = image(call, "map1", map1, ("float32",), (1,))
        down = image(call, "map2", map2, ("float32",), (1,))
        if tuple(across.shape) != tuple(down.shape):
            raise Invalid(f"{call}: map1 is {describe(across)} and map2 is {describe(down)}")
    tensor, across, down = tensors_of(tensor, across.astype("float32"), down.astype("float32"))
    shape = across.shape[:2]
    found = sampled(planes(tensor), across.reshape(shape), down.reshape(shape), kind, border)
    return restored(found, tensor)


def getRectSubPix(
    image: Any, patchSize: tuple[int, int], center: tuple[float, float], patchType: int = -1
) -> Tensor:
    """Return patchSize = (width, height) pixels around a center (x, y) that may lie between pixels.

    patchType: -1, CV_8U or CV_32F. Beyond the edges, the last pixels go on.

    OpenCV: within 1 for uint8, 1e-5 for float32.
    """
    call = "getRectSubPix"
    tensor = _image(call, image, ("uint8", "float32"))
    result = {c.CV_8U: "uint8", c.CV_32F: "float32", -1: tensor.dtype}[
        chosen(call, "patchType", patchType, (-1, c.CV_8U, c.CV_32F))
    ]
    if tensor.dtype == "float32" and result == "uint8":
        raise Invalid(f"{call}: a patch of float32 is float32 as well")
    width, height = _target(call, "patchSize", patchSize, tensor)
    middle = read(call, "center", center)
    if static(call, "center", middle) != (2,):
        raise Invalid(f"{call}: center is {describe(middle)}; it is (x, y)")
    tensor, middle = tensors_of(tensor, middle.astype("float32"))
    x, y = grid(tensor, height, width)
    start = middle - constant(middle, np.array([(width - 1) * 0.5, (height - 1) * 0.5]))
    whole = floor(start)
    share = (start - whole).astype("float32")
    across = spread(x + whole[0].astype("float64") + share[0].astype("float64"), (height, width))
    down = spread(y + whole[1].astype("float64") + share[1].astype("float64"), (height, width))
    border = (c.BORDER_REPLICATE, (0.0,))
    found = sampled(planes(tensor).astype("float32"), across, down, c.INTER_LINEAR, border)
    return restored(saturate(floor(found + 0.5) if result == "uint8" else found, result), tensor)


def _image(call: str, thing: Any, types: tuple[str, ...]) -> Tensor:
    return image(call, "image", thing, types)


def getRotationMatrix2D(center: tuple[float, float], angle: float, scale: float) -> Tensor:
    """Return the map [2, 3] that turns about a point by degrees, counter-clockwise, and enlarges.

    OpenCV: 1e-12.
    """
    call = "getRotationMatrix2D"
    if not isinstance(center, (tuple, list)) or len(center) != 2:
        raise Invalid(f"{call}: center is {center!r}; it is (x, y)")
    x, y = real(call, "center", center[0]), real(call, "center", center[1])
    turn, size = math.radians(real(call, "angle", angle)), real(call, "scale", scale)
    a, b = math.cos(turn) * size, math.sin(turn) * size
    return asarray([[a, b, (1 - a) * x - b * y], [-b, a, b * x + (1 - a) * y]])


def invertAffineTransform(M: Any) -> Tensor:
    """Return the map [2, 3] that undoes M; of one that can't be undone, 0.

    OpenCV: 1e-12.
    """
    matrix = _matrix("invertAffineTransform", "M", M, 2, 3)
    given = read("invertAffineTransform", "M", M).dtype
    return _inverted(matrix).astype("float32" if given == "float32" else "float64")


def _points(call: str, name: str, thing: Any, count: int) -> np.ndarray[Any, Any]:
    found = known(call, name, thing)
    if found.reshape(-1).size != 2 * count or found.shape[-1] != 2:
        raise Invalid(f"{call}: {name} has shape {list(found.shape)}; it is {count} points (x, y)")
    return found.reshape(count, 2)


def _solved(call: str, left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    try:
        return np.linalg.solve(left, right)
    except np.linalg.LinAlgError:
        raise Invalid(f"{call}: three points of src lie on one line: no map leads through them") from None


def getAffineTransform(src: Any, dst: Any) -> Tensor:
    """Return the map [2, 3] that takes three points [3, 2] to three others.

    OpenCV: 1e-9.
    """
    call = "getAffineTransform"
    before, after = _points(call, "src", src, 3), _points(call, "dst", dst, 3)
    left = np.concatenate([before, np.ones((3, 1))], axis=1)
    return asarray(_solved(call, left, after).T.copy())


def getPerspectiveTransform(src: Any, dst: Any) -> Tensor:
    """Return the homography [3, 3] that takes four points [4, 2] to four others.

    OpenCV: 1e-9.
    """
    call = "getPerspectiveTransform"
    before, after = _points(call, "src", src, 4), _points(call, "dst", dst, 4)
    left, right = np.zeros((8, 8)), after.T.reshape(-1)
    for place, ((x, y), (u, v)) in enumerate(zip(before, after, strict=True)):
        left[place] = [x, y, 1, 0, 0, 0, -x * u, -y * u]
        left[place + 4] = [0, 0, 0, x, y, 1, -x * v, -y * v]
    return asarray(np.append(_solved(call, left, right), 1.0).reshape(3, 3))


def transform(src: Any, m: Any) -> Tensor:
    """Return each pixel's channels multiplied by m [new, old], or [new, old + 1] with an offset.

    OpenCV: within 1 for integers, 1e-5 for floats.
    """
    call = "transform"
    tensor = image(call, "src", src)
    matrix = known(call, "m", m)
    channels = channels_of(tensor)
    if matrix.ndim != 2 or not matrix.shape[0] or matrix.shape[1] not in (channels, channels + 1):
        raise Invalid(f"{call}: m has shape {list(matrix.shape)}; there are {channels} channels")
    compute = "float64" if tensor.dtype in ("int32", "float64") else "float32"
    x = planes(tensor).astype(compute)
    pixels = x.reshape((-1, channels))
    made = pixels @ constant(x, matrix[:, :channels].T.copy())
    if matrix.shape[1] > channels:
        made = made + constant(x, matrix[:, channels])
    shape = (*x.shape[:2], matrix.shape[0])
    result = saturate(made, tensor.dtype).reshape(shape)
    return result if matrix.shape[0] > 1 else restored(result, result[:, :, 0])


def perspectiveTransform(src: Any, m: Any) -> Tensor:
    """Return points, float32 or float64 [n, 1, 2] or [n, 1, 3], moved by a homography [3, 3] or [4, 4].

    OpenCV: 1e-5.
    """
    call = "perspectiveTransform"
    tensor = image(call, "src", src, ("float32", "float64"), (2, 3))
    channels = channels_of(tensor)
    matrix = _matrix(call, "m", m, channels + 1, channels + 1)
    tensor, matrix = tensors_of(tensor, matrix)
    points = tensor.astype("float64").reshape((-1, channels))
    moved = points @ matrix[:, :channels].T + matrix[:, channels]
    by = _reciprocal(moved[:, channels]).reshape((-1, 1))
    return (moved[:, :channels] * by).astype(tensor.dtype).reshape(tensor.shape)
