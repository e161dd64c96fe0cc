"""Arithmetic, element by element, as OpenCV's core has it: integers saturate.

`src2` is an image of the first one's shape and type, or a number or four, one for each channel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.compute.image import constants as c
from libs.compute.image.pixels import (
    PIXELS,
    REAL,
    absolute,
    apply,
    channels_of,
    check_type,
    chosen,
    constant,
    depth,
    describe,
    image,
    masked,
    maximum,
    minimum,
    planes,
    read,
    real,
    restored,
    same_shape,
    saturate,
    take,
    where,
)
from libs.compute.tensor import Tensor, tensors_of

__all__ = [
    "LUT",
    "absdiff",
    "add",
    "addWeighted",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "compare",
    "convertScaleAbs",
    "divide",
    "inRange",
    "max",
    "min",
    "multiply",
    "scaleAdd",
    "subtract",
]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two operands as [height, width, channels], or [1, 1, channels] for numbers; what the result is like."""

    first: Tensor
    second: Tensor
    like: Tensor
    types: tuple[str, ...]
    """Of the images among them."""
    fraction: bool = False
    """Whether numbers among them have fractions."""


def _operands(call: str, src1: Any, src2: Any) -> _Pair:
    if _is_scalar(src1) and not _is_scalar(src2):
        turned = _operands(call, src2, src1)
        return replace(turned, first=turned.second, second=turned.first)
    first = image(call, "src1", src1)
    if _is_scalar(src2):
        numbers = _numbers(call, "src2", src2, channels_of(first))
        fraction = any(number != int(number) for number in numbers)
        spread = constant(first, np.array(numbers).reshape(1, 1, -1), "float64")
        return _Pair(planes(first), spread, first, (first.dtype,), fraction)
    first, second = tensors_of(first, image(call, "src2", src2))
    same_shape(call, src1=first, src2=second)
    return _Pair(planes(first), planes(second), first, (first.dtype, second.dtype))


def _is_scalar(thing: Any) -> bool:
    if isinstance(thing, (int, float, np.integer, np.floating)):
        return True
    return isinstance(thing, tuple) and all(isinstance(each, (int, float, np.generic)) for each in thing)


def _numbers(call: str, name: str, thing: Any, channels: int) -> list[float]:
    """Return a number for each channel; one alone is for all of them."""
    numbers = [real(call, name, each) for each in (thing if isinstance(thing, tuple) else [thing])]
    if len(numbers) == 1:
        return numbers * channels
    if not channels <= len(numbers) <= (4 if channels <= 4 else channels):
        raise Invalid(f"{call}: {name} has {len(numbers)} numbers; there are {channels} channels")
    return numbers[:channels]


def _types(call: str, pair: _Pair, dtype: int) -> tuple[str, str]:
    """Return the type that a sum is computed in, and that of the result."""
    result = depth(call, "dtype", dtype, pair.types[0])
    if dtype == -1 and len(set(pair.types)) > 1:
        raise Invalid(
            f"{call}: src1 is {pair.types[0]} and src2 {pair.types[1]}: say the result's type by dtype"
        )
    kinds = {*pair.types, result}
    if pair.fraction:
        kinds.add("float32")
    if "float64" in kinds or ("int32" in kinds and "float32" in kinds):
        return "float64", result
    return ("float32" if "float32" in kinds else "int32"), result


