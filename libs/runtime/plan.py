"""A plan in memory: the field-for-field mirror of `isthmus.engine.v1.Plan`, without protobuf.

Everything refers to everything else by index into the plan's own tuples. Instances hold whatever was built or
read; `libs.runtime.check` says whether a plan is sound, and nothing is run before that.
"""

from dataclasses import dataclass, field
from enum import IntEnum

MAJOR = 2
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
    BFLOAT16 = 13
    FLOAT8E4M3FN = 14
    FLOAT8E4M3FNUZ = 15
    FLOAT8E5M2 = 16
    FLOAT8E5M2FNUZ = 17
    FLOAT8E8M0 = 18
    INT4 = 19
    UINT4 = 20
    FLOAT4E2M1 = 21
    INT2 = 22
    UINT2 = 23
    COMPLEX64 = 24
    COMPLEX128 = 25
    STRING = 26


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
class Equality:
    """Two extents that must be equal in a call."""

    left: int
    right: int
    origin: str = ""


@dataclass(frozen=True, slots=True)
class TensorType:
    """An array of a register; `shape` has numbers, names of dimensions, and None for any size.

    A `shape` of None: the number of axes is not known.
    """

    type: DataType
    shape: tuple[int | str | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list."""

    element: "RegisterType"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """Something or nothing; blocks hold it as a list of at most one."""

    element: "RegisterType"


RegisterType = TensorType | SequenceType | OptionalType


@dataclass(frozen=True, slots=True)
class Register:
    """What a call of a composition holds under a number; elements where they are the same in every call."""

    type: RegisterType
    constant: bytes | None = None
    """Little-endian; empty for strings."""
    strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedRegister:
    """An input or output of a composition."""

    name: str
    register: int


@dataclass(frozen=True, slots=True)
class SizeSource:
    """Where a size comes from: an axis of a register, or an element of an INT64 one."""

    register: int
    axis: int | None = None
    element: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Runs a part, with a source for each of its dimensions."""

    part: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dimensions: tuple[SizeSource, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """Runs one of two blocks."""

    condition: int
    then_block: int
    else_block: int
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """Runs a block repeatedly; see the protocol for what it is given and gives back."""

    trip_count: int | None
    condition: int | None
    body: int
    initial: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """A host operator of `libs.runtime.atomic`."""

    operator: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    integers: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a block does."""

    kind: Run | Branch | Loop | Host
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Actions in order; registers that whoever runs it fills, and gets."""

    parameters: tuple[int, ...]
    actions: tuple[Action, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Composition:
    """Straight parts, and what runs them; block 0 first."""

    parts: "tuple[Plan, ...]"
    registers: tuple[Register, ...]
    inputs: tuple[NamedRegister, ...]
    outputs: tuple[NamedRegister, ...]
    blocks: tuple[Block, ...]


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
    equalities: tuple[Equality, ...] = ()
    composition: Composition | None = None
    """Where it is set, the plan has only dimensions beside it."""
