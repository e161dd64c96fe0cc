"""Attention, and what stands before it: embeddings, and positions by rotation."""

from __future__ import annotations

from math import sqrt

from services.engine.reading.contrib.definition import FLOAT32, INT32, Definition
from services.engine.reading.contrib.normalisation import layer
from services.engine.reading.contrib.operator import FLOAT, INT, INTS, Contrib

_MASKED = -10000.0
"""What is added for places that a mask takes out, unless an attribute says otherwise."""
_LOWEST = -3.4028234663852886e38


# ---- attention ----
def _heads(d: Definition, x: str, count: int) -> str:
    """Return (batch, heads, length, size) from (batch, length, heads · size)."""
    return d.transpose(d.reshape(x, 0, 0, count, -1), 0, 2, 1, 3)


def _shared(d: Definition, whole: int, count: int, what: str) -> int:
    """Return the size of a head."""
    if count < 1 or whole % count:
        d.fail(f"{what} of {whole} can't be divided into {count} heads")
    return whole // count


def _attend(d: Definition, q: str, k: str, v: str, size: int, mask: str | None, bias: str | None) -> str:
    """Return (batch, length, heads · size) of queries, keys and values with heads on the second axis."""
    # 0 is the same as none.
    scale = d.number("scale") or 1 / sqrt(size)
    scores = d("Mul", d("MatMul", q, d.transpose(k, 0, 1, 3, 2)), d.scalar(scale, q))
    scores = d.sum(scores, None if bias is None else d.wide(bias), mask)
    if d.integer("unidirectional"):
        count = d.length(q, 2)
        rows, columns = d.unsqueeze(d.range(count), 1), d.range(d.length(k, 2))
        # The last query sees all: with more keys than queries this is how ONNX Runtime's kernel has it.
        last = d("Sub", count, d.constant(1))
        later = d("And", d("Greater", columns, rows), d("Less", rows, last))
        scores = d("Where", later, d.scalar(_LOWEST, q), scores)
    found = d("MatMul", d.softmax(scores, 4), v)
    return d.reshape(d.transpose(found, 0, 2, 1, 3), 0, 0, -1)


def _mask(d: Definition, index: int, batch: str, keys: str) -> str | None:
    """Return what a mask adds to scores; `batch` is a value whose first axis is the batch."""
    mask = d.optional(index)
    if mask is None:
        return None
    rank = d.rank(mask, 1, 2, 3)
    if rank == 1:
        kept = _by_lengths(d, mask, batch, keys)
    else:
        kept = d("Greater", d.unsqueeze(mask, *([1] if rank == 3 else [1, 2])), d.constant(0, INT32))
    filling = d.constant(d.number("mask_filter_value", _MASKED), FLOAT32)
    return d("Where", kept, d.constant(0.0, FLOAT32), filling)


def _by_lengths(d: Definition, mask: str, batch: str, keys: str) -> str:
    """Return which places are before the ends, and not before the starts, that a vector has."""
    count, members = d.sizes(mask)[0], d.sizes(batch)[0]
    places = d.cast(d.range(d.length(keys, 2)), INT32)
    if count == members or not isinstance(count, int) or not isinstance(members, int):
        # Where they aren't one to one, the plan or a call is refused.
        return d("Less", places, d.reshape(mask, members if isinstance(members, int) else -1, 1, 1, 1))
    if count != 2 * members:
        d.fail(
            f"its mask has {count} numbers for {members} members of the batch; one end for each, or these "
            "and one start for each, are supported"
        )
    ends, starts = (d.reshape(each, -1, 1, 1, 1) for each in d.split(mask, 0, [members, members]))
    return d("And", d("Less", places, ends), d("Not", d("Less", places, starts)))


def _attention(d: Definition) -> tuple[str | None, ...]:
    x, bias = d.input(0), d.optional(2)
    d.refuse(4, 6)
    product = d.sum(d("MatMul", d.wide(x), d.wide(d.input(1))), None if bias is None else d.wide(bias))
    return _projected(d, product, 3, d.optional(5), d.type(x))


def _quantised(d: Definition) -> tuple[str | None, ...]:
    zeros, bias = (d.optional(6), d.optional(7)), d.input(2)
    d.refuse(8)
    if zeros[0] is None and zeros[1] is not None:
        zeros = d.constant(0, d.type(d.input(0))), zeros[1]
    whole = d.cast(d("MatMulInteger", d.input(0), d.input(1), *zeros), FLOAT32)
    factor = d("Mul", d.wide(d.input(3)), d.wide(d.input(4)))
    return _projected(d, d("Add", d("Mul", whole, factor), d.wide(bias)), 5, None, d.type(bias))


