"""Writes the definition of one node, in the forms that operators have in the model's opset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, TypeProto, numpy_helper

from libs.common.errors import Invalid
from libs.common.suggest import did_you_mean
from services.engine.domain.graph import Attribute
from services.engine.reading.limits import shown

FLOAT32, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
FLOAT16, BFLOAT16, FLOAT64 = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
UINT8, INT8, BOOL = TensorProto.UINT8, TensorProto.INT8, TensorProto.BOOL
UINT4, INT4 = TensorProto.UINT4, TensorProto.INT4
RANGES: Mapping[int, tuple[int, int]] = {UINT8: (0, 255), INT8: (-128, 127)}
LARGEST = 1 << 31
"""Of a size that a definition computes with."""
Size = int | str | None
"""Of an axis: a number, a name, or unknown."""


class Known(Protocol):
    """What is known of the values of a graph."""

    def type(self, name: str) -> TypeProto | None:
        """Return the type of a value."""
        ...

    def is_constant(self, name: str) -> bool:
        """Tell whether a value is in the file."""
        ...


class Definition:
    """Standard nodes in the place of one of ONNX Runtime's. Values are their names.

    Accessors raise Invalid for what isn't there, or isn't known; the caller adds the node's name.
    """

    def __init__(
        self,
        node: NodeProto,
        attributes: Mapping[str, Attribute],
        opset: int,
        known: Known,
        prefix: str,
    ) -> None:
        """`attributes` have the defaults filled in; names of values inside start with `prefix`.

        `known` tells of the node's inputs.
        """
        self.opset = opset
        self.nodes: list[NodeProto] = []
        self._node = node
        self._attributes = attributes
        self._known = known
        self._prefix = prefix
        self._writers: dict[str, NodeProto] = {}

    # ---- the node ----
    def input(self, index: int) -> str:
        """Return an input that must be there."""
        name = self.optional(index)
        if name is None:
            self.fail(f"input {index} is missing")
        return name

    def optional(self, index: int) -> str | None:
        """Return an input, or None where it is left out."""
        names = self._node.input
        return names[index] if index < len(names) and names[index] else None

    def inputs(self, start: int) -> list[str]:
        """Return all inputs from one on, which must be there."""
        return [self.input(index) for index in range(start, len(self._node.input))]

    def wants(self, output: int) -> bool:
        """Tell whether the model uses this output."""
        return output < len(self._node.output) and self._node.output[output] != ""

    def has(self, name: str) -> bool:
        """Tell whether an attribute is given, or has a default."""
        return name in self._attributes

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer attribute; the schema has seen to its type."""
        value = self._attributes.get(name, default)
        assert isinstance(value, int)
        return value

    def number(self, name: str, default: float = 0.0) -> float:
        """Return a floating-point attribute."""
        value = self._attributes.get(name, default)
        assert isinstance(value, float | int)
        return float(value)

    def text(self, name: str, among: Sequence[str]) -> str:
        """Return a text attribute, which is one of `among`; "" where it is left out."""
        value = self._attributes.get(name, "")
        assert isinstance(value, str)
        if value and value not in among:
            hint = did_you_mean(value, among)
            self.fail(f"attribute {name!r} is {shown(value)}; use one of {', '.join(among)}{hint}")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return an attribute that lists numbers; none where it is left out."""
        value = self._attributes.get(name, ())
        assert isinstance(value, tuple)
        return tuple(float(item) for item in value)

    def integers(self, name: str) -> tuple[int, ...]:
        """Return an attribute that lists integers; none where it is left out."""
        return tuple(int(item) for item in self.numbers(name))

    def given(self, *names: str) -> dict[str, Any]:
        """Return those of these attributes that are there, to be handed on as they are."""
        # An empty list is none.
        return {name: self._attributes[name] for name in names if self._attributes.get(name, ()) != ()}

    def fail(self, reason: str) -> NoReturn:
        """Refuse the node."""
        raise Invalid(reason)

    def refuse(self, *indices: int) -> None:
        """Refuse inputs that are given, by their names in the file."""
        for index in indices:
            name = self.optional(index)
            if name is not None:
                self.fail(f"input {index} ({shown(name)}) is not supported: leave it out")

    # ---- what is known of values ----
    def type(self, name: str) -> int:
        """Return the type of a value's elements."""
        while (node := self._writers.get(name)) is not None:
            if (settled := _settled(node)) is not None:
                return settled
            name = node.input[_LIKE.get(node.op_type, 0)]
        found = self._known.type(name)
        if found is None or not found.tensor_type.elem_type:
            self.fail(f"the definition depends on the type of {shown(name)}, {_UNKNOWN}")
        return found.tensor_type.elem_type

    def is_constant(self, *names: str) -> bool:
        """Tell whether inputs are in the file."""
        return all(self._known.is_constant(name) for name in names)

    def sizes(self, name: str) -> tuple[Size, ...]:
        """Return the sizes of an input's axes as far as they are known; how many there are must be."""
        assert name not in self._writers, name
        found = self._known.type(name)
        if found is None or not found.tensor_type.HasField("shape"):
            self.fail(f"the definition depends on the number of axes of {shown(name)}, {_UNKNOWN}")
        return tuple(
            size.dim_value if size.HasField("dim_value") else size.dim_param or None
            for size in found.tensor_type.shape.dim
        )

    def rank(self, name: str, *allowed: int) -> int:
        """Return the number of an input's axes, which must be one of `allowed` where that is given."""
        rank = len(self.sizes(name))
        if allowed and rank not in allowed:
            wanted = " or ".join(map(str, allowed))
            self.fail(f"{shown(name)} has {rank} axes; {wanted} are supported")
        return rank

    def size(self, name: str, axis: int, what: str) -> int:
        """Return the size of an axis, which must be known when the plan is made."""
        sizes = self.sizes(name)
        if axis >= len(sizes):
            self.fail(f"{what} is axis {axis} of {shown(name)}, which has {len(sizes)} axes")
        size = sizes[axis]
        if not isinstance(size, int):
            self.fail(f"{what}, axis {axis} of {shown(name)}, must be a number in the model's shapes")
        if not 1 <= size <= LARGEST:
            self.fail(f"{what}, axis {axis} of {shown(name)}, is {size}; use 1 to {LARGEST}")
        return size

    # ---- nodes ----
    def __call__(self, operator: str, *inputs: str | None, **attributes: Any) -> str:
        """Add a node of one output; return it."""
        return self.several(operator, 1, *inputs, **attributes)[0]

    def several(self, operator: str, count: int, *inputs: str | None, **attributes: Any) -> list[str]:
        """Add a node of several outputs; return them."""
        place = f"{operator.lower()}{len(self.nodes)}"
        outputs = [f"{self._prefix}{place}" + (f".{index}" if index else "") for index in range(count)]
        self.add(operator, inputs, outputs, **attributes)
        return outputs

    def add(
        self, operator: str, inputs: Sequence[str | None], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """Add a node with names of outputs."""
        name = f"{self._node.name[:1000]}/{self._node.op_type}.{len(self.nodes)}"
        node = onnx.helper.make_node(operator, [each or "" for each in inputs], outputs, name, **attributes)
        self.nodes.append(node)
        self._writers.update((output, node) for output in outputs)

    def constant(self, values: Any, type_: int = INT64) -> str:
        """Return a tensor of these numbers, int64 unless said otherwise."""
        if type_ == TensorProto.STRING:
            self.fail("its inputs must hold numbers")
        array = np.asarray(values)
        if type_ == INT64:
            tensor = numpy_helper.from_array(array.astype(np.int64))
        else:
            with np.errstate(over="ignore"):
                tensor = onnx.helper.make_tensor("", type_, array.shape, array.reshape(-1).tolist())
        return self("Constant", value=tensor)

    def scalar(self, value: float, like: str) -> str:
        """Return a number in the type of a value, which must hold floats."""
        type_ = self.type(like)
        if type_ not in (FLOAT16, BFLOAT16, FLOAT32, FLOAT64):
            self.fail("its inputs must hold floating-point numbers")
        return self.constant(value, type_)

    def cast(self, x: str, type_: int) -> str:
        """Return a value as another type."""
        return self("Cast", x, to=type_)

    def wide(self, x: str) -> str:
        """Return floats of 16 bits as those of 32, others as they are."""
        return self.cast(x, FLOAT32) if self.type(x) in (FLOAT16, BFLOAT16) else x

    def sum(self, *values: str | None) -> str:
        """Return the sum of those that are there, from the first on."""
        first, *rest = (value for value in values if value is not None)
        for value in rest:
            first = self("Add", first, value)
        return first

    def mean(self, x: str, axes: Sequence[int], *, keep: bool = True) -> str:
        """Return means over axes."""
        if self.opset < 18:
            return self("ReduceMean", x, axes=list(axes), keepdims=int(keep))
        return self("ReduceMean", x, self.constant(axes), keepdims=int(keep))

    def largest(self, x: str, axis: int) -> str:
        """Return maxima over an axis, which becomes 1."""
        if self.opset < 18:
            return self("ReduceMax", x, axes=[axis], keepdims=1)
        return self("ReduceMax", x, self.constant([axis]), keepdims=1)

    def fill(self, x: str, rank: int, count: int) -> str:
        """Return a value with zeros at the end of its last axis. Since opset 11."""
        return self("Pad", x, self.constant([*[0] * (2 * rank - 1), count]))

    def total(self, x: str, axis: int) -> str:
        """Return sums over an axis, which goes."""
        if self.opset < 13:
            return self("ReduceSum", x, axes=[axis], keepdims=0)
        return self("ReduceSum", x, self.constant([axis]), keepdims=0)

    def unsqueeze(self, x: str, *axes: int) -> str:
        """Return a value with further axes of 1."""
        if self.opset < 13:
            return self("Unsqueeze", x, axes=list(axes))
        return self("Unsqueeze", x, self.constant(axes))

    def squeeze(self, x: str, *axes: int) -> str:
        """Return a value without axes of 1."""
        if self.opset < 13:
            return self("Squeeze", x, axes=list(axes))
        return self("Squeeze", x, self.constant(axes))

    def reshape(self, x: str, *sizes: int) -> str:
        """Return a value of other sizes; 0 keeps one, -1 takes what is left."""
        return self("Reshape", x, self.constant(sizes))

    def transpose(self, x: str, *order: int) -> str:
        """Return a value with its axes in another order."""
        return self("Transpose", x, perm=list(order))

    def part(self, x: str, start: int, end: int, axis: int) -> str:
        """Return the slice from start to before end of an axis."""
        if self.opset < 10:
            return self("Slice", x, starts=[start], ends=[end], axes=[axis])
        return self("Slice", x, *(self.constant([number]) for number in (start, end, axis)))

    def split(self, x: str, axis: int, sizes: Sequence[int]) -> list[str]:
        """Return an axis cut into pieces of these sizes."""
        if self.opset < 13:
            return self.several("Split", len(sizes), x, axis=axis, split=list(sizes))
        return self.several("Split", len(sizes), x, self.constant(sizes), axis=axis)

    def halves(self, x: str, axis: int) -> list[str]:
        """Return the halves of an axis of any even size."""
        more = {} if self.opset < 18 else {"num_outputs": 2}
        return self.several("Split", 2, x, axis=axis, **more)

    def softmax(self, x: str, rank: int) -> str:
        """Return the softmax over the last axis, which is what versions that make two axes of all do too."""
        return self("Softmax", x, axis=rank - 1)

    def length(self, x: str, axis: int) -> str:
        """Return the size of an axis as a vector of one."""
        return self.part(self("Shape", x), axis, axis + 1, 0)

    def range(self, count: str) -> str:
        """Return 0 to below a size that is a vector of one, in int64. Since opset 11."""
        ends = self.constant(0), self.squeeze(count, 0), self.constant(1)
        return self("Range", *ends)


_LIKE = {"Where": 1, "QuantizeLinear": 2, "DequantizeLinear": 1}
"""Inputs whose type results are of; the first one otherwise."""
_TRUTHS = frozenset(("And", "Equal", "Greater", "Less", "Not", "Or"))
_WHOLE = {"MatMulInteger": INT32, "Range": INT64, "Shape": INT64}


def _settled(node: NodeProto) -> int | None:
    """Return the type of what a node gives, where that isn't one of its inputs'."""
    if node.op_type == "Cast":
        return int(node.attribute[0].i)
    if node.op_type == "Constant":
        return node.attribute[0].t.data_type
    return BOOL if node.op_type in _TRUTHS else _WHOLE.get(node.op_type)


_UNKNOWN = "which isn't known; declare the model's types and shapes (onnx.shape_inference)"
