"""Arrays of strings: numpy's arrays of objects, each a str."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.host.limits import Limits
from libs.runtime.kernels.fault import Array, DataFault
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import DataType

_STRING_BYTES = 56
"""What a str takes beside its characters, and its place in an array, about."""


def _array(texts: Sequence[str], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(texts), np.object_)
    array[:] = texts
    return array.reshape(shape)


def _each(function: Callable[[str], str], array: Array, limits: Limits) -> Array:
    texts = [function(text) for text in array.reshape(-1)]
    limits.take(sum(_STRING_BYTES + len(text) for text in texts))
    return _array(texts, array.shape)


def rank(inputs: Sequence[Any], limits: Limits) -> Sequence[Any]:
    """Return a sorted table of all strings, and the places of each input's."""
    table = sorted({text for array in inputs for text in array.reshape(-1)})
    limits.take(16 * len(table) + 8 * sum(array.size for array in inputs))
    places = {text: number for number, text in enumerate(table)}
    ranks = [
        np.array([places[text] for text in array.reshape(-1)], np.int64).reshape(array.shape)
        for array in inputs
    ]
    return [_array(table, (len(table),)), *ranks]


def take(inputs: Sequence[Any], limits: Limits) -> Sequence[Any]:
    """Return strings by their places."""
    table, places = inputs
    if places.size and not (places.min() >= 0 and places.max() < table.size):
        raise DataFault(f"a string is number {places.max()} of a table of {table.size}")
    limits.take(8 * places.size)
    return [_array(table[places.reshape(-1)].tolist(), places.shape)]


def concat(inputs: Sequence[Any], limits: Limits) -> Sequence[Any]:
    """Return each string of one array followed by that of the other."""
    left, right = inputs
    if left.shape != right.shape:
        raise DataFault(f"strings of shapes {list(left.shape)} and {list(right.shape)} can't be joined")
    pairs = list(zip(left.reshape(-1), right.reshape(-1), strict=True))
    limits.take(sum(_STRING_BYTES + len(a) + len(b) for a, b in pairs))
    return [_array([a + b for a, b in pairs], left.shape)]


def case(inputs: Sequence[Any], limits: Limits, *, integers: tuple[int, ...]) -> Sequence[Any]:
    """Return strings in lower or upper case."""
    return [_each(str.upper if integers[0] else str.lower, inputs[0], limits)]


def split(
    inputs: Sequence[Any], limits: Limits, *, integers: tuple[int, ...], texts: tuple[str, ...]
) -> Sequence[Any]:
    """Return the pieces of each string along a new last axis, and how many there are."""
    (array,), (most,), (separator,) = inputs, integers, texts
    rows = [text.split(separator or None, most) if text else [] for text in array.reshape(-1)]
    counts = np.array([len(row) for row in rows], np.int64).reshape(array.shape)
    width = max((len(row) for row in rows), default=0)
    limits.take(8 * width * len(rows) + sum(_STRING_BYTES + len(piece) for row in rows for piece in row))
    padded = [piece for row in rows for piece in (*row, *[""] * (width - len(row)))]
    return [_array(padded, (*array.shape, width)), counts]


def match(inputs: Sequence[Any], limits: Limits, *, texts: tuple[str, ...]) -> Sequence[Any]:
    """Tell which strings match a regular expression as a whole, in RE2's syntax and linear time."""
    try:
        import re2
    except ImportError:
        text = "regular expressions need the package google-re2: pip install google-re2"
        raise Invalid(text, reason="MISSING_PACKAGE") from None
    try:
        pattern = re2.compile(texts[0])
    except re2.error as error:
        raise DataFault(f"{texts[0][:80]!r} is no regular expression: {error}") from None
    array = inputs[0]
    found = [pattern.fullmatch(text) is not None for text in array.reshape(-1)]
    return [np.array(found, np.bool_).reshape(array.shape)]


def cast(inputs: Sequence[Any], limits: Limits, *, integers: tuple[int, ...]) -> Sequence[Any]:
    """Return numbers as strings, or strings as numbers, as ONNX's Cast writes them."""
    (array,), (number,) = inputs, integers
    type_ = DataType(number)
    if type_ is DataType.STRING:
        texts = [_text(item) for item in array.reshape(-1)]
        limits.take(sum(_STRING_BYTES + len(text) for text in texts))
        return [_array(texts, array.shape)]
    dtype = DTYPES[type_]
    limits.take(array.size * dtype.itemsize)
    values = [_number(text, type_) for text in array.reshape(-1)]
    with np.errstate(all="ignore"):
        made = np.array(values, np.float64 if type_ >= DataType.FLOAT16 else dtype)
    return [made.astype(dtype).reshape(array.shape)]


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
    word = text.strip()
    try:
        if type_ >= DataType.FLOAT16:
            return float(word)
        if type_ is DataType.BOOL:
            return float(word) != 0
        value = int(word)
    except ValueError:
        raise DataFault(f"{text[:80]!r} is no number of type {type_.name.lower()}") from None
    limits = np.iinfo(DTYPES[type_]) if type_ <= DataType.UINT64 else None
    if limits is not None and not limits.min <= value <= limits.max:
        raise DataFault(f"{text[:80]!r} is out of the range of {type_.name.lower()}")
    return value
