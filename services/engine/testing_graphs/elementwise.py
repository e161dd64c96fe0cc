"""Random nodes that compute element by element, reduce, sort and convert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from services.engine.testing_graphs.sketch import FLOATS, INTEGERS, Item, Sketch

NUMBERS = (*FLOATS, *INTEGERS)
_STEADY = ("Abs", "Neg", "Relu", "Identity")
_FLAT = ("Ceil", "Floor", "Round", "Sign")
_SMOOTH = (
    "Exp",
    "Log",
    "Sqrt",
    "Sin",
    "Cos",
    "Tan",
    "Asin",
    "Acos",
    "Atan",
    "Sinh",
    "Cosh",
    "Tanh",
    "Asinh",
    "Acosh",
    "Atanh",
    "Erf",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Reciprocal",
    "HardSwish",
    "Mish",
)
_COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
_REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
)


def steady(s: Sketch) -> list[Item]:
    """Functions that keep numbers exact."""
    return s.apply(s.draw.choice(_STEADY), [s.pick(("int64", "int32", "int8", *FLOATS))], exact=True)


def flat(s: Sketch) -> list[Item]:
    """Functions with steps."""
    return s.apply(s.draw.choice(_FLAT), [s.pick(exact=True)], exact=True)


def smooth(s: Sketch) -> list[Item]:
    """Functions of floats."""
    return s.apply(s.draw.choice(_SMOOTH), [s.pick()])


def shaped(s: Sketch) -> list[Item]:
    """Functions of floats with parameters."""
    d = s.draw
    number = d.integer(-8, 8) / 4
    table: dict[str, dict[str, Any]] = {
        "LeakyRelu": {"alpha": number},
        "Elu": {"alpha": number},
        "Selu": {"alpha": number, "gamma": 1.5},
        "Celu": {"alpha": abs(number) + 0.5},
        "HardSigmoid": {"alpha": number, "beta": 0.25},
        "ThresholdedRelu": {"alpha": number},
        "Shrink": {"lambd": abs(number), "bias": 0.25},
        "Gelu": {"approximate": d.choice(["none", "tanh"])},
    }
    operator = d.choice(list(table))
    return s.apply(operator, [s.pick(exact=operator in ("ThresholdedRelu", "Shrink"))], **table[operator])


def clip(s: Sketch) -> list[Item]:
    """Bounds that are there or not, known or not."""
    x = s.pick((*FLOATS, "int64", "int32", "int8", "uint8"))
    bounds = [
        s.fresh(s.draw.array((), x.dtype, low, high)) if s.draw.boolean() else None
        for low, high in ((-3, 0), (0, 3))
    ]
    return s.apply("Clip", [x, *bounds], exact=True)


def other(s: Sketch, x: Item, low: int = -4, high: int = 4, exact: bool = False) -> Item:
    """Return an array of the same type that broadcasts with `x`."""
    kept = x.shape[s.draw.integer(0, x.rank) :] if x.rank else ()
    shape = [1 if s.draw.chance(3) else size for size in kept]
    if s.draw.chance(4):
        shape = [*s.draw.integers(s.draw.integer(0, 2), 1, 3), *([1] * (x.rank - len(kept))), *shape]
    if low >= -4 and s.draw.boolean():
        there = [
            item
            for item in s.visible()
            if isinstance(item.value, np.ndarray)
            and item.dtype == x.dtype
            and _broadcasts(item.shape, x.shape)
            and (item.exact or not exact)
        ]
        if there and low < 0:
            return s.draw.choice(there)
    return s.like(x, shape, low, high)


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def turned(s: Sketch, a: Item, b: Item) -> list[Item]:
    """Return two items in any order."""
    return [b, a] if s.draw.boolean() else [a, b]


def binary(s: Sketch) -> list[Item]:
    """Arithmetic with broadcasting."""
    x = s.pick(NUMBERS)
    operator = s.draw.choice(("Add", "Sub", "Mul"))
    return s.apply(operator, turned(s, x, other(s, x)), exact=True)


def division(s: Sketch) -> list[Item]:
    """Division and remainders, of floats or by what isn't 0."""
    x = s.pick(NUMBERS)
    if x.value.dtype.kind == "f" and s.draw.boolean():
        return s.apply("Div", [x, other(s, x, 1, 4)])
    if x.value.dtype.kind == "f":
        x = s.pick(exact=True)
        return s.apply("Mod", [x, other(s, x, 1, 4)], fmod=1, exact=True)
    divisor = other(s, x, 1, 4)
    if s.draw.boolean():
        return s.apply("Div", [x, divisor], exact=True)
    return s.apply("Mod", [x, divisor], fmod=s.draw.integer(0, 1), exact=True)


