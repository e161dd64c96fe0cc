"""Models of opsets 1 to 6 as opset 7: every operator that changed in between, by what its versions say.

The changes are ONNX's own (its changelog, versions 1 to 7). The largest is broadcasting: before opset 7 a
flag asked for it, and `axis` said where the second input's axes lie; since then they are the last ones.
ONNX's converter knows neither `axis` nor symbolic sizes, nor many other changes, so this doesn't use it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
    numpy_helper,
)

from libs.common.errors import Invalid
from services.engine.reading.external import ExternalFiles
from services.engine.reading.functions import every_node
from services.engine.reading.inference import inferred_protos
from services.engine.reading.limits import OLDEST_OPSET, shown
from services.engine.reading.tensors import Array, Tensors

_UNIDIRECTIONAL = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")
_RECURRENT = ("RNN", "GRU", "LSTM")
_MOST_RANK = 16


def renew(model: ModelProto, version: int) -> None:
    """Rewrite the default operators of a model of opset `version`, 1 to 6, as those of opset 7, in place.

    Raises Invalid, naming the node, where that takes what isn't known, or where training is asked for.
    """
    work = _Renewal(version, inferred_protos(model), _names(model))
    work.graph(model.graph)
    for item in model.opset_import:
        if item.domain in ("", "ai.onnx"):
            item.version = OLDEST_OPSET


def _names(model: ModelProto) -> set[str]:
    found = {info.name for info in model.graph.input} | {tensor.name for tensor in model.graph.initializer}
    for node in every_node(model.graph.node):
        found.update(node.input)
        found.update(node.output)
    return found


@dataclass(slots=True)
class _Renewal:
    version: int
    types: Mapping[str, TypeProto]
    names: set[str]
    constants: dict[str, TensorProto] = field(default_factory=dict)
    added: list[NodeProto] = field(default_factory=list)
    """Nodes to stand before the one that is rewritten."""
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def graph(self, graph: GraphProto) -> None:
        self.constants.update((tensor.name, tensor) for tensor in graph.initializer)
        nodes: list[NodeProto] = []
        for position, node in enumerate(graph.node):
            node.name = node.name or f"#{position}"
            if node.op_type == "Constant" and len(node.output) == 1 and node.attribute:
                self.constants[node.output[0]] = node.attribute[0].t
            if node.domain in ("", "ai.onnx"):
                try:
                    self._node(node)
                except Invalid as error:
                    raise Invalid(
                        f"node {shown(node.name)[1:-1]} ({node.op_type[:80]}) of opset {self.version}: "
                        f"{error}"
                    ) from error
            nodes += [*self.added, node]
            self.added.clear()
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self.graph(attribute.g)
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)

    def _node(self, node: NodeProto) -> None:
        _take(node, "consumed_inputs")
        self._write_defaults(node)
        if node.op_type in _UNIDIRECTIONAL:
            self._broadcast(node)
        elif node.op_type in _RECURRENT:
            _take(node, "output_sequence")  # since then outputs that are named are wanted
        elif (change := _CHANGES.get(node.op_type)) is not None:
            change(self, node)

    def _write_defaults(self, node: NodeProto) -> None:
        """Write out attributes that are left to a default which has changed."""
        try:
            old = onnx.defs.get_schema(node.op_type, self.version, "").attributes
            new = onnx.defs.get_schema(node.op_type, OLDEST_OPSET, "").attributes
        except onnx.defs.SchemaError:
            return  # reading says so
        given = {attribute.name for attribute in node.attribute}
        for name, declared in old.items():
            default = declared.default_value
            if (
                default.name
                and name in new
                and name not in given
                and default.type == new[name].default_value.type
                and default.SerializeToString() != new[name].default_value.SerializeToString()
            ):
                node.attribute.append(default)

    def _broadcast(self, node: NodeProto) -> None:
        asked, axis = _integer(node, "broadcast", 0), _take(node, "axis")
        if not asked or axis is None or len(node.input) != 2:
            return
        rank, own = self._rank(node.input[0]), self._rank(node.input[1])
        first = int(axis.i)
        if not 0 <= first <= rank - own:
            raise Invalid(f"axis {first} leaves no {own} of {rank} axes; it must be 0 to {rank - own}")
        self._append_axes(node, 1, own, rank - own - first)

    def _prelu(self, node: NodeProto) -> None:
        if len(node.input) == 2 and self._rank(node.input[1]) == 1:
            # The slopes are of channels, axis 1; since then they are broadcast as everything else is.
            self._append_axes(node, 1, 1, max(self._rank(node.input[0]) - 2, 0))

    def _gemm(self, node: NodeProto) -> None:
        _take(node, "broadcast")

    def _trained(self, node: NodeProto) -> None:
        if not _integer(node, "is_test", 0):
            raise Invalid("it is in training mode (is_test = 0); export the model for inference")

    def _cast(self, node: NodeProto) -> None:
        given = _take(node, "to")
        if given is None or given.type != AttributeProto.STRING:
            if given is not None:
                node.attribute.append(given)
            return
        name = given.s.decode(errors="replace").upper()
        if name not in TensorProto.DataType.keys():  # noqa: SIM118 - it is no mapping
            raise Invalid(f"attribute 'to' is {shown(name)}, which is no type")
        node.attribute.append(helper.make_attribute("to", TensorProto.DataType.Value(name)))

    def _reshape(self, node: NodeProto) -> None:
        shape = _take(node, "shape")
        if shape is not None and len(node.input) == 1:
            node.input.append(self._constant(np.array(shape.ints, np.int64)))

    def _pad(self, node: NodeProto) -> None:
        paddings = _take(node, "paddings")
        if paddings is not None:
            node.attribute.append(helper.make_attribute("pads", list(paddings.ints)))

    def _split(self, node: NodeProto) -> None:
        if len(node.input) == 2:
            sizes = self._value(node.input[1])
            node.attribute.append(helper.make_attribute("split", [int(size) for size in sizes.reshape(-1)]))
            del node.input[1]

    def _concat(self, node: NodeProto) -> None:
        if not any(attribute.name == "axis" for attribute in node.attribute):
            node.attribute.append(helper.make_attribute("axis", 1))

    def _tile(self, node: NodeProto) -> None:
        if len(node.input) != 3:
            return
        times, axis = (self._value(name).reshape(-1) for name in node.input[1:])
        rank = self._rank(node.input[0])
        if len(times) != 1 or len(axis) != 1 or not 0 <= int(axis[0]) < rank:
            raise Invalid(f"its tiles and axis must be one number each, the axis 0 to {rank - 1}")
        repeats = np.ones(rank, np.int64)
        repeats[int(axis[0])] = int(times[0])
        del node.input[1:]
        node.input.append(self._constant(repeats))

    def _upsample(self, node: NodeProto) -> None:
        height, width = _take(node, "height_scale"), _take(node, "width_scale")
        if height is not None and width is not None:
            node.attribute.append(helper.make_attribute("scales", [1.0, 1.0, height.f, width.f]))

    def _power(self, node: NodeProto) -> None:
        power = _take(node, "p")
        if power is None:
            return
        if power.type == AttributeProto.FLOAT:
            if not math.isfinite(power.f) or power.f != int(power.f):
                raise Invalid(f"attribute 'p' is {power.f:g}; only whole numbers are supported")
            power = helper.make_attribute("p", int(power.f))
        node.attribute.append(power)

    def _rank(self, name: str) -> int:
        tensor = self.types.get(name, TypeProto()).tensor_type
        if not tensor.HasField("shape") or len(tensor.shape.dim) > _MOST_RANK:
            raise Invalid(f"how many axes its input {shown(name)} has isn't known; declare its shape")
        return len(tensor.shape.dim)

    def _value(self, name: str) -> Array:
        tensor = self.constants.get(name)
        if tensor is None:
            raise Invalid(f"its input {shown(name)} must be a constant")
        return Tensors(ExternalFiles(None)).dense(tensor, f"constant {shown(name)}")

    def _fresh(self, wish: str) -> str:
        name = next(
            candidate
            for number in self.numbers
            if (candidate := f"{wish[:64]}_renewed_{number}") not in self.names
        )
        self.names.add(name)
        return name

    def _constant(self, array: Array) -> str:
        name = self._fresh("constant")
        tensor = numpy_helper.from_array(array, name)
        self.added.append(helper.make_node("Constant", [], [name], name=name, value=tensor))
        return name

    def _append_axes(self, node: NodeProto, position: int, rank: int, count: int) -> None:
        if not count:
            return
        source = node.input[position]
        name = self._fresh(source)
        axes = list(range(rank, rank + count))
        self.added.append(helper.make_node("Unsqueeze", [source], [name], name=name, axes=axes))
        node.input[position] = name


_CHANGES: Mapping[str, Callable[[_Renewal, NodeProto], None]] = {
    "PRelu": _Renewal._prelu,
    "Gemm": _Renewal._gemm,
    "BatchNormalization": _Renewal._trained,
    "Dropout": _Renewal._trained,
    "Cast": _Renewal._cast,
    "Reshape": _Renewal._reshape,
    "Pad": _Renewal._pad,
    "Split": _Renewal._split,
    "Concat": _Renewal._concat,
    "Tile": _Renewal._tile,
    "Upsample": _Renewal._upsample,
    "GlobalLpPool": _Renewal._power,
    "LpPool": _Renewal._power,
}


def _take(node: NodeProto, name: str) -> AttributeProto | None:
    """Remove an attribute; return it where it was there."""
    for position, attribute in enumerate(node.attribute):
        if attribute.name == name:
            found = AttributeProto()
            found.CopyFrom(attribute)
            del node.attribute[position]
            return found
    return None


def _integer(node: NodeProto, name: str, default: int) -> int:
    found = _take(node, name)
    return default if found is None else int(found.i)
