"""Calls that make images of other sizes, read them between pixels, draw on them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from libs.compute.image import constants as c
from libs.compute.image.samples.parts import (
    BORDERS,
    BOXES,
    OUTLINE,
    SCORES,
    TURN,
    TYPES,
    VIEW,
    Case,
    Maker,
    near,
)


def sizes(make: Maker) -> Iterator[Case]:
    """Yield calls that make images larger and smaller."""
    kinds = (c.INTER_NEAREST, c.INTER_LINEAR, c.INTER_CUBIC, c.INTER_AREA, c.INTER_LANCZOS4)
    for x in make.images():
        for kind in kinds:
            for size in ((40, 50), (13, 9), (26, 40), (13, 7), (90, 11)):
                exact = x.dtype == np.uint8 and kind == c.INTER_LINEAR
                yield Case("resize", (x, size), {"interpolation": kind}, near(x, 0 if exact else 1, 1e-5))
            for ratio in ((0.5, 0.5), (0.3, 0.7), (1.7, 2.1)):
                args = (x, None, *ratio, kind)
                yield Case("resize", args, within=near(x, 1, 1e-5))
        for border in (c.BORDER_REPLICATE, c.BORDER_REFLECT, c.BORDER_WRAP, c.BORDER_REFLECT_101):
            yield Case("pyrDown", (x,), {"borderType": border}, near(x))
        yield Case("pyrUp", (x,), within=near(x))
    yield Case("resize", (make.noise("uint8", 3, 20, 30), (15, 10)))
    # No middle lies exactly between two pixels.
    yield Case("resize", (make.noise("uint8", 3, 21, 25), (17, 13)), {"interpolation": c.INTER_NEAREST_EXACT})
    yield Case("buildPyramid", (make.noise("uint8"), 3))


def places(make: Maker) -> Iterator[Case]:
    """Yield calls that read images between pixels."""
    kinds = (c.INTER_NEAREST, c.INTER_LINEAR, c.INTER_CUBIC, c.INTER_LANCZOS4)
    y, x = np.mgrid[:24, :30].astype(np.float32)
    maps = (x + 5 * np.sin(y / 5), y - 6 * np.cos(x / 7))
    for number, source in enumerate(make.images(("uint8", "uint16", "float32"))):
        within = near(source, 1, 2e-5)
        for kind in kinds:
            for border in (*BORDERS, c.BORDER_WRAP) if number < 2 else (c.BORDER_CONSTANT,):
                options = {"flags": kind, "borderMode": border, "borderValue": (5, 6, 7, 8)}
                yield Case("warpAffine", (source, TURN, (30, 24)), options, within)
                yield Case("warpPerspective", (source, VIEW, (30, 24)), options, within)
                yield Case("remap", (source, *maps, kind, border, (5, 6, 7, 8)), within=within)
    source = make.noise("uint8", 3)
    yield Case("warpAffine", (source, TURN, (30, 24), c.INTER_LINEAR | c.WARP_INVERSE_MAP), within=1)
    yield Case("warpPerspective", (source, VIEW, (30, 24), c.INTER_LINEAR | c.WARP_INVERSE_MAP), within=1)
    yield Case("remap", (source, np.stack(maps, -1), None, c.INTER_LINEAR), within=1)
    for dtype in ("uint8", "float32"):
        for middle in ((10.3, 7.8), (0.0, 0.0), (-3.3, 50.2)):
            yield Case(
                "getRectSubPix",
                (make.noise(dtype, 3), (7, 6), middle),
                within=near(make.noise(dtype), 1, 1e-5),
            )
    yield Case("getRotationMatrix2D", ((20, 15), 30, 1.1), within=1e-12)
    yield Case("invertAffineTransform", (np.array(TURN),), within=1e-12)
    corners = np.array([[0, 0], [30, 2], [28, 25], [3, 22]], np.float32)
    moved = corners[::-1] * 1.5 + 3
    yield Case("getAffineTransform", (corners[:3].tolist(), moved[:3].tolist()), within=1e-9)
    yield Case("getPerspectiveTransform", (corners.tolist(), moved.tolist()), within=1e-6)
    yield Case("perspectiveTransform", (make.noise("float32", 2, 9, 1), VIEW), within=1e-5)
    matrix = [[0.2, 0.5, 0.3, 4.0], [1.5, -0.5, 0.1, 0.0]]
    for dtype in TYPES:
        yield Case("transform", (make.noise(dtype, 3), matrix), within=near(make.noise(dtype), 1))


def drawing(make: Maker) -> Iterator[Case]:
    """Yield calls that draw, prepare and read."""
    for x in (make.noise("uint8", 3), make.noise("float32")):
        for start, stop in (((2, 3), (20, 9)), ((22, 18), (5, 1)), ((4, 4), (4, 4)), ((-9, 5), (40, 12))):
            yield Case("line", (x, start, stop, (1, 2, 3)))
            yield Case("rectangle", (x, start, stop, (1, 2, 3)))
            yield Case("rectangle", (x, start, stop, (1, 2, 3), c.FILLED))
        for size in (0, 1, 5, 8, 30):
            yield Case("circle", (x, (12, 9), size, (1, 2, 3)))
            yield Case("circle", (x, (12, 9), size, (1, 2, 3), c.FILLED))
        yield Case("fillPoly", (x, [OUTLINE, OUTLINE[:4] // 2 + 3], (1, 2, 3)))
        for closed in (False, True):
            yield Case("polylines", (x, [OUTLINE], closed, (1, 2, 3)))
    for count in (0, 3, 4):
        for dtype in ("uint8", "float32"):
            x = make.noise(dtype, count)
            mean = (5.0,) if count == 0 else (1.0, 2.0, 3.0)
            yield Case("blobFromImage", (x,), within=1e-5)
            yield Case("blobFromImage", (x, 1 / 255, (16, 12), mean, count > 0), within=1e-5)
            yield Case("blobFromImage", (x, 1.0, (16, 20)), {"crop": True}, 1e-5)
    yield Case("blobFromImages", ([make.noise("uint8", 3), make.noise("uint8", 3)],), within=1e-5)
    for limit, overlap, factor, most in (
        (0.3, 0.4, 1, 0),
        (0.1, 0.7, 0.9, 0),
        (0.5, 0.3, 1, 3),
        (2, 0.5, 1, 0),
    ):
        yield Case("NMSBoxes", (BOXES, SCORES, limit, overlap, factor, most))