def power(s: Sketch) -> list[Item]:
    """Powers by exponents of another type."""
    x = s.pick(("float32", "float64", "int64", "int32"))
    y = s.draw.array(() if s.draw.boolean() else x.shape, s.draw.choice(("float32", "int64", "int32")), 0, 3)
    return s.apply("Pow", [x, s.fresh(y)])


def several(s: Sketch) -> list[Item]:
    """Operators of any number of inputs."""
    operator = s.draw.choice(("Max", "Min", "Sum", "Mean"))
    x = s.pick(FLOATS if operator in ("Sum", "Mean") else NUMBERS)
    return s.apply(
        operator, [x, *(other(s, x) for _ in range(s.draw.integer(0, 2)))], exact=operator != "Mean"
    )


def comparison(s: Sketch) -> list[Item]:
    """Comparisons of exact numbers."""
    x = s.pick((*NUMBERS, "bool"), exact=True)
    operator = "Equal" if x.dtype == "bool" else s.draw.choice(_COMPARISONS)
    return s.apply(operator, turned(s, x, other(s, x, exact=True)), exact=True)


def logic(s: Sketch) -> list[Item]:
    """Truth values."""
    x = s.pick(("bool",))
    if s.draw.chance(4):
        return s.apply("Not", [x], exact=True)
    return s.apply(s.draw.choice(("And", "Or", "Xor")), turned(s, x, other(s, x)), exact=True)


