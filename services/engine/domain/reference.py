"""Runs a `Program` the plain way: the oracle of every later stage, and what folds constants.

One numpy expression for each atomic operator, one strided copy for each region; nothing is planned or reused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from libs.common.errors import Invalid
from libs.runtime.atomic import ATOMICS
from libs.runtime.kernels.casting import converted
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import DataType
from services.engine.domain.program import (
    ComputeInstruction,
    Instruction,
    Program,
    RasterInstruction,
    ValueView,
)

Array = npt.NDArray[Any]


def numpy_type(type_: DataType) -> np.dtype[np.generic]:
    """Return numpy's type of elements."""
    return DTYPES[type_]


_OTHER_NAMES = {"FLOAT8E8M0FNU": "FLOAT8E8M0", "FLOAT4E2M1FN": "FLOAT4E2M1"}
"""Types that ml_dtypes calls otherwise."""


def data_type(dtype: np.dtype[np.generic]) -> DataType:
    """Return the type of elements of a numpy type; raises Invalid for one that plans don't know."""
    if dtype == np.object_:
        return DataType.STRING
    name = dtype.name.upper().replace("_", "")
    try:
        return DataType[_OTHER_NAMES.get(name, name)]
    except KeyError:
        known = ", ".join(member.name.lower() for member in DataType)
        raise Invalid(f"elements of type {dtype} are not supported; use one of {known}") from None


def strided(array: Array, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """Return elements of a dense array as a view that shares its memory; strides in elements.

    Raises Invalid when it would reach outside the array.
    """
    flat = array.reshape(-1)
    if 0 in shape:
        return flat[:0].reshape(tuple(shape))
    steps = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    low = offset + sum(step for step in steps if step < 0)
    high = offset + sum(step for step in steps if step > 0)
    if low < 0 or high >= flat.size:
        raise Invalid(f"elements {low} to {high} are read or written of an array that has {flat.size}")
    # numpy gives views of types that aren't its own by their names, some of which it doesn't read.
    plain = flat if flat.dtype.isbuiltin == 1 else flat.view(f"u{flat.itemsize}")
    steps = [stride * flat.itemsize for stride in strides]
    return as_strided(plain[offset:], tuple(shape), tuple(steps)).view(flat.dtype)


def _divide(a: Array, b: Array) -> Array:
    if not np.issubdtype(a.dtype, np.integer):
        return np.asarray(np.true_divide(a, b))
    if not b.all():
        raise Invalid("an integer is divided by 0")
    quotient = np.floor_divide(a, b)
    inexact = np.multiply(quotient, b) != a
    return np.asarray(quotient + ((inexact & ((a < 0) != (b < 0))).astype(a.dtype)))


def _modulo(function: Callable[..., Array]) -> Callable[[Array, Array], Array]:
    def run(a: Array, b: Array) -> Array:
        if np.issubdtype(a.dtype, np.integer) and not b.all():
            raise Invalid("an integer is divided by 0")
        return np.asarray(function(a, b))

    return run


def _power(a: Array, b: Array) -> Array:
    """Raise to a power; a negative one of an integer is 0, but for those of 1 and -1: there is none of 0."""
    if not np.issubdtype(a.dtype, np.integer) or not (b < 0).any():
        return np.asarray(np.power(a, b))
    if ((a == 0) & (b < 0)).any():
        raise Invalid("the integer 0 is raised to a negative power")
    units = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0)).astype(a.dtype)
    return np.where(b < 0, units, np.power(a, np.maximum(b, 0)))


_erf = np.frompyfunc(math.erf, 1, 1)

