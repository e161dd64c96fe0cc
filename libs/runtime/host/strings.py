"""Arrays of strings: numpy's arrays of objects, each a str."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.host.limits import Limits
from libs.runtime.kernels.casting import converted
from libs.runtime.kernels.fault import Array, DataFault
from libs.runtime.ledger import STRING_BYTES
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import DataType

_PLACE_BYTES = 8
_NUMBER_BYTES = 80
"""What the text of a number takes at most, about: most have fewer than 24 characters."""
_MATCH_WORK = 1_000
"""Calculations for one string, and a hundredth of it for each of its bytes."""
_RANGES = {DataType.INT4: (-8, 7), DataType.UINT4: (0, 15), DataType.INT2: (-2, 1), DataType.UINT2: (0, 3)}
"""Of the integers that numpy itself doesn't know."""


def _array(texts: Sequence[str], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(texts), np.object_)
    array[:] = texts
    return array.reshape(shape)


def rank(inputs: Sequence[Any], limits: Limits) -> Sequence[Any]:
    """Return a sorted table of all strings, and the places of each input's."""
    # A set's entry, at most, for each; its place in a list and in an array. Sorting compares some 20 times.
    count = sum(array.size for array in inputs)
    limits.take(80 * count)
    limits.spend(400 * count)
    table = sorted({text for array in inputs for text in array.reshape(-1)})
    places = {text: number for number, text in enumerate(table)}
    ranks = [
        np.array([places[text] for text in array.reshape(-1)], np.int64).reshape(array.shape)
        for array in inputs
    ]
    return [_array(table, (len(table),)), *ranks]


def take(inputs: Sequence[Any], limits: Limits) -> Sequence[Any]:
    """Return strings by their places."""
    table, places = inputs[0].reshape(-1), inputs[1]
    if places.size and not (places.min() >= 0 and places.max() < table.size):
        raise DataFault(f"strings are numbers {places.min()} to {places.max()} of a table of {table.size}")
    limits.take(_PLACE_BYTES * places.size)
    # Of a single place numpy would give the string itself.
    return [table[places.reshape(-1)].reshape(places.shape)]


def concat(inputs: Sequence[Any], limits: Limits) -> Sequence[Any]:
    """Return each string of one array followed by that of the other."""
    left, right = inputs
    if left.shape != right.shape:
        raise DataFault(f"strings of shapes {list(left.shape)} and {list(right.shape)} can't be joined")
    pairs = list(zip(left.reshape(-1), right.reshape(-1), strict=True))
    limits.take(sum(STRING_BYTES + len(a) + len(b) for a, b in pairs))
    return [_array([a + b for a, b in pairs], left.shape)]


def case(inputs: Sequence[Any], limits: Limits, *, integers: tuple[int, ...]) -> Sequence[Any]:
    """Return strings in lower or upper case."""
    (array,) = inputs
    # A character may become three: "ŉ" does.
    limits.take(sum(STRING_BYTES + 3 * len(text) for text in array.reshape(-1)))
    change = str.upper if integers[0] else str.lower
    return [_array([change(text) for text in array.reshape(-1)], array.shape)]


def split(
    inputs: Sequence[Any], limits: Limits, *, integers: tuple[int, ...], texts: tuple[str, ...]
) -> Sequence[Any]:
    """Return the pieces of each string along a new last axis, and how many there are."""
    (array,), (most,), (separator,) = inputs, integers, texts
    rows = []
    for text in array.reshape(-1):
        cuts = text.count(separator) if separator else len(text) // 2
        limits.take(STRING_BYTES * (1 + (cuts if most < 0 else min(cuts, most))) + len(text))
        rows.append(text.split(separator or None, most) if text else [])
    counts = np.array([len(row) for row in rows], np.int64).reshape(array.shape)
    width = max((len(row) for row in rows), default=0)
    limits.take(2 * _PLACE_BYTES * width * len(rows))
    padded = [piece for row in rows for piece in (*row, *[""] * (width - len(row)))]
    return [_array(padded, (*array.shape, width)), counts]


def match(inputs: Sequence[Any], limits: Limits, *, texts: tuple[str, ...]) -> Sequence[Any]:
    """Tell which strings match a regular expression as a whole, in RE2's syntax and linear time."""
    try:
        import re2
    except ImportError:
        text = "regular expressions need the package google-re2: pip install google-re2"
        raise Invalid(text, reason="MISSING_PACKAGE") from None
    options = re2.Options()
    options.log_errors = False
    try:
        pattern = re2.compile(texts[0], options)
    except re2.error as error:
        raise DataFault(f"{texts[0][:80]!r} is no regular expression: {error}") from None
    array = inputs[0]
    limits.take(2 * _PLACE_BYTES * array.size)
    limits.spend(sum(_MATCH_WORK + _MATCH_WORK // 100 * len(text) for text in array.reshape(-1)))
    found = [pattern.fullmatch(text) is not None for text in array.reshape(-1)]
    return [np.array(found, np.bool_).reshape(array.shape)]


def cast(inputs: Sequence[Any], limits: Limits, *, integers: tuple[int, ...]) -> Sequence[Any]:
    """Return numbers as strings, or strings as numbers, as ONNX's Cast writes them."""
    (array,), (number,) = inputs, integers
    type_ = DataType(number)
    if type_ is DataType.STRING:
        limits.take(_NUMBER_BYTES * array.size)
        limits.spend(1_000 * array.size)
        return [_array([_text(item) for item in array.reshape(-1)], array.shape)]
    dtype = DTYPES[type_]
    # A number as an object, in a list, as float64, and in its own type.
    limits.take(array.size * (48 + dtype.itemsize))
    limits.spend(sum(1_000 + 10 * len(text) for text in array.reshape(-1)))
    made = np.array([_number(text, type_) for text in array.reshape(-1)], _wide(type_))
    with np.errstate(all="ignore"):
        return [converted(made, dtype).reshape(array.shape)]


def _is_integer(type_: DataType) -> bool:
    return DataType.INT8 <= type_ <= DataType.UINT64 or type_ in _RANGES


def _wide(type_: DataType) -> Any:
    """Return the type in which a number that was read is rounded once to `type_`, if at all."""
    if type_ in _RANGES:
        return np.int8
    return DTYPES[type_] if type_ < DataType.FLOAT16 else np.float64


def _text(item: Any) -> str:
    if isinstance(item, np.bool_):
        return "1" if item else "0"
    if isinstance(item, np.integer):
        return str(int(item))
    value = float(item)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "INF" if value > 0 else "-INF"
    # The shortest digits that are the same number in its own type.
    if isinstance(item, np.floating):
        return str(item.item()) if item.dtype == np.float64 else np.format_float_positional(item, trim="0")
    return str(np.float32(value))


def _number(text: str, type_: DataType) -> Any:
    name = type_.name.lower()
    # Python would take digits of any script, and "1_000".
    word = text.strip() if text.isascii() and "_" not in text else ""
    try:
        if not _is_integer(type_):
            value = float(word)
            return value != 0 if type_ is DataType.BOOL else value
        whole = int(word)
    except ValueError:
        raise DataFault(f"{text[:80]!r} is no number of type {name}") from None
    low, high = _RANGES.get(type_) or (np.iinfo(DTYPES[type_]).min, np.iinfo(DTYPES[type_]).max)
    if not low <= whole <= high:
        raise DataFault(f"{text[:80]!r} is not in {low} to {high}, the range of {name}")
    return whole
