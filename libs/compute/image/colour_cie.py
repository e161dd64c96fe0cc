"""Colours as the CIE measures them: XYZ, Lab and Luv of sRGB under D65. Planes are [height, width]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from libs.compute.image.colour_luma import mixture, weighed
from libs.compute.image.pixels import apply, clip, constant, maximum, saturate, take, where
from libs.compute.tensor import Tensor

Planes = Sequence[Tensor]

_INTO = np.array(
    [[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]]
)
_BACK = np.array(
    [[3.240479, -1.53715, -0.498535], [-0.969256, 1.875991, 0.041556], [0.055648, -0.204043, 1.057311]]
)
_WHITE = np.array([0.950456, 1.0, 1.088754])
_LOW = 216 / 24389
"""Below it, the cube root goes on as a straight line."""
_SLOPE, _START = 841 / 108, 16 / 116
_DARK = 24389 / 27
_CBRT_SIZE = 256 * 3 // 2 * 8
_SUM = float(_WHITE @ [1.0, 15.0, 3.0])
_UN, _VN = 13 * 4 * float(_WHITE[0]) / _SUM, 13 * 9 * float(_WHITE[1]) / _SUM


def to_xyz(rgb: Planes) -> list[Tensor]:
    """Return X, Y and Z."""
    return _multiplied(rgb, _INTO)


def from_xyz(xyz: Planes) -> list[Tensor]:
    """Return red, green and blue."""
    return _multiplied(xyz, _BACK)


def _multiplied(planes: Planes, matrix: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[Tensor]:
    own = planes[0].dtype
    if own == "float32":
        return [mixture(planes, row) for row in matrix.tolist()]
    fixed = np.rint(matrix * 4096).astype(int)
    return [saturate(weighed(planes, row, 12), own) for row in fixed.tolist()]


def _power(x: Tensor, exponent: float) -> Tensor:
    return apply("pow", x, constant(x, exponent))


def _linear(planes: Planes) -> list[Tensor]:
    """Return the light that sRGB stands for."""
    return [
        where(plane <= 0.04045, plane * (1 / 12.92), _power((plane + 0.055) * (1 / 1.055), 2.4))
        for plane in planes
    ]


def _encoded(planes: Planes) -> list[Tensor]:
    """Return sRGB of light."""
    made = []
    for plane in planes:
        bright = 1.055 * _power(maximum(plane, constant(plane, 1e-8)), 1 / 2.4) - 0.055
        made.append(where(plane <= 0.0031308, plane * 12.92, bright))
    return made


def _root(x: Tensor) -> Tensor:
    return where(x > _LOW, _power(maximum(x, constant(x, 1e-8)), 1 / 3), x * _SLOPE + _START)


def to_lab(rgb: Planes, *, linear: bool) -> list[Tensor]:
    """Return L, a and b; `linear`: of light instead of sRGB."""
    if rgb[0].dtype == "uint8":
        return _to_lab_bytes(rgb, linear)
    light = [clip(plane, 0, 1) for plane in rgb]
    light = light if linear else _linear(light)
    x, y, z = (mixture(light, row) for row in (_INTO / _WHITE.reshape(3, 1)).tolist())
    fx, fy, fz = _root(x), _root(y), _root(z)
    lightness = where(y > _LOW, fy * 116 - 16, y * _DARK)
    return [lightness, (fx - fy) * 500, (fy - fz) * 200]


def _to_lab_bytes(rgb: Planes, linear: bool) -> list[Tensor]:
    """As OpenCV has it: light in 8ths of a level, cube roots in 2^-15, from tables."""
    at = np.arange(256) / 255
    curve = np.where(at <= 0.04045, at / 12.92, ((at + 0.055) / 1.055) ** 2.4)
    levels = np.arange(256) * 8 if linear else np.rint(255 * 8 * curve)
    share = np.arange(_CBRT_SIZE) / (255 * 8)
    roots = np.rint((1 << 15) * np.where(share < _LOW, share * _SLOPE + _START, np.cbrt(share)))
    matrix = np.rint(4096 * _INTO / _WHITE.reshape(3, 1)).astype(int)
    first = rgb[0].astype("float64")
    light = [take(constant(first, levels), plane.astype("int32"), 0) for plane in rgb]
    table = constant(first, roots)
    fx, fy, fz = (take(table, weighed(light, row, 12).astype("int32"), 0) for row in matrix.tolist())
    scale, shift = (116 * 255 + 50) // 100, -((16 * 255 * (1 << 15) + 50) // 100)
    lightness = weighed([fy, fy * 0 + 1], (scale, shift), 15)
    return [
        saturate(plane, "uint8")
        for plane in (lightness, weighed([fx - fy], (500,), 15, 128), weighed([fy - fz], (200,), 15, 128))
    ]


def from_lab(planes: Planes, *, linear: bool) -> list[Tensor]:
    """Return red, green and blue, or light where `linear`."""
    own = planes[0].dtype
    lightness, a, b = (plane.astype("float32") for plane in planes)
    if own == "uint8":
        lightness, a, b = lightness * (100 / 255), a - 128, b - 128
    fy = where(lightness > _LOW * _DARK, (lightness + 16) * (1 / 116), lightness * (_SLOPE / _DARK) + _START)
    xyz = [_cube(f) for f in (fy + a * (1 / 500), fy, fy - b * (1 / 200))]
    return _light(xyz, own, linear, _BACK * _WHITE)


def _cube(f: Tensor) -> Tensor:
    return where(f > _SLOPE * _LOW + _START, f * f * f, (f - _START) * (1 / _SLOPE))


def _light(
    xyz: Planes, own: str, linear: bool, matrix: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> list[Tensor]:
    light = [clip(mixture(xyz, row), 0, 1) for row in matrix.tolist()]
    made = light if linear else _encoded(light)
    return made if own == "float32" else [saturate(plane * 255, own) for plane in made]


def to_luv(rgb: Planes, *, linear: bool) -> list[Tensor]:
    """Return L, u and v; `linear`: of light instead of sRGB."""
    own = rgb[0].dtype
    floats = [plane.astype("float32") * (1 / 255) if own == "uint8" else clip(plane, 0, 1) for plane in rgb]
    light = floats if linear else _linear(floats)
    x, y, z = (mixture(light, row) for row in _INTO.tolist())
    lightness = where(y > _LOW, _root(y) * 116 - 16, y * _DARK)
    total = x + y * 15 + z * 3
    by = 52 / maximum(total, constant(total, float(np.finfo(np.float32).eps)))
    u, v = lightness * (x * by - _UN), lightness * (y * by * 2.25 - _VN)
    if own == "float32":
        return [lightness, u, v]
    scaled = (lightness * 2.55, (u + 134) * (255 / 354), (v + 140) * (255 / 262))
    return [saturate(plane, own) for plane in scaled]


def from_luv(planes: Planes, *, linear: bool) -> list[Tensor]:
    """Return red, green and blue, or light where `linear`."""
    own = planes[0].dtype
    lightness, u, v = (plane.astype("float32") for plane in planes)
    if own == "uint8":
        lightness, u, v = lightness * (100 / 255), u * (354 / 255) - 134, v * (262 / 255) - 140
    fy = (lightness + 16) * (1 / 116)
    y = where(lightness > 8, fy * fy * fy, lightness * (1 / _DARK))
    up, down = (u + lightness * _UN) * 3, v + lightness * _VN
    # Nothing is as far out as a quarter.
    safe = where(down == 0, down * 0 + 1, down)
    by = clip(0.25 / safe, -0.25, 0.25)
    x = y * up * by * 3
    z = y * ((lightness * 156 - up) * by - 5)
    return _light([x, y, z], own, linear, _BACK)