_ELEMENTWISE: Mapping[str, Callable[..., Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "round": np.rint,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": lambda x: np.asarray(_erf(x.astype(np.float64))).astype(x.dtype),
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
    "not": np.invert,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "div": _divide,
    "mod": _modulo(np.mod),
    "pow": _power,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "where": np.where,
}
_REDUCE: Mapping[str, Callable[..., Array]] = {
    "reduce_sum": np.sum,
    "reduce_prod": np.prod,
    "reduce_max": np.max,
    "reduce_min": np.min,
}


def compute(operator: str, inputs: Sequence[Array], axes: tuple[int, ...], type_: DataType) -> Array:
    """Return what an atomic operator makes of dense or strided arrays; `type_` is that of the output.

    Raises Invalid for an unknown operator, an integer division by 0 and an index out of range.
    """
    dtype = numpy_type(type_)
    with np.errstate(all="ignore"):
        return np.asarray(_apply(operator, inputs, axes, dtype), dtype=dtype, order="C")


def _apply(
    operator: str, inputs: Sequence[Array], axes: tuple[int, ...], dtype: np.dtype[np.generic]
) -> Array:
    atomic = ATOMICS.get(operator)
    if atomic is None:
        raise Invalid(f"{operator!r} is not an atomic operator")
    first = inputs[0]
    if operator == "cast":
        return converted(first, dtype)
    if operator == "bit_cast":
        return np.array(first, order="C").view(dtype)
    if atomic.kind == "elementwise":
        return np.asarray(_ELEMENTWISE[operator](*inputs))
    if operator in _REDUCE:
        if operator in ("reduce_max", "reduce_min") and any(first.shape[axis] == 0 for axis in axes):
            kept = [size for axis, size in enumerate(first.shape) if axis not in axes]
            return np.full(kept, _worst(operator, first.dtype))
        wide = np.float64 if first.dtype in (np.float16, np.float32) and operator == "reduce_sum" else None
        source = first if wide is None else first.astype(wide)
        keep = {} if operator in ("reduce_max", "reduce_min") or wide else {"dtype": dtype}
        return np.asarray(_REDUCE[operator](source, axis=axes, **keep))
    if operator == "arg_max":
        if first.shape[axes[0]] == 0:
            raise Invalid(f"{operator} of an axis of size 0 has no value")
        return np.asarray(np.argmax(first, axis=axes[0]))
    if operator == "arg_sort":
        return np.asarray(np.argsort(first, axis=axes[0], kind="stable"))
    if atomic.kind == "scatter":
        return _scatter(operator, first, inputs[1], inputs[2])
    if operator == "matmul":
        return np.asarray(np.matmul(first, inputs[1]))
    if operator == "gather":
        return _gather(first, inputs[1], axes[0])
    return np.cumsum(first, axis=axes[0], dtype=dtype)  # "cumulative_sum", the only one left


def _worst(operator: str, dtype: np.dtype[np.generic]) -> Any:
    """Return what the extreme of nothing is: the other end of the type."""
    if np.issubdtype(dtype, np.floating):
        return -math.inf if operator == "reduce_max" else math.inf
    limits = np.iinfo(str(dtype))
    return limits.min if operator == "reduce_max" else limits.max


_COMBINE: Mapping[str, Callable[[Array, Array], Array]] = {
    "scatter": lambda old, new: new,
    "scatter_add": np.add,
    "scatter_mul": np.multiply,
    "scatter_max": np.maximum,
    "scatter_min": np.minimum,
}


def _scatter(operator: str, data: Array, indices: Array, updates: Array) -> Array:
    result = data.copy()
    size = data.shape[0]
    for place, index in enumerate(indices.tolist()):
        if not -size <= index < size:
            raise Invalid(f"index {index} is outside of {-size} to {size - 1}, the range of axis 0")
        result[index] = _COMBINE[operator](result[index], updates[place])
    return result


def _gather(data: Array, indices: Array, axis: int) -> Array:
    size = data.shape[axis]
    wrong = (indices < -size) | (indices >= size)
    if wrong.any():
        index = indices[wrong].reshape(-1)[0]
        raise Invalid(f"index {index} is outside of {-size} to {size - 1}, the range of axis {axis}")
    return np.take(data, indices, axis=axis)


def interpret(program: Program, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    """Run a program on the given inputs and return its outputs by name.

    The sizes of dimensions are taken from the inputs' shapes. Raises Invalid for inputs that don't fit the
    program's types or disagree about a dimension, and for what goes wrong on the way, with the origin.
    """
    dimensions, values = _bind(program, inputs)
    values |= program.constants
    for instruction in program.instructions:
        try:
            interpret_step(program, instruction, values, dimensions)
        except Invalid as error:
            raise Invalid(f"{instruction.origin}: {error}") from error
    return {output.name: values[output.value] for output in program.outputs}


def interpret_step(
    program: Program, step: Instruction, values: dict[int, Array], dimensions: Mapping[str, int]
) -> None:
    """Run one instruction: what it writes is put into `values`. Raises Invalid for what has no result."""
    if isinstance(step, ComputeInstruction):
        _run_compute(program, step, values, dimensions)
    else:
        _run_raster(program, step, values, dimensions)


def _bind(program: Program, inputs: Mapping[str, npt.ArrayLike]) -> tuple[dict[str, int], dict[int, Array]]:
    dimensions: dict[str, int] = {}
    values: dict[int, Array] = {}
    for port in program.inputs:
        wanted = program.values[port.value]
        if port.name not in inputs:
            raise Invalid(f"input {port.name!r} is missing")
        array = np.asarray(inputs[port.name])
        if array.dtype != numpy_type(wanted.type) or array.ndim != len(wanted.shape):
            raise Invalid(f"input {port.name!r} is {array.dtype}{list(array.shape)}, not as declared")
        for size, extent in zip(array.shape, wanted.shape, strict=True):
            if extent.constant is None and len(extent.terms) == 1 and extent.terms[0][1] == 1:
                (atom, *others), _ = extent.terms[0]
                if isinstance(atom, str) and not others and dimensions.setdefault(atom, size) != size:
                    raise Invalid(f"input {port.name!r}: dimension {atom!r} is {size} and {dimensions[atom]}")
        values[port.value] = np.asarray(array, order="C")
    for port in program.inputs:
        shape = tuple(extent.evaluate(dimensions) for extent in program.values[port.value].shape)
        if values[port.value].shape != shape:
            raise Invalid(
                f"input {port.name!r} has shape {list(values[port.value].shape)}, not {list(shape)}"
            )
    return dimensions, values


def _look(view: ValueView, values: Mapping[int, Array], dimensions: Mapping[str, int]) -> Array:
    return strided(
        values[view.value],
        view.offset.evaluate(dimensions),
        [axis.size.evaluate(dimensions) for axis in view.axes],
        [axis.stride.evaluate(dimensions) for axis in view.axes],
    )


def _run_compute(
    program: Program, step: ComputeInstruction, values: dict[int, Array], dimensions: Mapping[str, int]
) -> None:
    (output,) = step.outputs
    wanted = program.values[output]
    result = compute(
        step.operator, [_look(view, values, dimensions) for view in step.inputs], step.axes, wanted.type
    )
    shape = tuple(extent.evaluate(dimensions) for extent in wanted.shape)
    if result.shape != shape:
        raise Invalid(f"{step.operator} gives shape {list(result.shape)}, not {list(shape)}")
    values[output] = result


def _run_raster(
    program: Program, step: RasterInstruction, values: dict[int, Array], dimensions: Mapping[str, int]
) -> None:
    wanted = program.values[step.output]
    result = np.empty(tuple(extent.evaluate(dimensions) for extent in wanted.shape), numpy_type(wanted.type))
    covered = np.zeros(result.shape, np.bool_)
    if step.fill is not None:
        result[...] = step.fill
        covered[...] = True
    for region in step.regions:
        source = _look(region.source, values, dimensions)
        offset = region.destination_offset.evaluate(dimensions)
        steps = [stride.evaluate(dimensions) for stride in region.destination_strides]
        strided(result, offset, source.shape, steps)[...] = source
        strided(covered, offset, source.shape, steps)[...] = True
    if not covered.all():
        raise Invalid(f"its regions leave {int((~covered).sum())} of {covered.size} elements unwritten")
    values[step.output] = result
