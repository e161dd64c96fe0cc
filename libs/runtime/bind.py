"""A plan at fixed sizes: memory, arrays in it, and a flat list of kernels to call."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from libs.runtime.faults import bad_input, bad_plan
from libs.runtime.kernels import DataFault, Kernel, build_compute
from libs.runtime.kernels import raster as rasters
from libs.runtime.kernels.fault import Array
from libs.runtime.layout import ALIGNMENT, ComputeLayout, Layout, RasterLayout, Strided
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import Plan


class Binding:
    """Runs a plan at the sizes of a layout. Not thread-safe: one call at a time."""

    def __init__(self, plan: Plan, layout: Layout) -> None:
        """Take memory and build every kernel.

        Raises Invalid (BAD_PLAN) for a raster whose regions neither cover its output nor fill it, or one of
        which writes an element twice; MemoryError where there isn't enough.
        """
        self.bytes = layout.arena_bytes + ALIGNMENT
        self._plan = plan
        self._layout = layout
        memory = np.empty(self.bytes, np.uint8)
        shift = -memory.ctypes.data % ALIGNMENT
        self._arena = memory[shift : shift + layout.arena_bytes]
        self._kernels: list[Kernel] = []
        self._origins: list[int] = []
        for index, step in enumerate(layout.steps):
            kernels = self._build(step, index)
            self._kernels.extend(kernels)
            self._origins.extend([index] * len(kernels))
        self.input_shapes = tuple(layout.shapes[port.tensor] for port in plan.inputs)
        self._inputs = [self._whole(port.tensor) for port in plan.inputs]
        self._outputs = [self._whole(port.tensor) for port in plan.outputs]
        self.output_bytes = sum(output.nbytes for output in self._outputs)
        self.work = 0
        """What a call takes, where whoever made this counts it."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Copy the inputs in, run every step, and return copies of the outputs in the plan's order.

        The inputs have the shapes of `input_shapes` and types that cast safely. Raises Invalid (BAD_INPUT),
        naming the step, for values without a result.
        """
        for target, value in zip(self._inputs, inputs, strict=True):
            np.copyto(target, value)
        done = 0
        try:
            with np.errstate(all="ignore"):
                for kernel in self._kernels:
                    kernel()
                    done += 1
        except DataFault as error:
            raise bad_input(f"{self._place(self._origins[done])}: {error}") from None
        return [output.copy() for output in self._outputs]

    def _place(self, index: int) -> str:
        origin = self._plan.steps[index].origin[:200]
        return f"steps[{index}]" + (f" ({origin})" if origin else "")

    def _memory(self, tensor: int) -> tuple[Any, int]:
        """Return the buffer that a tensor lies in, and its first byte there."""
        offset = self._layout.offsets[tensor]
        return (self._plan.tensors[tensor].constant, 0) if offset is None else (self._arena, offset)

    def _whole(self, tensor: int) -> Array:
        buffer, offset = self._memory(tensor)
        return np.ndarray(
            self._layout.shapes[tensor], DTYPES[self._plan.tensors[tensor].type], buffer, offset
        )

    def _array(self, view: Strided) -> Array:
        buffer, start = self._memory(view.tensor)
        dtype = DTYPES[self._plan.tensors[view.tensor].type]
        if 0 in view.shape:
            return np.empty(view.shape, dtype)
        strides = [stride * dtype.itemsize for stride in view.strides]
        # numpy checks once more that the strides stay in the buffer.
        return np.ndarray(view.shape, dtype, buffer, start + view.offset * dtype.itemsize, strides)

    def _build(self, step: ComputeLayout | RasterLayout, index: int) -> list[Kernel]:
        output = self._whole(step.output)
        if isinstance(step, ComputeLayout):
            inputs = tuple(self._array(view) for view in step.inputs)
            return [build_compute(step, inputs, output)]
        _check_cover(step, output.size, self._place(index))
        moves = [(self._array(move.destination), self._array(move.source)) for move in step.moves]
        fill = np.frombuffer(step.fill, output.dtype).reshape(()) if step.fill else None
        return rasters.build(moves, output, fill)


def _check_cover(step: RasterLayout, size: int, place: str) -> None:
    """Check that no region writes an element twice, and that every element is written."""
    destinations = [move.destination for move in step.moves]
    for index, destination in enumerate(destinations):
        if not destination.nested and np.count_nonzero(_mark([destination], size)) != destination.elements:
            raise bad_plan(f"{place}.regions[{index}]", "writes an element twice")
    if step.fill or any(destination.elements == size for destination in destinations):
        return
    if not _mark(destinations, size).all():
        raise bad_plan(
            place, "leaves elements unwritten: its regions don't cover its output, and it fills none"
        )


def _mark(destinations: Iterable[Strided], size: int) -> Array:
    marks = np.zeros(size, np.bool_)
    for destination in destinations:
        if 0 not in destination.shape:
            np.ndarray(destination.shape, np.bool_, marks, destination.offset, destination.strides)[...] = (
                True
            )
    return marks