def _sum_like(
    call: str, src1: Any, src2: Any, mask: Any, dtype: int, rule: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    pair = _operands(call, src1, src2)
    compute, result = _types(call, pair, dtype)
    made = saturate(rule(pair.first.astype(compute), pair.second.astype(compute)), result)
    return restored(_under(call, mask, made), pair.like)


def _under(call: str, mask: Any, made: Tensor) -> Tensor:
    """Return what was made where a mask holds, and 0 elsewhere."""
    held = masked(call, mask, made)
    if held is None:
        return made
    made, held = tensors_of(made, held)
    return where(held, made, constant(made, 0))


def add(src1: Any, src2: Any, mask: Any = None, dtype: int = -1) -> Tensor:
    """Return src1 + src2; 0 where the mask is.

    OpenCV: exact.
    """
    return _sum_like("add", src1, src2, mask, dtype, lambda x, y: x + y)


def subtract(src1: Any, src2: Any, mask: Any = None, dtype: int = -1) -> Tensor:
    """Return src1 - src2; 0 where the mask is.

    OpenCV: exact.
    """
    return _sum_like("subtract", src1, src2, mask, dtype, lambda x, y: x - y)


def absdiff(src1: Any, src2: Any) -> Tensor:
    """Return |src1 - src2|.

    OpenCV: exact.
    """
    return _sum_like("absdiff", src1, src2, None, -1, lambda x, y: absolute(x - y))


def multiply(src1: Any, src2: Any, scale: float = 1, dtype: int = -1) -> Tensor:
    """Return scale·src1·src2.

    OpenCV: exact for integers where `scale` is 1 and no product passes 2^31 (there it wraps, this saturates),
    else to the last place of float32.
    """
    call = "multiply"
    pair = _operands(call, src1, src2)
    compute, result = _types(call, pair, dtype)
    factor = real(call, "scale", scale)
    if compute == "int32":
        compute = "float64" if factor == 1 or result == "int32" else "float32"
    x, y = pair.first.astype(compute), pair.second.astype(compute)
    made = x * y if factor == 1 else x * factor * y
    return restored(saturate(made, result), pair.like)


def divide(src1: Any, src2: Any, scale: float = 1, dtype: int = -1) -> Tensor:
    """Return scale·src1 / src2; integers divided by 0 are 0.

    OpenCV: exact but where the quotient lies half way between two integers.
    """
    call = "divide"
    pair = _operands(call, src1, src2)
    compute, result = _types(call, pair, dtype)
    if compute == "int32":
        compute = "float64" if result == "int32" else "float32"
    x, y = pair.first.astype(compute), pair.second.astype(compute)
    made = x * real(call, "scale", scale) / y
    if result not in REAL:
        made = where(y == 0, constant(made, 0), made)
    return restored(saturate(made, result), pair.like)


def addWeighted(src1: Any, alpha: float, src2: Any, beta: float, gamma: float, dtype: int = -1) -> Tensor:
    """Return alpha·src1 + beta·src2 + gamma.

    OpenCV: within 1 for integers (it rounds products together or apart, by the processor), 1e-6 for floats.
    """
    return _weighted("addWeighted", src1, alpha, src2, beta, gamma, dtype)


def _weighted(call: str, src1: Any, alpha: Any, src2: Any, beta: Any, gamma: Any, dtype: int) -> Tensor:
    a, b, g = real(call, "alpha", alpha), real(call, "beta", beta), real(call, "gamma", gamma)
    pair = _operands(call, src1, src2)
    compute, result = _types(call, pair, dtype)
    if compute == "int32":
        compute = "float64" if result == "int32" else "float32"
    x, y = pair.first.astype(compute), pair.second.astype(compute)
    return restored(saturate(x * a + y * b + g, result), pair.like)


def scaleAdd(src1: Any, alpha: float, src2: Any) -> Tensor:
    """Return alpha·src1 + src2.

    OpenCV: within 1 for integers, 1e-6 for floats.
    """
    return _weighted("scaleAdd", src1, alpha, src2, 1.0, 0.0, -1)


def _bitwise(call: str, operator: str, src1: Any, src2: Any, mask: Any) -> Tensor:
    pair = _operands(call, src1, src2)
    _check_alike(call, pair)
    first, second = (saturate(tensor, pair.like.dtype) for tensor in (pair.first, pair.second))
    return restored(_under(call, mask, _bits(lambda x, y: apply(operator, x, y), first, second)), pair.like)


def _check_alike(call: str, pair: _Pair) -> None:
    if len(set(pair.types)) > 1:
        raise Invalid(f"{call}: src1 is {pair.types[0]} and src2 {pair.types[1]}: their types must be equal")


def _bits(rule: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Apply a rule to the bits of numbers."""
    own = tensors[0].dtype
    seen = {"float32": "int32", "float64": "int64"}.get(own)
    if seen is None:
        return rule(*tensors)
    return _seen_as(rule(*(_seen_as(tensor, seen) for tensor in tensors)), own)


def _seen_as(x: Tensor, dtype: str) -> Tensor:
    type_ = constant(x, 0, dtype).type
    return Tensor(x.backend, x.backend.bit_cast(x.value, type_))


def bitwise_and(src1: Any, src2: Any, mask: Any = None) -> Tensor:
    """Return src1 & src2, bit by bit; 0 where the mask is.

    OpenCV: exact.
    """
    return _bitwise("bitwise_and", "and", src1, src2, mask)


def bitwise_or(src1: Any, src2: Any, mask: Any = None) -> Tensor:
    """Return src1 | src2, bit by bit; 0 where the mask is.

    OpenCV: exact.
    """
    return _bitwise("bitwise_or", "or", src1, src2, mask)


def bitwise_xor(src1: Any, src2: Any, mask: Any = None) -> Tensor:
    """Return src1 ^ src2, bit by bit; 0 where the mask is.

    OpenCV: exact.
    """
    return _bitwise("bitwise_xor", "xor", src1, src2, mask)


def bitwise_not(src: Any, mask: Any = None) -> Tensor:
    """Return all bits of src turned round; 0 where the mask is.

    OpenCV: exact.
    """
    tensor = image("bitwise_not", "src", src)
    turned = _bits(lambda x: apply("not", x), planes(tensor))
    return restored(_under("bitwise_not", mask, turned), tensor)


def max(src1: Any, src2: Any) -> Tensor:
    """Return the larger of each two elements.

    OpenCV: exact.
    """
    return _sum_like("max", src1, src2, None, -1, maximum)


def min(src1: Any, src2: Any) -> Tensor:
    """Return the smaller of each two elements.

    OpenCV: exact.
    """
    return _sum_like("min", src1, src2, None, -1, minimum)


def compare(src1: Any, src2: Any, cmpop: int) -> Tensor:
    """Return 255 where `cmpop` (CMP_EQ, CMP_GT, …) holds, else 0, as uint8.

    OpenCV: exact.
    """
    call = "compare"
    operator = chosen(call, "cmpop", cmpop, range(6))
    pair = _operands(call, src1, src2)
    _check_alike(call, pair)
    first, second = pair.first, pair.second
    if len(pair.types) == 1:
        first, second = first.astype("float64"), second.astype("float64")
    holds = {
        c.CMP_EQ: lambda x, y: x == y,
        c.CMP_GT: lambda x, y: x > y,
        c.CMP_GE: lambda x, y: x >= y,
        c.CMP_LT: lambda x, y: x < y,
        c.CMP_LE: lambda x, y: x <= y,
        c.CMP_NE: lambda x, y: x != y,
    }[operator](first, second)
    return restored(as_mask(holds), pair.like)


def as_mask(holds: Tensor) -> Tensor:
    """Return 255 for true and 0 for false, as uint8."""
    return where(holds, constant(holds, 255, "uint8"), constant(holds, 0, "uint8"))


def inRange(src: Any, lowerb: Any, upperb: Any) -> Tensor:
    """Return uint8 [height, width]: 255 where all channels lie from lowerb to upperb, both included; else 0.

    Bounds are a number, one for each channel, or images of src's shape and type.

    OpenCV: exact.
    """
    call = "inRange"
    tensor = image(call, "src", src)
    inside = None
    for name, bound, upper in (("lowerb", lowerb, False), ("upperb", upperb, True)):
        if isinstance(bound, list):
            bound = tuple(bound)
        pixels = planes(tensor)
        if _is_scalar(bound):
            numbers = np.array(_numbers(call, name, bound, channels_of(tensor))).reshape(1, 1, -1)
            pixels = pixels.astype("float64")
            limit = constant(pixels, numbers)
        else:
            limit = image(call, name, bound, (tensor.dtype,))
            tensor, limit = tensors_of(tensor, limit)
            same_shape(call, src=tensor, **{name: limit})
            pixels, limit = planes(tensor), planes(limit)
        holds = pixels <= limit if upper else limit <= pixels
        inside = holds if inside is None else inside & holds
    assert inside is not None
    met = inside[:, :, 0]
    for channel in range(1, channels_of(tensor)):
        met = met & inside[:, :, channel]
    return as_mask(met)


def LUT(src: Any, lut: Any) -> Tensor:
    """Return each element replaced by the table's entry of that number, int8 taken as uint8.

    The table is a vector of 256 numbers, or has one such column for each channel: [1, 256, channels].

    OpenCV: exact.
    """
    call = "LUT"
    tensor = image(call, "src", src, ("uint8", "int8"))
    table = read(call, "lut", lut)
    check_type(call, "lut", table, PIXELS)
    sizes = [size for size in table.shape if size != 1]
    channels = channels_of(tensor)
    if sizes not in ([256], [256, channels], [1]) or (sizes == [1]):
        raise Invalid(f"{call}: lut is {describe(table)}; it has 256 entries, or 256 for each channel")
    tensor, table = tensors_of(tensor, table)
    index = planes(tensor).astype("int32")
    if tensor.dtype == "int8":
        index = apply("and", index, constant(index, 255))
    if sizes == [256]:
        return restored(take(table.reshape((256,)), index, 0), tensor)
    # Entry i of channel k is number i·channels + k.
    offsets = constant(index, np.arange(channels).reshape(1, 1, channels))
    return restored(take(table.reshape((256 * channels,)), index * channels + offsets, 0), tensor)


def convertScaleAbs(src: Any, alpha: float = 1, beta: float = 0) -> Tensor:
    """Return |alpha·src + beta| as uint8.

    OpenCV: exact but where float32 rounds to half of an integer.
    """
    call = "convertScaleAbs"
    tensor = image(call, "src", src)
    compute = "float64" if tensor.dtype in ("int32", "float64") else "float32"
    made = tensor.astype(compute) * real(call, "alpha", alpha) + real(call, "beta", beta)
    return saturate(absolute(made), "uint8")
