"""Shape computations are carried out when the plan is made, and what can't be is said by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain.decompose.walk import decompose
from services.engine.domain.extents import Extent
from services.engine.domain.graph import Graph, Node
from services.engine.domain.program import ComputeInstruction, Program
from services.engine.domain.reference import interpret
from services.engine.testing import graph_of

N = Extent.dimension("n")


def operators(program: Program) -> list[str]:
    return [
        step.operator if isinstance(step, ComputeInstruction) else "raster" for step in program.instructions
    ]


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> Node:
    return Node(f"the_{operator}", operator, tuple(inputs.split()), tuple(outputs.split()), attributes)


def chain(*nodes: Node, **bounds: tuple[int, int]) -> Graph:
    constants = {"zero": i64(0), "one": i64(1), "two": i64(2), "minus": i64(-1), "last": i64(1 << 62)}
    scalars = {"s0": np.array(0), "s1": np.array(1), "s3": np.array(3)}
    ends = [nodes[-1].outputs[0]]
    return graph_of(nodes, {"x": ("n", 3, 8)}, ends, constants | scalars, bounds=bounds)


def test_a_chain_of_shape_operators_leaves_one_raster() -> None:
    program = decompose(
        chain(
            node("Shape", "x", "s"),
            node("Gather", "s s0", "batch", axis=0),
            node("Gather", "s minus", "depth", axis=0),
            node("Div", "depth two", "half"),
            node("Unsqueeze", "batch zero", "b1"),
            node("Mul", "b1 two", "b2"),
            node("Cast", "b2", "b3", to=6),
            node("Cast", "b3", "b4", to=7),
            node("Concat", "b4 minus half", "shape", axis=0),
            node("Reshape", "x shape", "y"),
        )
    )
    assert operators(program) == ["raster"]
    assert program.values[program.outputs[0].value].shape == (N * 2, Extent.of(3), Extent.of(4))
    assert not program.constants


def test_slices_expansions_and_choices_of_shapes() -> None:
    program = decompose(
        chain(
            node("Shape", "x", "s"),
            node("Slice", "s one last zero", "tail"),
            node("Equal", "tail minus", "none"),
            node("ConstantOfShape", "one", "filled", value=np.array([7])),
            node("Where", "none filled tail", "chosen"),
            node("ReduceProd", "chosen", "flat", keepdims=1),
            node("Concat", "minus flat", "shape", axis=0),
            node("Reshape", "x shape", "y"),
        )
    )
    assert operators(program) == ["raster"]
    assert program.values[program.outputs[0].value].shape == (N, Extent.of(24))


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_a_shape_that_is_read_as_data_is_computed_at_run_time(n: int) -> None:
    program = decompose(
        chain(
            node("Shape", "x", "s"),
            node("Gather", "s s0", "batch"),
            node("Add", "batch s3", "sum"),
            node("Div", "sum two", "half"),
            node("Mod", "sum s3", "rest"),
            node("Mul", "half rest", "both"),
            node("Sub", "both batch", "less"),
            node("Min", "less batch", "least"),
            node("Cast", "least", "real", to=1),
            node("Sqrt", "real", "root"),
            node("Mul", "x root", "y"),
        )
    )
    x = np.ones((n, 3, 8), np.float32)
    least = min((n + 3) // 2 * ((n + 3) % 3) - n, n)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(interpret(program, {"x": x})["y"], x * np.sqrt(np.float32(least)))


def test_comparisons_are_decided_by_bounds_or_at_run_time() -> None:
    shape = node("Shape", "x", "s")
    first = node("Gather", "s s0", "batch")
    decided = decompose(chain(shape, first, node("Less", "s0 batch", "y")))
    assert operators(decided) == []
    open_ = decompose(chain(shape, first, node("Less", "s3 batch", "y")))
    assert "lt" in operators(open_)
    for n in (3, 4):
        assert interpret(open_, {"x": np.zeros((n, 3, 8), np.float32)})["y"] == (n > 3)


@pytest.mark.parametrize("n", [1, 7])
def test_a_range_over_a_dimension(n: int) -> None:
    program = decompose(
        chain(
            node("Shape", "x", "s"),
            node("Gather", "s s0", "batch"),
            node("Range", "s3 batch s1", "short"),
            node("Add", "batch s3", "end"),
            node("Range", "s3 end s1", "y"),
            n=(3, 64),
        )
        if n > 3
        else chain(
            node("Shape", "x", "s"),
            node("Gather", "s s0", "batch"),
            node("Range", "s0 batch s1", "y"),
        )
    )
    found = interpret(program, {"x": np.zeros((n, 3, 8), np.float32)})["y"]
    np.testing.assert_array_equal(found, np.arange(3, n + 3) if n > 3 else np.arange(n))
    assert found.dtype == np.int64


REFUSED: list[tuple[str, Graph]] = [
    (
        r"node the_Reshape \(Reshape\): the new shape is int64\[n, 3, 8\], not a vector of known length",
        chain(node("Cast", "x", "many", to=7), node("Reshape", "x many", "y")),
    ),
    (
        r"node the_Sqrtt \(Sqrtt\): operator 'Sqrtt' is not supported; did you mean 'Sqrt'",
        chain(node("Sqrtt", "x", "y")),
    ),
    (r"\(Gelu\): operator Gelu is new in opset 20; the model has 18", chain(node("Gelu", "x", "y"))),
    (r"\(Reshape\): float32\[n, 3, 8\] can't be reshaped to \[1\]", chain(node("Reshape", "x one", "y"))),
    (
        r"can't be reshaped to \[\(\(24\*n\) // \(5\)\), 5\] where n = 1 \(bound the dimension",
        graph_of([node("Reshape", "x k", "y")], {"x": ("n", 24)}, ["y"], {"k": i64(-1, 5)}),
    ),
    (
        r"shapes \[2, 3\] and \[2\] don't broadcast: 3 is not 2$",
        graph_of([node("Add", "x z", "y")], {"x": (2, 3), "z": (2,)}, ["y"]),
    ),
    (
        r"\(Conv\): a size of shape \[.*\] is negative where h = 1 \(bound the dimension",
        graph_of(
            [node("Conv", "x w", "y")],
            {"x": (1, 1, "h", 9)},
            ["y"],
            {"w": np.zeros((1, 1, 5, 3), np.float32)},
        ),
    ),
    (
        r"\(Gather\): it reaches outside of an array of shape \[n, 4\] where n = 1",
        graph_of([node("Gather", "x k", "y")], {"x": ("n", 4)}, ["y"], {"k": i64(2)}),
    ),
    (
        r"\(Conv\): 4 channels in, 6 out don't make 1 groups of 3 channels each",
        graph_of(
            [node("Conv", "x w", "y")], {"x": ("n", 4, 9)}, ["y"], {"w": np.zeros((6, 3, 3), np.float32)}
        ),
    ),
    (
        r"\(Add\): inputs float32\[n, 3, 8\] and int64\[1\] are not of one type",
        chain(node("Add", "x one", "y")),
    ),
    (r"\(Not\): elements of type float32 are not supported", chain(node("Not", "x", "y"))),
    (
        r"\(MaxPool\): elements of type bool are not supported",
        chain(node("Cast", "x", "b", to=9), node("MaxPool", "b", "y", kernel_shape=(2,))),
    ),
    (r"\(Softmax\): axis 3 is outside of -3 to 2", chain(node("Softmax", "x", "y", axis=3))),
    (r"\(Transpose\): attribute 'perm' is \[0, 1, 1\]", chain(node("Transpose", "x", "y", perm=(0, 1, 1)))),
    (
        r"\(ReduceSum\): axes \[0, -3\] name one twice",
        graph_of([node("ReduceSum", "x k", "y")], {"x": ("n", 3, 8)}, ["y"], {"k": i64(0, -3)}),
    ),
    (
        r"\(Squeeze\): axis 1 has size 3, not 1",
        graph_of([node("Squeeze", "x k", "y")], {"x": ("n", 3)}, ["y"], {"k": i64(1)}),
    ),
    (
        r"\(Div\): an integer is divided by 0",
        chain(node("Shape", "x", "s"), node("Div", "s zero", "y")),
    ),
    (
        r"a size of the model exceeds 63 bits|more than \d+ elements",
        graph_of([node("Expand", "x k", "y")], {"x": (1,)}, ["y"], {"k": i64(1 << 62, 1 << 62)}),
    ),
]


@pytest.mark.parametrize(("text", "graph"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(text: str, graph: Graph) -> None:
    with pytest.raises(Invalid, match=text):
        decompose(graph)


def test_numbers_whose_formulas_grow_too_long_are_computed_in_each_call() -> None:
    squares = [node("Mul", f"s{i}_ s{i}_", f"s{i + 1}_") for i in range(8)]
    program = decompose(graph_of([node("Shape", "x", "s0_"), *squares], {"x": ("n", 3)}, ["s8_"]))
    (found,) = interpret(program, {"x": np.zeros((2, 3), np.float32)}).values()
    expected = np.array([2, 3])
    for _ in squares:
        expected = expected * expected  # wraps at 64 bits
    assert found.tolist() == expected.tolist()


def test_a_constant_that_is_broadcast_stays_small() -> None:
    constants = {"w": np.ones((256, 1), np.float32), "k": i64(64, 256, 256)}
    nodes = [node("Expand", "w k", "big"), node("Add", "x big", "y")]
    program = decompose(graph_of(nodes, {"x": ("n", 64, 256, 256)}, ["y"], constants))
    assert sum(array.nbytes for array in program.constants.values()) == 1024


def test_constants_are_folded() -> None:
    constants = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    nodes = [
        node("Transpose", "w", "t"),
        node("Exp", "t", "e"),
        node("MatMul", "x e", "y"),
    ]
    program = decompose(graph_of(nodes, {"x": ("n", 3)}, ["y"], constants))
    assert operators(program) == ["matmul"]
    assert program.values[program.outputs[0].value].type is DataType.FLOAT32


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_the_running_sum_of_nothing_is_nothing(exclusive: int, reverse: int) -> None:
    sums = node("CumSum", "x zero", "y", exclusive=exclusive, reverse=reverse)
    graph = graph_of([sums], {"x": (0, 3)}, ["y"], {"zero": i64(0)})
    (y,) = interpret(decompose(graph), {"x": np.zeros((0, 3), np.float32)}).values()
    assert y.shape == (0, 3)


@pytest.mark.parametrize(
    ("operator", "says", "suggests"),
    [
        ("Softmaxx", "`isthmus model operators` lists those that are", "did you mean 'Softmax'"),
        ("Whatever", "`isthmus model operators` lists those that are", ""),
    ],
)
def test_an_operator_that_isnt_there_is_refused_with_what_helps(
    operator: str, says: str, suggests: str
) -> None:
    with pytest.raises(Invalid, match=f"operator '{operator}' is not supported") as caught:
        decompose(chain(node(operator, "x", "y")))
    assert says in str(caught.value)
    assert ("did you mean" in str(caught.value)) == bool(suggests)
    assert suggests in str(caught.value)
