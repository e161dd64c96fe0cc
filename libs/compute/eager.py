"""Does at once what library code asks for: on numpy arrays, by the very kernels that run plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from libs.common.errors import Exhausted, Invalid
from libs.compute.backend import MOST_AXES, Array, Move, Round, Shape, Size
from libs.compute.promotion import COMPUTED_NAMES
from libs.runtime.atomic import ATOMICS
from libs.runtime.elements import ITEM_BYTES, family, same_bits
from libs.runtime.faults import TOO_MUCH_MEMORY, bad_input
from libs.runtime.host import image
from libs.runtime.host.limits import Limits
from libs.runtime.kernels import DataFault, Kernel
from libs.runtime.kernels import elementwise as elementwise_kernels
from libs.runtime.kernels import gather as gather_kernel
from libs.runtime.kernels import matmul as matmul_kernel
from libs.runtime.kernels import raster as raster_kernels
from libs.runtime.kernels import reduce as reduce_kernels
from libs.runtime.kernels import scan as scan_kernel
from libs.runtime.kernels import scatter as scatter_kernels
from libs.runtime.kernels import sort as sort_kernel
from libs.runtime.numpy_types import DTYPES
from libs.runtime.plan import DataType

MAX_VALUE_BYTES = 1 << 33
"""Of one value."""
_INDEX_TYPES = (DataType.INT32, DataType.INT64)


class Eager:
    """See the module. Values are dense numpy arrays that are never written to again; it has no state."""

    # What a value is

    def type(self, x: Array) -> DataType:
        """Return the type of its elements."""
        return data_type(x.dtype)

    def shape(self, x: Array) -> Shape:
        """Return its sizes."""
        return x.shape

    def known(self, x: Array) -> Array | None:
        """Return its elements."""
        return x

    # Values from nothing, and sizes from values

    def constant(self, array: Array) -> Array:
        """Return an array as a value: dense, of a type that plans know, little-endian; copied if need be."""
        dtype = DTYPES[data_type(array.dtype)]
        if array.ndim > MOST_AXES:
            raise Invalid(f"an array has {array.ndim} axes; at most {MOST_AXES} are supported")
        return np.asarray(array, dtype, order="C")

    def scalar(self, number: float, type_: DataType) -> Array:
        """Return one number, of no axes."""
        with np.errstate(all="ignore"):
            return np.array(number).astype(DTYPES[type_])

    def integers(self, sizes: Sequence[Size]) -> Array:
        """Return sizes as an int64 vector."""
        return np.array(sizes, np.int64)

    def extent(self, size: Size, type_: DataType) -> Array:
        """Return a size as a scalar of any type."""
        return self.scalar(size, type_)

    def arange(self, size: Size) -> Array:
        """Return the int64 vector 0, 1, …, size - 1."""
        _check_shape((size,), DataType.INT64)
        return np.arange(size, dtype=np.int64)

    def sizes(self, x: Array) -> Shape:
        """Return the elements of an integer vector, none below 0, as ints."""
        found = tuple(int(size) for size in x.reshape(-1))
        for size in found:
            if size < 0:
                raise bad_input(f"a size is {size}; sizes are 0 or more")
        return found

    def size(self, x: Array) -> Size:
        """Return one integer, not below 0, as an int."""
        (size,) = self.sizes(x)
        return size

    def minimum(self, a: Size, b: Size) -> Size:
        """Return the smaller."""
        return min(a, b)

    def maximum(self, a: Size, b: Size) -> Size:
        """Return the larger."""
        return max(a, b)

    def equal(self, a: Size, b: Size) -> None:
        """Demand that two sizes are equal."""
        if a != b:
            raise Invalid(f"sizes {a} and {b} must be equal")

    # Atomic operators

    def elementwise(self, operator: str, *inputs: Array, result: DataType | None = None) -> Array:
        """Apply an elementwise operator to inputs of one type, which broadcast."""
        alike = inputs[1:] if operator == "where" else inputs
        if operator == "where" and inputs[0].dtype != np.bool_:
            raise Invalid(f"a condition holds {inputs[0].dtype}, not booleans")
        _check_types(operator, alike)
        if result is None:
            result = DataType.BOOL if ATOMICS[operator].result == "bool" else data_type(alike[0].dtype)
        shape = inputs[0].shape
        if any(x.shape != shape for x in inputs):
            shape = self.common_shape(*(x.shape for x in inputs))
            inputs = tuple(np.broadcast_to(x, shape) for x in inputs)
        output = _empty(shape, result)
        return _run(elementwise_kernels.build(operator, inputs, output), output)

    def cast(self, x: Array, type_: DataType) -> Array:
        """Convert the elements; anything but 0 becomes true."""
        return x if x.dtype == DTYPES[type_] else self.elementwise("cast", x, result=type_)

    def bit_cast(self, x: Array, type_: DataType) -> Array:
        """Return the same bits as elements of another type of as many."""
        before = data_type(x.dtype)
        if before is type_:
            return x
        if DataType.STRING in (before, type_) or not same_bits(before, type_):
            raise Invalid(f"{x.dtype} can't be seen as {type_.name.lower()}: elements are of other widths")
        if type_ is DataType.BOOL:
            return self.elementwise("cast", self.bit_cast(x, DataType.UINT8), result=type_)
        return self.elementwise("bit_cast", x, result=type_)

    def where(self, condition: Array, x: Array, y: Array) -> Array:
        """Return x where the condition holds, y elsewhere; all three broadcast."""
        return self.elementwise("where", condition, x, y)

    def reduce(self, operator: str, x: Array, axes: Sequence[int], *, keep: bool) -> Array:
        """Reduce along axes, which stay with size 1 if `keep`; none reduces nothing."""
        if not axes:
            return x
        _check_types(operator, (x,))
        ordered = tuple(sorted(axes))
        shape = tuple(size for axis, size in enumerate(x.shape) if axis not in ordered)
        output = _empty(shape, data_type(x.dtype))
        _run(reduce_kernels.build(operator, x, output, ordered), output)
        kept = tuple(1 if axis in ordered else size for axis, size in enumerate(x.shape))
        return output.reshape(kept) if keep else output

    def arg_max(self, x: Array, axis: int) -> Array:
        """Return the int64 position of the first maximum along an axis, which goes; NaN is the largest."""
        _check_types("arg_max", (x,))
        if x.shape[axis] == 0:
            raise Invalid(f"axis {axis} of an array of shape {list(x.shape)} is empty: it has no extreme")
        output = _empty(x.shape[:axis] + x.shape[axis + 1 :], DataType.INT64)
        return _run(reduce_kernels.build("arg_max", x, output, (axis,)), output)

    def arg_sort(self, x: Array, axis: int) -> Array:
        """Return from where each element comes that puts an axis in order: ascending, stable, NaN last."""
        _check_types("arg_sort", (x,))
        output = _empty(x.shape, DataType.INT64)
        return _run(sort_kernel.build(x, output, axis), output)

    def cumulative_sum(self, x: Array, axis: int) -> Array:
        """Return the running sum along an axis; integers stay in their type."""
        _check_types("cumulative_sum", (x,))
        output = _empty(x.shape, data_type(x.dtype))
        return _run(scan_kernel.build(x, output, axis), output)

    def matmul(self, a: Array, b: Array) -> Array:
        """Multiply (…, m, k) by (…, k, n); leading axes broadcast."""
        _check_types("matmul", (a, b))
        if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
            raise Invalid(f"shapes {list(a.shape)} and {list(b.shape)} can't be multiplied as matrices")
        leading = self.common_shape(a.shape[:-2], b.shape[:-2])
        left = np.broadcast_to(a, leading + a.shape[-2:])
        right = np.broadcast_to(b, leading + b.shape[-2:])
        output = _empty((*leading, a.shape[-2], b.shape[-1]), data_type(a.dtype))
        return _run(matmul_kernel.build(left, right, output), output)

    def gather(self, data: Array, indices: Array, axis: int) -> Array:
        """Replace an axis of `data` by the shape of `indices`; negative ones count from the end."""
        if data_type(indices.dtype) not in _INDEX_TYPES:
            raise Invalid(f"indices hold {indices.dtype}, not int32 or int64")
        _check_types("gather", (data,))
        shape = data.shape[:axis] + indices.shape + data.shape[axis + 1 :]
        output = _empty(shape, data_type(data.dtype))
        return _run(gather_kernel.build(data, indices, output, axis), output)

    def scatter(self, operator: str, data: Array, indices: Array, updates: Array) -> Array:
        """Return `data` with `updates` put at, or combined with what is at, `indices` along axis 0."""
        if data_type(indices.dtype) not in _INDEX_TYPES or indices.ndim != 1 or not data.ndim:
            raise Invalid(f"indices are {indices.dtype}{list(indices.shape)}, not a vector of int32 or int64")
        _check_types(operator, (data, updates))
        wanted = indices.shape + data.shape[1:]
        updates = self.broadcast(updates, wanted)
        output = _empty(data.shape, data_type(data.dtype))
        return _run(scatter_kernels.build(operator, data, indices, updates, output), output)

    # Movement

    def move(self, x: Array, shape: Shape, strides: Shape, offset: Size = 0) -> Array:
        """Return the elements of `x` at offset + Σ ik·stride_k as a dense array of `shape`."""
        output = _empty(shape, data_type(x.dtype))
        np.copyto(output, _strided(x, offset, shape, strides))
        return output

    def raster(
        self, type_: DataType, shape: Shape, moves: Sequence[Move], fill: float | None = None
    ) -> Array:
        """Write a value from regions of others, later ones over earlier; `fill` first."""
        output = _empty(shape, type_)
        if fill is None and not any(math.prod(move.sizes) for move in moves):
            fill = 0  # nothing to write: the value is empty
        pairs = []
        for move in moves:
            _check_types_equal(move.source, output)
            source = _strided(move.source, move.offset, move.sizes, move.strides)
            pairs.append((_strided(output, move.destination, move.sizes, move.destination_strides), source))
        written = sum(source.size for _, source in pairs)
        if fill is None and written < output.size:
            raise Invalid(f"regions write {written} of {output.size} elements, and there is no fill")
        filling = None if fill is None else self.scalar(fill, type_)
        for kernel in raster_kernels.build(pairs, output, filling):
            kernel()
        return output

    def reshape(self, x: Array, shape: Shape) -> Array:
        """Return the elements, in their order, in another shape of as many."""
        if math.prod(shape) != x.size or any(size < 0 for size in shape):
            raise Invalid(
                f"{x.size} elements of shape {list(x.shape)} can't be given the shape {list(shape)}"
            )
        _check_shape(shape, data_type(x.dtype))
        return x.reshape(shape)

    def transpose(self, x: Array, order: Sequence[int]) -> Array:
        """Return `x` with its axes in another order."""
        order = tuple(order)
        return x if order == tuple(range(x.ndim)) else np.ascontiguousarray(x.transpose(order))

    def broadcast(self, x: Array, shape: Shape) -> Array:
        """Repeat `x` to a shape that it broadcasts to."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        if self.common_shape(x.shape, shape) != shape:
            raise Invalid(f"shape {list(x.shape)} doesn't broadcast to {list(shape)}")
        output = _empty(shape, data_type(x.dtype))
        np.copyto(output, x)
        return output

    def common_shape(self, *shapes: Shape) -> Shape:
        """Return the shape that all broadcast to."""
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            texts = " and ".join(str(list(shape)) for shape in shapes)
            raise Invalid(f"shapes {texts} don't broadcast: sizes must be equal, or 1") from None

    # Control flow, and the rest

    def loop(
        self, limit: Size | None, carried: Sequence[Array], body: Callable[[Array, list[Array]], Round]
    ) -> list[Array]:
        """Run `body` until it says so, at most `limit` times; return what it carried out."""
        state, number = list(carried), 0
        while limit is None or number < limit:
            going, after = body(np.array(number, np.int64), list(state))
            state, number = list(after), number + 1
            if going is not None and not going.all():
                break
        return state

    def decode_image(self, data: Array, layout: str) -> Array:
        """Return the pixels of an encoded image, uint8 [n], as uint8 [height, width, channels]."""
        if data.dtype != np.uint8 or data.ndim != 1:
            raise Invalid(f"an encoded image is a vector of uint8, not {data.dtype}{list(data.shape)}")
        try:
            (pixels,) = image.decode([data], Limits(MAX_VALUE_BYTES), texts=(layout,))
        except DataFault as error:
            raise bad_input(str(error)) from None
        return np.asarray(pixels, np.uint8, order="C")


