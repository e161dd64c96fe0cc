"""Tells rounding from disagreement: the same plan in 64-bit floats is the judge.

Two right implementations of one model differ by what 32-bit floats lose, and where outputs are large or
nearly cancel, that is more than any fixed tolerance. A plan that is wrong is as wrong in 64 bits, so the
other side must come close to the wide plan: as close as the narrow plan itself does, within a factor.

What the narrow plan loses is measured for each element: over some runs whose inputs differ in their last
bits, since one run may hit an element exactly by luck, and among elements that are no larger, since those
suffer from the same sums. So a small element may not hide behind the noise of a large one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import (
    DataType,
    Extent,
    Operation,
    Plan,
    Raster,
    RegisterType,
    Tensor,
    TensorType,
)
from libs.runtime.program import Program

Array = npt.NDArray[Any]

_NARROW = (DataType.FLOAT16, DataType.FLOAT32)
_GROWTH = 4
"""How many times larger places become: enough for 16 bits that become 64."""
_FACTOR = 8.0
"""How much farther than the narrow plan the other side may be from the wide one."""
_SAMPLES = 4
"""Runs whose rounding is measured: the one in question, and some with inputs that differ a little."""
_NUDGE = 8.0
"""By how many units in the last place inputs differ at most."""
_ALIKE = 4.0
"""An element's noise is that of elements up to so many times as large."""
_MOST_NOISE = 2e-2
"""Of the output's largest value: a plan that rounds more isn't judged, but refused."""


class Rounding:
    """What a plan loses by rounding, by the same plan in 64-bit floats."""

    def __init__(self, plan: Plan, max_buffer_bytes: int) -> None:
        self._plan = plan
        self._max_buffer_bytes = max_buffer_bytes

    def at(self, feed: Mapping[str, Any]) -> Losses:
        """Return what is lost for these inputs; nothing is run before somebody asks."""
        return Losses(self, feed)

    @cached_property
    def narrow(self) -> Program:
        """The plan."""
        return Program(self._plan, max_bindings=1)

    @cached_property
    def wide(self) -> Program:
        """The plan in 64-bit floats."""
        return Program(widened(self._plan), max_buffer_bytes=self._max_buffer_bytes, max_bindings=1)


