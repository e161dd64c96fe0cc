"""Operators of one element each. Views have the output's shape.

As numpy and C do it where ONNX leaves it open: integers wrap; `max` and `min` give NaN where either is NaN;
`round` goes to the even of two; casts are in `casting`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from libs.runtime.kernels import casting
from libs.runtime.kernels.erf import erf
from libs.runtime.kernels.fault import Array, DataFault, Kernel, flat

_CHUNK = 16_384
"""Elements of one round of a computation that needs scratch memory."""

_UFUNCS: Mapping[str, Callable[..., Any]] = {
    "neg": np.negative,
    "abs": np.absolute,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "round": np.rint,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
    "not": np.invert,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "div": np.true_divide,
    "mod": np.remainder,
    "pow": np.power,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
}


def build(name: str, inputs: tuple[Array, ...], output: Array) -> Kernel:
    """Return the kernel of an elementwise operator."""
    if name == "cast":
        return casting.build(inputs[0], output)
    special = _SPECIAL.get(name)
    if special is not None:
        return partial(special, *inputs, output)
    if name in _INTEGER and output.dtype.kind in "iu":
        left, right = inputs
        return partial(_INTEGER[name], left, right, output)
    return partial(_UFUNCS[name], *inputs, out=output)


def _bit_cast(value: Array, output: Array) -> None:
    np.copyto(output.view(value.dtype), value)


def _where(condition: Array, chosen: Array, other: Array, output: Array) -> None:
    np.copyto(output, other)
    np.copyto(output, chosen, where=condition)


def _erf(value: Array, output: Array) -> None:
    np.copyto(output, value)
    elements = flat(output)
    for start in range(0, elements.size, _CHUNK):
        chunk = elements[start : start + _CHUNK]
        chunk[...] = erf(chunk.astype(np.float64))


def _refuse_zero(divisor: Array) -> None:
    if not divisor.all():
        raise DataFault("an integer is divided by 0")


def _divide(left: Array, right: Array, output: Array) -> None:
    """Truncate towards zero, in place: what the remainder leaves is divided exactly."""
    _refuse_zero(right)
    np.fmod(left, right, output)
    np.subtract(left, output, output)
    np.floor_divide(output, right, output)


def _modulo(left: Array, right: Array, output: Array) -> None:
    _refuse_zero(right)
    np.remainder(left, right, output)


def _power(base: Array, exponent: Array, output: Array) -> None:
    """Raise integers: a negative power is 0, but for those of 1 and -1; there is none of 0."""
    negative = exponent < 0
    if not negative.any():
        np.power(base, exponent, output)
        return
    if np.any(negative & (base == 0)):
        raise DataFault("the integer 0 is raised to a negative power")
    np.power(base, np.where(negative, exponent & 1, exponent), output)
    np.copyto(output, 0, where=negative & (base != 1) & (base != -1))


_INTEGER: Mapping[str, Callable[[Array, Array, Array], None]] = {
    "div": _divide,
    "mod": _modulo,
    "pow": _power,
}
_SPECIAL: Mapping[str, Callable[..., None]] = {
    "bit_cast": _bit_cast,
    "where": _where,
    "erf": _erf,
}
