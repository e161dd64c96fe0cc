"""`Tensor`: a value with numpy's operators.

Tensors never change. Operators and functions take tensors, numpy arrays, lists and numbers, mixed, and give
tensors. Where one of them is traced, all are: what is at hand becomes a constant of the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self, SupportsIndex

import numpy as np

from libs.common.errors import Invalid
from libs.compute import indexing
from libs.compute.arithmetic import BINARY, COMPARISONS, OF_BITS
from libs.compute.axes import axis_of, filled
from libs.compute.backend import Backend, Move, Shape, Size, Value, contiguous_strides, int_or_none, product
from libs.compute.eager import EAGER, Eager
from libs.compute.operators import Operators
from libs.compute.promotion import (
    COMPUTED,
    FLOATS,
    INTEGERS,
    SIGNED,
    common_type,
    fits,
    floating,
    is_number,
    name_of,
    type_named,
)
from libs.runtime.plan import DataType


class Tensor(Operators):
    """An array: a value, and the backend that computes with it.

    Attributes:
        backend: as `libs.compute.backend` says.
        value: what the backend knows it by.
    """

    __slots__ = ("backend", "value")
    __array_ufunc__ = None
    """numpy's arrays leave operators to this class."""

    def __init__(self, backend: Backend, value: Value) -> None:
        self.backend = backend
        self.value = value

    # What it is

    @property
    def type(self) -> DataType:
        """The type of its elements."""
        return self.backend.type(self.value)

    @property
    def dtype(self) -> str:
        """The name of that type."""
        return name_of(self.type)

    @property
    def shape(self) -> Shape:
        """Its sizes, outermost first: ints where they are known."""
        return self.backend.shape(self.value)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Size:
        """Number of elements."""
        return product(self.shape)

    @property
    def T(self) -> Tensor:  # noqa: N802
        """The same with its axes in reverse order."""
        return self.transpose()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array of no axes has no length")
        length = int_or_none(self.shape[0])
        if length is None:
            raise Invalid(f"the length {self.shape[0]} isn't known until the plan runs; use shape[0]")
        return length

    def __repr__(self) -> str:
        known = self.backend.known(self.value)
        if known is None:
            return f"Tensor({self.dtype}[{', '.join(map(str, self.shape))}], not known until the plan runs)"
        text = np.array2string(known, separator=", ", threshold=200, prefix="Tensor(")
        return f"Tensor({text}, dtype={self.dtype!r})"

    # Its elements

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the elements as a numpy array that can't be written to.

        Raises Invalid where they aren't known until the plan runs.
        """
        known = self.backend.known(self.value)
        if known is None:
            raise Invalid(
                f"the elements of {self!r} are asked for: a function that is traced into a plan can't look "
                "at them; use where() instead of if, and functions of this package instead of numpy's"
            )
        view = known.view()
        view.flags.writeable = False
        return view

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError("another type of elements needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def tolist(self) -> Any:
        """Return the elements as numbers in nested lists."""
        return self.numpy().tolist()

    def item(self, *index: int) -> Any:
        """Return the only element, or that at an index, as a number."""
        try:
            return self.numpy().item(*index)
        except (ValueError, IndexError) as error:
            raise Invalid(f"item of an array of shape {list(self.shape)}: {error}") from None

    def __bool__(self) -> bool:
        if int_or_none(self.size) != 1:
            raise Invalid(
                f"an array of shape {list(self.shape)} is neither true nor false; use any() or all()"
            )
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if self.ndim or self.type not in INTEGERS:
            raise TypeError(f"{self.dtype}{list(self.shape)} is no index: only a single integer is")
        return int(self.item())

    def __iter__(self) -> Iterator[Tensor]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, key: Any) -> Tensor:
        keys = key if isinstance(key, tuple) else (key,)
        arrays = [each for each in keys if isinstance(each, Tensor | np.ndarray | list)]
        backend, values = _lifted([self, *(_index_array(each) for each in arrays)])
        found = iter(values[1:])
        plain = tuple(next(found) if isinstance(each, Tensor | np.ndarray | list) else each for each in keys)
        taken = [isinstance(each, Tensor | np.ndarray | list) for each in keys]
        return Tensor(backend, indexing.take(backend, values[0], plain, taken))

    def __setitem__(self, key: object, value: object) -> None:
        raise Invalid("arrays don't change: make another one, for example with where() or concatenate()")

    # Other forms of it

    def astype(self, dtype: object) -> Tensor:
        """Return the elements as another type; floats lose their fraction as integers."""
        return self._made(self.backend.cast(self.value, type_named(dtype)))

    def reshape(self, *shape: Any) -> Tensor:
        """Return the elements, in row-major order, in another shape; one size may be -1: whatever is left."""
        sizes = shape[0] if len(shape) == 1 and np.ndim(shape[0]) else shape
        return self._made(self.backend.reshape(self.value, filled(tuple(sizes), self.size)))

    def transpose(self, *axes: Any) -> Tensor:
        """Return the axes in another order; in reverse order where none is given."""
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], SupportsIndex) else axes
        if given is None or (not given and not axes):
            given = range(self.ndim)[::-1]
        order = [axis_of(axis, self.ndim) for axis in given]
        if sorted(order) != list(range(self.ndim)):
            raise Invalid(f"axes {tuple(given)} are no order of {self.ndim} axes: each comes once")
        return self._made(self.backend.transpose(self.value, order))

    def ravel(self) -> Tensor:
        """Return the elements as a vector."""
        return self.reshape(-1)

    flatten = ravel

    def _made(self, value: Value) -> Self:
        return type(self)(self.backend, value)

    def __abs__(self) -> Self:
        return self if self.type is DataType.BOOL else self._unary("abs", "take the size of")

    def _unary(self, name: str, verb: str) -> Self:
        try:
            return self._made(self.backend.elementwise(name, self.value))
        except Invalid:
            raise Invalid(f"there is no way to {verb} elements of type {self.dtype}") from None

    def _binary(self, name: str, x: Any, y: Any) -> Any:
        if name == "matmul":
            return matmul(x, y)
        return compare(name, x, y) if name in COMPARISONS else binary(name, x, y)


# Arrays from what is at hand


def asarray(thing: Any, dtype: object = None) -> Tensor:
    """Return a tensor of what may be one already, a numpy array, a number, or nested lists of them.

    A numpy array isn't copied where it needs no conversion: don't write to it afterwards. Raises Invalid for
    anything else, lists of several lengths, and numbers that the type doesn't hold.
    """
    tensor = thing if isinstance(thing, Tensor) else _from(thing, dtype)
    return tensor if dtype is None else tensor.astype(dtype)


def _from(thing: Any, dtype: object) -> Tensor:
    if isinstance(thing, list | tuple) and any(isinstance(each, Tensor) for each in thing):
        return stacked([asarray(each) for each in thing])
    try:
        array = np.asarray(thing)
    except (ValueError, OverflowError, RecursionError):
        raise Invalid("that is no regular array: lists of one depth have one length") from None
    except TypeError as error:
        raise Invalid(f"an array can't be made of a {type(thing).__name__}: {error}") from None
    if array.dtype == np.object_ or (array.dtype.kind in "SUMmV" and array.dtype.isbuiltin != 2):
        held = "whole numbers of more than 64 bits, or objects" if array.dtype == np.object_ else "no numbers"
        raise Invalid(f"an array can't be made of a {type(thing).__name__}: it holds {held}")
    if dtype is not None and isinstance(thing, list | tuple | int) and array.dtype.kind == "i" and array.size:
        type_ = type_named(dtype)
        for number in (int(array.min()), int(array.max())):
            if not fits(number, type_):
                raise Invalid(f"elements of type {name_of(type_)} don't hold {number}")
    return Tensor(EAGER, EAGER.constant(array))


def array(thing: Any, dtype: object = None) -> Tensor:
    """Return a tensor as `asarray` does, of elements that are its own."""
    if isinstance(thing, np.ndarray):
        thing = thing.copy()
    return asarray(thing, dtype)


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors of equal shapes, in their common type, along a new first axis."""
    backend, values, type_ = together(*tensors)
    first = backend.shape(values[0])
    for value in values[1:]:
        shape = backend.shape(value)
        if len(shape) != len(first):
            raise Invalid(f"arrays of shapes {list(first)} and {list(shape)} can't be stacked")
        for one, other in zip(first, shape, strict=True):
            backend.equal(one, other)
    strides, step = contiguous_strides(first), product(first)
    moves = [Move(value, first, strides, 0, strides, step * place) for place, value in enumerate(values)]
    return Tensor(backend, backend.raster(type_, (len(values), *first), moves))


