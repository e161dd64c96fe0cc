"""Calls that look at windows, and that split images by what they find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from libs.compute.image import constants as c
from libs.compute.image.samples.parts import (
    BORDERS,
    Case,
    Maker,
    near,
)


def filters(make: Maker) -> Iterator[Case]:
    """Yield calls of filters, on all types and borders."""
    small = (make.random.normal(size=(3, 5)) / 4).astype(np.float32).tolist()
    large = (make.random.normal(size=(13, 13)) / 40).astype(np.float32).tolist()
    across, down = ([0.1, 0.2, 0.4, 0.2, 0.1], [0.25, 0.5, 0.25])
    for number, x in enumerate(make.images()):
        for border in BORDERS if number < 2 else (c.BORDER_DEFAULT,):
            kind = {"borderType": border}
            yield Case("filter2D", (x, -1, small), kind, near(x, 1), 0.02 if x.dtype.kind != "f" else 1)
            yield Case(
                "filter2D", (x, -1, large, (2, 3), 2.5), kind, near(x, 1), 0.02 if x.dtype.kind != "f" else 1
            )
            yield Case("sepFilter2D", (x, -1, across, down), kind, near(x, 1))
            for window in ((3, 3), (5, 4), (1, 7), (11, 9)):
                yield Case("blur", (x, window), kind, near(x))
            yield Case(
                "boxFilter",
                (x, c.CV_32F if x.dtype != np.float64 else -1, (3, 5), (-1, -1), False),
                kind,
                2e-6,
            )
            if x.dtype != np.int16:
                yield Case("sqrBoxFilter", (x, -1, (3, 5)), kind, 2e-6)
            for window, sigma in (((3, 3), 0), ((5, 7), 1.3), ((0, 0), 1.7), ((15, 15), 2.2)):
                exact = x.dtype in (np.uint8, np.uint16)
                yield Case("GaussianBlur", (x, window, sigma), kind, near(x, 0 if exact else 1))
            to = c.CV_64F if x.dtype == np.float64 else c.CV_32F
            for order in ((1, 0), (0, 1), (1, 1), (2, 0)):
                yield Case("Sobel", (x, to, *order), kind, 2e-6)
            for size in (1, 5, 7):
                yield Case("Sobel", (x, to, 0, 1, size), kind, 2e-6)
            for size in (1, 3, 5):
                yield Case("Laplacian", (x, to, size), kind, 2e-6)
            yield Case("Scharr", (x, to, 1, 0, 0.3, 1), kind, 2e-6)
    x = make.noise("uint8", 3)
    for name in ("Sobel", "Scharr"):
        yield Case(name, (x, c.CV_16S, 1, 0))
        yield Case(name, (x, -1, 0, 1))
    yield Case("Laplacian", (x, c.CV_16S, 3))
    yield Case("spatialGradient", (make.noise("uint8"),))
    for size in (1, 3, 5, 7, 9, 13):
        for sigma in (0, 1.5):
            yield Case("getGaussianKernel", (size, sigma), within=1e-12)
    for order in ((1, 0), (0, 1), (2, 1)):
        for normal in (False, True):
            yield Case("getDerivKernels", (*order, 5, normal))
    yield Case("getDerivKernels", (0, 1, c.FILTER_SCHARR))
    yield Case("getGaborKernel", ((7, 9), 2, 0.5, 3, 0.7), within=1e-12)
    for shape in range(3):
        for window in ((1, 1), (3, 3), (5, 2), (2, 1), (7, 9)):
            yield Case("getStructuringElement", (shape, window))


def ranks(make: Maker) -> Iterator[Case]:
    """Yield calls of medians, bilateral smoothing and morphology."""
    for x in make.images(("uint8", "uint16", "int16", "float32")):
        for size in (3, 5):
            yield Case("medianBlur", (x, size))
    yield Case("medianBlur", (make.noise("uint8", 0, 12, 14), 9))
    for count in (0, 3):
        x = make.photo(count)
        yield Case("bilateralFilter", (x, 5, 30, 3), within=1)
        yield Case("bilateralFilter", ((x / 255).astype(np.float32), 0, 0.1, 2), within=1e-3)
    elements: list[Any] = [None, [[1] * 5] * 2, [[0, 1, 0], [1, 1, 1], [0, 1, 0]], [[1, 0], [0, 0], [1, 1]]]
    for number, x in enumerate(make.images()):
        for element in elements:
            for border in BORDERS if number < 2 else (c.BORDER_CONSTANT,):
                for rounds in (1, 2):
                    options = {"iterations": rounds, "borderType": border}
                    yield Case("erode", (x, element), options)
                    yield Case("dilate", (x, element), options)
        for operation in range(7):
            yield Case("morphologyEx", (x, operation, elements[2]))
    yield Case("erode", (make.noise("uint8", 3), elements[1], (0, 1)), {"borderValue": (7, 8, 9)})
    form = [[0, 1, 0], [-1, 1, 1], [-1, -1, 0]]
    yield Case("morphologyEx", ((make.photo() > 120).astype(np.uint8) * 255, c.MORPH_HITMISS, form))


def thresholds(make: Maker) -> Iterator[Case]:
    """Yield calls that split images, and that find edges."""
    for x in make.images():
        for kind in range(5):
            for limit, most in ((100.7, 200.6), (-5.5, 20), (300, 90)):
                yield Case("threshold", (x, limit, most, kind))
    for x in (make.photo(), make.noise("uint8"), np.full((4, 5), 9, np.uint8)):
        for search in (c.THRESH_OTSU, c.THRESH_TRIANGLE):
            yield Case("threshold", (x, 0, 255, search | c.THRESH_TOZERO))
        yield Case("threshold", (x.astype(np.uint16) * 7, 0, 255, c.THRESH_OTSU))
        for method in (0, 1):
            for kind in (0, 1):
                yield Case("adaptiveThreshold", (x, 200, method, kind, 7, 2.5), within=200, share=0.02)
    for x in (make.photo(), make.photo(3), make.noise("uint8", 3)):
        for size in (3, 5, 7):
            for square in (False, True):
                limits = (50, 100) if size == 3 else (400, 1500)
                yield Case("Canny", (x, *limits, size, square))
    for x in (make.photo(), make.photo().astype(np.float32) / 255):
        for size in (3, 5, c.FILTER_SCHARR):
            yield Case("cornerHarris", (x, 3, size, 0.04), within=1e-5)
            yield Case("cornerMinEigenVal", (x, 3, size), within=1e-5)
