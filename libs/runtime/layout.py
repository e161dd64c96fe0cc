"""Where everything of a plan lies once the sizes of its dimensions are known, and that it is in bounds.

This is the whole of memory safety: every view, region and placement is checked here (who may lie over whom:
`overlaps`), in integers that can't overflow, before the first step runs. Needs neither numpy nor protobuf.
The plan must have passed `libs.runtime.check`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from libs.common.errors import Exhausted, Invalid
from libs.common.sizes import size_text
from libs.runtime.atomic import ATOMICS, Atomic
from libs.runtime.elements import ITEM_BYTES
from libs.runtime.extents import LIMIT, evaluate, formulas
from libs.runtime.faults import BAD_INPUT, TOO_MUCH_MEMORY, bad_input, bad_plan
from libs.runtime.overlaps import check_overlaps
from libs.runtime.plan import Compute, Plan, Raster, View

ALIGNMENT = 64
MAX_BUFFER_BYTES = 1024**3
"""Default bound on the memory of a call, constants apart."""
_MAX_VIEW_BYTES = 2**40
"""Of a view written out, which needs no memory as long as it isn't."""


@dataclass(frozen=True, slots=True)
class Strided:
    """Elements of a tensor as an array; offset and strides in elements. All lie in the tensor."""

    tensor: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many."""
        return math.prod(self.shape)

    @property
    def whole(self) -> bool:
        """Whether it begins at the first element and goes on one by one."""
        step = 1
        for stride, size in zip(reversed(self.strides), reversed(self.shape), strict=True):
            if size > 1 and stride != step:
                return False
            step *= size
        return self.offset == 0

    @property
    def nested(self) -> bool:
        """Whether each axis steps over all that the smaller ones reach, so that no element is hit twice."""
        reach = 0
        for stride, size in sorted((abs(s), n) for s, n in zip(self.strides, self.shape, strict=True)):
            if size > 1:
                if stride <= reach:
                    return False
                reach += (size - 1) * stride
        return True


@dataclass(frozen=True, slots=True)
class Move:
    """A region: two arrays of one shape."""

    source: Strided
    destination: Strided


@dataclass(frozen=True, slots=True)
class ComputeLayout:
    """An atomic operator on resolved views; the output is a whole tensor."""

    atomic: Atomic
    inputs: tuple[Strided, ...]
    output: int
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RasterLayout:
    """A raster on resolved regions."""

    output: int
    moves: tuple[Move, ...]
    fill: bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """A plan at given sizes."""

    sizes: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    """Of each tensor."""
    offsets: tuple[int | None, ...]
    """Of each tensor, in bytes, within the arena that holds all buffers; None for constants."""
    arena_bytes: int
    steps: tuple[ComputeLayout | RasterLayout, ...]
    calculations: int
    """Elementary calculations of a call."""
    moved_bytes: int


def lay_out(plan: Plan, sizes: Sequence[int], *, max_buffer_bytes: int = MAX_BUFFER_BYTES) -> Layout:
    """Return where everything lies for the sizes of the dimensions, in their order.

    Raises Invalid: BAD_INPUT for a size that the plan wasn't made for, BAD_PLAN for anything out of bounds,
    two living tensors in one place, or shapes that don't fit an operator. Raises Exhausted
    (TOO_MUCH_MEMORY) where buffers, or what an operator copies, take more than `max_buffer_bytes`.
    """
    for dimension, size in zip(plan.dimensions, sizes, strict=True):
        if not dimension.minimum <= size <= dimension.maximum:
            allowed = f"{dimension.minimum} to {dimension.maximum}"
            if dimension.minimum == dimension.maximum:
                allowed = f"{dimension.minimum} only"
            raise bad_input(f"dimension {dimension.name!r} is {size}; the plan was made for sizes {allowed}")
    return _Resolver(plan, tuple(sizes), max_buffer_bytes).layout()


def check_layouts(plan: Plan) -> None:
    """Raise Invalid (BAD_PLAN) where a straight plan isn't sound at the smallest or at the largest sizes.

    Parts of a composition are checked at each size that comes: theirs hang together in ways that only data
    tell.

    Only numbers are checked: no memory is used, so that the largest sizes may be beyond this machine, but not
    beyond 2^62 bytes.
    """
    if plan.composition is not None:
        return
    for sizes in ([d.minimum for d in plan.dimensions], [d.maximum for d in plan.dimensions]):
        try:
            lay_out(plan, sizes, max_buffer_bytes=LIMIT)
        except Invalid as error:
            # Sizes that must be equal in a call needn't be so at the ends.
            if error.reason != BAD_INPUT:
                raise
        except Exhausted as error:
            raise bad_plan("it", f"is too large for any machine: {error.message}") from None


class _Resolver:
    def __init__(self, plan: Plan, sizes: tuple[int, ...], max_bytes: int) -> None:
        self._plan = plan
        self._sizes = sizes
        self._max_bytes = max_bytes
        self._most_view_bytes = max(max_bytes, _MAX_VIEW_BYTES)
        self._values = evaluate(plan.extents, sizes)
        self._shapes = tuple(self._shape(index) for index in range(len(plan.tensors)))
        self._elements = [math.prod(shape) for shape in self._shapes]
        self._steps: list[ComputeLayout | RasterLayout] = []

    def layout(self) -> Layout:
        plan, values = self._plan, self._values
        self._check_equalities()
        offsets, arena_bytes = self._places()
        for index, step in enumerate(plan.steps):
            where = f"steps[{index}]" + (f" ({step.origin[:200]})" if step.origin else "")
            kind = step.kind
            self._steps.append(
                self._compute(kind, where) if isinstance(kind, Compute) else self._raster(kind, where)
            )
        sizes_bytes = [self._bytes(tensor) for tensor in range(len(plan.tensors))]
        check_overlaps(plan, offsets, sizes_bytes, self._reads_whole)
        return Layout(
            sizes=self._sizes,
            shapes=self._shapes,
            offsets=offsets,
            arena_bytes=arena_bytes,
            steps=tuple(self._steps),
            calculations=sum(values[step.calculations] for step in plan.steps),
            moved_bytes=sum(values[step.moved_bytes] for step in plan.steps),
        )

    def _check_equalities(self) -> None:
        values = self._values
        for equality in self._plan.equalities:
            left, right = values[equality.left], values[equality.right]
            if left != right:
                texts = formulas(self._plan.extents, self._plan.dimensions)
                where = f"{equality.origin[:200]}: " if equality.origin else ""
                told = " and ".join(
                    f"{texts[extent]} = {values[extent]}"
                    if isinstance(texts[extent], str)
                    else str(values[extent])
                    for extent in (equality.left, equality.right)
                )
                raise bad_input(f"{where}sizes {told} must be equal")

    def _shape(self, index: int) -> tuple[int, ...]:
        shape = tuple(self._values[extent] for extent in self._plan.tensors[index].shape)
        if any(size < 0 for size in shape):
            raise bad_plan(f"tensors[{index}]", f"has the shape {list(shape)} for sizes {list(self._sizes)}")
        if 0 in shape:  # the others lie in a buffer or are there
            self._check_bytes(index, shape, self._most_view_bytes, f"tensors[{index}]")
        return shape

    def _bytes(self, tensor: int) -> int:
        return self._elements[tensor] * ITEM_BYTES[self._plan.tensors[tensor].type]

    def _places(self) -> tuple[tuple[int | None, ...], int]:
        starts: list[int] = []
        end = 0
        for index, buffer in enumerate(self._plan.buffers):
            size = self._values[buffer.size_bytes]
            if size < 0:
                raise bad_plan(f"buffers[{index}]", f"has the size {size}")
            starts.append(end)
            end += -(-size // ALIGNMENT) * ALIGNMENT
        if end > self._max_bytes:
            raise self._too_much(
                f"the buffers for {self._named_sizes()} take {size_text(end)}", self._max_bytes
            )
        offsets: list[int | None] = []
        for index, tensor in enumerate(self._plan.tensors):
            if tensor.placement is None:
                offsets.append(None)
                continue
            buffer_index = tensor.placement.buffer
            offset = self._values[tensor.placement.offset_bytes]
            size = self._values[self._plan.buffers[buffer_index].size_bytes]
            if offset < 0 or offset % ALIGNMENT:
                text = f"is at byte {offset}, which must be a multiple of {ALIGNMENT} and not negative"
                raise bad_plan(f"tensors[{index}].placement", text)
            if offset + self._bytes(index) > size:
                text = f"ends at byte {offset + self._bytes(index)} of a buffer of {size}"
                raise bad_plan(f"tensors[{index}].placement", text)
            offsets.append(starts[buffer_index] + offset)
        return tuple(offsets), end

    def _view(self, view: View, where: str) -> Strided:
        values = self._values
        shape = tuple(values[axis.size] for axis in view.axes)
        strides = tuple(values[axis.stride] for axis in view.axes)
        return self._strided(view.tensor, values[view.offset], shape, strides, where)

    def _strided(
        self, tensor: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], where: str
    ) -> Strided:
        """Check that every element lies in the tensor; normalise what no element depends on."""
        if any(size < 0 for size in shape):
            raise bad_plan(where, f"has the shape {list(shape)}")
        if 0 in shape:
            self._check_bytes(tensor, shape, self._most_view_bytes, where)
            return Strided(tensor, 0, shape, (0,) * len(shape))
        strides = tuple(0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))
        spans = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
        low = offset + sum(span for span in spans if span < 0)
        high = offset + sum(span for span in spans if span > 0)
        if low < 0 or high >= self._elements[tensor]:
            text = f"reaches elements {low} to {high} of tensor {tensor}, which has {self._elements[tensor]}"
            raise bad_plan(where, text)
        # However little memory is behind it, somebody would have to walk over all of it.
        self._check_bytes(tensor, shape, self._most_view_bytes, where)
        return Strided(tensor, offset, shape, strides)

    def _check_copies(self, atomic: Atomic, inputs: Sequence[Strided], where: str) -> None:
        """Bound what numpy may copy on its way.

        That is the matrices of a product, what is gathered from and by, what is written by, and what is put
        in order or a position is looked for in.
        """
        indices = inputs[1] if atomic.kind == "scatter" else None
        for index, view in enumerate(inputs):
            if atomic.kind == "matmul":
                copied = view.shape[-2:]
            elif atomic.kind == "gather" or atomic.result == "index" or view is indices:
                copied = view.shape
            else:
                continue
            self._check_bytes(view.tensor, copied, self._max_bytes, f"{where}.inputs[{index}]")

    def _check_bytes(self, tensor: int, shape: tuple[int, ...], most: int, where: str) -> None:
        """Check what an array takes when it is written out; numpy wants that of empty ones too."""
        sizes = math.prod(max(size, 1) for size in shape)
        written_out = sizes * ITEM_BYTES[self._plan.tensors[tensor].type]
        if written_out > most:
            raise self._too_much(f"{where} takes {size_text(written_out)} for {self._named_sizes()}", most)

    def _compute(self, step: Compute, where: str) -> ComputeLayout:
        atomic = ATOMICS[step.operator]
        inputs = tuple(self._view(view, f"{where}.inputs[{i}]") for i, view in enumerate(step.inputs))
        output = step.outputs[0]
        shapes = [view.shape for view in inputs]
        if not _fits(atomic, shapes, self._shapes[output], step.axes):
            given = ", ".join(str(list(shape)) for shape in shapes)
            text = f"{atomic.name} of {given} doesn't give {list(self._shapes[output])}"
            raise bad_plan(where, text)
        self._check_copies(atomic, inputs, where)
        return ComputeLayout(atomic, inputs, output, step.axes)

    def _raster(self, step: Raster, where: str) -> RasterLayout:
        values = self._values
        moves: list[Move] = []
        for index, region in enumerate(step.regions):
            source = self._view(region.source, f"{where}.regions[{index}].source")
            destination = self._strided(
                step.output,
                values[region.destination_offset],
                source.shape,
                tuple(values[stride] for stride in region.destination_strides),
                f"{where}.regions[{index}].destination",
            )
            moves.append(Move(source, destination))
        written = sum(move.destination.elements for move in moves)
        if not step.fill and written < self._elements[step.output]:
            text = f"writes {written} of {self._elements[step.output]} elements and fills none"
            raise bad_plan(where, text)
        return RasterLayout(step.output, tuple(moves), step.fill)

    def _reads_whole(self, step: int, place: int) -> bool:
        layout = self._steps[step]
        return isinstance(layout, ComputeLayout) and layout.inputs[place].whole

    def _named_sizes(self) -> str:
        pairs = zip(self._plan.dimensions, self._sizes, strict=True)
        return ", ".join(f"{dimension.name}={size}" for dimension, size in pairs) or "a call"

    def _too_much(self, text: str, most: int) -> Exhausted:
        return Exhausted(f"{text}, more than {size_text(most)}", reason=TOO_MUCH_MEMORY)


def _fits(
    atomic: Atomic, shapes: list[tuple[int, ...]], output: tuple[int, ...], axes: tuple[int, ...]
) -> bool:
    first = shapes[0]
    match atomic.kind:
        case "elementwise":
            return all(shape == output for shape in shapes)
        case "scan" | "sort":
            return first == output
        case "scatter":
            return first == output and shapes[2] == shapes[1] + first[1:]
        case "reduce":
            if atomic.result == "index" and first[axes[0]] == 0 and 0 not in output:
                return False
            return tuple(size for axis, size in enumerate(first) if axis not in axes) == output
        case "gather":
            return first[: axes[0]] + shapes[1] + first[axes[0] + 1 :] == output
        case "matmul":
            a, b = shapes
            return a[:-2] == b[:-2] and a[-1] == b[-2] and (*a[:-1], b[-1]) == output