class Losses:
    """What is lost for some inputs, over as many runs as it takes to tell."""

    def __init__(self, rounding: Rounding, feed: Mapping[str, Any]) -> None:
        self._rounding = rounding
        self._feed = feed
        self._draw = np.random.default_rng(0)
        self._runs: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
        """Outputs of the wide and of the narrow plan."""

    def explain(self, name: str, expected: Array, tolerance: float) -> bool:
        """Tell whether an output that differs from `expected` by more than `tolerance` does so by rounding.

        Raises Exhausted where the wide plan takes too much memory for a call.
        """
        if not np.issubdtype(expected.dtype, np.floating):
            return False
        first = noise = None
        for sample in range(_SAMPLES):
            wide, narrow = self._run(sample)
            exact = wide[name]
            lost = np.abs(narrow[name].astype(np.float64) - exact)
            if first is None or noise is None:
                if not (np.isfinite(exact).all() and np.isfinite(lost).all() and np.isfinite(expected).all()):
                    return False
                first, noise = exact, lost
            elif lost.shape == noise.shape:  # shapes may depend on values
                noise = np.fmax(noise, np.where(np.isfinite(lost), lost, 0.0))
            sizes = np.maximum(1.0, np.abs(first))
            if not sizes.size:
                return True
            if float(noise.max()) > _MOST_NOISE * float(sizes.max()):
                return False
            allowed = _FACTOR * _among_alike(noise, sizes) + tolerance * sizes
            if (np.abs(expected.astype(np.float64) - first) <= allowed).all():
                return True
        return False

    def _run(self, sample: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        while len(self._runs) <= sample:
            wide, feed = self._rounding.wide, self._feed
            specs = {spec.name: spec.dtype for spec in wide.inputs}
            given = {key: _nudged(array, self._draw) for key, array in feed.items()} if self._runs else feed
            exact = wide.run({key: _as(array, specs[key]) for key, array in given.items()})
            self._runs.append((exact, self._rounding.narrow.run(given)))
        return self._runs[sample]


def _as(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return arrays, and those in lists, as another type."""
    if isinstance(value, list):
        return [_as(item, dtype) for item in value]
    return None if value is None else value.astype(dtype)


def _nudged(array: Any, draw: np.random.Generator) -> Any:
    if not isinstance(array, np.ndarray):
        return array
    if not np.issubdtype(array.dtype, np.floating):
        return array
    factors = 1.0 + draw.uniform(-_NUDGE, _NUDGE, array.shape) * np.finfo(array.dtype).eps
    nudged: Array = (array * factors).astype(array.dtype)
    return nudged


def _among_alike(noise: Array, sizes: Array) -> Array:
    """Return for each element the largest noise among those whose size is at most `_ALIKE` times its own."""
    order = np.argsort(sizes, axis=None)
    ordered = sizes.ravel()[order]
    largest = np.maximum.accumulate(noise.ravel()[order])
    last = np.searchsorted(ordered, sizes.ravel() * _ALIKE, side="right") - 1
    alike: Array = largest[last].reshape(sizes.shape)
    return alike


def widened(plan: Plan) -> Plan:
    """Return the plan with each tensor of narrow floats as 64-bit ones, in places that are large enough."""
    if plan.composition is None:
        return _widened(plan)
    parts = tuple(_widened(part) for part in plan.composition.parts)
    registers = tuple(
        replace(
            register,
            type=_wide_type(register.type),
            constant=None
            if register.constant is None or not isinstance(register.type, TensorType)
            else _wide(register.type.type, register.constant),
        )
        for register in plan.composition.registers
    )
    return replace(plan, composition=replace(plan.composition, parts=parts, registers=registers))


def _wide_type(type_: RegisterType) -> RegisterType:
    if isinstance(type_, TensorType):
        return replace(type_, type=DataType.FLOAT64) if type_.type in _NARROW else type_
    return replace(type_, element=_wide_type(type_.element))


def _widened(plan: Plan) -> Plan:
    extents = [*plan.extents, Extent(Operation.CONSTANT, _GROWTH)]
    growth = len(extents) - 1

    def grown(index: int) -> int:
        extents.append(Extent(Operation.MULTIPLY, left=index, right=growth))
        return len(extents) - 1

    buffers = tuple(replace(buffer, size_bytes=grown(buffer.size_bytes)) for buffer in plan.buffers)
    tensors = []
    for tensor in plan.tensors:
        if tensor.placement is not None:
            place = replace(tensor.placement, offset_bytes=grown(tensor.placement.offset_bytes))
            tensor = replace(tensor, placement=place)
        tensors.append(_wide_tensor(tensor))
    steps = []
    for step in plan.steps:
        kind = step.kind
        if isinstance(kind, Raster) and kind.fill:
            kind = replace(kind, fill=_wide(plan.tensors[kind.output].type, kind.fill))
        steps.append(replace(step, kind=kind))
    return replace(plan, extents=tuple(extents), buffers=buffers, tensors=tuple(tensors), steps=tuple(steps))


def _wide_tensor(tensor: Tensor) -> Tensor:
    constant = None if tensor.constant is None else _wide(tensor.type, tensor.constant)
    return replace(
        tensor, type=DataType.FLOAT64 if tensor.type in _NARROW else tensor.type, constant=constant
    )


def _wide(type_: DataType, data: bytes) -> bytes:
    if type_ not in _NARROW:
        return data
    return np.frombuffer(data, DTYPES[type_].newbyteorder("<")).astype("<f8").tobytes()
