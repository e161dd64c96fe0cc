"""Calls that compute with pixels one by one, or move them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from libs.compute.image import colour_codes
from libs.compute.image import constants as c
from libs.compute.image.colour import KINDS as CODES
from libs.compute.image.samples.parts import (
    BORDERS,
    MASK,
    TYPES,
    Case,
    Maker,
    near,
)
from libs.compute.testing import Array


def arithmetic(make: Maker) -> Iterator[Case]:
    """Yield calls with one image or two."""
    two = [
        (x, make.noise(str(x.dtype), x.shape[2] if x.ndim == 3 else 0))
        for x in make.images((*TYPES, "int8", "int32"))
    ]
    for x, y in two:
        for name in ("add", "subtract", "absdiff", "min", "max", "bitwise_and", "bitwise_or", "bitwise_xor"):
            yield Case(name, (x, y))
        for name in ("add", "subtract", "absdiff"):
            yield Case(name, (x, 7))
        for name in ("add", "subtract"):
            if x.ndim == 3:
                yield Case(name, (x, (10, -20, 30, 0)))
            yield Case(name, (x, y, MASK))
        for name in ("bitwise_and", "bitwise_not"):
            yield Case(name, (x, y, MASK) if name == "bitwise_and" else (x, MASK))
        yield Case("bitwise_not", (x,))
        for operator in range(6):
            yield Case("compare", (x, y, operator))
        yield Case("compare", (x, 5.5, c.CMP_GT))
        yield Case("convertScaleAbs", (x, 0.3, 5), within=1, share=0.01)
        yield Case(
            "addWeighted", (x, 0.3, y, 0.6, 5), within=near(x, 1), share=0.05 if x.dtype.kind != "f" else 1
        )
        yield Case("inRange", (x, np.minimum(x, y), np.maximum(x, y)))
        if x.dtype != np.int32:
            yield Case("divide", (x, y))
            yield Case("multiply", (x, y, 0.01), within=near(x, 1), share=0.01 if x.dtype.kind != "f" else 1)
        if x.dtype not in (np.int32, np.uint16):
            yield Case("multiply", (x, y))
    x, y = make.noise("uint8", 3), make.noise("uint8", 3)
    yield Case("add", (x, y), {"dtype": c.CV_32F})
    yield Case("subtract", (x, y), {"dtype": c.CV_16S})
    yield Case("multiply", (x, y), {"dtype": c.CV_32F})
    yield Case("divide", (x, y, 3), {"dtype": c.CV_32F})
    yield Case("inRange", (x, (0, 50, 100), (200, 220, 240)))
    yield Case("scaleAdd", (make.noise("float32"), 0.5, make.noise("float32")), within=2e-6)
    for dtype in ("uint8", "float32"):
        yield Case("LUT", (x, make.noise(dtype, 0, 1, 256)))
    yield Case("LUT", (x, make.noise("float32", 3, 1, 256)))
    yield Case("LUT", (make.noise("int8"), make.noise("uint8", 0, 1, 256)))


def polar(make: Maker) -> Iterator[Case]:
    """Yield calls with real numbers."""
    for dtype in ("float32", "float64"):
        x, y = make.noise(dtype), make.noise(dtype)
        x[0, :3] = y[0, 1:4] = 0
        yield Case("magnitude", (x, y), within=1e-6)
        for degrees in (False, True):
            yield Case("phase", (x, y, degrees), within=6e-5)
            yield Case("cartToPolar", (x, y, degrees), within=6e-5)
            yield Case("polarToCart", (np.abs(x), y, degrees), within=1e-5)
        yield Case("sqrt", (np.abs(x),), within=1e-6)
        yield Case("exp", (x / 30,), within=1e-6)
        yield Case("log", (np.abs(x) + 1,), within=1e-6)
        for power in (2, 3, 0.5, -1, -1.3):
            yield Case("pow", (np.abs(x) + 1, power), within=1e-5)
    for power in (0, 1, 2, 3):
        yield Case("pow", (make.noise("uint8", 3), power))


def channels(make: Maker) -> Iterator[Case]:
    """Yield calls that move pixels."""
    for x in make.images(("uint8", "float32"), (0, 3)):
        for kind in (*BORDERS, c.BORDER_WRAP):
            yield Case("copyMakeBorder", (x, 4, 27, 30, 3, kind), {"value": (5, 6, 7, 8)})
        for code in (-1, 0, 1):
            yield Case("flip", (x, code))
        for code in range(3):
            yield Case("rotate", (x, code))
        yield Case("transpose", (x,))
        yield Case("repeat", (x, 2, 3))
        yield Case("hconcat", ([x, x[:, :4].copy()],))
        yield Case("vconcat", ([x, x[:4].copy()],))
        yield Case("copyTo", (x, MASK))
        yield Case("copyTo", (x, MASK, x[::-1].copy()))
    x = make.noise("uint8", 3)
    yield Case("split", (x,))
    yield Case("merge", ([make.noise("int16"), make.noise("int16", 2)],))
    yield Case("extractChannel", (x, 1))
    yield Case("insertChannel", (make.noise("uint8"), x, 2))
    yield Case("mixChannels", ([x], [make.noise("uint8", 3), make.noise("uint8")], [0, 2, 1, 3, 2, 0]))
    for place in (-30, -1, 0, 7, 31):
        for kind in (*BORDERS, c.BORDER_WRAP):
            yield Case("borderInterpolate", (place, 7, kind))


def colours(make: Maker) -> Iterator[Case]:
    """Yield every code, on every type that it takes."""
    named = {getattr(colour_codes, name): name for name in vars(colour_codes) if name.startswith("COLOR_")}
    for code, kind in CODES.items():
        name = named[code].lower()
        into_rgb = "2" in name and name.split("2")[0].endswith(("lab", "luv", "hsv", "hls"))
        for dtype in kind.types:
            for count in kind.channels:
                for result in (0, *kind.results):
                    x = _colours(make, name, dtype, count)
                    exact = not (into_rgb or "hls" in name or "luv" in name or "lab" in name)
                    near = 1e-5 if "lab" not in name and "luv" not in name else 1e-2
                    within = near if dtype == "float32" else 0 if exact else 2
                    yield Case("cvtColor", (x, code, result), within=within)
    for number in (colour_codes.COLOR_YUV2BGR_NV12, colour_codes.COLOR_YUV2RGBA_NV21):
        yield Case("cvtColorTwoPlane", (make.noise("uint8", 0, 12, 16), make.noise("uint8", 2, 6, 8), number))


def _colours(make: Maker, name: str, dtype: str, channels: int) -> Array:
    x = make.noise(dtype, channels, 12, 16)
    if dtype == "float32":
        x = make.random.random((12, 16, channels)).astype(np.float32)
        if name.split("_")[1].startswith(("hsv2", "hls2")):
            x[..., 0] *= 360
        for space, scale, start in (
            ("lab2", (100, 120, 120), (0, 60, 60)),
            ("luv2", (100, 160, 160), (0, 80, 80)),
        ):
            if name.split("_")[1].startswith(space):
                x = x * np.array(scale, np.float32) - np.array(start, np.float32)
    elif name.split("_")[1].startswith("luv2"):
        # Colours that there are in sRGB: what is beyond, OpenCV clips otherwise.
        gray = np.full((12, 16), 97) + np.arange(16)
        x = np.stack([gray, gray * 0 + 96 + np.arange(16), gray * 0 + 136], -1).astype(np.uint8)
    return x[..., 0] if channels == 1 else x
