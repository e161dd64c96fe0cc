"""A model with functions of the compute library before and after it, as one program.

What makes the model's inputs ready and what reads its results then run with it: merged, planned and measured
as one, and natively where a plan does.
"""

from __future__ import annotations

from collections.abc import Mapping

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from services.engine.domain.bounds import Bounds
from services.engine.domain.builder import Builder
from services.engine.domain.composed import Composed
from services.engine.domain.decompose.walk import Walk
from services.engine.domain.extents import Extent
from services.engine.domain.graph import Graph, InputType
from services.engine.domain.held_types import Thing
from services.engine.domain.program import Program, ValueType
from services.engine.domain.tracing import Traced, inline, of_inputs
from services.engine.domain.values import Value

BEFORE, AFTER = "before the model", "after the model"
"""Origins of what the functions become, in explanations."""


def fuse(
    graph: Graph,
    *,
    pre: Traced | None = None,
    inputs: Mapping[str, ValueType] | None = None,
    bounds: Bounds | None = None,
    post: Traced | None = None,
) -> Program | Composed:
    """Return the program of a model between two functions.

    Args:
        graph: the model.
        pre: takes `inputs`; gives inputs of the model by their names, or the only one. Those that it doesn't
            give are inputs of the program.
        inputs: of `pre`.
        bounds: the range of each dimension that these name.
        post: takes the model's outputs by their names, or in order; what it gives are the program's outputs.

    Raises:
        Invalid: when a function takes or gives something else, a type or shape isn't what the model has, and
            as `decompose` does.
    """
    given = dict(inputs or {})
    if (pre is None) != (not given):
        raise Invalid("a function before the model needs inputs, and inputs need one")
    walk = _Walk(graph, _bounds(graph, bounds, given if pre is not None else {}))
    builder = walk.builder
    values: dict[str, Thing] = {}
    if pre is not None:
        builder.origin = BEFORE
        fed = {name: _tensor(name, builder.input(name, type_)) for name, type_ in given.items()}
        values.update(_ready(builder, graph, inline(builder, pre, fed)))
    for name, type_ in graph.inputs.items():
        if name not in values:
            if name in given:
                raise Invalid(f"{name!r} is an input of the function before the model, and of the model")
            values[name] = builder.input(name, type_)
    walk.constants(graph.constants, values)
    walk.nodes(graph.nodes, values)
    results = {name: values[name] for name in graph.outputs}
    builder.origin = AFTER
    if post is not None:
        read = {name: _tensor(name, thing) for name, thing in results.items()}
        results = dict(inline(builder, post, read))
    builder.origin = ""
    return of_inputs(builder.program(list(results.items())))


class _Walk(Walk):
    """Writes a graph with bounds that aren't all its own."""

    def __init__(self, graph: Graph, bounds: Bounds) -> None:
        super().__init__(graph)
        self.builder = Builder(bounds)


def _bounds(graph: Graph, bounds: Bounds | None, inputs: Mapping[str, ValueType]) -> Bounds:
    """Return the ranges of the model's dimensions and the function's; both have those of one name."""
    ranges = dict(graph.bounds.ranges)
    for name, (low, high) in (bounds.ranges if bounds is not None else {}).items():
        least, most = ranges.get(name, (low, high))
        ranges[name] = max(low, least), min(high, most)
        if ranges[name][0] > ranges[name][1]:
            raise Invalid(f"dimension {name!r} is {low} to {high} before the model, {least} to {most} in it")
    for name, type_ in inputs.items():
        for size in type_.shape:
            for dimension in size.dimensions - ranges.keys():
                raise Invalid(f"input {name!r} names dimension {dimension!r}, which has no bounds")
    return Bounds(ranges)


def _tensor(name: str, thing: Thing) -> Value:
    if not isinstance(thing, Value):
        raise Invalid(f"{name!r} is {thing}; functions around a model take tensors of a known number of axes")
    return thing


def _ready(builder: Builder, graph: Graph, made: Mapping[str, Value]) -> dict[str, Thing]:
    """Return what a function gives as inputs of the model, checked against what it declares."""
    if list(made) == ["output"] and "output" not in graph.inputs and len(graph.inputs) == 1:
        made = dict(zip(graph.inputs, made.values(), strict=True))
    found: dict[str, Thing] = {}
    sizes: dict[str, Extent] = {}
    for name, value in made.items():
        if name not in graph.inputs:
            known = ", ".join(graph.inputs)
            hint = did_you_mean(name, graph.inputs)
            raise Invalid(f"the function before the model gives {name!r}; the model takes {known}{hint}")
        _fits(builder, name, value, graph.inputs[name], sizes)
        found[name] = value
    return found


def _fits(builder: Builder, name: str, value: Value, type_: InputType, sizes: dict[str, Extent]) -> None:
    if not isinstance(type_, ValueType):
        raise Invalid(f"the model's input {name!r} is {type_}: it can't come of a function")
    if value.type is not type_.type or value.rank != len(type_.shape):
        wanted = Value(type_.type, type_.shape)
        raise Invalid(f"the function before the model gives {name!r} as {value}; the model takes {wanted}")
    for size, declared in zip(value.shape, type_.shape, strict=True):
        for dimension in declared.dimensions:
            if declared == Extent.dimension(dimension):
                # The first size by that name is what the others have to be.
                declared = sizes.setdefault(dimension, size)
        builder.equal(size, declared)