EAGER = Eager()
"""The one there needs to be: it has no state."""

_OTHER_NAMES = {"FLOAT8E8M0FNU": "FLOAT8E8M0", "FLOAT4E2M1FN": "FLOAT4E2M1"}
"""Types that ml_dtypes calls otherwise."""
_BUILT_IN: Mapping[np.dtype[Any], DataType] = MappingProxyType(
    {
        np.dtype(type_.name.lower()): type_
        for type_ in DataType
        if type_ <= DataType.FLOAT64 or type_ in (DataType.COMPLEX64, DataType.COMPLEX128)
    }
)
"""numpy's own, which need no name to be found."""


def data_type(dtype: np.dtype[Any]) -> DataType:
    """Return the type of elements of a numpy type; raises Invalid for one that plans don't have."""
    if (known_type := _BUILT_IN.get(dtype)) is not None:
        return known_type
    name = dtype.name.upper().replace("_", "")
    try:
        return DataType[_OTHER_NAMES.get(name, name)]
    except KeyError:
        known = ", ".join(COMPUTED_NAMES)
        raise Invalid(f"elements of type {dtype} are not supported; use one of {known}") from None


def _run(kernel: Kernel, output: Array) -> Array:
    try:
        with np.errstate(all="ignore"):
            kernel()
    except DataFault as error:
        raise bad_input(str(error)) from None
    return output