def _projected(
    d: Definition, product: str, mask: int, bias: str | None, type_: int
) -> tuple[str | None, ...]:
    """Return results of queries, keys and values that stand beside each other; `mask` is an input."""
    x, weights = d.input(0), d.input(1)
    d.rank(x, 3)
    for name in ("do_rotary", "past_present_share_buffer"):
        if d.integer(name):
            d.fail(f"attribute {name!r} is not supported")
    count, sizes = d.integer("num_heads"), d.integers("qkv_hidden_sizes")
    whole = d.size(weights, 1, "the columns of weights")
    sizes = sizes or (whole // 3,) * 3
    if len(sizes) != 3 or min(sizes) < 1 or sum(sizes) != whole or sizes[0] != sizes[1]:
        d.fail(f"weights of {whole} columns don't hold queries, keys and values of {list(sizes)}")
    size = _shared(d, sizes[0], count, "a size")
    _shared(d, sizes[2], count, "a size")
    q, k, v = (_heads(d, part, count) for part in d.split(product, 2, sizes))
    result = _attend(d, q, k, v, size, _mask(d, mask, x, k), bias)
    if not d.wants(1):
        return (d.cast(result, type_),)
    if sizes[0] != sizes[2]:
        d.fail("output 1 holds keys and values, which must be of one size then")
    state = d("Concat", d.unsqueeze(k, 0), d.unsqueeze(v, 0), axis=0)
    return d.cast(result, type_), d.cast(state, type_)


def _multi_head(d: Definition) -> tuple[str, ...]:
    q, count = d.input(0), d.integer("num_heads")
    k, v, bias = d.optional(1), d.optional(2), d.optional(3)
    if k is None or v is None or d.rank(q) != 3:
        d.fail("queries, keys and values in one input are not supported: give three")
    d.refuse(6, 7, 8, 9)
    size = _shared(d, d.size(q, 2, "the size of queries"), count, "a size")
    rank = d.rank(k, 3, 4)
    d.rank(v, rank)
    values = [d.wide(each) for each in (q, k, v)]
    if bias is not None:
        if rank == 4:
            d.fail("a bias beside keys and values of 4 axes is not supported")
        sizes = size * count, size * count, d.size(v, 2, "the size of values")
        parts = d.split(d.wide(bias), 0, sizes)
        values = [d("Add", each, part) for each, part in zip(values, parts, strict=True)]
    heads = [_heads(d, each, count) if index == 0 or rank == 3 else each for index, each in enumerate(values)]
    mask = _mask(d, 4, q, heads[1])
    result = _attend(d, heads[0], heads[1], heads[2], size, mask, d.optional(5))
    type_ = d.type(q)
    return tuple(d.cast(each, type_) for each in (result, *heads[1:]))


# ---- before it ----
def _rotary(d: Definition) -> tuple[str]:
    x, places = d.input(0), d.input(1)
    if d.integer("is_packed_batching"):
        d.fail("attribute 'is_packed_batching' is not supported")
    rank, half = d.rank(x, 3, 4), d.size(d.input(2), 1, "the size of the cache")
    count, turned = d.integer("num_heads"), d.integer("rotary_embedding_dim")
    if turned and turned != 2 * half:
        d.fail(f"attribute 'rotary_embedding_dim' is {turned}, but the cache has {half} angles")
    if rank == 4:
        size = d.size(x, 3, "the size of a head")
    else:
        size = _shared(d, d.size(x, 2, "the size"), count, "a size") if turned else 2 * half
    if size < 2 * half:
        d.fail(f"a head of {size} has no {half} pairs to turn")
    # Positions are on the third axis of four, or the second of three.
    if d.rank(places, 1, 2) == 1:
        places = d("Add", d.range(d.length(x, rank - 2)), places)
    # They may have a batch, and have no heads.
    heads = d.rank(d.input(1)) - (1 if rank == 4 else 0)
    cosines, sines = (d("Gather", d.wide(d.input(index)), places) for index in (2, 3))
    if heads:
        cosines, sines = d.unsqueeze(cosines, heads), d.unsqueeze(sines, heads)
    wide = d.wide(x) if rank == 4 else d.reshape(d.wide(x), 0, 0, -1, size)
    parts = [wide] if size == 2 * half else d.split(wide, 3, [2 * half, size - 2 * half])
    parts[0] = _turned(d, parts[0], cosines, sines, half)
    result = parts[0] if len(parts) == 1 else d("Concat", *parts, axis=3)
    return (d.cast(result if rank == 4 else d.reshape(result, 0, 0, -1), d.type(x)),)


def _turned(d: Definition, x: str, cosines: str, sines: str, half: int) -> str:
    """Return pairs on the last axis of four, halves of it or neighbours, turned by angles."""
    if d.integer("interleaved"):
        split = d.reshape(x, 0, 0, 0, half, 2)
        left, right = (d.squeeze(part, 4) for part in d.split(split, 4, [1, 1]))
    else:
        left, right = d.split(x, 3, [half, half])
    one = d("Sub", d("Mul", left, cosines), d("Mul", right, sines))
    other = d("Add", d("Mul", right, cosines), d("Mul", left, sines))
    if not d.integer("interleaved"):
        return d("Concat", one, other, axis=3)
    return d.reshape(d("Concat", d.unsqueeze(one, 4), d.unsqueeze(other, 4), axis=4), 0, 0, 0, 2 * half)


def _embedded(d: Definition) -> tuple[str | None, ...]:
    ids, segments, mask, places = d.input(0), d.optional(1), d.optional(7), d.optional(8)
    if (segments is None) != (d.optional(4) is None):
        d.fail("segments and their embedding go together: one of them is left out")
    word, type_ = d.input(2), d.type(d.input(2))
    parts = [d("Gather", d.wide(word), ids)]
    parts.append(d("Gather", d.wide(d.input(3)), d.range(d.length(ids, 1)) if places is None else places))
    if segments is not None:
        parts.append(d("Gather", d.wide(d.input(4)), segments))
    whole = d.sum(*parts)
    scale, bias = d.wide(d.input(5)), d.wide(d.input(6))
    result, _, _ = layer(d, whole, scale, bias, [2], d.number("epsilon"))
    lengths = None
    if d.wants(1):
        kept = ids if mask is None else mask
        found = d("Equal", kept, d.constant(1, INT32)) if mask else d("Less", kept, kept)
        lengths = d.total(d.cast(found, INT32), 1)
    return d.cast(result, type_), lengths, d.cast(whole, type_)


OPERATORS = (
    Contrib(
        "Attention",
        "x weights bias? mask? past? attention_bias? past_length?",
        "y present?",
        _attention,
        11,
        {
            "do_rotary": INT,
            "mask_filter_value": FLOAT,
            "num_heads": INT,
            "past_present_share_buffer": INT,
            "qkv_hidden_sizes": INTS,
            "rotary_embedding_dim": INT,
            "scale": FLOAT,
            "unidirectional": 0,
        },
        ("num_heads",),
        limits="past state, rotation, masks of 4 axes, offsets of packed batches",
    ),
    Contrib(
        "EmbedLayerNormalization",
        "ids segments? words positions segment_embedding? gamma beta mask? position_ids?",
        "y lengths? sum?",
        _embedded,
        11,
        {"epsilon": 1e-12, "mask_index_type": INT},
    ),
    Contrib(
        "MultiHeadAttention",
        "query key? value? bias? mask? attention_bias? past_key? past_value? past_length? indirection?",
        "y present_key? present_value? scores?",
        _multi_head,
        11,
        {"mask_filter_value": FLOAT, "num_heads": INT, "scale": FLOAT, "unidirectional": 0},
        ("num_heads",),
        agreement="rounding; `unidirectional` with more keys than queries lets the last query see all",
        limits="past state, packed inputs, `qk`, offsets of packed batches",
    ),
    Contrib(
        "QAttention",
        "x weights bias x_scale weight_scale mask? x_zero? weight_zero? past?",
        "y present?",
        _quantised,
        11,
        {
            "do_rotary": INT,
            "mask_filter_value": FLOAT,
            "num_heads": INT,
            "past_present_share_buffer": INT,
            "scale": FLOAT,
            "unidirectional": 0,
        },
        ("num_heads",),
        limits="past state, rotation, masks of 4 axes, offsets of packed batches",
    ),
    Contrib(
        "RotaryEmbedding",
        "x position_ids cosines sines",
        "y",
        _rotary,
        11,
        {
            "interleaved": INT,
            "is_packed_batching": INT,
            "num_heads": INT,
            "rotary_embedding_dim": INT,
            "scale": FLOAT,
        },
        limits="packed batches",
    ),
)
