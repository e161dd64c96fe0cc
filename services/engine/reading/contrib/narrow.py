"""Weights of few bits in blocks, each with a scale and a zero point of its own."""

from __future__ import annotations

from services.engine.reading.contrib.definition import FLOAT32, INT32, UINT8, Definition
from services.engine.reading.contrib.operator import INT, Contrib


def _unpacked(d: Definition, packed: str, bits: int) -> str:
    """Return numbers of 2, 4 or 8 bits as int32, on an axis of their own: a byte holds the lowest first."""
    wide = d.cast(packed, INT32)
    if bits == 8:
        return wide
    parts, base, rest = [], d.constant(1 << bits, INT32), wide
    for _ in range(8 // bits - 1):
        above = d("Div", rest, base)
        parts.append(d("Sub", rest, d("Mul", above, base)))
        rest = above
    rank = 3
    return d("Concat", *(d.unsqueeze(part, rank) for part in (*parts, rest)), axis=rank)


def _blocks(d: Definition, packed: str, bits: int, shape: tuple[int, int, int], what: str) -> str:
    """Return packed weights as int32 [columns, blocks, of each]."""
    columns, blocks, size = shape
    bytes_ = -(-size * bits // 8)
    flat = d.reshape(packed, columns, blocks, bytes_)
    numbers = d.reshape(_unpacked(d, flat, bits), columns, blocks, bytes_ * 8 // bits)
    return numbers if bytes_ * 8 // bits == size else d.part(numbers, 0, size, 2)


def _narrow_matmul(d: Definition) -> tuple[str]:
    x, packed, scales, zeros = d.input(0), d.input(1), d.input(2), d.optional(3)
    bits, block = d.integer("bits"), d.integer("block_size")
    rows, columns = d.integer("K"), d.integer("N")
    if bits not in (2, 4, 8):
        d.fail(f"attribute 'bits' is {bits}; use 2, 4 or 8")
    if block < 16 or block & (block - 1) or rows < 1 or columns < 1:
        d.fail(
            f"attributes 'block_size', 'K' and 'N' are {block}, {rows} and {columns}; use a power of 2 from "
            "16 on, and sizes from 1 on"
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
        numbers = d.reshape(_unpacked(d, each, bits), columns, full, 1)
        away = d("Sub", whole, numbers if full == blocks else d.part(numbers, 0, blocks, 1))
    else:
        away = d("Sub", d.cast(whole, FLOAT32), d.reshape(d.cast(zeros, FLOAT32), columns, blocks, 1))
    real = d("Mul", d.cast(away, FLOAT32), d.reshape(d.cast(scales, FLOAT32), columns, blocks, 1))
    weights = d.reshape(real, columns, blocks * block)
    if blocks * block != rows:
        weights = d.part(weights, 0, rows, 1)
    result = d("MatMul", d.cast(x, FLOAT32), d.transpose(weights, 1, 0))
    bias = d.optional(5)
    return (d.cast(d.sum(result, None if bias is None else d.cast(bias, FLOAT32)), type_),)


OPERATORS = (
    Contrib(
        "MatMulNBits",
        "a b scales zero_points? g_idx? bias?",
        "y",
        _narrow_matmul,
        10,
        attributes={
            "K": INT,
            "N": INT,
            "accuracy_level": 0,
            "bits": 4,
            "block_size": INT,
            "weight_prepacked": 0,
        },
        required=("K", "N", "block_size"),
        agreement="rounding; `accuracy_level` is not followed: products are of 32-bit floats",
        limits="`g_idx`, `weight_prepacked`",
    ),
)
