"""Encoded images."""

from __future__ import annotations

import io
import struct
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from libs.common.errors import Error, Exhausted, Invalid
from libs.runtime.host import Limits, image
from libs.runtime.kernels import DataFault

PIXELS = np.random.default_rng(3).integers(0, 256, (5, 4, 3)).astype(np.uint8)


def encoded(format_: str, pixels: Any = PIXELS, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format_, **options)
    return file.getvalue()


def decoded(data: bytes, order: str = "RGB", free_bytes: int = 1 << 30) -> Any:
    (found,) = image.decode([np.frombuffer(data, np.uint8)], Limits(free_bytes), texts=(order,))
    return found


@pytest.mark.parametrize("format_", ["PNG", "BMP", "TIFF", "PPM"])
def test_pixels_come_as_they_were_and_in_the_order_asked_for(format_: str) -> None:
    data = encoded(format_)
    assert np.array_equal(decoded(data), PIXELS)
    assert np.array_equal(decoded(data, "BGR"), PIXELS[:, :, ::-1])
    grey = decoded(data, "Grayscale")
    assert grey.shape == (5, 4, 1)
    assert np.array_equal(grey[:, :, 0], np.asarray(Image.fromarray(PIXELS).convert("L")))


@pytest.mark.parametrize("format_", ["JPEG", "WEBP"])
def test_formats_that_lose_something(format_: str) -> None:
    flat = np.full((16, 16, 3), (200, 100, 50), np.uint8)
    assert np.abs(decoded(encoded(format_, flat)).astype(int) - flat).max() <= 4


def test_transparency_and_palettes_are_resolved() -> None:
    clear = np.dstack([PIXELS, np.zeros((5, 4, 1), np.uint8)])
    assert np.array_equal(decoded(encoded("PNG", clear)), PIXELS)
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert("P").save(file, "PNG")
    assert decoded(file.getvalue()).shape == (5, 4, 3)


@pytest.mark.parametrize("data", [b"", b"no image", encoded("PNG")[:40], encoded("GIF")])
def test_what_cant_be_read_is_told(data: bytes) -> None:
    with pytest.raises(DataFault, match="it is no image that can be read"):
        decoded(data)


def test_no_program_is_started_for_a_file() -> None:
    """Pillow hands PostScript to Ghostscript: only formats that it reads itself are taken."""
    with pytest.raises(DataFault, match="no image"):
        decoded(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n")


def test_an_image_of_many_pixels_is_refused_before_it_is_decoded() -> None:
    data = bytearray(encoded("BMP"))
    data[18:26] = struct.pack("<ii", 9_000, 8_000)
    with pytest.raises(DataFault, match="9000 by 8000 pixels, more than 67108864"):
        decoded(bytes(data))
    with pytest.raises(Exhausted):
        decoded(encoded("PNG"), free_bytes=50)


def test_an_unknown_order_is_told() -> None:
    with pytest.raises(DataFault, match="RGB, BGR or Grayscale, not 'CMYK'"):
        decoded(encoded("PNG"), "CMYK")


def test_a_package_that_isnt_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded("PNG")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(Invalid, match="pip install pillow") as caught:
        decoded(data)
    assert caught.value.reason == "MISSING_PACKAGE"


_FILES = [encoded(format_) for format_ in ("PNG", "BMP", "TIFF", "PPM", "JPEG", "WEBP")]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(_FILES), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=5))
def test_damaged_files_are_decoded_or_told(data: bytes, edits: list[tuple[int, int]]) -> None:
    damaged = bytearray(data)
    for position, byte in edits:
        damaged[position % len(damaged)] = byte
    try:
        found = decoded(bytes(damaged), free_bytes=1 << 24)
    except (DataFault, Error):
        return
    assert found.dtype == np.uint8
    assert found.ndim == 3
