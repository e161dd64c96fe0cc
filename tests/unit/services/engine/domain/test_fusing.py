"""Models between functions of the compute library, as one plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from libs.common.errors import Invalid
from libs.compute import matrix
from libs.compute.tensor import Tensor
from libs.runtime.plan import DataType
from libs.runtime.program import Program as Runner
from services.engine.domain.bounds import Bounds
from services.engine.domain.extents import Extent
from services.engine.domain.fusing import AFTER, BEFORE, fuse
from services.engine.domain.graph import Graph, Node
from services.engine.domain.program import Program, ValueType
from services.engine.testing import graph_of
from services.engine.testing_tracing import plan_of

WEIGHTS = np.array([[1.0, -1.0], [0.5, 2.0], [-2.0, 0.0]], np.float32)
PIXELS = ValueType(DataType.UINT8, (Extent.dimension("rows"), Extent.of(4)))
ROWS = Bounds({"rows": (1, 16)})
FAR = Bounds({"rows": (1, 16), "batch": (99, 100)})


def model(inputs: dict[str, tuple[int | str, ...]] | None = None) -> Graph:
    """Return y = x · weights."""
    nodes = [Node("m", "MatMul", ("x", "w"), ("y",))]
    return graph_of(nodes, inputs or {"x": ("batch", 3)}, ["y"], {"w": WEIGHTS})


def ready(pixels: Tensor) -> Tensor:
    return (pixels[:, ::-1].astype("float32") / 255.0)[:, :3]


def best(y: Tensor) -> dict[str, Any]:
    chances = matrix.exp(y) / matrix.sum(matrix.exp(y), 1, keepdims=True)
    return {"best": matrix.argmax(chances, 1), "chance": matrix.max(chances, 1)}


def test_functions_on_both_sides_are_part_of_the_plan() -> None:
    program = fuse(model(), pre=ready, inputs={"pixels": PIXELS}, bounds=ROWS, post=best)
    assert isinstance(program, Program)
    assert [named.name for named in program.inputs] == ["pixels"]
    assert {BEFORE, AFTER, "m (MatMul)"} <= {each.origin for each in program.instructions}
    runner = Runner(plan_of(program))
    for rows in (1, 5):
        pixels = np.random.default_rng(rows).integers(0, 256, (rows, 4)).astype(np.uint8)
        found = runner.run({"pixels": pixels})
        scores = (pixels[:, ::-1].astype(np.float32) / 255)[:, :3] @ WEIGHTS
        np.testing.assert_array_equal(found["best"], scores.argmax(1))
        expected = (np.exp(scores) / np.exp(scores).sum(1, keepdims=True)).max(1)
        np.testing.assert_allclose(found["chance"], expected, rtol=1e-6)


def test_merging_takes_a_function_into_the_model() -> None:
    # Reversed, cut and converted: movement goes into what reads it.
    apart = len(plan_of(fuse(model())).steps)
    together = plan_of(fuse(model(), pre=lambda x: x[:, ::-1], inputs={"x_": _floats()}, bounds=ROWS))
    assert len(together.steps) <= apart + 1


def _floats() -> ValueType:
    return ValueType(DataType.FLOAT32, (Extent.dimension("rows"), Extent.of(3)))


def test_one_side_alone_and_inputs_that_stay() -> None:
    x = np.ones((2, 3), np.float32)
    after = Runner(plan_of(fuse(model(), post=lambda y: y * 2)))
    np.testing.assert_array_equal(after.run({"x": x})["output"], x @ WEIGHTS * 2)
    graph = graph_of([Node("a", "Add", ("p", "q"), ("s",))], {"p": ("n", 3), "q": ("n", 3)}, ["s"])
    program = fuse(graph, pre=lambda raw: {"p": raw - 1}, inputs={"raw": _floats()}, bounds=ROWS)
    assert [named.name for named in program.inputs] == ["raw", "q"]
    found = Runner(plan_of(program)).run({"raw": x, "q": x})
    np.testing.assert_array_equal(found["s"], x)


def test_what_data_decide_goes_into_the_model() -> None:
    program = fuse(
        model(), pre=lambda raw: raw[matrix.max(raw, 1) > 0], inputs={"raw": _floats()}, bounds=ROWS
    )
    raw = np.array([[1, 2, 3], [-1, -1, -1], [0, 0, 1]], np.float32)
    np.testing.assert_array_equal(Runner(plan_of(program)).run({"raw": raw})["y"], raw[[0, 2]] @ WEIGHTS)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pre": ready}, "needs inputs"),
        ({"inputs": {"pixels": PIXELS}}, "inputs need one"),
        ({"pre": lambda p: {"xx": p}, "inputs": {"p": PIXELS}, "bounds": ROWS}, "did you mean|takes x"),
        ({"pre": lambda p: p, "inputs": {"p": PIXELS}, "bounds": ROWS}, "uint8.*the model takes float32"),
        ({"pre": lambda p: p.astype("float32"), "inputs": {"p": PIXELS}, "bounds": ROWS}, "must be equal"),
        ({"pre": ready, "inputs": {"pixels": PIXELS}}, "has no bounds"),
        (
            {
                "pre": lambda x: {"x": x},
                "inputs": {"x": _floats()},
                "bounds": FAR,
            },
            "batch",
        ),
        ({"post": lambda y, z: y}, "doesn't take the inputs y"),
        ({"post": lambda y: y if y[0, 0] > 0 else -y}, "use where"),
    ],
)
def test_what_is_refused(options: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        fuse(model(), **options)