def _empty(shape: Shape, type_: DataType) -> Array:
    _check_shape(shape, type_)
    return np.empty(tuple(shape), DTYPES[type_])


def _check_shape(shape: Shape, type_: DataType) -> None:
    if len(shape) > MOST_AXES:
        raise Invalid(f"a value would have {len(shape)} axes; at most {MOST_AXES} are supported")
    if any(size < 0 for size in shape):
        raise Invalid(f"shape {list(shape)} has a size below 0")
    if math.prod(shape) * ITEM_BYTES[type_] > MAX_VALUE_BYTES:
        text = f"a value of shape {list(shape)} would take more than {MAX_VALUE_BYTES} bytes"
        raise Exhausted(text, reason=TOO_MUCH_MEMORY)


def _check_types(operator: str, inputs: Sequence[Array]) -> None:
    first = inputs[0]
    for other in inputs[1:]:
        _check_types_equal(first, other)
    if family(data_type(first.dtype)) not in ATOMICS[operator].types:
        raise Invalid(f"{operator} doesn't take elements of type {first.dtype}")


def _check_types_equal(a: Array, b: Array) -> None:
    if a.dtype != b.dtype:
        raise Invalid(f"elements of types {a.dtype} and {b.dtype} don't go together: convert one")


def _strided(array: Array, offset: Size, shape: Shape, strides: Shape) -> Array:
    """Return elements of a dense array as a view; raises Invalid where it would reach outside of it."""
    flat = array.reshape(-1)
    if 0 in shape:
        return flat[:0].reshape(tuple(shape))
    steps = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    low = offset + sum(step for step in steps if step < 0)
    high = offset + sum(step for step in steps if step > 0)
    if low < 0 or high >= flat.size or any(size < 0 for size in shape):
        raise Invalid(f"elements {low} to {high} are wanted of an array that has {flat.size}")
    # numpy gives views of types that aren't its own by their names, some of which it doesn't read.
    plain = flat if flat.dtype.isbuiltin == 1 else flat.view(f"u{flat.itemsize}")
    steps = [stride * flat.itemsize for stride in strides]
    return as_strided(plain[offset:], tuple(shape), tuple(steps)).view(flat.dtype)
