"""Channels apart and together; images turned, joined and repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.pixels import (
    MOST_ELEMENTS,
    channels_of,
    chosen,
    describe,
    full,
    height_width,
    image,
    joined,
    listed,
    masked,
    part,
    planes,
    restored,
    spread,
    transposed,
    where,
    whole,
)
from libs.compute.tensor import Tensor, tensors_of

__all__ = [
    "copyTo",
    "extractChannel",
    "flip",
    "hconcat",
    "insertChannel",
    "merge",
    "mixChannels",
    "repeat",
    "rotate",
    "split",
    "transpose",
    "vconcat",
]

_MOST_IMAGES = 1024


def _several(call: str, name: str, things: Any) -> list[Tensor]:
    if not isinstance(things, (list, tuple)) or not things or len(things) > _MOST_IMAGES:
        raise Invalid(f"{call}: {name} is a list of 1 to {_MOST_IMAGES} images")
    found = tensors_of(*(image(call, f"{name}[{place}]", each) for place, each in enumerate(things)))
    for place, each in enumerate(found):
        if each.dtype != found[0].dtype:
            raise Invalid(
                f"{call}: {name}[0] is {describe(found[0])} and {name}[{place}] is {describe(each)}: "
                "their types must be equal"
            )
    return found


def channel(x: Tensor, number: int) -> Tensor:
    """Return one channel of [height, width, channels] as [height, width]."""
    height, width = height_width(x)
    return part(x, (0, 0, number), (height, width, 1)).reshape((height, width))


def split(m: Any) -> list[Tensor]:
    """Return the channels of an image, each [height, width].

    OpenCV: exact.
    """
    tensor = planes(image("split", "m", m))
    return [channel(tensor, number) for number in range(channels_of(tensor))]


def merge(mv: Any) -> Tensor:
    """Return one image of the channels of several, in their order.

    OpenCV: exact.
    """
    found = _several("merge", "mv", mv)
    for place, each in enumerate(found):
        if height_width(each) != height_width(found[0]):
            raise Invalid(f"merge: mv[0] is {describe(found[0])} and mv[{place}] is {describe(each)}")
    return joined([planes(each) for each in found], 2)


def extractChannel(src: Any, coi: int) -> Tensor:
    """Return one channel as [height, width].

    OpenCV: exact.
    """
    tensor = planes(image("extractChannel", "src", src))
    return channel(tensor, whole("extractChannel", "coi", coi, 0, channels_of(tensor) - 1))


def insertChannel(src: Any, dst: Any, coi: int) -> Tensor:
    """Return dst with one channel replaced by src.

    OpenCV: exact.
    """
    call = "insertChannel"
    one, into = tensors_of(image(call, "src", src, channels=(1,)), image(call, "dst", dst))
    place = whole(call, "coi", coi, 0, channels_of(into) - 1)
    if one.dtype != into.dtype or height_width(one) != height_width(into):
        raise Invalid(f"{call}: src is {describe(one)} and dst is {describe(into)}: they don't go together")
    kept = planes(into)
    parts = [_channels(kept, 0, place), planes(one), _channels(kept, place + 1, channels_of(kept))]
    return restored(joined([each for each in parts if each.shape[2]], 2), into)


def _channels(x: Tensor, start: int, stop: int) -> Tensor:
    return part(x, (0, 0, start if start < stop else 0), (*height_width(x), stop - start))


def mixChannels(src: Any, dst: Any, fromTo: Sequence[int]) -> list[Tensor]:
    """Return the images of `dst` with channels replaced by those of `src`.

    `fromTo` holds pairs: a channel's number through all of src (below 0: zeros), then one through all of dst.

    OpenCV: exact; it writes to dst, this returns new ones.
    """
    call = "mixChannels"
    sources, targets = _several(call, "src", src), _several(call, "dst", dst)
    lifted = tensors_of(*sources, *targets)
    sources, targets = lifted[: len(sources)], lifted[len(sources) :]
    named = [("src", each) for each in sources] + [("dst", each) for each in targets]
    for name, each in named:
        if each.dtype != sources[0].dtype or height_width(each) != height_width(sources[0]):
            raise Invalid(
                f"{call}: {describe(sources[0])} in src and {describe(each)} in {name} don't go together"
            )
    from_ = [channel(planes(each), number) for each in sources for number in range(channels_of(each))]
    to = [channel(planes(each), number) for each in targets for number in range(channels_of(each))]
    numbers = listed(call, "fromTo", fromTo)
    if len(numbers) % 2 or not numbers:
        raise Invalid(f"{call}: fromTo has {len(numbers)} numbers; it holds pairs")
    for one, other in zip(numbers[::2], numbers[1::2], strict=True):
        taken = whole(call, "fromTo", one, -1 << 16, len(from_) - 1)
        place = whole(call, "fromTo", other, 0, len(to) - 1)
        to[place] = from_[taken] if taken >= 0 else full(to[place], to[place].shape, 0)
    result = []
    for each in targets:
        mixed = joined([planes(one) for one in to[: channels_of(each)]], 2)
        del to[: channels_of(each)]
        result.append(restored(mixed, each))
    return result


def flip(src: Any, flipCode: int) -> Tensor:
    """Return src turned over: about the x axis (0), the y axis (above 0), or both (below 0).

    OpenCV: exact.
    """
    tensor = image("flip", "src", src)
    code = whole("flip", "flipCode", flipCode, -(1 << 31), (1 << 31) - 1)
    return restored(_turned(planes(tensor), code <= 0, code != 0), tensor)


def _turned(x: Tensor, rows: bool, columns: bool) -> Tensor:
    height, width = height_width(x)
    starts = (height - 1 if rows else 0, width - 1 if columns else 0, 0)
    return part(x, starts, x.shape, (-1 if rows else 1, -1 if columns else 1, 1))


def transpose(src: Any) -> Tensor:
    """Return rows as columns.

    OpenCV: exact.
    """
    tensor = image("transpose", "src", src)
    return transposed(tensor, (1, 0, *range(2, tensor.ndim)))


def rotate(src: Any, rotateCode: int) -> Tensor:
    """Return src turned by a quarter (ROTATE_90_CLOCKWISE, ROTATE_90_COUNTERCLOCKWISE) or half (ROTATE_180).

    OpenCV: exact.
    """
    tensor = image("rotate", "src", src)
    code = chosen("rotate", "rotateCode", rotateCode, range(3))
    x = planes(tensor)
    if code == c.ROTATE_180:
        return restored(_turned(x, True, True), tensor)
    x = transposed(x, (1, 0, 2))
    clockwise = code == c.ROTATE_90_CLOCKWISE
    return restored(_turned(x, not clockwise, clockwise), tensor)


def hconcat(src: Any) -> Tensor:
    """Return images side by side.

    OpenCV: exact.
    """
    return _concatenated("hconcat", src, 1)


def vconcat(src: Any) -> Tensor:
    """Return images one below the other.

    OpenCV: exact.
    """
    return _concatenated("vconcat", src, 0)


def _concatenated(call: str, src: Any, axis: int) -> Tensor:
    found = _several(call, "src", src)
    first = found[0]
    for place, each in enumerate(found):
        sizes = [(x.shape[1 - axis], channels_of(x), x.ndim) for x in (first, each)]
        if sizes[0] != sizes[1]:
            raise Invalid(f"{call}: src[0] is {describe(first)} and src[{place}] is {describe(each)}")
    return joined(found, axis)


def repeat(src: Any, ny: int, nx: int) -> Tensor:
    """Return src ny times below and nx times beside itself.

    OpenCV: exact.
    """
    call = "repeat"
    tensor = image(call, "src", src)
    down, across = whole(call, "ny", ny, 1, 1 << 20), whole(call, "nx", nx, 1, 1 << 20)
    height, width = height_width(tensor)
    channels = channels_of(tensor)
    if down * across * height * width * channels > MOST_ELEMENTS:
        raise Invalid(
            f"{call}: ny is {ny} and nx is {nx}: the result would have more than {MOST_ELEMENTS} elements"
        )
    spaced = tensor.reshape((1, height, 1, width, channels))
    many = spread(spaced, (down, height, across, width, channels))
    return restored(many.reshape((down * height, across * width, channels)), tensor)


def copyTo(src: Any, mask: Any, dst: Any = None) -> Tensor:
    """Return src where the mask isn't 0, and dst (0 where it is left out) elsewhere.

    OpenCV: exact.
    """
    call = "copyTo"
    tensor = image(call, "src", src)
    under = full(tensor, tensor.shape, 0) if dst is None else image(call, "dst", dst, (tensor.dtype,))
    tensor, under = tensors_of(tensor, under)
    if tuple(under.shape) != tuple(tensor.shape):
        raise Invalid(f"{call}: src is {describe(tensor)} and dst is {describe(under)}")
    held = masked(call, mask, tensor)
    if held is None:
        return tensor
    held, over, below = tensors_of(held, planes(tensor), planes(under))
    return restored(where(held, over, below), tensor)
