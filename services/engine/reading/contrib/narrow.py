"""Weights of few bits in blocks, each with a scale and a zero point of its own."""

from __future__ import annotations

from services.engine.reading.contrib.definition import FLOAT32, INT4, INT32, LARGEST, UINT4, UINT8, Definition
from services.engine.reading.contrib.operator import INT, Contrib

_BYTES = 4
"""The `accuracy_level` that rounds the other factor to bytes, too."""


def _unpacked(d: Definition, packed: str, bits: int, rank: int) -> str:
    """Return numbers of 2, 4 or 8 bits as int32, on a further axis: a byte holds the lowest first."""
    rest = d.cast(packed, INT32)
    if bits == 8:
        return d.unsqueeze(rest, rank)
    parts, base = [], d.constant(1 << bits, INT32)
    for _ in range(8 // bits - 1):
        above = d("Div", rest, base)
        parts.append(d("Sub", rest, d("Mul", above, base)))
        rest = above
    return d("Concat", *(d.unsqueeze(part, rank) for part in (*parts, rest)), axis=rank)


def _blocks(d: Definition, packed: str, bits: int, shape: tuple[int, int, int], what: str) -> str:
    """Return packed weights as int32 [columns, blocks, of each]."""
    columns, blocks, size = shape
    bytes_ = -(-size * bits // 8)
    flat = d.reshape(packed, columns, blocks, bytes_)
    numbers = d.reshape(_unpacked(d, flat, bits, 3), columns, blocks, bytes_ * 8 // bits)
    return numbers if bytes_ * 8 // bits == size else d.part(numbers, 0, size, 2)


def _rounded(d: Definition, x: str, rank: int, blocks: int, block: int, missing: int) -> str:
    """Return rows in which each block has 255 values, filled up with zeros to whole blocks."""
    if missing:
        x = d.fill(x, rank, missing)
    leading = [0] * (rank - 1)
    apart = d.reshape(x, *leading, blocks, block)
    largest = d.largest(d("Abs", apart), rank)
    zero, one = d.constant(0.0, FLOAT32), d.constant(1.0, FLOAT32)
    scale = d("Div", largest, d.constant(127.0, FLOAT32))
    whole = d("Round", d("Div", apart, d("Where", d("Equal", largest, zero), one, scale)))
    return d.reshape(d("Mul", whole, scale), *leading, blocks * block)


def _narrow_matmul(d: Definition) -> tuple[str]:
    x, packed, scales, zeros = d.input(0), d.input(1), d.input(2), d.optional(3)
    bits, block = d.integer("bits"), d.integer("block_size")
    rows, columns = d.integer("K"), d.integer("N")
    if bits not in (2, 4, 8):
        d.fail(f"attribute 'bits' is {bits}; use 2, 4 or 8")
    if block < 16 or block & (block - 1) or not all(1 <= each <= LARGEST for each in (block, rows, columns)):
        d.fail(
            f"attributes 'block_size', 'K' and 'N' are {block}, {rows} and {columns}; use a power of 2 from "
            f"16 on, and sizes of 1 to {LARGEST}"
        )
    if d.integer("weight_prepacked"):
        d.fail("attribute 'weight_prepacked' says that weights are in the order of one kind of processor")
    d.refuse(4)
    type_, blocks = d.type(x), -(-rows // block)
    whole = _blocks(d, packed, bits, (columns, blocks, block), "B")
    if zeros is None:
        away = d("Sub", whole, d.constant(1 << (bits - 1), INT32))
    elif d.type(zeros) == UINT8:
        # A byte may be begun for each column.
        full = -(-blocks * bits // 8) * 8 // bits
        each = d.reshape(d.reshape(zeros, columns, 1, -1), columns, 1, full * bits // 8)
        numbers = d.reshape(_unpacked(d, each, bits, 3), columns, full, 1)
        away = d("Sub", whole, numbers if full == blocks else d.part(numbers, 0, blocks, 1))
    else:
        away = d("Sub", d.cast(whole, FLOAT32), d.reshape(d.cast(zeros, FLOAT32), columns, blocks, 1))
    real = d("Mul", d.cast(away, FLOAT32), d.reshape(d.cast(scales, FLOAT32), columns, blocks, 1))
    weights, wide = d.reshape(real, columns, blocks * block), d.cast(x, FLOAT32)
    # With real zero points, and weights that aren't in the file, its kernels compute in floats all the same.
    bytes_ = d.integer("accuracy_level") == _BYTES and (zeros is None or d.type(zeros) == UINT8)
    if bytes_ and d.is_constant(packed, scales):
        wide = _rounded(d, wide, d.rank(x), blocks, block, blocks * block - rows)
    elif blocks * block != rows:
        weights = d.part(weights, 0, rows, 1)
    result = d("MatMul", wide, d.transpose(weights, 1, 0))
    bias = d.optional(5)
    return (d.cast(d.sum(result, None if bias is None else d.cast(bias, FLOAT32)), type_),)


def _gathered(d: Definition) -> tuple[str]:
    data, places, scales, zeros = d.input(0), d.input(1), d.input(2), d.optional(3)
    bits, block, rank = d.integer("bits"), d.integer("block_size"), d.rank(data)
    for name, axis in (("gather_axis", 0), ("quantize_axis", rank - 1)):
        if rank < 2 or d.integer(name) not in (axis, axis - rank):
            d.fail(f"attribute {name!r} is {d.integer(name)}; rows of blocks on the last axis are supported")
    type_ = d.type(data)
    if type_ not in (UINT4, INT4, UINT8) or bits not in (4, 8):
        d.fail("its data must be of int4, uint4, or uint8 with 4 or 8 bits")
    packed = type_ == UINT8
    blocks = d.size(scales, rank - 1, "the number of blocks")
    held = d.size(data, rank - 1, "the size of a row") * (8 // bits if packed else 1)
    if block < 16 or held != blocks * block:
        d.fail(f"rows of {held} numbers aren't {blocks} blocks of {block}")
    leading = [0] * (d.rank(places) + rank - 2)

    def rows(table: str, *sizes: int) -> str:
        found = d("Gather", table, places, axis=0)
        whole = _unpacked(d, found, bits, len(leading) + 1) if packed else d.cast(found, INT32)
        return d.reshape(whole, *leading, *sizes)

    whole = rows(data, blocks, block)
    if zeros is not None:
        each = rows(zeros, -1, 1)
        if packed and bits == 4 and blocks % 2:
            each = d.part(each, 0, blocks, len(leading))
        whole = d("Sub", whole, each)
    elif packed:
        whole = d("Sub", whole, d.constant(1 << (bits - 1), INT32))
    factor = d.reshape(d.cast(d("Gather", scales, places, axis=0), FLOAT32), *leading, blocks, 1)
    result = d.reshape(d("Mul", d.cast(whole, FLOAT32), factor), *leading, held)
    return (d.cast(result, d.type(scales)),)


OPERATORS = (
    Contrib(
        "GatherBlockQuantized",
        "data indices scales zero_points?",
        "y",
        _gathered,
        10,
        {"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1},
        agreement="exactly",
        limits="floats of few bits, other axes than the first to gather on and the last with blocks",
    ),
    Contrib(
        "MatMulNBits",
        "a b scales zero_points? g_idx? bias?",
        "y",
        _narrow_matmul,
        11,
        attributes={
            "K": INT,
            "N": INT,
            "accuracy_level": 0,
            "bits": 4,
            "block_size": INT,
            "weight_prepacked": 0,
        },
        required=("K", "N", "block_size"),
        agreement="rounding; `accuracy_level` 4 rounds what constants are multiplied with to 8 bits",
        limits="`g_idx`, `weight_prepacked`",
    ),
)
