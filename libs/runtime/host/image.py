"""Encoded images, decoded by Pillow."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.host.limits import Limits
from libs.runtime.kernels.fault import DataFault

MOST_PIXELS = 64 * 1024**2
_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


def decode(inputs: Sequence[Any], limits: Limits, *, texts: tuple[str, ...]) -> Sequence[Any]:
    """Return the pixels of an encoded image, [height, width, channels]: 3 channels, or 1 in Grayscale."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise Invalid(
            "images need the package pillow: pip install pillow", reason="MISSING_PACKAGE"
        ) from None
    (order,) = texts
    if order not in _MODES:
        raise DataFault(f"pixels come as RGB, BGR or Grayscale, not {order[:20]!r}")
    try:
        with Image.open(io.BytesIO(inputs[0].astype(np.uint8).tobytes())) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise DataFault(f"an image has {width} by {height} pixels, more than {MOST_PIXELS}")
            limits.take(width * height * 4)
            pixels = np.asarray(image.convert(_MODES[order]), np.uint8)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataFault(f"it is no image that can be read: {str(error)[:120]}") from None
    if order == "Grayscale":
        return [pixels[:, :, np.newaxis].copy()]
    return [pixels[:, :, ::-1].copy() if order == "BGR" else pixels.copy()]
