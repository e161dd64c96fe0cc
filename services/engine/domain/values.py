"""What rules of decomposition are handed and hand back: typed values, and moves between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain.extents import Extent, contiguous_strides, product
from services.engine.domain.graph import LooseTensor, OptionalOf, SequenceOf
from services.engine.domain.reference import Array
from services.engine.domain.symbolic import Elements

Shape = tuple[Extent, ...]

FLOATS = frozenset({DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64})
STORED_FLOATS = frozenset(
    {
        DataType.BFLOAT16,
        DataType.FLOAT8E4M3FN,
        DataType.FLOAT8E4M3FNUZ,
        DataType.FLOAT8E5M2,
        DataType.FLOAT8E5M2FNUZ,
        DataType.FLOAT8E8M0,
        DataType.FLOAT4E2M1,
    }
)
"""Computed with as float32."""
UNSIGNED = frozenset({DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64})
INTEGERS = frozenset(type_ for type_ in DataType if DataType.INT8 <= type_ <= DataType.UINT64)


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of the model; equal only to itself.

    Attributes:
        type: of its elements.
        shape: outermost first.
        known: its elements, where they are the same in every call.
        elements: its elements, where each is an integer that only depends on dimensions: a "shape value".
    """

    type: DataType
    shape: Shape
    known: Array | None = None
    elements: Elements | None = None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.type.name.lower()}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What isn't a tensor of known rank: a sequence, an optional, a tensor of which less is known.

    Attributes:
        type: what it is.
        items: of a sequence or optional whose content is known when the plan is made.
        flat: of a tensor that is a scalar or a vector of one, the vector.
    """

    type: LooseTensor | SequenceOf | OptionalOf
    items: tuple[Value | Held, ...] | None = None
    flat: Value | None = None

    def __str__(self) -> str:
        return str(self.type)


@dataclass(frozen=True, slots=True)
class Move:
    """One region: output[destination + Σ ik·destination_strides[k]] = source[offset + Σ ik·strides[k]]."""

    source: Value
    sizes: Shape
    strides: Shape
    offset: Extent
    destination_strides: Shape
    destination: Extent


MOST_AXES = 8
"""Of a value or a view."""


def compacted(move: Move) -> Move:
    """Return a move of more axes than a view may have with neighbours joined; others as they are.

    Axes of size 1 go; two join where the outer one steps over the whole inner one, on both sides.
    """
    if len(move.sizes) <= MOST_AXES:
        return move
    joined: list[tuple[Extent, Extent, Extent]] = []
    for size, stride, step in zip(move.sizes, move.strides, move.destination_strides, strict=True):
        if size.constant == 1:
            continue
        if joined:
            outer, outer_stride, outer_step = joined[-1]
            if outer_stride == stride * size and outer_step == step * size:
                joined[-1] = (outer * size, stride, step)
                continue
        joined.append((size, stride, step))
    sizes, strides, steps = (tuple(axis[part] for axis in joined) for part in range(3))
    return Move(move.source, sizes, strides, move.offset, steps, move.destination)


def extents(values: Iterable[Extent | int]) -> Shape:
    """Return a shape or strides."""
    return tuple(Extent.of(value) for value in values)


def extreme(type_: DataType, end: int) -> float:
    """Return the largest number of a type, infinity included, or the smallest for `end` = -1.

    Raises Invalid for what isn't computed with: booleans, strings, numbers of 4 or 2 bits.
    """
    if type_ in FLOATS:
        return end * math.inf
    if type_ not in INTEGERS:
        raise Invalid(f"elements of type {type_.name.lower()} are not supported")
    limits = np.iinfo(type_.name.lower())
    return int(limits.max if end > 0 else limits.min)


def static(shape: Shape) -> tuple[int, ...] | None:
    """Return the sizes, if none depends on a dimension."""
    sizes = [size.constant for size in shape]
    return None if None in sizes else tuple(size for size in sizes if size is not None)


def count(shape: Shape) -> Extent:
    """Return the number of elements."""
    return product(shape)


def shape_text(shape: Shape) -> str:
    """Return a shape for people."""
    return f"[{', '.join(map(str, shape))}]"


def where_text(sizes: Mapping[str, int]) -> str:
    """Return at which sizes of dimensions something is wrong, and what to do, for the end of a message."""
    if not sizes:
        return ""
    named = ", ".join(f"{name} = {size}" for name, size in sorted(sizes.items()))
    return f" where {named} (bound the dimension if the model isn't used so)"


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that all broadcast to; raises Invalid when there is none, or it can't be told."""
    rank = max(len(shape) for shape in shapes)
    padded = [(Extent.of(1),) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        others = sorted({size for size in sizes if size.constant != 1}, key=str)
        if len(others) > 1:
            remedy = (
                ""
                if all(size.constant is not None for size in others)
                else ("; if they are always equal, give them one name in the model or fix both by bounds")
            )
            texts = " and ".join(shape_text(shape) for shape in shapes)
            raise Invalid(f"shapes {texts} don't broadcast: {others[0]} is not {others[1]}{remedy}")
        result.append(others[0] if others else Extent.of(1))
    return tuple(result)


def permuted_strides(shape: Shape, order: tuple[int, ...]) -> Shape:
    """Return strides that read an array of `shape` with its axes in another order."""
    strides = contiguous_strides(shape)
    return tuple(strides[axis] for axis in order)
