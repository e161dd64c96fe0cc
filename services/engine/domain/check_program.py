"""The specification of a `Program`, checked at the boundary of each stage that makes or changes one.

Every value is written once, before it is read; operators get what `libs.runtime.atomic` demands, with shapes
that are equal as formulas; what views and regions reach lies in their values, by proof or, where the formulas
are beyond it, at sampled sizes of the dimensions (a runtime checks the real ones before the first step).
"""

from __future__ import annotations

from collections.abc import Sequence

from libs.common.errors import Internal
from libs.runtime.atomic import ATOMICS, Atomic
from libs.runtime.elements import family, same_bits
from libs.runtime.plan import DataType
from services.engine.domain.bounds import Bounds
from services.engine.domain.extents import Extent, product
from services.engine.domain.program import (
    ComputeInstruction,
    Instruction,
    Program,
    RasterInstruction,
    ValueView,
)
from services.engine.domain.reference import numpy_type

MAX_RANK = 8
MAX_INSTRUCTIONS = 1_000_000
_KINDS = {"f": "floating", "i": "integer", "b": "bool", "o": "narrow", "c": "complex"}
_INDEXES = (DataType.INT32, DataType.INT64)


class BadProgram(Internal):
    """A stage of ours made a program that breaks the rules: its text says which stage, where and how."""

    default_reason = "BAD_PROGRAM"


def check_program(program: Program, stage: str) -> None:
    """Check that `program`, which `stage` made, can run.

    Raises:
        BadProgram: naming the stage, the instruction with its origin, and what is wrong.
    """
    if len(program.instructions) > MAX_INSTRUCTIONS:
        raise BadProgram(
            f"after {stage}: {len(program.instructions)} instructions are more than {MAX_INSTRUCTIONS}"
        )
    _Checker(program, stage).run()


