"""Images from files' bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from libs.common.errors import Exhausted, Invalid
from libs.compute.image import constants as c
from libs.compute.image.pixels import check_type, chosen, describe, read
from libs.compute.tensor import Tensor

__all__ = ["imdecode"]

_MOST_BYTES = 1 << 28
_LAYOUTS = {c.IMREAD_GRAYSCALE: "Grayscale", c.IMREAD_COLOR: "BGR", c.IMREAD_COLOR_RGB: "RGB"}


def imdecode(buf: Any, flags: int) -> Tensor:
    """Return the image in bytes, or a vector of uint8, of a PNG, JPEG, BMP, … that Pillow reads, as uint8.

    flags: IMREAD_COLOR (blue, green, red), IMREAD_COLOR_RGB, or IMREAD_GRAYSCALE [height, width].

    OpenCV: exact for PNG in colour; gray within 1, JPEG within a few levels, by whose decoder it is. It turns
    images round as their EXIF data say; this doesn't.
    """
    call = "imdecode"
    layout = _LAYOUTS[chosen(call, "flags", flags, _LAYOUTS)]
    if isinstance(buf, (bytes, bytearray, memoryview)):
        buf = np.frombuffer(buf, np.uint8)
    data = read(call, "buf", buf)
    check_type(call, "buf", data, ("uint8",))
    if data.ndim != 1:
        raise Invalid(f"{call}: buf is {describe(data)}; it is a vector of bytes")
    held = data.backend.known(data.value)
    if held is not None and not 0 < held.size <= _MOST_BYTES:
        raise Invalid(f"{call}: buf has {held.size} bytes; it has 1 to {_MOST_BYTES}")
    try:
        pixels = Tensor(data.backend, data.backend.decode_image(data.value, layout))
    except (Invalid, Exhausted) as error:
        text = f"{call}: buf: {error}"
        raise type(error)(text, reason=error.reason, metadata=error.metadata) from None
    return pixels[:, :, 0] if layout == "Grayscale" else pixels
