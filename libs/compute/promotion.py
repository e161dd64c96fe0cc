"""Which type comes of several: as numpy has it (NEP 50), by names.

A Python number takes the type of the arrays that it meets; among others of its kind it is an int64, a float64
or a bool.
"""

from __future__ import annotations

from typing import TypeGuard

import numpy as np

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import DataType

Number = bool | int | float
FLOATS = frozenset({DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64})
UNSIGNED = frozenset({DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64})
SIGNED = frozenset({DataType.INT8, DataType.INT16, DataType.INT32, DataType.INT64})
INTEGERS = UNSIGNED | SIGNED
COMPUTED = FLOATS | INTEGERS | {DataType.BOOL}
"""Types that arithmetic takes; others are only kept, moved and converted."""
_NAMES = {type_.name.lower(): type_ for type_ in DataType if type_ is not DataType.STRING}
COMPUTED_NAMES = tuple(name for name, type_ in _NAMES.items() if type_ in COMPUTED)
_PYTHON = {bool: DataType.BOOL, int: DataType.INT64, float: DataType.FLOAT64}


def is_number(thing: object) -> TypeGuard[Number]:
    """Tell whether a thing is a Python number, which takes the type of arrays."""
    return isinstance(thing, bool | int | float) and not isinstance(thing, np.generic)


def type_named(dtype: object) -> DataType:
    """Return the type of elements that a name, a Python type or a numpy type says.

    Raises Invalid for one that there isn't.
    """
    if isinstance(dtype, DataType):
        return dtype
    if isinstance(dtype, type) and dtype in _PYTHON:
        return _PYTHON[dtype]
    text = dtype
    if not isinstance(text, str):
        try:
            text = np.dtype(dtype).name  # type: ignore[call-overload]
        except TypeError:
            text = repr(dtype)[:80]
    found = _NAMES.get({"int": "int64", "float": "float64"}.get(text, text))
    if found is None:
        hint = did_you_mean(text, COMPUTED_NAMES)
        raise Invalid(f"no elements are of type {text!r}; use one of {', '.join(COMPUTED_NAMES)}{hint}")
    return found


def name_of(type_: DataType) -> str:
    """Return the name of a type, as `Tensor.dtype` has it."""
    return type_.name.lower()


def common_type(*operands: DataType | Number) -> DataType:
    """Return the type that values of these types, and Python numbers, are computed in.

    Raises Invalid for types that arithmetic doesn't take.
    """
    for operand in operands:
        if isinstance(operand, DataType) and operand not in COMPUTED:
            if all(other is operand for other in operands):
                return operand
            raise Invalid(
                f"elements of type {name_of(operand)} are only kept and moved: convert them with astype"
            )
    wanted = [DTYPES[each] if isinstance(each, DataType) else each for each in operands]
    return _NAMES[np.result_type(*wanted).name]


def floating(type_: DataType) -> DataType:
    """Return the type that functions of real numbers give for elements of a type, as numpy's do."""
    if type_ in FLOATS:
        return type_
    if type_ in (DataType.BOOL, DataType.INT8, DataType.UINT8):
        return DataType.FLOAT16
    if type_ in (DataType.INT16, DataType.UINT16):
        return DataType.FLOAT32
    if type_ in INTEGERS:
        return DataType.FLOAT64
    raise Invalid(f"elements of type {name_of(type_)} are only kept and moved: convert them with astype")


def fits(number: Number, type_: DataType) -> bool:
    """Tell whether a Python number can be an element of a type without changing its kind or wrapping."""
    if type_ in FLOATS:
        return True
    if isinstance(number, float):
        return False
    if type_ is DataType.BOOL:
        return isinstance(number, bool)
    limits = np.iinfo(name_of(type_))
    return int(limits.min) <= number <= int(limits.max)
