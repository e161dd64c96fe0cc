"""A plan in memory: the field-for-field mirror of `isthmus.engine.v1.Plan`, without protobuf.

Everything refers to everything else by index into the plan's own tuples. Instances hold whatever was built or
read; `libs.runtime.check` says whether a plan is sound, and nothing is run before that.
"""

from dataclasses import dataclass, field
from enum import IntEnum

MAJOR = 1
"""The format that this code reads and writes."""
MINOR = 0


class DataType(IntEnum):
    """Type of an element; numbered as in the protocol."""

    BOOL = 1
    INT8 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    UINT8 = 6
    UINT16 = 7
    UINT32 = 8
    UINT64 = 9
    FLOAT16 = 10
    FLOAT32 = 11
    FLOAT64 = 12


class Operation(IntEnum):
    """How an extent is computed; numbered as in the protocol."""

    CONSTANT = 1
    DIMENSION = 2
    ADD = 3
    SUBTRACT = 4
    MULTIPLY = 5
    FLOOR_DIVIDE = 6
    MODULO = 7
    MINIMUM = 8
    MAXIMUM = 9


@dataclass(frozen=True, slots=True)
class Dimension:
    """A size that the inputs decide, and the sizes that the plan was made for."""

    name: str
    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Extent:
    """An integer that is known once the dimensions are; `left` and `right` are earlier extents."""

    operation: Operation
    value: int = 0
    left: int = 0
    right: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """A place in a buffer; `offset_bytes` is an extent."""

    buffer: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense row-major array; `shape` holds extents. Either `constant` or `placement` is set."""

    type: DataType
    shape: tuple[int, ...]
    constant: bytes | None = None
    """Its elements, little-endian."""
    placement: Placement | None = None


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a call; `size_bytes` is an extent."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output."""

    name: str
    tensor: int


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a view; both are extents, the stride in elements."""

    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class View:
    """Elements of a tensor as another array: element (i0, i1, …) is number offset + Σ ik·stride_k of it."""

    tensor: int
    offset: int
    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """Moves elements: destination[destination_offset + Σ ik·stride_k] = source[i0, i1, …]."""

    source: View
    destination_offset: int
    destination_strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """An atomic operator of `libs.runtime.atomic`."""

    operator: str
    inputs: tuple[View, ...]
    outputs: tuple[int, ...]
    axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Raster:
    """Writes a tensor from regions of others; `fill` is one element, or empty."""

    output: int
    regions: tuple[Region, ...]
    fill: bytes = b""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do; `calculations` and `moved_bytes` are extents."""

    kind: Compute | Raster
    calculations: int
    moved_bytes: int
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A model, ready to run."""

    model_digest: str
    producer: str
    dimensions: tuple[Dimension, ...] = ()
    extents: tuple[Extent, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    steps: tuple[Step, ...] = field(default=())
