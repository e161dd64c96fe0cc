"""Movement against numpy on random shapes, and numbers that are easily lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.domain.check_program import check_program
from services.engine.domain.decompose.walk import decompose
from services.engine.domain.graph import Graph, Node
from services.engine.domain.reference import interpret
from services.engine.testing import graph_of

SIZES = st.integers(1, 4)


def run(graph: Graph, **inputs: Any) -> Any:
    program = decompose(graph)
    check_program(program, "decompose")
    return interpret(program, inputs)["y"]


def counted(shape: tuple[int, ...]) -> Any:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def named(shape: tuple[int, ...], symbolic: bool) -> tuple[int | str, ...]:
    """Return the shape, its first size as a dimension if `symbolic`."""
    return ("n", *shape[1:]) if symbolic and shape else shape


def only(shape: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    """Return bounds that hold little more than the size itself."""
    return {"n": (shape[0], shape[0] + 1)} if shape else {}


def test_an_array_of_eight_axes_is_tiled() -> None:
    shape = (2, 3, 1, 2, 2, 1, 2, 2)
    repeats = np.array([2, 1, 3, 1, 2, 2, 1, 2], np.int64)
    graph = graph_of(
        [Node("t", "Tile", ("x", "k"), ("y",))], {"x": named(shape, True)}, ["y"], {"k": repeats}
    )
    np.testing.assert_array_equal(run(graph, x=counted(shape)), np.tile(counted(shape), repeats))


@st.composite
def broadcastable(draw: st.DrawFn) -> list[tuple[int, ...]]:
    whole = draw(st.lists(SIZES, min_size=1, max_size=4))
    shapes = []
    for _ in range(2):
        kept = draw(st.integers(0, len(whole)))
        shapes.append(tuple(size if draw(st.booleans()) else 1 for size in whole[len(whole) - kept :]))
    return shapes


@settings(max_examples=60, deadline=None)
@given(broadcastable())
def test_broadcasting(shapes: list[tuple[int, ...]]) -> None:
    a, b = (counted(shape) for shape in shapes)
    graph = graph_of([Node("a", "Sub", ("a", "b"), ("y",))], {"a": shapes[0], "b": shapes[1]}, ["y"])
    np.testing.assert_array_equal(run(graph, a=a, b=b), a - b)


INDICES = st.one_of(st.integers(-6, 6), st.sampled_from([-(1 << 63), (1 << 63) - 1]))
STEPS = st.integers(-3, 3).filter(bool)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(SIZES, INDICES, INDICES, STEPS), min_size=1, max_size=3), st.booleans())
def test_slices(axes: list[tuple[int, int, int, int]], symbolic: bool) -> None:
    shape = tuple(size for size, *_ in axes)
    constants = {
        name: np.array([axis[position] for axis in axes], np.int64)
        for position, name in ((1, "starts"), (2, "ends"), (3, "steps"))
    } | {"axes": np.arange(len(axes))}
    node = Node("s", "Slice", ("x", "starts", "ends", "axes", "steps"), ("y",))
    graph = graph_of([node], {"x": named(shape, symbolic)}, ["y"], constants, bounds=only(shape))
    x = counted(shape)
    # Backwards, ONNX moves a start before the array to its first element, where Python leaves nothing; and
    # Python takes None for "to the very start".
    wanted = x[
        tuple(
            slice(
                max(start, -size) if step < 0 else start, None if step < 0 and end < -size - 1 else end, step
            )
            for size, start, end, step in axes
        )
    ]
    np.testing.assert_array_equal(run(graph, x=x), wanted)


MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 4), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=3),
    st.sampled_from(sorted(MODES)),
    st.booleans(),
)
def test_pads(axes: list[tuple[int, int, int]], mode: str, symbolic: bool) -> None:
    shape = tuple(size for size, *_ in axes)
    room = {"reflect": -1, "wrap": 0}.get(mode, 9)
    pads = [(min(before, size + room), min(after, size + room)) for size, before, after in axes]
    flat = np.array([pair[0] for pair in pads] + [pair[1] for pair in pads], np.int64)
    node = Node("p", "Pad", ("x", "pads"), ("y",), {"mode": mode})
    graph = graph_of(
        [node], {"x": named(shape, symbolic)}, ["y"], {"pads": flat}, opset=19, bounds=only(shape)
    )
    x = counted(shape)
    np.testing.assert_array_equal(run(graph, x=x), np.pad(x, pads, mode))  # type: ignore[call-overload]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_chains_of_movement(data: st.DataObject) -> None:
    """Reshapes, transpositions, tiles and flips in a row, the first size being a dimension."""
    shape = tuple(data.draw(st.lists(SIZES, min_size=1, max_size=4)))
    x = wanted = counted(shape)
    nodes: list[Node] = []
    constants: dict[str, Any] = {}
    for position in range(data.draw(st.integers(1, 5))):
        source, target, extra = f"v{position}", f"v{position + 1}", f"c{position}"
        kind = data.draw(st.sampled_from(["Transpose", "Reshape", "Tile", "Slice", "Unsqueeze"]))
        attributes: dict[str, Any] = {}
        inputs: tuple[str, ...] = (source, extra)
        if kind == "Transpose":
            order = data.draw(st.permutations(range(wanted.ndim)))
            attributes, inputs, wanted = {"perm": tuple(order)}, (source,), wanted.transpose(order)
        elif kind == "Reshape":
            keep = data.draw(st.integers(1, wanted.ndim))
            new = (*[0] * (keep - 1), -1)
            wanted = wanted.reshape((*wanted.shape[: keep - 1], -1))
            constants[extra] = np.array(new, np.int64)
        elif kind == "Tile":
            repeats = [data.draw(st.integers(1, 2)) for _ in wanted.shape]
            wanted, constants[extra] = np.tile(wanted, repeats), np.array(repeats, np.int64)
        elif kind == "Slice":
            constants |= {extra: np.array([-1]), extra + "e": np.array([-(1 << 62)])}
            inputs, wanted = (source, extra, extra + "e", "first", extra), wanted[::-1]
        elif wanted.ndim < 6:
            axis = data.draw(st.integers(0, wanted.ndim))
            wanted, constants[extra] = np.expand_dims(wanted, axis), np.array([axis])
        else:
            continue
        nodes.append(Node(f"#{position}", kind, inputs, (target,), attributes))
    for index, node in enumerate(nodes):
        # Steps that were left out leave gaps in the numbering.
        source = "x" if index == 0 else nodes[index - 1].outputs[0]
        nodes[index] = Node(
            node.name, node.operator, (source, *node.inputs[1:]), node.outputs, node.attributes
        )
    end = nodes[-1].outputs[0] if nodes else "x"
    nodes.append(Node("end", "Identity", (end,), ("y",)))
    graph = graph_of(
        nodes, {"x": named(shape, True)}, ["y"], {**constants, "first": np.array([0])}, bounds=only(shape)
    )
    np.testing.assert_array_equal(run(graph, x=x), wanted)


def one(operator: str, x: Any, **attributes: Any) -> Any:
    x = np.asarray(x, np.float32)
    return run(graph_of([Node("n", operator, ("x",), ("y",), attributes)], {"x": x.shape}, ["y"]), x=x)


def test_softmax_of_large_and_masked_values() -> None:
    rows: Any = [[1000.0, 1000.0], [-1e30, 0.0], [-np.inf, 3.0], [88.0, -88.0]]
    np.testing.assert_allclose(
        one("Softmax", rows), np.array([[0.5, 0.5], [0, 1], [0, 1], [1, 0]]), atol=1e-7
    )
    logs = one("LogSoftmax", rows)
    np.testing.assert_allclose(logs[0], np.full(2, np.log(0.5)), rtol=1e-6)
    assert logs[2, 0] == -np.inf
    np.testing.assert_allclose(logs[3], [0, -176])


def test_log_sum_exp_of_infinities() -> None:
    rows = np.array([[1000, 1000], [-np.inf, -np.inf], [np.inf, 0], [-np.inf, 2]], np.float32)
    found = one("ReduceLogSumExp", rows, keepdims=0)
    assert found.shape == ()  # no axes: all of them
    graph = graph_of(
        [Node("n", "ReduceLogSumExp", ("x", "k"), ("y",), {"keepdims": 0})],
        {"x": (4, 2)},
        ["y"],
        {"k": np.array([1])},
    )
    wanted = np.array([1000 + np.log(2), -np.inf, np.inf, 2])
    np.testing.assert_allclose(run(graph, x=rows), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("operator", "wanted"),
    [
        ("Sigmoid", [0, 0, 0.5, 1, 1]),
        ("Softplus", [0, 0, np.log(2), 200, np.inf]),
        ("Elu", [-1, -1, 0, 200, np.inf]),
        ("Selu", [-1.7580993, -1.7580993, 0, 210.14019, np.inf]),
        ("Celu", [-1, -1, 0, 200, np.inf]),
        ("Tanh", [-1, -1, 0, 1, 1]),
        ("Asinh", [-np.inf, -np.arcsinh(200), 0, np.arcsinh(200), np.inf]),
    ],
)
def test_activations_at_the_ends(operator: str, wanted: Any) -> None:
    found = one(operator, [-np.inf, -200, 0, 200, np.inf])
    np.testing.assert_allclose(found, np.array(wanted), rtol=1e-6)
