"""Fourier transforms against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.errors import Invalid
from libs.compute.matrix import fourier

LENGTHS = [1, 2, 3, 8, 31, 32, 33, 37, 48, 100, 101, 128, 243, 1024, 1009, 2 * 67]


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(seed)
    return random.normal(size=shape) + 1j * random.normal(size=shape)


def close(ours: Any, theirs: Any, tolerance: float = 1e-9) -> None:
    ours = np.asarray(ours)
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * max(1, theirs.size**0.5))


@pytest.mark.parametrize("points", LENGTHS)
def test_all_kinds_of_lengths(points: int) -> None:
    x = numbers(2, points)
    close(fourier.fft(x), np.fft.fft(x))
    close(fourier.ifft(x), np.fft.ifft(x))
    close(fourier.fft(x.real), np.fft.fft(x.real))
    close(fourier.rfft(x.real), np.fft.rfft(x.real))


@pytest.mark.parametrize("norm", [None, "backward", "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 3, 4, 9])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_arguments(name: str, axis: int, n: int | None, norm: Any) -> None:
    x: Any = numbers(4, 6, 5)
    x = x.real if name == "rfft" else x
    close(getattr(fourier, name)(x, n, axis, norm), getattr(np.fft, name)(x, n, axis, norm))


@pytest.mark.parametrize("name", ["fft2", "ifft2"])
@pytest.mark.parametrize("axes", [(-2, -1), (0, 2)])
def test_two_axes(name: str, axes: tuple[int, int]) -> None:
    x = numbers(3, 4, 5)
    close(getattr(fourier, name)(x, axes), getattr(np.fft, name)(x, axes=axes))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "bool"])
def test_types(dtype: str) -> None:
    x = (np.arange(12) % 5).astype(dtype)
    close(fourier.fft(x), np.fft.fft(x), 1e-5)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies(n: int) -> None:
    close(fourier.fftfreq(n, 0.5), np.fft.fftfreq(n, 0.5))
    close(fourier.rfftfreq(n, 0.5), np.fft.rfftfreq(n, 0.5))


@pytest.mark.parametrize("axes", [None, 0, (0, 1), [-1]])
@pytest.mark.parametrize("name", ["fftshift", "ifftshift"])
def test_shifts(name: str, axes: Any) -> None:
    x = numbers(5, 4)
    close(getattr(fourier, name)(x, axes), getattr(np.fft, name)(x, axes))
    close(getattr(fourier, name)(x.real, axes), getattr(np.fft, name)(x.real, axes))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(0, 1000))
def test_there_and_back(points: int, seed: int) -> None:
    x = numbers(points, seed=seed)
    close(fourier.ifft(fourier.fft(x)), x, 1e-9)
    close(fourier.irfft(fourier.rfft(x.real), points), x.real, 1e-9)


def test_arithmetic_of_complex_numbers() -> None:
    x, y = numbers(3, 2), numbers(2, seed=1)
    ours, other = fourier.as_complex(x), fourier.as_complex(y)
    close(ours + other, x + y)
    close(1 - ours, 1 - x)
    close(ours - y, x - y)
    close(ours * other, x * y)
    close(2 * ours, 2 * x)
    close(-ours.conj(), -x.conj())
    close(abs(ours), np.abs(x))
    close(abs(fourier.as_complex(np.array([0, 3e200 + 4e200j]))), np.array([0, 5e200]))
    close(ours[1:, 0], x[1:, 0])
    close(np.asarray(ours, np.complex64), x.astype(np.complex64), 1e-6)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: fourier.fft(1.0), "single number"),
        (lambda: fourier.fft([]), "^fft: n is 0"),
        (lambda: fourier.fft([1.0], 0), "^fft: n is 0"),
        (lambda: fourier.fft([1.0], norm="unit"), "'unit'"),
        (lambda: fourier.fft([1.0], axis=1), "axis 1 is out of range"),
        (lambda: fourier.rfft(numbers(3)), "use fft"),
        (lambda: fourier.irfft([1.0]), "irfft: n is 0"),
        (lambda: fourier.fft(np.ones(2), n=1 << 40), "n is .*; it is an integer"),
    ],
)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        call()