# Operands


def _lifted(tensors: Sequence[Tensor]) -> tuple[Backend, list[Value]]:
    """Return values of one backend: the one that isn't eager, if there is one."""
    backend: Backend = EAGER
    for tensor in tensors:
        if not isinstance(tensor.backend, Eager):
            if not isinstance(backend, Eager) and tensor.backend is not backend:
                raise Invalid("arrays of two traces can't be mixed: a trace is one function's")
            backend = tensor.backend
    return backend, [
        tensor.value if tensor.backend is backend else backend.constant(tensor.numpy()) for tensor in tensors
    ]


def tensors_of(*things: Any) -> list[Tensor]:
    """Return things as tensors of one backend, each of its own type."""
    backend, values = _lifted([asarray(thing) for thing in things])
    return [Tensor(backend, value) for value in values]


def together(*things: Any, dtype: DataType | None = None) -> tuple[Backend, list[Value], DataType]:
    """Return a backend, and things as its values of one type: a given one, or what numpy promotes them to.

    Raises Invalid for types that don't go together, and numbers that the type doesn't hold.
    """
    numbers = [thing if is_number(thing) else None for thing in things]
    tensors = [
        None if number is not None else asarray(thing) for thing, number in zip(things, numbers, strict=True)
    ]
    type_ = dtype or common_type(
        *(
            tensor.type if tensor is not None else number
            for tensor, number in zip(tensors, numbers, strict=True)
        )  # type: ignore[arg-type]
    )
    backend, _ = _lifted([tensor for tensor in tensors if tensor is not None])
    values = []
    for tensor, number in zip(tensors, numbers, strict=True):
        if tensor is not None:
            (value,) = [tensor.value] if tensor.backend is backend else [backend.constant(tensor.numpy())]
            values.append(backend.cast(value, type_))
        else:
            assert number is not None
            if dtype is None and not fits(number, type_):
                raise Invalid(f"elements of type {name_of(type_)} don't hold the number {number}")
            values.append(backend.scalar(number, type_))
    return backend, values, type_


