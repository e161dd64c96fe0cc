"""Hue apart from the rest: HSV and HLS. Planes are [height, width], of the image's type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from libs.compute.image.colour_luma import weighed
from libs.compute.image.pixels import absolute, constant, maximum, minimum, saturate, take, where
from libs.compute.tensor import Tensor

Planes = Sequence[Tensor]
_TINY = float(np.finfo(np.float32).eps)


def _turn(own: str, full: bool) -> float:
    """Return how much a whole turn of the hue is."""
    return 360.0 if own == "float32" else 256.0 if full else 180.0


def to_hsv(rgb: Planes, *, full: bool) -> list[Tensor]:
    """Return hue, saturation and value; `full`: the hue of uint8 goes to 256 instead of 180."""
    if rgb[0].dtype == "uint8":
        return _to_hsv_bytes(rgb, 256 if full else 180)
    value, least = _extremes(rgb)
    spread = value - least
    saturation = spread / (absolute(value) + _TINY)
    return [_hue(rgb, value, 60 / (spread + _TINY)), saturation, value]


def _extremes(rgb: Planes) -> tuple[Tensor, Tensor]:
    red, green, blue = rgb
    return maximum(maximum(red, green), blue), minimum(minimum(red, green), blue)


def _hue(rgb: Planes, most: Tensor, by: Tensor) -> Tensor:
    """Return the hue in degrees of floats."""
    red, green, blue = rgb
    of_green = (blue - red) * by + 120
    of_blue = (red - green) * by + 240
    hue = where(most == red, (green - blue) * by, where(most == green, of_green, of_blue))
    return where(hue < 0, hue + 360, hue)


def _to_hsv_bytes(rgb: Planes, turn: int) -> list[Tensor]:
    value, least = _extremes(rgb)
    spread = value - least
    red, green, blue, most = (plane.astype("float64") for plane in (*rgb, value))
    wide = most - least.astype("float64")
    numbers = np.maximum(np.arange(256), 1)
    none = np.arange(256) > 0
    by_value = np.rint((255 << 12) / numbers) * none
    by_spread = np.rint((turn << 12) / (6 * numbers)) * none
    saturation = weighed([wide * take(constant(most, by_value), value.astype("int32"), 0)], (1,), 12)
    sixths = where(
        most == red,
        green - blue,
        where(most == green, blue - red + 2 * wide, red - green + 4 * wide),
    )
    hue = weighed([sixths * take(constant(most, by_spread), spread.astype("int32"), 0)], (1,), 12)
    hue = where(hue < 0, hue + turn, hue)
    return [saturate(hue, "uint8"), saturate(saturation, "uint8"), value]


def from_hsv(planes: Planes, *, full: bool) -> list[Tensor]:
    """Return red, green and blue."""
    own = planes[0].dtype
    hue, saturation, value = _as_floats(planes, full)
    made = []
    for start in (5.0, 3.0, 1.0):
        at = (hue + start) % 6.0
        share = _between(minimum(minimum(at, 4 - at), constant(at, 1)), 0.0)
        made.append(value - value * saturation * share)
    return _as_before(made, own)


def _between(x: Tensor, low: float) -> Tensor:
    return maximum(x, constant(x, low))


def _as_floats(planes: Planes, full: bool) -> list[Tensor]:
    """Return the hue in sixths of a turn, and the others from 0 to 1."""
    own = planes[0].dtype
    hue, *others = (plane.astype("float32") for plane in planes)
    # 255 is the largest hue of the full range there is.
    sixths = hue * (6 / (255.0 if full and own == "uint8" else _turn(own, full)))
    return [sixths, *(plane * (1 / 255) if own == "uint8" else plane for plane in others)]


def _as_before(planes: Planes, own: str) -> list[Tensor]:
    return list(planes) if own == "float32" else [saturate(plane * 255, own) for plane in planes]


def to_hls(rgb: Planes, *, full: bool) -> list[Tensor]:
    """Return hue, lightness and saturation; `full`: the hue of uint8 goes to 256 instead of 180."""
    own = rgb[0].dtype
    floats = [plane.astype("float32") * (1 / 255) if own == "uint8" else plane for plane in rgb]
    most, least = _extremes(floats)
    spread, both = most - least, most + least
    lightness = both * 0.5
    gray = spread <= _TINY
    nothing = spread * 0
    by = where(lightness < 0.5, both, 2 - both)
    saturation = where(gray, nothing, spread / where(gray, nothing + 1, by))
    hue = where(gray, nothing, _hue(floats, most, 60 / where(gray, nothing + 1, spread)))
    if own == "float32":
        return [hue, lightness, saturation]
    turn = hue * ((255.0 if full else 180.0) / 360)
    return [saturate(plane, own) for plane in (turn, lightness * 255, saturation * 255)]


def from_hls(planes: Planes, *, full: bool) -> list[Tensor]:
    """Return red, green and blue."""
    own = planes[0].dtype
    hue, lightness, saturation = _as_floats(planes, full)
    reach = saturation * minimum(lightness, 1 - lightness)
    made = []
    for start in (0.0, 8.0, 4.0):
        at = (hue * 2 + start) % 12.0
        share = _between(minimum(minimum(at - 3, 9 - at), constant(at, 1)), -1.0)
        made.append(lightness - reach * share)
    return _as_before(made, own)
