"""Encoded images, decoded by Pillow."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from libs.common.errors import Error, Invalid
from libs.runtime.host.limits import Limits
from libs.runtime.kernels.fault import Array, DataFault

MOST_PIXELS = 64 * 1024**2
_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}
# What ONNX's ImageDecoder lists. Others of Pillow's readers start programs, or are little tested.
_FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")


def decode(inputs: Sequence[Any], limits: Limits, *, texts: tuple[str, ...]) -> Sequence[Any]:
    """Return the pixels of an encoded image, [height, width, channels]: 3 channels, or 1 in Grayscale.

    Transparency is left out; of several pictures in a file the first one counts.
    """
    (order,) = texts
    if order not in _MODES:
        raise DataFault(f"pixels come as RGB, BGR or Grayscale, not {order[:20]!r}")
    try:
        pixels = _pixels(inputs[0].tobytes(), _MODES[order], limits)
    except (Error, DataFault, MemoryError):
        raise
    except Exception as error:
        # Pillow's readers raise whatever a damaged file makes them: OSError, SyntaxError, struct.error, …
        raise DataFault(f"it is no image that can be read: {str(error)[:120]}") from None
    if order == "Grayscale":
        return [pixels[:, :, np.newaxis]]
    return [pixels[:, :, ::-1].copy() if order == "BGR" else pixels]


def _pixels(data: bytes, mode: str, limits: Limits) -> Array:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise Invalid(
            "images need the package pillow: pip install pillow", reason="MISSING_PACKAGE"
        ) from None
    try:
        opened = Image.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError:
        # Pillow's text has the address of an object.
        raise DataFault(f"it is no image that can be read: it is none of {', '.join(_FORMATS)}") from None
    with opened as image:
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise DataFault(f"an image has {width} by {height} pixels, more than {MOST_PIXELS}")
        # As decoded, with up to four channels, converted, and as an array.
        limits.take(width * height * 10)
        return np.array(image.convert(mode), np.uint8)
