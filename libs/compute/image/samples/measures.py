"""Calls that measure images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from libs.compute.image import constants as c
from libs.compute.image.samples.parts import (
    MASK,
    OUTLINE,
    Case,
    Maker,
    near,
)


def statistics(make: Maker) -> Iterator[Case]:
    """Yield calls that give few numbers."""
    empty = MASK * 0
    for x in make.images():
        yield Case("sumElems", (x,), within=1e-7)
        for mask in (None, MASK, empty):
            yield Case("mean", (x, mask), within=1e-7)
            yield Case("meanStdDev", (x, mask), within=1e-6)
            for kind in (c.NORM_INF, c.NORM_L1, c.NORM_L2, c.NORM_L2SQR):
                yield Case("norm", (x, x[::-1].copy(), kind, mask), within=1e-7)
            if x.ndim == 2:
                yield Case("minMaxLoc", (x, mask))
        for kind in (c.NORM_INF, c.NORM_L1, c.NORM_L2, *([c.NORM_MINMAX] if x.ndim == 2 else [])):
            to = -1 if x.dtype == np.float64 else c.CV_32F
            yield Case("normalize", (x, 100, 20, kind, to), within=2e-6)
        yield Case("norm", (x, c.NORM_L1), within=1e-7)
        if x.ndim == 2:
            yield Case("countNonZero", (x,))
            yield Case("normalize", (x, 10, 250, c.NORM_MINMAX, -1, MASK), within=near(x, 1, 2e-6))
        yield Case("PSNR", (x, x[:, ::-1].copy()), within=1e-6)
        for axis in (0, 1):
            for kind in (c.REDUCE_SUM, c.REDUCE_AVG):
                yield Case("reduce", (x, axis, kind, c.CV_64F), within=1e-6)
            for kind in (c.REDUCE_MAX, c.REDUCE_MIN):
                yield Case("reduce", (x, axis, kind))
        yield Case("integral", (x,), within=near(x, 0))
        if x.dtype != np.int16:
            yield Case("integral2", (x,), within=near(x, 0, 2e-6))
    for dtype, ranges in (("uint8", [0, 256]), ("uint16", [0, 65536]), ("float32", [-100, 100])):
        x = make.noise(dtype, 3)
        counts = make.random.integers(0, 50, 32).astype(np.float32)
        for mask in (None, MASK):
            yield Case("calcHist", ([x], [1], mask, [32], ranges))
            yield Case("calcHist", ([x], [0, 2], mask, [16, 5], [*ranges, ranges[0] + 10, ranges[1] - 20]))
        yield Case("calcBackProject", ([x], [1], counts, ranges, 0.7))
    for x in (make.photo(), make.photo() // 5 + 30, np.full((5, 6), 7, np.uint8)):
        yield Case("equalizeHist", (x,))
        for limit, tiles in ((40, (8, 8)), (2, (4, 3)), (0, (5, 5))):
            yield Case("createCLAHE", (x, limit, tiles))


def shapes(make: Maker) -> Iterator[Case]:
    """Yield calls with templates, points and regions."""
    for dtype in ("uint8", "float32"):
        for count in (0, 3):
            x = make.noise(dtype, count)
            for method in range(6):
                yield Case("matchTemplate", (x, x[5:12, 7:16].copy(), method), within=1e-4)
    for dtype in ("uint8", "uint16", "float32"):
        for binary in (False, True):
            yield Case(
                "moments",
                (np.abs(make.noise(dtype)) if dtype == "float32" else make.noise(dtype), binary),
                within=1e-9,
            )
    sparse = (make.noise("uint8") > 200).astype(np.uint8)
    yield Case("findNonZero", (sparse,))
    for x in (sparse, sparse * 0, OUTLINE, (OUTLINE * 1.3 - 9).astype(np.float32)):
        yield Case("boundingRect", (x,))
    yield Case("contourArea", (OUTLINE,), within=1e-7)
    yield Case("contourArea", (OUTLINE[::-1].copy(), True), within=1e-7)
    for closed in (False, True):
        yield Case("arcLength", (OUTLINE, closed), within=1e-6)
    for limit in (100, 150, 200):
        for connectivity in (4, 8):
            x = (make.noise("uint8") > limit).astype(np.uint8)
            yield Case("connectedComponents", (x, connectivity))
            yield Case("connectedComponentsWithStats", (x, connectivity))
    # How far nothing is, OpenCV says in several ways.
    x = (make.noise("uint8") > 20).astype(np.uint8)
    for kind in (c.DIST_L1, c.DIST_C):
        yield Case("distanceTransform", (x, kind, c.DIST_MASK_3))
    yield Case("distanceTransform", (x, c.DIST_L2, c.DIST_MASK_PRECISE), within=1e-6)
