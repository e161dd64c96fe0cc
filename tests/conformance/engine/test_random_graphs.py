"""Small random graphs: plans agree with ONNX Runtime, or are refused with a reason; spoilt ones never crash.

Shapes, axes, slices and the like come as constants or, at random, as inputs that only a call brings; the
first size may be a dimension of any size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

from libs.common.errors import Exhausted, Invalid
from libs.runtime.codec import decode, encode
from libs.runtime.faults import BAD_INPUT
from libs.runtime.program import Program
from services.engine.peers import Peer
from services.engine.pipeline import Stages, compile_model

pytestmark = pytest.mark.timeout(600)
DRAW = st.integers
UNARY = ("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Floor", "Ceil", "Sign", "Softplus", "Erf", "Identity")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceL2",
    "ReduceLogSumExp",
    "ReduceProd",
)


@dataclass
class Graph:
    """A graph in the making: names with the shapes that they have in the one call that is compared."""

    draw: Callable[..., Any]
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dynamic: bool = False

    def add(self, shape: tuple[int, ...], operator: str, *inputs: str, **attributes: Any) -> None:
        name = f"t{len(self.nodes)}"
        self.nodes.append(node(operator, list(inputs), [name], **attributes))
        self.shapes[name] = shape

    def numbers(self, *values: int) -> str:
        """Return integers, as a constant or as an input."""
        array = np.array(values, np.int64)
        name = f"k{len(self.constants) + len(self.inputs)}"
        (self.inputs if self.draw(st.booleans()) else self.constants)[name] = array
        return name

    def some(self) -> tuple[str, tuple[int, ...]]:
        return self.draw(st.sampled_from(sorted(self.shapes.items())))


def reduced(graph: Graph, name: str, shape: tuple[int, ...]) -> None:
    axes = graph.draw(st.lists(DRAW(0, len(shape) - 1), min_size=1, max_size=len(shape), unique=True))
    keep = graph.draw(DRAW(0, 1))
    left = tuple(1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes)
    signed = [axis - len(shape) * graph.draw(DRAW(0, 1)) for axis in axes]
    graph.add(left, graph.draw(st.sampled_from(REDUCTIONS)), name, graph.numbers(*signed), keepdims=keep)


def sliced(graph: Graph, name: str, shape: tuple[int, ...]) -> None:
    axis = graph.draw(DRAW(0, len(shape) - 1))
    start, end = (graph.draw(DRAW(-shape[axis] - 1, shape[axis] + 1)) for _ in range(2))
    step = graph.draw(st.sampled_from([1, 1, 2, -1, -2]))
    size = len(range(shape[axis])[start:end:step])
    assume(size > 0)
    pieces = [graph.numbers(each) for each in (start, end, axis, step)]
    graph.add((*shape[:axis], size, *shape[axis + 1 :]), "Slice", name, *pieces)


def reshaped(graph: Graph, name: str, shape: tuple[int, ...]) -> None:
    total = int(np.prod(shape))
    first = graph.draw(st.sampled_from([size for size in range(1, total + 1) if total % size == 0]))
    wanted = graph.draw(st.sampled_from([(first, -1), (-1, first), (total,), (first, total // first)]))
    graph.add(np.zeros(total).reshape(wanted).shape, "Reshape", name, graph.numbers(*wanted))


def transposed(graph: Graph, name: str, shape: tuple[int, ...]) -> None:
    order = graph.draw(st.permutations(range(len(shape))))
    graph.add(tuple(shape[axis] for axis in order), "Transpose", name, perm=order)


def padded(graph: Graph, name: str, shape: tuple[int, ...]) -> None:
    mode = graph.draw(st.sampled_from(["constant", "edge", "reflect"]))
    most = [2 if mode != "reflect" else min(2, size - 1) for size in shape]
    pads = [graph.draw(DRAW(0, each)) for each in (*most, *most)]
    rank = len(shape)
    size = tuple(size + pads[axis] + pads[rank + axis] for axis, size in enumerate(shape))
    graph.add(size, "Pad", name, graph.numbers(*pads), mode=mode)


def tiled(graph: Graph, name: str, shape: tuple[int, ...]) -> None:
    repeats = [graph.draw(DRAW(1, 2)) for _ in shape]
    graph.add(
        tuple(size * times for size, times in zip(shape, repeats, strict=True)),
        "Tile",
        name,
        graph.numbers(*repeats),
    )


def gathered(graph: Graph, name: str, shape: tuple[int, ...]) -> None:
    axis = graph.draw(DRAW(0, len(shape) - 1))
    count = graph.draw(DRAW(1, 4))
    places = [graph.draw(DRAW(-shape[axis], shape[axis] - 1)) for _ in range(count)]
    graph.add((*shape[:axis], count, *shape[axis + 1 :]), "Gather", name, graph.numbers(*places), axis=axis)


def largest(graph: Graph, name: str, shape: tuple[int, ...]) -> None:
    axis = graph.draw(DRAW(0, len(shape) - 1))
    number = graph.draw(DRAW(1, shape[axis]))
    graph.add((*shape[:axis], number, *shape[axis + 1 :]), "TopK", name, graph.numbers(number), axis=axis)
    graph.nodes[-1].output.append(f"{graph.nodes[-1].output[0]}_places")


def joined(graph: Graph, name: str, shape: tuple[int, ...]) -> None:
    axis = graph.draw(DRAW(0, len(shape) - 1))
    graph.add((*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]), "Concat", name, name, axis=axis)


def normalised(graph: Graph, name: str, shape: tuple[int, ...]) -> None:
    axis = graph.draw(DRAW(0, len(shape) - 1))
    graph.add(shape, graph.draw(st.sampled_from(["Softmax", "LogSoftmax", "CumSum"])), name)
    if graph.nodes[-1].op_type == "CumSum":
        graph.nodes[-1].input.append(graph.numbers(axis))
    else:
        graph.nodes[-1].attribute.append(helper.make_attribute("axis", axis))


def squeezed(graph: Graph, name: str, shape: tuple[int, ...]) -> None:
    axis = graph.draw(DRAW(0, len(shape)))
    graph.add((*shape[:axis], 1, *shape[axis:]), "Unsqueeze", name, graph.numbers(axis))


def multiplied(graph: Graph, name: str, shape: tuple[int, ...]) -> None:
    assume(len(shape) >= 2)
    columns = graph.draw(DRAW(1, 3))
    key = f"w{len(graph.constants)}"
    graph.constants[key] = np.arange(shape[-1] * columns, dtype=np.float32).reshape(-1, columns) / 8 - 0.5
    graph.add((*shape[:-1], columns), "MatMul", name, key)


STEPS = (
    reduced,
    sliced,
    reshaped,
    transposed,
    padded,
    tiled,
    gathered,
    largest,
    joined,
    normalised,
    squeezed,
    multiplied,
)


@st.composite
def graphs(draw: Callable[..., Any]) -> tuple[ModelProto, dict[str, Any]]:
    graph = Graph(draw)
    shape = tuple(draw(st.lists(DRAW(1, 4), min_size=1, max_size=3)))
    graph.shapes["x"] = shape
    graph.dynamic = draw(st.booleans())
    seed = draw(DRAW(0, 1 << 16))
    for _ in range(draw(DRAW(1, 6))):
        name, size = graph.some()
        kind = draw(DRAW(0, 5))
        if kind == 0:
            graph.add(size, draw(st.sampled_from(UNARY)), name)
        elif kind == 1:
            other, shape_of_other = graph.some()
            try:
                both = np.broadcast_shapes(size, shape_of_other)
            except ValueError:
                assume(False)
            graph.add(both, draw(st.sampled_from(BINARY)), name, other)
        elif size and len(size) <= 5 and np.prod(size) <= 512:
            draw(st.sampled_from(STEPS))(graph, name, size)
    assume(graph.nodes)
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    declared: list[Any] = ["n", *shape[1:]] if graph.dynamic else list(shape)
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, declared)]
    ports += [
        helper.make_tensor_value_info(k, TensorProto.INT64, list(v.shape)) for k, v in graph.inputs.items()
    ]
    last = graph.nodes[-1].output[0]
    made = helper.make_graph(
        graph.nodes,
        "random",
        ports,
        [helper.make_empty_tensor_value_info(last)],
        [numpy_helper.from_array(array, name) for name, array in graph.constants.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return model, {"x": x, **graph.inputs}


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_plans_of_random_graphs_agree(case: tuple[ModelProto, dict[str, Any]]) -> None:
    model, feed = case
    data = model.SerializeToString()
    try:
        plan = compile_model(data, {}, "a test", Stages(lambda stage: None)).plan
    except Invalid:
        # A size that dimensions allow, and this call doesn't have, may be refused.
        assert any(size.dim_param for size in model.graph.input[0].type.tensor_type.shape.dim)
        return
    (expected,) = Peer(data).run(feed).values()
    (found,) = Program(decode(encode(plan))).run(feed).values()
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.data())
def test_spoilt_numbers_are_refused_or_as_onnx_runtime_says(
    case: tuple[ModelProto, dict[str, Any]], data: st.DataObject
) -> None:
    model, feed = case
    names = [name for name in feed if name != "x"]
    assume(names)
    content = model.SerializeToString()
    try:
        program = Program(compile_model(content, {}, "a test", Stages(lambda stage: None)).plan)
    except Invalid:
        return
    name = data.draw(st.sampled_from(names))
    spoilt = feed[name].copy()
    spoilt[data.draw(DRAW(0, spoilt.size - 1))] = data.draw(DRAW(-9, 9))
    feed = {**feed, name: spoilt}
    try:
        (found,) = program.run(feed).values()
    except Exhausted:
        return
    except Invalid as error:
        if error.reason != BAD_INPUT:
            raise
        return
    try:
        (expected,) = Peer(content).run(feed).values()
    except Invalid:
        return  # ONNX Runtime is stricter
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
