"""A graph in the making: the onnx package evaluates each node as it comes; what it refuses is left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from services.engine.testing_graphs.drawing import Draw

FLOATS = ("float32", "float32", "float32", "float64", "float16")
INTEGERS = ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
_MOST_ELEMENTS = 4096
_LARGEST = 1e4
"""Of a float: larger ones make rounding hard to tell from faults."""
_EXACT_STEP, _EXACT_LARGEST = 1 / 16, 64.0
_IR_VERSIONS = {18: 8, 20: 9, 21: 10, 23: 11, 24: 12}
OPSETS = tuple(_IR_VERSIONS)


@dataclass(frozen=True, slots=True)
class Item:
    """What nodes may read: its name and what it is in the call that is compared."""

    name: str
    value: Any
    exact: bool
    """Whether any right implementation gives the very same numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of an array."""
        found: tuple[int, ...] = self.value.shape
        return found

    @property
    def rank(self) -> int:
        """How many axes an array has."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """The name of an array's type."""
        return str(self.value.dtype)


@dataclass
class Sketch:
    """Nodes, and the arrays that they read: inputs and constants.

    Bodies of control flow are sketches with a parent: they read what it has, and what is new to it.
    """

    draw: Draw
    opset: int
    parent: Sketch | None = None
    items: list[Item] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, Any] = field(default_factory=dict)
    """What a call brings."""
    fixed: set[str] = field(default_factory=set)
    """Inputs whose sizes the model says: those that say shapes or axes, whose number must be known."""
    constants: dict[str, Any] = field(default_factory=dict)
    _names: int = 0

    @property
    def root(self) -> Sketch:
        """The outermost sketch."""
        return self if self.parent is None else self.parent.root

    def name(self) -> str:
        """Return a new name."""
        self.root._names += 1
        return f"v{self.root._names}"

    def visible(self) -> Iterator[Item]:
        """Yield what nodes may read here."""
        yield from self.items
        if self.parent is not None:
            yield from self.parent.visible()

    def fresh(self, array: Any, *, constant: bool | None = None, fixed: bool = False) -> Item:
        """Return a new array that the model holds or a call brings: either, where `constant` is None."""
        root, item = self.root, Item(self.name(), array, exact=True)
        if self.draw.boolean() if constant is None else constant:
            root.constants[item.name] = array
        else:
            root.inputs[item.name] = array
            if fixed:
                root.fixed.add(item.name)
        root.items.append(item)
        return item

    def numbers(self, *values: int, constant: bool | None = None, dtype: str = "int64") -> str:
        """Return the name of a new vector of integers that say shapes, axes and the like."""
        return self.fresh(np.array(values, dtype), constant=constant, fixed=True).name

    def number(self, value: Any, dtype: str = "int64", constant: bool | None = None) -> str:
        """Return the name of a new scalar."""
        return self.fresh(np.array(value, dtype), constant=constant, fixed=True).name

    def pick(
        self,
        dtypes: Sequence[str] = FLOATS,
        least: int = 0,
        most: int = 4,
        *,
        exact: bool = False,
        where: Callable[[Item], bool] = lambda item: True,
        new: Callable[[], Any] | None = None,
    ) -> Item:
        """Return an array of some type and number of axes: one that is there, or a new one."""
        there = [
            item
            for item in self.visible()
            if isinstance(item.value, np.ndarray)
            and item.dtype in dtypes
            and least <= item.rank <= most
            and (item.exact or not exact)
            and item.value.size
            and where(item)
        ]
        if there and not self.draw.chance(4):
            return self.draw.choice(there[::-1])
        array = (
            self.draw.array(self.draw.shape(least, most), self.draw.choice(dtypes)) if new is None else new()
        )
        return self.fresh(array, constant=self.draw.chance(4))

    def like(self, item: Item, shape: Sequence[int] | None = None, low: int = -4, high: int = 4) -> Item:
        """Return a new array of an item's type, of its shape or another."""
        return self.fresh(self.draw.array(item.shape if shape is None else shape, item.dtype, low, high))

    def apply(
        self,
        operator: str,
        inputs: Sequence[Item | str | None],
        outputs: int = 1,
        *,
        exact: bool = False,
        **attributes: Any,
    ) -> list[Item]:
        """Add a node and return its outputs; none where the evaluator refuses it or numbers grow too large.

        `exact` says that it gives exact results of exact inputs.
        """
        given = ["" if each is None else each if isinstance(each, str) else each.name for each in inputs]
        names = [self.name() for _ in range(outputs)]
        node = helper.make_node(operator, given, names, name=f"{operator}_{names[0]}")
        for key, value in attributes.items():
            integers = onnx.AttributeProto.INTS if isinstance(value, list) else None
            node.attribute.append(helper.make_attribute(key, value, attr_type=integers))
        known = {item.name: item for item in self.visible()}
        read = {name: known[name] for name in _read(node) if name in known}
        found = evaluate([node], {name: item.value for name, item in read.items()}, names, self.opset)
        if found is None or not all(map(_tame, found)):
            return []
        kept = exact and all(item.exact for item in read.values())
        results = [
            Item(name, value, _is_exact(value, kept)) for name, value in zip(names, found, strict=True)
        ]
        self.nodes.append(node)
        self.items.extend(results)
        return results


def evaluate(
    nodes: Sequence[onnx.NodeProto], feed: dict[str, Any], names: Sequence[str], opset: int
) -> list[Any] | None:
    """Return what the onnx package makes of nodes; None where it refuses them."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [port(name, value) for name, value in feed.items()],
        [helper.make_empty_tensor_value_info(name) for name in names],
    )
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = ReferenceEvaluator(finished(graph, opset)).run(None, feed)
        except Exception:  # whatever it raises of nodes that it can't run
            return None
    return [np.asarray(each) if isinstance(each, np.generic) else each for each in found]


def finished(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    """Return a model with a graph."""
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=_IR_VERSIONS[opset]
    )


def port(name: str, value: Any, shape: Sequence[int | str] | None = None) -> onnx.ValueInfoProto:
    """Return the declaration of an input: with the value's shape, unless another is given."""
    if isinstance(value, list):
        type_ = helper.np_dtype_to_tensor_dtype(value[0].dtype) if value else onnx.TensorProto.FLOAT
        return helper.make_tensor_sequence_value_info(name, type_, None)
    sizes = value.shape if shape is None else shape
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), sizes)


def initializer(name: str, array: Any) -> onnx.TensorProto:
    """Return a constant of a model."""
    if array.dtype == np.object_:
        words: Any = [str(word).encode() for word in array.reshape(-1)]
        return helper.make_tensor(name, onnx.TensorProto.STRING, array.shape, words)
    return numpy_helper.from_array(array, name)


def _read(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node or its bodies read from outside."""
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            made = {port.name for port in attribute.g.input}
            for inner in attribute.g.node:
                names |= _read(inner) - made
                made |= set(inner.output)
            names |= {output.name for output in attribute.g.output} - made
    return names


def _tame(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 8 and all(map(_tame, value))
    if not isinstance(value, np.ndarray) or value.size > _MOST_ELEMENTS or value.ndim > 6:
        return value is None
    return value.dtype.kind != "f" or bool((np.abs(value.astype(np.float64)) <= _LARGEST).all())


def _is_exact(value: Any, kept: bool) -> bool:
    """Tell whether a result of exact numbers is exact: floats only where they keep to a coarse grid."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return kept
    wide = value.astype(np.float64)
    on_grid = np.abs(wide) <= _EXACT_LARGEST
    return kept and bool((on_grid & (wide / _EXACT_STEP == np.round(wide / _EXACT_STEP))).all())
