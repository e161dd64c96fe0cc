"""Strings: joined, split, matched, normalised, counted; and encoded images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from libs.runtime.plan import DataType
from services.engine.domain.builder import Builder
from services.engine.domain.decompose.generation import arange
from services.engine.domain.decompose.operator import Call, Operator
from services.engine.domain.decompose.ordering import chosen
from services.engine.domain.extents import Extent, contiguous_strides
from services.engine.domain.graph import LooseTensor
from services.engine.domain.symbolic import maximum
from services.engine.domain.values import Value

ONE = Extent.of(1)
_MOST_SKIPPED = 255
"""Each number of items that may lie between is written out."""
_ACTIONS = {"LOWER": 0, "UPPER": 1}


def strings(b: Builder, texts: Sequence[str]) -> Value:
    """Return known strings as a vector."""
    array = np.empty(len(texts), np.object_)
    array[:] = list(texts)
    return b.constant(array)


def _texts(call: Call, name: str) -> tuple[str, ...]:
    """Return an attribute that lists texts; () where it is left out."""
    given = call.node.attributes.get(name, ())
    if not isinstance(given, tuple) or not all(isinstance(item, str) for item in given):
        call.fail(f"attribute {name!r} is not a list of texts")
    return tuple(str(item) for item in given)


def _of_text(call: Call, index: int) -> Value:
    x = call.input(index)
    if x.type is not DataType.STRING:
        call.fail(f"input {index} is {x}, not strings")
    return x


def _value(thing: object) -> Value:
    assert isinstance(thing, Value)
    return thing


def _concat(call: Call) -> Value:
    x, y, b = _of_text(call, 0), _of_text(call, 1), call.builder
    shape = b.common_shape(x.shape, y.shape)
    sides = [b.broadcast(side, shape, fold=False) for side in (x, y)]
    (joined,) = b.host("string_concat", sides, [(DataType.STRING, shape)])
    return _value(joined)


def _split(call: Call) -> tuple[Value, ...]:
    x, b = _of_text(call, 0), call.builder
    separator, most = call.text("delimiter", ""), call.integer("maxsplit", -1)
    pieces, counts = b.host(
        "string_split",
        [x],
        [LooseTensor(DataType.STRING, x.rank + 1), (DataType.INT64, x.shape)],
        integers=[most],
        texts=[separator],
    )
    return _value(pieces), _value(counts)


def _match(call: Call) -> Value:
    x, b = _of_text(call, 0), call.builder
    (matched,) = b.host("string_match", [x], [(DataType.BOOL, x.shape)], texts=[call.text("pattern", "")])
    return _value(matched)


def _in_case(b: Builder, x: Value, action: str) -> Value:
    if action == "NONE":
        return x
    (changed,) = b.host("string_case", [x], [(DataType.STRING, x.shape)], integers=[_ACTIONS[action]])
    return _value(changed)


def _normalise(call: Call) -> Value:
    x, b = _of_text(call, 0), call.builder
    action = call.text("case_change_action", "NONE", ("LOWER", "UPPER", "NONE"))
    if x.rank not in (1, 2):
        call.fail(f"its input is {x}, neither a vector nor one row")
    if x.rank == 2:
        b.equal(x.shape[0], ONE)
    words = b.reshape(x, (x.shape[-1],))
    stops = _texts(call, "stopwords")
    if not stops:
        return _in_case(b, x, action)
    if call.flag("is_case_sensitive"):
        compared, against = words, strings(b, stops)
    else:
        compared, against = _in_case(b, words, "LOWER"), strings(b, [stop.lower() for stop in stops])
    places, stopped = b.places(compared, against)
    same = b.binary("eq", b.reshape(places, (words.shape[0], ONE)), stopped)
    found = b.reduce("reduce_max", b.cast(same, DataType.INT64), (1,), keep=False)
    kept, count = chosen(b, b.binary("eq", found, b.integer(0)), rest=1)
    # Where nothing is left there is one empty string.
    number = maximum(count, ONE, b.bounds)
    padded = b.joined([words, strings(b, [""])], 0)
    left = b.gather(padded, b.move(kept, (number,), (ONE,)), 0)
    changed = _in_case(b, left, action)
    return changed if x.rank == 1 else b.reshape(changed, (ONE, number))


def _grams(call: Call) -> list[tuple[int, Value, int]]:
    """Return (length, known n-grams [count, length], number of the first) for each length that is counted."""
    b = call.builder
    texts, numbers = _texts(call, "pool_strings"), call.integers("pool_int64s") or ()
    starts = call.integers("ngram_counts") or ()
    low, high = call.integer("min_gram_length"), call.integer("max_gram_length")
    pool: Value = strings(b, texts) if texts else b.constant(np.array(numbers, np.int64))
    total, first, found = len(texts) or len(numbers), 0, []
    for length, start in enumerate(starts, 1):
        end = starts[length] if length < len(starts) else total
        if not 0 <= start <= end <= total or (end - start) % length:
            call.fail(f"attribute 'ngram_counts' is {list(starts)} for a pool of {total}")
        count = (end - start) // length
        if low <= length <= high and count:
            shape = (Extent.of(count), Extent.of(length))
            found.append((length, b.move(pool, shape, contiguous_strides(shape), start), first))
        first += count
    return found


def _count_grams(call: Call) -> Value:
    x, b = call.input(0), call.builder
    mode = call.text("mode", "TF", ("TF", "IDF", "TFIDF"))
    if x.rank not in (1, 2):
        call.fail(f"its input is {x}, neither a vector nor rows")
    rows = x if x.rank == 2 else b.reshape(x, (ONE, *x.shape))
    indexes, skips = call.integers("ngram_indexes") or (), call.integer("max_skip_count")
    # What lies further apart than a row is long doesn't come in it.
    skips = min(skips, max(b.bounds.range(rows.shape[1])[1], 0))
    if not 0 <= skips <= _MOST_SKIPPED:
        call.fail(f"attribute 'max_skip_count' is {skips}; 0 to {_MOST_SKIPPED} are supported")
    width = max(indexes, default=-1) + 1
    counts = b.broadcast(b.scalar(0, DataType.FLOAT32), (rows.shape[0], Extent.of(width)), fold=False)
    for length, pool, first in _grams(call):
        number = pool.shape[0].constant or 0
        if len(indexes) < first + number:
            call.fail(f"attribute 'ngram_indexes' has {len(indexes)} entries, fewer than there are n-grams")
        total: Value | None = None
        # Single ones aren't affected by skipping: they count once.
        for distance in range(1, skips + 2 if length > 1 else 2):
            part = _occurrences(b, rows, pool, length, distance)
            total = part if total is None else b.binary("add", total, part)
        assert total is not None
        columns = b.constant(np.array(indexes[first : first + number], np.int64))
        turned = b.scatter("scatter_add", b.transpose(counts, (1, 0)), columns, b.transpose(total, (1, 0)))
        counts = b.transpose(turned, (1, 0))
    given = call.node.attributes.get("weights", ())
    weights = np.array(given if isinstance(given, tuple) and given else [1.0] * width, np.float32)
    by_column = np.ones(width, np.float32)
    by_column[: len(weights)] = weights[:width]
    if mode == "IDF":
        counts = b.cast(b.binary("lt", b.scalar(0, counts.type), counts), counts.type)
    if mode != "TF":
        counts = b.binary("mul", counts, b.constant(by_column))
    return counts if x.rank == 2 else b.reshape(counts, (Extent.of(width),))


def _occurrences(b: Builder, rows: Value, pool: Value, length: int, distance: int) -> Value:
    """Return how often each n-gram comes in each row, [rows, n-grams], its items `distance` apart."""
    if rows.type is DataType.STRING:
        rows, pool = b.places(rows, pool)
    rows = b.cast(rows, DataType.INT64)
    size = rows.shape[1]
    starts = maximum(size - (length - 1) * distance, Extent.of(0), b.bounds)
    all_equal: Value | None = None
    for place in range(length):
        items = b.gather(rows, b.binary("add", arange(b, starts), b.integer(place * distance)), 1)
        own = b.gather(pool, b.integer(place), 1)
        same = b.binary("eq", b.reshape(items, (rows.shape[0], starts, ONE)), own)
        all_equal = same if all_equal is None else b.binary("and", all_equal, same)
    assert all_equal is not None
    return b.reduce("reduce_sum", b.cast(all_equal, DataType.FLOAT32), (1,), keep=False)


def _decode_image(call: Call) -> Value:
    order = call.text("pixel_format", "RGB", ("RGB", "BGR", "Grayscale"))
    x = call.input(0)
    if x.rank != 1 or x.type is not DataType.UINT8:
        call.fail(f"its input is {x}, not a vector of bytes (uint8)")
    (pixels,) = call.builder.host("decode_image", [x], [LooseTensor(DataType.UINT8, 3)], texts=[order])
    return _value(pixels)


OPERATORS = (
    Operator("ImageDecoder", "control", _decode_image, 20),
    Operator("RegexFullMatch", "control", _match, 20),
    Operator("StringConcat", "control", _concat, 20),
    Operator("StringNormalizer", "control", _normalise, 10),
    Operator("StringSplit", "control", _split, 20),
    Operator("TfIdfVectorizer", "composite", _count_grams, 9),
)
