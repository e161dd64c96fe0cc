"""Fourier transforms: numpy's `fft`, in part. Plans compute with no complex numbers, so here they are pairs.

A transform takes real arrays, `Complex`, or complex numpy arrays, and gives a `Complex`, of which `.real`
and `.imag` are tensors. Lengths are taken apart into factors: a product with a small matrix for each. So the
length has to be known when a function is traced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.axes import axis_of, one_of, shown, whole_of
from libs.compute.backend import (
    Array,
    Backend,
    Move,
    Shape,
    Size,
    Value,
    contiguous_strides,
    int_or_none,
    product,
)
from libs.compute.promotion import FLOATS, name_of
from libs.compute.tensor import Tensor, asarray, tensors_of
from libs.runtime.plan import DataType

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

MOST_POINTS = 1 << 22
_SMALL = 32
"""Up to so many points are one product with a matrix."""
_LARGEST_FACTOR = 64
"""A length with a prime factor beyond is done as a convolution, over a power of two."""


@dataclass(frozen=True, slots=True)
class Complex:
    """Complex numbers, as two tensors of one shape and type."""

    real: Tensor
    imag: Tensor

    @property
    def shape(self) -> Shape:
        """Its sizes, outermost first."""
        return self.real.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.real.ndim

    @property
    def dtype(self) -> str:
        """The name of the type of both parts together: "complex64" or "complex128"."""
        return "complex128" if self.real.type is DataType.FLOAT64 else "complex64"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("complex numbers are put together of two arrays: that needs a copy")
        array = self.real.numpy().astype(self.dtype)
        array.imag = self.imag.numpy()
        return array if dtype is None else array.astype(dtype)

    def __getitem__(self, key: Any) -> Complex:
        return Complex(self.real[key], self.imag[key])

    def __neg__(self) -> Complex:
        return Complex(-self.real, -self.imag)

    def __add__(self, other: Any) -> Complex:
        other = as_complex(other)
        return Complex(self.real + other.real, self.imag + other.imag)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Complex:
        return self + -as_complex(other)

    def __rsub__(self, other: Any) -> Complex:
        return as_complex(other) - self

    def __mul__(self, other: Any) -> Complex:
        if isinstance(other, int | float):
            return Complex(self.real * other, self.imag * other)
        other = as_complex(other)
        return Complex(
            self.real * other.real - self.imag * other.imag, self.real * other.imag + self.imag * other.real
        )

    __rmul__ = __mul__

    def __abs__(self) -> Tensor:
        # The larger part is taken out: its square may be too large.
        b = self.real.backend
        sizes = [b.elementwise("abs", part.value) for part in (self.real, self.imag)]
        large, small = (b.elementwise(name, *sizes) for name in ("max", "min"))
        zero, one = (b.scalar(number, self.real.type) for number in (0, 1))
        ratio = b.elementwise("div", small, b.where(b.elementwise("eq", large, zero), one, large))
        root = b.elementwise("sqrt", b.elementwise("add", one, b.elementwise("mul", ratio, ratio)))
        return Tensor(b, b.elementwise("mul", large, root))

    def conj(self) -> Complex:
        """Return the conjugate."""
        return Complex(self.real, -self.imag)


def as_complex(thing: Any) -> Complex:
    """Return real numbers, complex numpy arrays or numbers, or pairs that are complex already, as pairs."""
    if isinstance(thing, Complex):
        return thing
    if isinstance(thing, complex) or (isinstance(thing, np.ndarray | np.generic) and thing.dtype.kind == "c"):
        array = np.asarray(thing)
        return Complex(
            *(asarray(np.ascontiguousarray(part).reshape(array.shape)) for part in (array.real, array.imag))
        )
    real = asarray(thing)
    if real.type not in FLOATS:
        real = real.astype(DataType.FLOAT64)
    elif real.type is DataType.FLOAT16:
        real = real.astype(DataType.FLOAT32)
    return Complex(real, real * 0)


Pair = tuple[Value, Value]
"""Real and imaginary parts."""


def fft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Complex:
    """Return the discrete Fourier transform along an axis, over `n` points: cut off, or filled with 0."""
    return _transformed("fft", as_complex(a), n, axis, norm, inverse=False)


def ifft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Complex:
    """Return the inverse of `fft`."""
    return _transformed("ifft", as_complex(a), n, axis, norm, inverse=True)


def rfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Complex:
    """Return the first half of the transform of real numbers, n // 2 + 1 points; the rest mirrors it."""
    if isinstance(a, Complex) or (isinstance(a, np.ndarray) and a.dtype.kind == "c"):
        raise Invalid("rfft takes real numbers; use fft for complex ones")
    whole = fft(a, n, axis, norm)
    place = axis_of(axis, whole.ndim, "rfft")
    half = int(whole.shape[place]) // 2 + 1
    return whole[(*[slice(None)] * place, slice(0, half))]


def irfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """Return the inverse of `rfft`: `n` real numbers, 2·(m - 1) of m points where it isn't given."""
    half = as_complex(a)
    place = axis_of(axis, half.ndim, "irfft")
    known = int_or_none(half.shape[place])
    if n is None and known is None:
        raise Invalid(f"irfft needs n: the length {half.shape[place]} isn't known yet")
    points = 2 * ((known or 0) - 1) if n is None else whole_of(n, "irfft", "n")
    if points < 1:
        raise Invalid(f"irfft: n is {points}; it is 1 or more")
    half = _resized(half, place, points // 2 + 1)
    ahead = (slice(None),) * place
    mirrored = half[(*ahead, slice((points - 1) // 2, 0, -1))].conj()
    # What has no imaginary part is as if it had none: the first point, and the middle one of an even number.
    edges = np.ones(points // 2 + 1)
    edges[0] = 0
    if points % 2 == 0:
        edges[-1] = 0
    lifted = edges.astype(half.real.dtype).reshape(-1, *[1] * (half.ndim - 1 - place))
    half = Complex(half.real, half.imag * lifted)
    parts = (
        _joined(one, other, place) for one, other in ((half.real, mirrored.real), (half.imag, mirrored.imag))
    )
    return _transformed("irfft", Complex(*parts), None, place, norm, inverse=True).real


def fft2(a: Any, axes: tuple[int, int] = (-2, -1), norm: str | None = None) -> Complex:
    """Return the transform along two axes."""
    result = as_complex(a)
    for axis in axes if isinstance(axes, tuple | list) else (axes,):
        result = _transformed("fft2", result, None, axis, norm, inverse=False)
    return result


def ifft2(a: Any, axes: tuple[int, int] = (-2, -1), norm: str | None = None) -> Complex:
    """Return the inverse of `fft2`."""
    result = as_complex(a)
    for axis in axes if isinstance(axes, tuple | list) else (axes,):
        result = _transformed("ifft2", result, None, axis, norm, inverse=True)
    return result


def fftfreq(n: int, d: float = 1.0) -> Tensor:
    """Return the frequencies of a transform of n points that are `d` apart."""
    return asarray(np.fft.fftfreq(_points("fftfreq", n), _distance("fftfreq", d)))


def rfftfreq(n: int, d: float = 1.0) -> Tensor:
    """Return the frequencies of `rfft` of n points that are `d` apart."""
    return asarray(np.fft.rfftfreq(_points("rfftfreq", n), _distance("rfftfreq", d)))


def _distance(call: str, d: Any) -> float:
    try:
        distance = float(d)
    except (TypeError, ValueError, OverflowError):
        raise Invalid(f"{call}: d is {shown(d)}; it is a number") from None
    if not distance or not math.isfinite(1 / distance):
        raise Invalid(f"{call}: d is {distance}; it isn't 0, or as near to it")
    return distance


def fftshift(x: Any, axes: Any = None) -> Any:
    """Return a transform with frequency 0 in the middle."""
    return _rolled("fftshift", x, axes, lambda size: size // 2)


def ifftshift(x: Any, axes: Any = None) -> Any:
    """Return the inverse of `fftshift`."""
    return _rolled("ifftshift", x, axes, lambda size: size - size // 2)


def _rolled(call: str, x: Any, axes: Any, distance: Any) -> Any:
    if isinstance(x, Complex) or (isinstance(x, np.ndarray) and x.dtype.kind == "c"):
        pair = as_complex(x)
        return Complex(_rolled(call, pair.real, axes, distance), _rolled(call, pair.imag, axes, distance))
    tensor = asarray(x)
    given = range(tensor.ndim) if axes is None else axes if isinstance(axes, tuple | list) else (axes,)
    for axis in given:
        place = axis_of(axis, tensor.ndim, call)
        size = tensor.shape[place]
        start = size - distance(size)
        ahead = (slice(None),) * place
        tensor = _joined(tensor[(*ahead, slice(start, None))], tensor[(*ahead, slice(None, start))], place)
    return tensor


def _points(call: str, n: Any) -> int:
    return whole_of(n, call, "n", 1, MOST_POINTS)


def _joined(one: Tensor, other: Tensor, axis: int) -> Tensor:
    b = one.backend
    shape: list[Size] = list(one.shape)
    start = shape[axis]
    shape[axis] = start + other.shape[axis]
    steps = contiguous_strides(tuple(shape))
    moves = [
        Move(each.value, each.shape, contiguous_strides(each.shape), 0, steps, place)
        for each, place in ((one, 0), (other, start * steps[axis]))
    ]
    return Tensor(b, b.raster(one.type, tuple(shape), moves))


def _resized(pair: Complex, axis: int, points: int) -> Complex:
    """Return numbers cut off, or filled with 0, along an axis."""
    shape: list[Size] = list(pair.shape)
    b = pair.real.backend
    kept = b.minimum(shape[axis], points)
    if int_or_none(shape[axis]) == points:
        return pair
    box, own = list(shape), contiguous_strides(tuple(shape))
    box[axis], shape[axis] = kept, points
    steps = contiguous_strides(tuple(shape))
    real, imag = (
        Tensor(b, b.raster(part.type, tuple(shape), [Move(part.value, tuple(box), own, 0, steps, 0)], 0))
        for part in (pair.real, pair.imag)
    )
    return Complex(real, imag)


def _transformed(
    call: str, pair: Complex, n: int | None, axis: int, norm: str | None, *, inverse: bool
) -> Complex:
    if not pair.ndim:
        raise Invalid(f"{call}: axis: a transform goes along an axis; a single number has none")
    place = axis_of(axis, pair.ndim, call)
    known = int_or_none(pair.shape[place])
    if n is None and known is None:
        raise Invalid(
            f"{call}: a transform needs n when it is traced: the length {pair.shape[place]} isn't known yet"
        )
    points = _points(call, known if n is None else n)
    pair = Complex(*tensors_of(*(_resized(pair, place, points).real, _resized(pair, place, points).imag)))
    order = [axis_ for axis_ in range(pair.ndim) if axis_ != place] + [place]
    b = pair.real.backend
    moved = [b.transpose(part.value, order) for part in (pair.real, pair.imag)]
    leading = b.shape(moved[0])[:-1]
    real, imag = (b.reshape(part, (product(leading), points)) for part in moved)
    result = _dft(b, (real, imag), points, 1 if inverse else -1)
    back = [order.index(axis_) for axis_ in range(pair.ndim)]
    scale = b.scalar(_scale(call, norm, points, inverse), b.type(real))
    parts = (
        Tensor(b, b.transpose(b.reshape(b.elementwise("mul", part, scale), (*leading, points)), back))
        for part in result
    )
    return Complex(*parts)


def _scale(call: str, norm: str | None, points: int, inverse: bool) -> float:
    one_of(norm, (None, "backward", "ortho", "forward"), call, "norm")
    match norm:
        case "ortho":
            return 1 / math.sqrt(points)
        case None | "backward":
            return 1 / points if inverse else 1.0
        case "forward":
            return 1.0 if inverse else 1 / points
    raise AssertionError(norm)


def _waves(b: Backend, angles: Array, type_: DataType) -> Pair:
    """Return cos and sin of parts of a turn."""
    turns = 2 * math.pi * angles
    dtype = name_of(type_)
    return b.constant(np.cos(turns).astype(dtype)), b.constant(np.sin(turns).astype(dtype))


def _times(b: Backend, operator: str, x: Pair, y: Pair) -> Pair:
    """Multiply complex numbers, by "mul" or "matmul"."""
    multiply = b.matmul if operator == "matmul" else lambda one, other: b.elementwise("mul", one, other)
    real = b.elementwise("sub", multiply(x[0], y[0]), multiply(x[1], y[1]))
    imag = b.elementwise("add", multiply(x[0], y[1]), multiply(x[1], y[0]))
    return real, imag


def _matrix(b: Backend, points: int, sign: int, type_: DataType) -> Pair:
    counted = np.arange(points)
    return _waves(b, sign * (np.outer(counted, counted) % points) / points, type_)


def _dft(b: Backend, x: Pair, points: int, sign: int) -> Pair:
    """Transform [rows, points]: Σ_j x[j]·exp(sign·2πi·jk/points)."""
    type_ = b.type(x[0])
    if points <= _SMALL:
        return _times(b, "matmul", x, _matrix(b, points, sign, type_))
    first = _factor(points)
    if first is None:
        return _by_convolution(b, x, points, sign)
    # j = first·j2 + j1, k = rest·k1 + k2 (Cooley and Tukey, 1965).
    rest, rows = points // first, b.shape(x[0])[0]
    apart = [
        b.reshape(b.transpose(b.reshape(part, (rows, rest, first)), (0, 2, 1)), (rows * first, rest))
        for part in x
    ]
    inner = _dft(b, (apart[0], apart[1]), rest, sign)
    stacked = tuple(b.reshape(part, (rows, first, rest)) for part in inner)
    twist = _waves(b, sign * np.outer(np.arange(first), np.arange(rest)) / points, type_)
    turned = _times(b, "mul", (stacked[0], stacked[1]), twist)
    outer = _times(b, "matmul", _matrix(b, first, sign, type_), turned)
    return b.reshape(outer[0], (rows, points)), b.reshape(outer[1], (rows, points))


def _factor(points: int) -> int | None:
    """Return a small factor of a number of points; None where the smallest is large."""
    for factor in range(_SMALL, 1, -1):
        if points % factor == 0:
            return factor
    return next((factor for factor in range(_SMALL + 1, _LARGEST_FACTOR + 1) if points % factor == 0), None)


def _by_convolution(b: Backend, x: Pair, points: int, sign: int) -> Pair:
    """Transform a number of points of no small factors: jk = (j² + k² - (k - j)²) / 2 (Bluestein, 1970)."""
    type_ = b.type(x[0])
    counted = np.arange(points)
    chirp = sign * (counted * counted % (2 * points)) / (2 * points)
    room = 1 << (2 * points - 2).bit_length()
    around = np.zeros(room)
    around[:points] = -chirp
    around[room - points + 1 :] = -chirp[:0:-1]
    present = np.zeros(room)
    present[:points] = present[room - points + 1 :] = 1
    wave = np.exp(2j * np.pi * around) * present
    spectrum = np.fft.fft(wave)
    dtype = name_of(type_)
    answer = (b.constant(spectrum.real.astype(dtype)[None]), b.constant(spectrum.imag.astype(dtype)[None]))
    bent = _times(b, "mul", x, _waves(b, chirp, type_))
    rows = b.shape(x[0])[0]
    wide = [
        b.raster(type_, (rows, room), [Move(part, (rows, points), (points, 1), 0, (room, 1), 0)], 0)
        for part in bent
    ]
    product_ = _times(b, "mul", _dft(b, (wide[0], wide[1]), room, -1), answer)
    back = _dft(b, product_, room, 1)
    scale = b.scalar(1 / room, type_)
    kept = [b.elementwise("mul", b.move(part, (rows, points), (room, 1)), scale) for part in back]
    return _times(b, "mul", (kept[0], kept[1]), _waves(b, chirp, type_))