class _Checker:
    def __init__(self, program: Program, stage: str) -> None:
        self._program = program
        self._bounds: Bounds = program.bounds
        self._stage = stage
        self._where = "the program"
        self._written: set[int] = set()

    def run(self) -> None:
        program = self._program
        for number, value in enumerate(program.values):
            self._where = f"value {number}"
            self._demand(len(value.shape) <= MAX_RANK, f"has {len(value.shape)} axes, more than {MAX_RANK}")
            for size in value.shape:
                self._known(size)
                self._at_least(size, 0, "a size")
        for named in program.inputs:
            self._where = f"input {named.name!r}"
            self._write(named.value)
        for number, array in program.constants.items():
            self._where = f"constant {number}"
            self._write(number)
            value = program.values[number]
            self._demand(
                tuple(size.constant for size in value.shape) == array.shape
                and numpy_type(value.type) == array.dtype,
                f"holds {array.dtype}{list(array.shape)}, not {value.type.name} {_show(value.shape)}",
            )
        for index, instruction in enumerate(program.instructions):
            self._where = f"instruction {index} of {instruction.origin or 'unknown origin'}"
            self._instruction(instruction)
        names = set()
        for named in program.outputs:
            self._where = f"output {named.name!r}"
            self._demand(named.value in self._written, f"is value {named.value}, which nothing writes")
            self._demand(named.name not in names, "comes twice")
            names.add(named.name)

    def _fail(self, text: str) -> BadProgram:
        return BadProgram(f"after {self._stage}: {self._where}: {text}")

    def _demand(self, holds: bool, text: str) -> None:
        if not holds:
            raise self._fail(text)

    def _write(self, value: int) -> None:
        self._demand(0 <= value < len(self._program.values), f"writes value {value}, which there isn't")
        self._demand(value not in self._written, f"writes value {value} a second time")
        self._written.add(value)

    def _known(self, extent: Extent) -> None:
        unknown = extent.dimensions - self._bounds.ranges.keys()
        if unknown:
            raise self._fail(f"{extent} depends on {sorted(unknown)}, which are no dimensions")

    def _at_least(self, extent: Extent, value: Extent | int, what: str) -> None:
        self._known(extent)
        try:
            sizes = self._bounds.refute_at_least(extent, value)
        except ZeroDivisionError:
            raise self._fail(f"{what}, {extent}, divides by 0") from None
        if sizes is not None:
            raise self._fail(f"{what}, {extent}, is less than {value} where {sizes}")

    def _instruction(self, instruction: Instruction) -> None:
        if isinstance(instruction, RasterInstruction):
            self._raster(instruction)
            self._write(instruction.output)
            return
        self._compute(instruction)
        for output in instruction.outputs:
            self._write(output)

    # ---- what is reached ----
    def _reach(self, offset: Extent, axes: Sequence[tuple[Extent, Extent]], count: Extent, what: str) -> None:
        """Check that offset + Σ ik·stride_k stays in [0, count) for every index."""
        bounds, low, high, signed = self._bounds, offset, offset, True
        self._known(offset)
        for size, stride in axes:
            self._known(stride)
            self._at_least(size, 0, "a size")
            if bounds.at_least(stride, 0):
                high = high + (size - 1) * stride
            elif bounds.at_least(-stride, 0):
                low = low + (size - 1) * stride
            else:
                signed = False
        if signed and bounds.at_least(low, 0) and bounds.at_least(count - 1 - high, 0):
            return
        for sizes in bounds.samples(bounds.ranges):
            self._reach_at(sizes, offset, axes, count, what)

    def _reach_at(
        self,
        sizes: dict[str, int],
        offset: Extent,
        axes: Sequence[tuple[Extent, Extent]],
        count: Extent,
        what: str,
    ) -> None:
        try:
            start, total = offset.evaluate(sizes), count.evaluate(sizes)
            lanes = [(size.evaluate(sizes), stride.evaluate(sizes)) for size, stride in axes]
        except ZeroDivisionError:
            raise self._fail(f"{what} divides by 0 where {sizes}") from None
        if any(size == 0 for size, _ in lanes):
            return
        spans = [(size - 1) * stride for size, stride in lanes]
        low, high = start + sum(min(span, 0) for span in spans), start + sum(max(span, 0) for span in spans)
        self._demand(
            low >= 0 and high < total, f"{what} reaches elements {low} to {high} of {total} where {sizes}"
        )

    def _view(self, view: ValueView, what: str) -> None:
        self._demand(view.value in self._written, f"{what} reads value {view.value} before it is written")
        self._demand(len(view.axes) <= MAX_RANK, f"{what} has {len(view.axes)} axes, more than {MAX_RANK}")
        axes = [(axis.size, axis.stride) for axis in view.axes]
        self._reach(view.offset, axes, product(self._program.values[view.value].shape), what)

    def _raster(self, raster: RasterInstruction) -> None:
        self._demand(0 <= raster.output < len(self._program.values), f"writes value {raster.output}")
        output = self._program.values[raster.output]
        count = product(output.shape)
        if raster.fill is not None:
            self._demand(
                raster.fill.shape == () and raster.fill.dtype == numpy_type(output.type),
                f"its fill is {raster.fill.dtype}{list(raster.fill.shape)}, not one {output.type.name}",
            )
        moved = Extent.of(0)
        for index, region in enumerate(raster.regions):
            what = f"region {index}"
            self._view(region.source, what)
            source = self._program.values[region.source.value]
            self._demand(source.type is output.type, f"{what} moves {source.type.name} to {output.type.name}")
            self._demand(
                len(region.destination_strides) == len(region.source.axes),
                f"{what} has {len(region.destination_strides)} strides for {len(region.source.axes)} axes",
            )
            sizes = [axis.size for axis in region.source.axes]
            axes = list(zip(sizes, region.destination_strides, strict=True))
            self._reach(region.destination_offset, axes, count, f"the destination of {what}")
            moved = moved + product(sizes)
        if raster.fill is None:
            # Not whether every element is covered, but whether that can be.
            self._at_least(moved - count, 0, "what its regions move beyond the output")

    # ---- operators ----
    def _compute(self, step: ComputeInstruction) -> None:
        atomic = ATOMICS.get(step.operator)
        if atomic is None:
            raise self._fail(f"{step.operator!r} is no atomic operator")
        self._demand(len(step.inputs) == atomic.arity, f"{step.operator} gets {len(step.inputs)} inputs")
        self._demand(len(step.outputs) == 1, f"{step.operator} writes {len(step.outputs)} values")
        for index, view in enumerate(step.inputs):
            self._view(view, f"input {index} of {step.operator}")
        output = self._program.values[step.outputs[0]]
        types = [self._program.values[view.value].type for view in step.inputs]
        self._types(atomic, types, output.type)
        wanted = self._shape(atomic, [view.shape for view in step.inputs], step.axes)
        # Formulas take long to write out: only where they are needed.
        if wanted != output.shape:
            raise self._fail(f"{step.operator} gives {_show(wanted)}, its output has {_show(output.shape)}")

    def _types(self, atomic: Atomic, types: list[DataType], output: DataType) -> None:
        data = list(types)
        if atomic.name == "where":
            self._demand(data.pop(0) is DataType.BOOL, "where chooses by something that isn't bool")
        elif atomic.kind in ("gather", "scatter"):
            self._demand(data.pop(1) in _INDEXES, f"{atomic.name}'s indices are neither int32 nor int64")
        self._demand(len(set(data)) == 1, f"{atomic.name} mixes {', '.join(t.name for t in data)}")
        self._demand(
            family(data[0]) in atomic.types,
            f"{atomic.name} takes {', '.join(_KINDS[k] for k in atomic.types)}, not {data[0].name}",
        )
        if atomic.name == "bit_cast":
            fits = output is not DataType.BOOL and same_bits(data[0], output)
            self._demand(fits, f"bit_cast can't make {output.name} of {data[0].name}")
        if atomic.name == "cast":
            self._demand(family(output) != "c", f"cast can't make {output.name} of {data[0].name}")
        wanted = {"same": data[0], "bool": DataType.BOOL, "index": DataType.INT64, "any": output}
        self._demand(
            output is wanted[atomic.result], f"{atomic.name} of {data[0].name} can't give {output.name}"
        )

    def _shape(
        self, atomic: Atomic, shapes: list[tuple[Extent, ...]], axes: tuple[int, ...]
    ) -> tuple[Extent, ...]:
        first, rank = shapes[0], len(shapes[0])
        if atomic.kind in ("elementwise", "matmul", "scatter"):
            self._demand(not axes, f"{atomic.name} takes no axes")
        else:
            one = atomic.kind in ("gather", "scan", "sort") or atomic.result == "index"
            self._demand(len(axes) == 1 if one else True, f"{atomic.name} takes one axis, not {len(axes)}")
            if list(axes) != sorted(set(axes)) or not all(0 <= axis < rank for axis in axes):
                raise self._fail(f"{atomic.name}'s axes {axes} don't name axes of {_show(first)}, in order")
        if atomic.kind == "elementwise":
            if any(shape != first for shape in shapes):
                raise self._fail(f"{atomic.name} gets {' and '.join(_show(shape) for shape in shapes)}")
            return first
        if atomic.kind == "reduce":
            return tuple(size for axis, size in enumerate(first) if axis not in axes)
        if atomic.kind in ("scan", "sort"):
            return first
        if atomic.kind == "scatter":
            wanted = (*shapes[1], *first[1:])
            if rank < 1 or len(shapes[1]) != 1 or shapes[2] != wanted:
                raise self._fail(f"{atomic.name} gets updates {_show(shapes[2])}, not {_show(wanted)}")
            return first
        if atomic.kind == "gather":
            return (*first[: axes[0]], *shapes[1], *first[axes[0] + 1 :])
        second = shapes[1]
        if rank < 2 or rank != len(second) or first[:-2] != second[:-2] or first[-1] != second[-2]:
            raise self._fail(f"matmul gets {_show(first)} and {_show(second)}")
        return (*first[:-1], second[-1])


def _show(shape: tuple[Extent, ...]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"
