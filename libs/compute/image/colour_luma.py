"""Brightness apart from colour: gray, YCrCb, YUV, and its planes at half the resolution (ITU-R BT.601).

Planes are [height, width], of the image's type. Integers are weighed in fixed point, exactly in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

from libs.compute.image.pixels import (
    floor,
    joined,
    maximum,
    part,
    saturate,
    spread,
)
from libs.compute.tensor import Tensor

Planes = Sequence[Tensor]

MIDDLE = {"uint8": 128, "uint16": 32768, "float32": 0.5}
"""Where colour differences are 0."""


def weighed(planes_: Planes, weights: Sequence[int], bits: int, offset: int = 0) -> Tensor:
    """Return Σ weight·plane / 2^bits + offset, rounded half up, in float64."""
    total = None
    for plane, weight in zip(planes_, weights, strict=True):
        term = plane.astype("float64") * float(weight)
        total = term if total is None else total + term
    assert total is not None
    return floor((total + (1 << bits >> 1)) * 2.0**-bits) + offset


def mixture(planes_: Planes, weights: Sequence[float]) -> Tensor:
    """Return Σ weight·plane of float planes."""
    total = None
    for plane, weight in zip(planes_, weights, strict=True):
        term = plane * weight
        total = term if total is None else total + term
    assert total is not None
    return total


def to_gray(rgb: Planes) -> list[Tensor]:
    """Return brightness."""
    own = rgb[0].dtype
    if own == "float32":
        return [mixture(rgb, (0.299, 0.587, 0.114))]
    return [saturate(weighed(rgb, (9798, 19235, 3735), 15), own)]


_INTO = {"YCrCb": (11682, 9241, 0.713, 0.564), "YUV": (14369, 8061, 0.877, 0.492)}
"""Of red and of blue less luma: in 2^-14, and as floats."""
_BACK = {
    "YCrCb": ((22987, -11698, -5636, 29049), (1.403, -0.714, -0.344, 1.773)),
    "YUV": ((18678, -9519, -6472, 33292), (1.140, -0.581, -0.395, 2.032)),
}
"""Red of the difference of red, green of that of red and blue, blue of that of blue."""


def to_luma(rgb: Planes, space: str) -> list[Tensor]:
    """Return luma and the differences of red and blue from it ("YCrCb"), or of blue and red ("YUV")."""
    own = rgb[0].dtype
    red, _, blue = rgb
    by_red, by_blue, red_share, blue_share = _INTO[space]
    middle = MIDDLE[own]
    if own == "float32":
        luma = mixture(rgb, (0.299, 0.587, 0.114))
        differences = [(red - luma) * red_share + middle, (blue - luma) * blue_share + middle]
    else:
        luma = weighed(rgb, (4899, 9617, 1868), 14)
        differences = [
            saturate(weighed([plane.astype("float64") - luma], (weight,), 14, int(middle)), own)
            for plane, weight in ((red, by_red), (blue, by_blue))
        ]
        luma = saturate(luma, own)
    return [luma, *(differences if space == "YCrCb" else differences[::-1])]


def from_luma(planes_: Planes, space: str) -> list[Tensor]:
    """Return red, green and blue."""
    luma, *differences = planes_
    by_red, by_blue = differences if space == "YCrCb" else differences[::-1]
    own = luma.dtype
    fixed, real = _BACK[space]
    if own == "float32":
        red, blue = by_red - 0.5, by_blue - 0.5
        return [luma + red * real[0], luma + red * real[1] + blue * real[2], luma + blue * real[3]]
    base = luma.astype("float64")
    red, blue = (plane.astype("float64") - MIDDLE[own] for plane in (by_red, by_blue))
    return [
        saturate(base + weighed([red], fixed[:1], 14), own),
        saturate(base + weighed([red, blue], fixed[1:3], 14), own),
        saturate(base + weighed([blue], fixed[3:], 14), own),
    ]


def from_semi_planar(x: Tensor, *, blue_first: bool) -> list[Tensor]:
    """Return red, green and blue of NV12 (`blue_first`) or NV21, uint8 [3·height/2, width, 1]."""
    rows, width = int(x.shape[0]), int(x.shape[1])
    height = rows * 2 // 3
    chroma = part(x, (height, 0, 0), (height // 2, width, 1)).reshape((height // 2, width // 2, 2))
    first, second = chroma[:, :, 0], chroma[:, :, 1]
    return _decoded(x, height, (first, second) if blue_first else (second, first))


def from_planar(x: Tensor, *, blue_first: bool) -> list[Tensor]:
    """Return red, green and blue of I420 (`blue_first`) or YV12, uint8 [3·height/2, width, 1]."""
    rows, width = int(x.shape[0]), int(x.shape[1])
    height = rows * 2 // 3
    flat = part(x, (height, 0, 0), (height // 2, width, 1)).reshape((2, height // 2, width // 2))
    first, second = flat[0], flat[1]
    return _decoded(x, height, (first, second) if blue_first else (second, first))


def gray_of_planar(x: Tensor) -> list[Tensor]:
    """Return the luma of I420, YV12, NV12 or NV21."""
    height = int(x.shape[0]) * 2 // 3
    return [x[:height, :, 0]]


def _decoded(x: Tensor, height: int, chroma: tuple[Tensor, Tensor]) -> list[Tensor]:
    luma = x[:height, :, 0].astype("float64") - 16
    bright = maximum(luma, luma * 0) * 1220542.0
    blue, red = (_doubled(plane.astype("float64") - 128) for plane in chroma)
    weights = ((0, 1673527), (-409993, -852492), (2116026, 0))
    made = []
    for by_blue, by_red in weights:
        total = bright + blue * float(by_blue) + red * float(by_red)
        made.append(saturate(floor((total + (1 << 19)) * 2.0**-20), "uint8"))
    return made


def _doubled(plane: Tensor) -> Tensor:
    height, width = int(plane.shape[0]), int(plane.shape[1])
    many = spread(plane.reshape((height, 1, width, 1)), (height, 2, width, 2))
    return many.reshape((2 * height, 2 * width))


def to_planar(rgb: Planes, *, blue_first: bool) -> list[Tensor]:
    """Return I420 (`blue_first`) or YV12, uint8 [3·height/2, width]; colour is every other pixel's."""
    height, width = int(rgb[0].shape[0]), int(rgb[0].shape[1])
    luma = saturate(weighed(rgb, (269484, 528482, 102760), 20, 16), "uint8")
    fewer = [part(plane, (0, 0), (height // 2, width // 2), (2, 2)) for plane in rgb]
    blue = saturate(weighed(fewer, (-155188, -305135, 460324), 20, 128), "uint8")
    red = saturate(weighed(fewer, (460324, -385875, -74448), 20, 128), "uint8")
    both = joined([blue, red] if blue_first else [red, blue], 0)
    return [joined([luma, both.reshape((height // 2, width))], 0)]
