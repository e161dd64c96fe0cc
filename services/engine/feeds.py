"""Random inputs for plans: of the types and shapes that they take, at sizes that are tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from libs.runtime.extents import evaluate
from libs.runtime.inputs import PortSpec
from libs.runtime.plan import Operation, Plan, TensorType
from services.engine.peers import Feed

Array = npt.NDArray[Any]
_INTEGER_RANGES = ((-9, 10), (0, 10), (0, 3), (0, 1), (1, 2))
_OPEN_SIZE = 3
"""Of an axis that only data tell."""
_OPEN_SHAPE = (2, 3)
"""Of a tensor whose number of axes isn't known."""
_WORDS = ("", "a", "b", "Word", "word", "wörter", "two words")


def sizes_to_try(plan: Plan) -> list[tuple[int, ...]]:
    """Return sizes of the dimensions: all smallest, then a little larger ones that differ, and more."""
    lows = [dimension.minimum for dimension in plan.dimensions]
    highs = [dimension.maximum for dimension in plan.dimensions]
    tries = [tuple(lows)]
    for step in (1, 2, 16):
        sizes = zip(range(len(lows)), lows, highs, strict=True)
        tries.append(tuple(min(high, low + step + index) for index, low, high in sizes))
    return list(dict.fromkeys(_agreeing(plan, sizes) for sizes in tries))


def _agreeing(plan: Plan, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return sizes with those equal that the plan demands to be, where they are dimensions as they are."""
    places = {dimension.name: index for index, dimension in enumerate(plan.dimensions)}
    agreed = list(sizes)
    parts = (plan,) if plan.composition is None else plan.composition.parts
    for part in parts:
        for equality in part.equalities:
            pair = [part.extents[extent] for extent in (equality.left, equality.right)]
            names = [
                part.dimensions[each.left].name for each in pair if each.operation is Operation.DIMENSION
            ]
            if len(names) == 2 and set(names) <= places.keys():
                agreed[places[names[1]]] = agreed[places[names[0]]]
    return tuple(agreed)


def shapes_at(plan: Plan, specs: Sequence[PortSpec], sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input, or of what it holds, at sizes of the dimensions."""
    named = {each.name: size for each, size in zip(plan.dimensions, sizes, strict=True)}
    if plan.composition is None:
        values = evaluate(plan.extents, sizes)
        return {
            port.name: tuple(values[extent] for extent in plan.tensors[port.tensor].shape)
            for port in plan.inputs
        }
    shapes = {}
    for spec, port in zip(specs, plan.composition.inputs, strict=True):
        type_ = plan.composition.registers[port.register].type
        while not isinstance(type_, TensorType):
            type_ = type_.element
        shape = _OPEN_SHAPE if type_.shape is None else type_.shape
        shapes[spec.name] = tuple(
            size if isinstance(size, int) else named.get(size or "", _OPEN_SIZE) for size in shape
        )
    return shapes


def feeds(
    specs: Sequence[PortSpec], shapes: Mapping[str, tuple[int, ...]], randomness: np.random.Generator
) -> Iterator[Feed]:
    """Yield random inputs: integers that may be indices come from ever smaller ranges."""
    for low, high in _INTEGER_RANGES:
        for positive in (False, True):
            yield {
                spec.name: _value(spec, spec.containers, shapes[spec.name], low, high, positive, randomness)
                for spec in specs
            }


def _value(
    spec: PortSpec,
    containers: Sequence[str],
    shape: tuple[int, ...],
    low: int,
    high: int,
    positive: bool,
    randomness: np.random.Generator,
) -> Any:
    if containers:
        inner = [
            _value(spec, containers[1:], shape, low, high, positive, randomness)
            for _ in range(2 if containers[0] == "sequence" else 1)
        ]
        return inner if containers[0] == "sequence" else inner[0]
    return _array(spec.dtype, shape, low, high, positive, randomness)


def _array(
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    low: int,
    high: int,
    positive: bool,
    randomness: np.random.Generator,
) -> Array:
    if dtype == np.bool_:
        return randomness.integers(0, 2, shape).astype(np.bool_)
    if dtype == np.object_:
        texts = np.empty(int(np.prod(shape)), np.object_)
        texts[:] = [_WORDS[index] for index in randomness.integers(0, len(_WORDS), texts.size)]
        return texts.reshape(shape)
    if np.issubdtype(dtype, np.integer):
        if np.issubdtype(dtype, np.unsignedinteger):
            low = max(low, 0)
        return randomness.integers(low, high, shape).astype(dtype)
    drawn = randomness.uniform(0.1, 2.0, shape) if positive else randomness.standard_normal(shape)
    return np.asarray(drawn).astype(dtype)