def _index_array(thing: Any) -> Tensor:
    found = asarray(thing)
    if isinstance(thing, list) and not thing:
        return found.astype(DataType.INT64)
    if found.type is DataType.BOOL or found.type in INTEGERS:
        return found if found.type in (DataType.BOOL, DataType.INT32) else found.astype(DataType.INT64)
    raise Invalid(f"an index holds {found.dtype}; integers and booleans are indices")


# Operators of two


def binary(name: str, x: Any, y: Any) -> Tensor:
    """Apply one of numpy's operators of two to operands that broadcast; see `BINARY` for their names."""
    rule, of_bools = BINARY[name]
    try:
        b, values, type_ = together(x, y, dtype=_of_quotients(x, y) if name == "divide" else None)
    except Invalid as error:
        raise Invalid(f"{name}: {error}") from None
    if type_ not in COMPUTED:
        raise Invalid(f"{name} doesn't take elements of type {name_of(type_)}: convert them with astype")
    if type_ is DataType.BOOL and of_bools in ("and", "or", "xor"):
        return Tensor(b, b.elementwise(of_bools, *values))
    if type_ is DataType.BOOL and not of_bools:
        raise Invalid(f"{name} doesn't take booleans; use logical_xor, or convert them with astype")
    if name in OF_BITS and type_ in FLOATS:
        raise Invalid(f"{name} takes integers and booleans, not {name_of(type_)}")
    if type_ is DataType.BOOL:
        type_ = DataType.INT8
    if name == "power" and type_ in SIGNED:
        exponents = b.known(values[1])
        if exponents is not None and exponents.size and exponents.min() < 0:
            raise Invalid(
                "power: integers have no negative powers that are integers: make one of them floats"
            )
    return Tensor(b, rule(b, *(b.cast(value, type_) for value in values)))


def _of_quotients(x: Any, y: Any) -> DataType | None:
    """Return float64 for whole numbers, whether or not one's type holds the other; None for floats."""
    types = (each if is_number(each) else asarray(each).type for each in (x, y))
    return DataType.FLOAT64 if common_type(*types) in INTEGERS | {DataType.BOOL} else None


def compare(name: str, x: Any, y: Any) -> Tensor:
    """Compare operands that broadcast: "equal", "not_equal", "less", "less_equal", "greater(_equal)"."""
    atom, swapped, turned = COMPARISONS[name]
    # A number that a type doesn't hold is still less or more than what it holds.
    try:
        x, y = (_wide(each, other) for each, other in ((x, y), (y, x)))
        b, values, type_ = together(x, y)
    except Invalid as error:
        raise Invalid(f"{name}: {error}") from None
    if type_ not in COMPUTED:
        raise Invalid(f"{name} doesn't take elements of type {name_of(type_)}: convert them with astype")
    result = b.elementwise(atom, *(reversed(values) if swapped else values))
    return Tensor(b, b.elementwise("not", result) if turned else result)


def _wide(thing: Any, other: Any) -> Any:
    if is_number(thing) and not is_number(other):
        type_ = asarray(other).type
        if type_ in INTEGERS and not fits(thing, type_) and isinstance(thing, int):
            return np.int64(thing) if -(1 << 63) <= thing < 1 << 63 else float(thing)
    return thing


def as_floating(x: Any) -> Tensor:
    """Return a thing as a tensor of floats, as functions of real numbers take it."""
    tensor = asarray(x)
    return tensor.astype(floating(tensor.type))


def matmul(x1: Any, x2: Any) -> Tensor:
    """Multiply matrices as numpy's matmul: stacks of them broadcast, a vector is a row or a column."""
    if is_number(x1) or is_number(x2):
        raise Invalid("matmul takes arrays of 1 axis or more; multiply by a number with *")
    b, (left, right), type_ = together(x1, x2)
    left_shape, right_shape = b.shape(left), b.shape(right)
    if not left_shape or not right_shape:
        raise Invalid("matmul takes arrays of 1 axis or more; multiply by a number with *")
    if type_ is DataType.BOOL:
        # Whether any pair is true.
        counted = matmul(*(Tensor(b, b.cast(value, DataType.INT32)) for value in (left, right)))
        return counted.astype(DataType.BOOL)
    if len(left_shape) == 1:
        left = b.reshape(left, (1, *left_shape))
    if len(right_shape) == 1:
        right = b.reshape(right, (*right_shape, 1))
    result = b.matmul(left, right)
    *leading, rows, columns = b.shape(result)
    kept = [rows] * (len(left_shape) > 1) + [columns] * (len(right_shape) > 1)
    return Tensor(b, b.reshape(result, (*leading, *kept)))