def bits(s: Sketch) -> list[Item]:
    """Integers bit by bit."""
    x = s.pick(INTEGERS)
    operator = s.draw.choice(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"))
    if operator == "BitwiseNot":
        return s.apply(operator, [x], exact=True)
    if operator == "BitShift":
        x = s.pick(("uint8", "uint16", "uint32", "uint64"))
        places = other(s, x, 0, 7)
        return s.apply(operator, [x, places], exact=True, direction=s.draw.choice(("LEFT", "RIGHT")))
    return s.apply(operator, turned(s, x, other(s, x)), exact=True)


def where(s: Sketch) -> list[Item]:
    """One of two by a third."""
    x = s.pick((*NUMBERS, "bool", "object"))
    condition = s.pick(
        ("bool",),
        where=lambda item: _broadcasts(item.shape, x.shape),
        new=lambda: s.draw.array(x.shape, "bool"),
    )
    return s.apply("Where", [condition, *turned(s, x, other(s, x))], exact=True)


def prelu(s: Sketch) -> list[Item]:
    """Multiply what is negative by slopes."""
    x = s.pick(("float32", "float64", "int64"), 1)
    slope = s.like(x, [1 if s.draw.boolean() else size for size in x.shape[s.draw.integer(0, x.rank - 1) :]])
    return s.apply("PRelu", [x, slope], exact=True)


def tests_of_floats(s: Sketch) -> list[Item]:
    """NaN and infinities, which only quotients of zeros and the like hold."""
    x = s.pick(exact=True)
    if s.draw.boolean():
        return s.apply("IsNaN", [x], exact=True)
    return s.apply(
        "IsInf", [x], exact=True, detect_negative=s.draw.integer(0, 1), detect_positive=s.draw.integer(0, 1)
    )


def cast(s: Sketch) -> list[Item]:
    """Conversions; to integers and truth only of exact numbers that fit."""
    x = s.pick((*NUMBERS, "bool"), exact=True)
    types: tuple[str, ...] = (
        "float32",
        "float64",
        "float16",
        "int64",
        "int32",
        "int8",
        "bool",
        "uint8",
        "int16",
    )
    if x.value.size and x.value.dtype != np.bool_ and x.value.astype(np.float64).min() < 0:
        types = types[:7]
    if x.value.size and np.abs(x.value.astype(np.float64)).max() > 100:
        types = types[:3]
    wanted = s.draw.choice(types)
    if s.draw.chance(3):
        return s.apply("CastLike", [x, s.fresh(s.draw.array((), wanted))], exact=True)
    return s.apply("Cast", [x], exact=True, to=_number_of(wanted))


def narrow(s: Sketch) -> list[Item]:
    """There and back through a narrow type."""
    x = s.pick(("float32",), exact=True)
    types = (
        TensorProto.BFLOAT16,
        TensorProto.FLOAT8E4M3FN,
        TensorProto.FLOAT8E5M2,
        TensorProto.FLOAT8E4M3FNUZ,
    )
    through = s.apply("Cast", [x], exact=True, to=s.draw.choice(types))
    if not through:
        return []
    if s.draw.boolean():
        through = s.apply("Transpose", through, exact=True) or through
    return s.apply("Cast", through, exact=True, to=TensorProto.FLOAT)


def _number_of(dtype: str) -> int:
    return {
        "float32": TensorProto.FLOAT,
        "float64": TensorProto.DOUBLE,
        "float16": TensorProto.FLOAT16,
        "int64": TensorProto.INT64,
        "int32": TensorProto.INT32,
        "int16": TensorProto.INT16,
        "int8": TensorProto.INT8,
        "uint8": TensorProto.UINT8,
        "bool": TensorProto.BOOL,
    }[dtype]


def axis_of(s: Sketch, rank: int, offset: int = 0) -> int:
    """Return an axis, counted from either end; of an output that has `offset` axes more."""
    axis = s.draw.integer(0, rank + offset - 1)
    return axis - rank - offset if s.draw.chance(3) else axis


def reduction(s: Sketch) -> list[Item]:
    """Reductions by axes that are known, come with a call, or aren't there."""
    x = s.pick(("float32", "float64", "float32", "int64", "int32"))
    operator, d = s.draw.choice(_REDUCTIONS), s.draw
    axes: str | None = None
    if x.rank and not d.chance(4):
        chosen = [axis - x.rank * d.integer(0, 1) for axis in d.some(range(x.rank))]
        axes = s.numbers(*chosen, constant=not d.chance(3))
    keep = {"keepdims": d.integer(0, 1), "noop_with_empty_axes": int(d.chance(4))}
    exact = operator in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1")
    return s.apply(operator, [x, axes], exact=exact, **keep)


def extreme(s: Sketch) -> list[Item]:
    """Where the largest or smallest is."""
    x = s.pick(("float32", "float64", "int64", "int32", "int8", "uint8"), 1, exact=True)
    return s.apply(
        s.draw.choice(("ArgMax", "ArgMin")),
        [x],
        exact=True,
        axis=axis_of(s, x.rank),
        keepdims=s.draw.integer(0, 1),
        select_last_index=s.draw.integer(0, 1),
    )


def cumulative(s: Sketch) -> list[Item]:
    """Add up along an axis."""
    x = s.pick(("float32", "float64", "int64", "int32"), 1)
    axis = s.number(axis_of(s, x.rank), s.draw.choice(("int64", "int32")))
    flags = {"exclusive": s.draw.integer(0, 1), "reverse": s.draw.integer(0, 1)}
    return s.apply("CumSum", [x, axis], exact=True, **flags)


def top(s: Sketch) -> list[Item]:
    """Pick the largest or smallest few, of which no two are equal."""
    x = s.pick(("float32", "int64", "int32", "float64"), 1, exact=True)
    axis = axis_of(s, x.rank)
    ordered = np.sort(x.value, axis)
    if (np.diff(ordered, axis=axis) == 0).any():
        size = int(np.prod(x.shape))
        order = np.random.default_rng(size).permutation(size).reshape(x.shape)
        x = s.fresh((order / 4).astype(x.dtype) if x.value.dtype.kind == "f" else order.astype(x.dtype))
    count = s.numbers(s.draw.integer(0 if s.draw.chance(6) else 1, x.shape[axis]))
    return s.apply("TopK", [x, count], 2, exact=True, axis=axis, largest=s.draw.integer(0, 1))


def soft(s: Sketch) -> list[Item]:
    """Shares that add up to one."""
    x = s.pick(FLOATS, 1)
    return s.apply(s.draw.choice(("Softmax", "LogSoftmax")), [x], axis=axis_of(s, x.rank))


def hard(s: Sketch) -> list[Item]:
    """One for the largest."""
    x = s.pick(("float32", "float64"), 1, exact=True)
    return s.apply("Hardmax", [x], exact=True, axis=axis_of(s, x.rank))


NODES = (
    steady,
    flat,
    smooth,
    shaped,
    clip,
    binary,
    division,
    power,
    several,
    comparison,
    logic,
    bits,
    where,
    prelu,
    tests_of_floats,
    cast,
    narrow,
    reduction,
    extreme,
    cumulative,
    top,
    soft,
    hard,
)
