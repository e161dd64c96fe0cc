"""A program of atomic operators and rasters over symbolic shapes.

Decomposition makes it, merging improves it. Values are numbered; each is written once, by an input, a
constant or one instruction, before it is read. A decomposed program reads whole values only, and each
movement of data is a raster of its own. Merging turns chains of rasters into one, and rasters into views of
what reads them. `libs.runtime.plan` is the same with places in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from libs.runtime.plan import DataType
from services.engine.domain.bounds import Bounds
from services.engine.domain.extents import Extent, contiguous_strides


@dataclass(frozen=True, slots=True)
class ValueType:
    """Type of the elements, and the shape, outermost first; () is a scalar."""

    type: DataType
    shape: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class ViewAxis:
    """One axis of a view; the stride in elements."""

    size: Extent
    stride: Extent


@dataclass(frozen=True, slots=True)
class ValueView:
    """Elements of a value as another array: element (i0, i1, …) is number offset + Σ ik·stride_k of it."""

    value: int
    offset: Extent
    axes: tuple[ViewAxis, ...]

    @property
    def shape(self) -> tuple[Extent, ...]:
        """The sizes of its axes."""
        return tuple(axis.size for axis in self.axes)


def whole(value: int, shape: tuple[Extent, ...]) -> ValueView:
    """Return the view of a whole value as it is."""
    pairs = zip(shape, contiguous_strides(shape), strict=True)
    return ValueView(value, Extent.of(0), tuple(ViewAxis(size, stride) for size, stride in pairs))


@dataclass(frozen=True, slots=True)
class MoveRegion:
    """Moves elements: destination[destination_offset + Σ ik·stride_k] = source[i0, i1, …]."""

    source: ValueView
    destination_offset: Extent
    destination_strides: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class ComputeInstruction:
    """An atomic operator of `libs.runtime.atomic.ATOMICS`; it writes its outputs whole."""

    operator: str
    inputs: tuple[ValueView, ...]
    outputs: tuple[int, ...]
    axes: tuple[int, ...] = ()
    origin: str = ""
    """ONNX nodes it came from: "name (Operator)", joined by " + "."""


@dataclass(frozen=True, slots=True)
class RasterInstruction:
    """Writes a value from regions of others, later ones over earlier; `fill` first where it is given."""

    output: int
    regions: tuple[MoveRegion, ...]
    fill: npt.NDArray[np.generic] | None = None
    """A scalar of the output's type; None where the regions cover the output."""
    origin: str = ""


Instruction = ComputeInstruction | RasterInstruction


@dataclass(frozen=True, slots=True)
class NamedValue:
    """An input or output of the program."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions in an order in which they can run."""

    values: tuple[ValueType, ...]
    inputs: tuple[NamedValue, ...]
    outputs: tuple[NamedValue, ...]
    constants: dict[int, npt.NDArray[np.generic]]
    """Dense arrays by value."""
    instructions: tuple[Instruction, ...]
    bounds: Bounds = field(default_factory=lambda: Bounds({}))
    """The range of each dimension."""
    equalities: tuple[tuple[Extent, Extent, str], ...] = ()
    """Sizes that must be equal in a call, each with the node that demands it."""
