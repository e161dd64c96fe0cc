"""Each rule of programs refuses a program that breaks it, and says where."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from libs.runtime.plan import DataType
from services.engine.domain.bounds import Bounds
from services.engine.domain.check_program import BadProgram, check_program
from services.engine.domain.extents import Extent
from services.engine.domain.program import (
    ComputeInstruction,
    NamedValue,
    Program,
    RasterInstruction,
    ValueType,
    ValueView,
    ViewAxis,
)
from services.engine.testing_programs import Sketch

N = Extent.dimension("n")


def sound() -> Program:
    """Return y = transpose(x + c) and z = its maximum along n."""
    s = Sketch(n=(2, 64))
    x, c = s.input("x", "n", 3), s.constant(np.ones(3, np.float32))
    y = s.transpose(s.compute("add", x, s.broadcast(c, N, 3)), 1, 0)
    return s.program(y=y, z=s.compute("reduce_max", y, axes=(1,)))


def step(program: Program, index: int, **changes: object) -> Program:
    steps = list(program.instructions)
    steps[index] = replace(steps[index], **changes)
    return replace(program, instructions=tuple(steps))


def view(program: Program, index: int, **changes: object) -> Program:
    compute = program.instructions[index]
    assert isinstance(compute, ComputeInstruction)
    return step(program, index, inputs=(replace(compute.inputs[0], **changes), *compute.inputs[1:]))


def region(program: Program, index: int, **changes: object) -> Program:
    raster = program.instructions[index]
    assert isinstance(raster, RasterInstruction)
    return step(program, index, regions=(replace(raster.regions[0], **changes),))


def values(program: Program, number: int, value: ValueType) -> Program:
    kept = list(program.values)
    kept[number] = value
    return replace(program, values=tuple(kept))


ONE = Extent.of(1)
BROKEN: dict[str, tuple[Callable[[Program], Program], str]] = {
    "order": (lambda p: replace(p, instructions=p.instructions[::-1]), "before it is written"),
    "twice": (lambda p: replace(p, instructions=(*p.instructions, p.instructions[0])), "a second time"),
    "no output": (lambda p: replace(p, instructions=p.instructions[:-1]), "which nothing writes"),
    "same output": (lambda p: replace(p, outputs=(p.outputs[0], p.outputs[0])), "comes twice"),
    "operator": (lambda p: step(p, 1, operator="plus"), "no atomic operator"),
    "arity": (lambda p: step(p, 1, operator="neg"), "gets 2 inputs"),
    "axes of none": (lambda p: step(p, 1, axes=(0,)), "takes no axes"),
    "axis": (lambda p: step(p, 3, axes=(2,)), "don't name axes"),
    "shape": (lambda p: step(p, 3, axes=(0,)), "its output has"),
    "shapes": (lambda p: view(p, 1, axes=(ViewAxis(ONE, ONE),)), "gets [1] and [n, 3]"),
    "below": (lambda p: view(p, 1, offset=Extent.of(-1)), "reaches elements -1"),
    "beyond": (lambda p: view(p, 1, offset=ONE), "of 6 where"),
    "beyond at some size": (
        lambda p: view(p, 1, axes=(ViewAxis(N, N), ViewAxis(Extent.of(3), ONE))),
        "reaches elements 0 to",
    ),
    "unknown dimension": (
        lambda p: view(p, 1, offset=Extent.dimension("k")),
        "depends on ['k']",
    ),
    "by nothing": (lambda p: view(p, 1, offset=N // (N - 2)), "divides by 0"),
    "destination": (lambda p: region(p, 2, destination_offset=ONE), "the destination of region 0"),
    "strides": (lambda p: region(p, 2, destination_strides=(ONE,)), "1 strides for 2 axes"),
    "uncovered": (lambda p: step(p, 2, regions=()), "beyond the output"),
    "fill": (lambda p: step(p, 2, fill=np.zeros(2, np.float32)), "its fill is"),
    "type": (
        lambda p: values(p, p.instructions[1].outputs[0], ValueType(DataType.BOOL, (N, Extent.of(3)))),
        "can't give BOOL",
    ),
    "constant": (lambda p: values(p, 1, ValueType(DataType.INT8, (Extent.of(3),))), "constant 1"),
    "negative size": (
        lambda p: replace(p, values=(*p.values, ValueType(DataType.BOOL, (N - 3,)))),
        "is less than 0 where {'n': 2}",
    ),
    "rank": (
        lambda p: replace(p, values=(*p.values, ValueType(DataType.BOOL, (ONE,) * 9))),
        "more than 8",
    ),
    "value": (
        lambda p: step(p, 1, inputs=(ValueView(99, ONE, ()), ValueView(99, ONE, ()))),
        "value 99",
    ),
    "input twice": (lambda p: replace(p, inputs=(*p.inputs, NamedValue("w", 0))), "a second time"),
    "no dimension": (lambda p: replace(p, bounds=Bounds({})), "depends on ['n']"),
}


def test_a_sound_program_passes() -> None:
    check_program(sound(), "the test")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_told_with_stage_and_place(name: str) -> None:
    breaks, text = BROKEN[name]
    with pytest.raises(BadProgram) as refused:
        check_program(breaks(sound()), "the test")
    assert str(refused.value).startswith("after the test: ")
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("operator", "types", "text"),
    [
        ("add", "float32 int64", "mixes"),
        ("exp", "int64", "takes floating, not INT64"),
        ("and", "float32 float32", "takes integer, bool"),
        ("where", "float32 float32 float32", "isn't bool"),
    ],
)
def test_types_of_operators(operator: str, types: str, text: str) -> None:
    s = Sketch()
    inputs = [s.input(f"x{i}", 2, type_=DataType[name.upper()]) for i, name in enumerate(types.split())]
    with pytest.raises(BadProgram, match=text):
        check_program(s.program(y=s.compute(operator, *inputs)), "the test")


def test_shapes_of_products_and_types_of_indices() -> None:
    s = Sketch()
    a, b = s.input("a", 2, 3), s.input("b", 4, 5)
    with pytest.raises(BadProgram, match="matmul gets"):
        check_program(s.program(y=s.compute("matmul", a, b)), "the test")
    s = Sketch()
    data, at = s.input("a", 2, 3), s.input("b", 4)
    with pytest.raises(BadProgram, match="neither int32 nor int64"):
        check_program(s.program(y=s.compute("gather", data, at, axes=(0,))), "the test")
