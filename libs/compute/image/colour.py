"""From one way to write down colours to another: `cvtColor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from libs.common.errors import Invalid
from libs.compute.image import colour_codes as codes
from libs.compute.image.colour_cie import from_lab, from_luv, from_xyz, to_lab, to_luv, to_xyz
from libs.compute.image.colour_cones import from_hls, from_hsv, to_hls, to_hsv
from libs.compute.image.colour_luma import (
    from_luma,
    from_planar,
    from_semi_planar,
    gray_of_planar,
    to_gray,
    to_luma,
    to_planar,
)
from libs.compute.image.pixels import (
    channels_of,
    chosen,
    describe,
    full,
    image,
    joined,
    part,
    picked,
    planes,
    spread,
    stacked,
)
from libs.compute.tensor import Tensor

__all__ = ["cvtColor", "cvtColorTwoPlane"]

Rule = Callable[[Tensor], Tensor]
"""Of [height, width, channels]."""
_SMALL = ("uint8", "uint16", "float32")
_MOST = {"uint8": 255, "uint16": 65535, "float32": 1}


@dataclass(frozen=True, slots=True)
class Kind:
    rule: Rule
    channels: tuple[int, ...]
    types: tuple[str, ...] = ("uint8", "float32")
    results: tuple[int, ...] = ()
    """What dstCn may be."""


def cvtColor(src: Any, code: int, dstCn: int = 0) -> Tensor:
    """Return src in another colour space; `code` is one of the constants COLOR_….

    It takes uint8 and float32 (from 0 to 1), and uint16 where it only moves channels, or goes to gray, YCrCb,
    YUV or XYZ. Planes at half the resolution are [3·height / 2, width]. dstCn: 4 for a full alpha beside red,
    green and blue, where the code leaves it open.

    OpenCV: exact for integers, but HLS, Lab, Luv and HSV back: within 2, for colours of sRGB (its vector
    code cuts off what its scalar code rounds). 1e-5 for float32, Lab and Luv 1e-2 (it interpolates a table).
    """
    call = "cvtColor"
    number = chosen(call, "code", code, sorted(KINDS))
    kind = KINDS[number]
    tensor = image(call, "src", src, kind.types, kind.channels)
    chosen(call, "dstCn", dstCn, (0, *kind.results))
    made = kind.rule(planes(tensor))
    if dstCn == 4 and channels_of(made) == 3:
        made = _with_alpha(made)
    return made.reshape(made.shape[:2]) if channels_of(made) == 1 else made


def cvtColorTwoPlane(src1: Any, src2: Any, code: int) -> Tensor:
    """Return colours of a plane of luma and one of chroma, as NV12 and NV21 have them.

    src1: uint8 [height, width]; src2: uint8 [height / 2, width / 2, 2]; the result: [height, width, 3 or 4].

    OpenCV: exact.
    """
    call = "cvtColorTwoPlane"
    names = ("COLOR_YUV2RGB_NV12", "COLOR_YUV2BGR_NV12", "COLOR_YUV2RGB_NV21", "COLOR_YUV2BGR_NV21")
    options = [getattr(codes, name) for name in (*names, *(name.replace("_NV", "A_NV") for name in names))]
    number = chosen(call, "code", code, options)
    luma = image(call, "src1", src1, ("uint8",), (1,))
    chroma = image(call, "src2", src2, ("uint8",), (2,))
    height, width = luma.shape[:2]
    if (2 * chroma.shape[0], 2 * chroma.shape[1]) != (height, width):
        raise Invalid(
            f"{call}: src1 is {describe(luma)} and src2 is {describe(chroma)}; "
            "the latter is half as high and wide"
        )
    flat = chroma.reshape((height // 2, width, 1))
    return KINDS[number].rule(joined([planes(luma), flat], 0))


def _with_alpha(x: Tensor) -> Tensor:
    height, width = int(x.shape[0]), int(x.shape[1])
    return joined([x, full(x, (height, width, 1), _MOST[x.dtype])], 2)


def _reordered(x: Tensor, *, swap: bool, alpha: bool) -> Tensor:
    colours = picked(x, [2, 1, 0] if swap else [0, 1, 2], 2)
    if not alpha:
        return colours
    height, width = int(x.shape[0]), int(x.shape[1])
    return (
        joined([colours, part(x, (0, 0, 3), (height, width, 1))], 2)
        if channels_of(x) == 4
        else _with_alpha(colours)
    )


def _apart(x: Tensor, order: str) -> list[Tensor]:
    """Return the planes of red, green and blue."""
    return [x[:, :, order.index(name)] for name in "RGB"]


def _together(rgb: Sequence[Tensor], order: str) -> Tensor:
    made = stacked([rgb["RGB".index(name)] for name in order[:3]], 2)
    return _with_alpha(made) if len(order) == 4 else made


def _into(rule: Callable[..., list[Tensor]], order: str, x: Tensor) -> Tensor:
    return stacked(rule(_apart(x, order)), 2)


def _back(rule: Callable[..., list[Tensor]], order: str, x: Tensor) -> Tensor:
    return _together(rule([x[:, :, number] for number in range(3)]), order)


def _of_planes(rule: Callable[..., list[Tensor]], order: str, x: Tensor) -> Tensor:
    height, width = int(x.shape[0]), int(x.shape[1])
    if height % 3 or width % 2 or height // 3 * 2 % 2:
        raise Invalid(
            f"cvtColor: src is {describe(x)}; planes at half the resolution are [3·height/2, width], "
            "of even sizes"
        )
    made = rule(x)
    return _together(made, order) if order else stacked(made, 2)


def _to_planes(rule: Callable[..., list[Tensor]], order: str, x: Tensor) -> Tensor:
    if int(x.shape[0]) % 2 or int(x.shape[1]) % 2:
        raise Invalid(f"cvtColor: src is {describe(x)}; planes at half the resolution take even sizes")
    return stacked(rule(_apart(x, order)), 2)


def _gray_to(count: int, x: Tensor) -> Tensor:
    colours = spread(x, (*x.shape[:2], 3))
    return _with_alpha(colours) if count == 4 else colours


def _number(name: str) -> int:
    return int(getattr(codes, f"COLOR_{name}"))


def _back_name(space: str, order: str) -> str:
    """Return HSV2BGR_FULL of HSV_FULL."""
    name, _, end = space.partition("_")
    return f"{name}2{order}_{end}" if end else f"{name}2{order}"


def _table() -> Mapping[int, Kind]:
    kinds: dict[int, Kind] = {}
    for one, other, swap in (("BGR", "BGR", False), ("BGR", "RGB", True)):
        kinds[_number(f"{one}2{other}A")] = Kind(partial(_reordered, swap=swap, alpha=True), (3,), _SMALL)
        kinds[_number(f"{one}A2{other}")] = Kind(partial(_reordered, swap=swap, alpha=False), (4,), _SMALL)
    kinds[_number("BGR2RGB")] = Kind(partial(_reordered, swap=True, alpha=False), (3,), _SMALL)
    kinds[_number("BGRA2RGBA")] = Kind(partial(_reordered, swap=True, alpha=True), (4,), _SMALL)
    for count, name in ((3, "BGR"), (4, "BGRA")):
        kinds[_number(f"GRAY2{name}")] = Kind(partial(_gray_to, count), (1,), _SMALL)
    for order in ("BGR", "RGB"):
        for name, count in ((order, 3), (f"{order}A", 4)):
            kinds[_number(f"{name}2GRAY")] = Kind(partial(_into, to_gray, order), (count,), _SMALL)
        for space, into, back, types in _spaces():
            kinds[_number(f"{order}2{space}")] = Kind(partial(_into, into, order), (3, 4), types)
            kinds[_number(_back_name(space, order))] = Kind(partial(_back, back, order), (3,), types, (3, 4))
        for space, into, back in _light_spaces():
            kinds[_number(f"L{order}2{space}")] = Kind(partial(_into, into, order), (3, 4))
            kinds[_number(f"{space}2L{order}")] = Kind(partial(_back, back, order), (3,), results=(3, 4))
        for name in (order, f"{order}A"):
            for layout, rule in _layouts():
                kinds[_number(f"YUV2{name}_{layout}")] = Kind(
                    partial(_of_planes, rule, name), (1,), ("uint8",)
                )
            for layout, first in (("I420", True), ("YV12", False)):
                kinds[_number(f"{name}2YUV_{layout}")] = Kind(
                    partial(_to_planes, partial(to_planar, blue_first=first), order), (len(name),), ("uint8",)
                )
    kinds[_number("YUV2GRAY_420")] = Kind(partial(_of_planes, gray_of_planar, ""), (1,), ("uint8",))
    return MappingProxyType(kinds)


_Space = tuple[str, Callable[..., list[Tensor]], Callable[..., list[Tensor]], tuple[str, ...]]


def _spaces() -> list[_Space]:
    floats = ("uint8", "float32")
    found: list[_Space] = [
        ("XYZ", to_xyz, from_xyz, _SMALL),
        ("Lab", partial(to_lab, linear=False), partial(from_lab, linear=False), floats),
        ("Luv", partial(to_luv, linear=False), partial(from_luv, linear=False), floats),
    ]
    for name in ("YCrCb", "YUV"):
        found.append((name, partial(to_luma, space=name), partial(from_luma, space=name), _SMALL))
    for end, full_ in (("", False), ("_FULL", True)):
        found.append(("HSV" + end, partial(to_hsv, full=full_), partial(from_hsv, full=full_), floats))
        found.append(("HLS" + end, partial(to_hls, full=full_), partial(from_hls, full=full_), floats))
    return found


def _light_spaces() -> list[tuple[str, Callable[..., list[Tensor]], Callable[..., list[Tensor]]]]:
    return [
        ("Lab", partial(to_lab, linear=True), partial(from_lab, linear=True)),
        ("Luv", partial(to_luv, linear=True), partial(from_luv, linear=True)),
    ]


def _layouts() -> list[tuple[str, Callable[..., list[Tensor]]]]:
    return [
        ("NV12", partial(from_semi_planar, blue_first=True)),
        ("NV21", partial(from_semi_planar, blue_first=False)),
        ("I420", partial(from_planar, blue_first=True)),
        ("YV12", partial(from_planar, blue_first=False)),
    ]


KINDS = _table()
