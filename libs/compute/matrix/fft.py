"""numpy's `fft`, in part."""

from libs.compute.matrix.fourier import (
    fft,
    fft2,
    fftfreq,
    fftshift,
    ifft,
    ifft2,
    ifftshift,
    irfft,
    rfft,
    rfftfreq,
)

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftshift",
    "ifft",
    "ifft2",
    "ifftshift",
    "irfft",
    "rfft",
    "rfftfreq",
]
