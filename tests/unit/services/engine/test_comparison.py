"""Two sides on the same inputs: what counts as a difference, and when they can't be compared."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from libs.common.errors import Invalid
from libs.runtime.program import Program
from libs.runtime.testing import PlanBuilder
from services.engine.comparison import Outcome, Side, run_both
from services.engine.domain.explain import explain
from services.engine.pipeline import Stages, compile_model

INF = float("inf")


def side(inputs: dict[str, list[int]], run: Any) -> Side:
    builder = PlanBuilder()
    tensors = [builder.input(name, shape) for name, shape in inputs.items()]
    builder.output("y", builder.compute("neg", [tensors[0]], next(iter(inputs.values()))))
    plan = builder.build()
    return Side(plan, explain(plan), run)


def compared(first: dict[str, Any], second: dict[str, Any]) -> dict[str, float]:
    left, right = (side({"x": [2]}, lambda feed, outputs=outputs: outputs) for outputs in (first, second))
    found = run_both(left, right, 0, {})
    assert not found.is_random
    return {each.output: each.largest for each in found.differences}


def array(*values: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype)


def test_numbers_differ_relative_to_what_is_expected() -> None:
    assert compared({"y": array(1, 2)}, {"y": array(1, 2)}) == {"y": 0}
    assert compared({"y": array(0.5)}, {"y": array(0.25)}) == {"y": 0.25}
    assert compared({"y": array(300)}, {"y": array(200)}) == {"y": 0.5}
    assert compared({"y": array(np.nan)}, {"y": array(np.nan)}) == {"y": 0}
    assert compared({"y": array(np.nan)}, {"y": array(1)}) == {"y": INF}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (array(1), array(1, 1)),
        (array(1), array(1, dtype=np.float64)),
        (array(1, dtype=np.int64), array(2, dtype=np.int64)),
        (array(1), None),
        ([array(1)], array(1)),
        ([array(1)], [array(1), array(1)]),
        ([array(1)], [array(1, dtype=np.int8)]),
        (np.array(["a"], object), np.array(["b"], object)),
    ],
)
def test_what_is_of_another_kind_differs_without_bound(one: Any, other: Any) -> None:
    assert compared({"y": one}, {"y": other}) == {"y": INF}
    assert compared({"y": one}, {"y": one}) == {"y": 0}
    assert compared({"y": other}, {"y": other}) == {"y": 0}


def test_texts_of_numpy_and_objects_are_the_same() -> None:
    assert compared({"y": np.array(["a", "bc"])}, {"y": np.array(["a", "bc"], object)}) == {"y": 0}


def test_outputs_are_found_by_name() -> None:
    assert compared({"a": array(1), "b": array(2)}, {"b": array(2), "c": array(1)}) == {
        "a": INF,
        "b": 0,
        "c": INF,
    }


def test_both_get_the_same_inputs_and_the_seed_decides_on_them() -> None:
    seen: list[np.ndarray] = []

    def run(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append(feed["x"])
        return {}

    both = [side({"x": [2, 3]}, run) for _ in range(2)]
    for seed in (1, 1, 2):
        run_both(*both, seed, {})
    assert [x.shape for x in seen] == [(2, 3)] * 6
    first, again, other = seen[0::2]
    assert all(left is right for left, right in zip(seen[0::2], seen[1::2], strict=True))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_sides_of_other_inputs_arent_run() -> None:
    sides = [side(inputs, None) for inputs in ({"x": [2]}, {"x": [2], "more": [2]})]
    with pytest.raises(Invalid, match="input 'more' is of the second only") as refused:
        run_both(*sides, 0, {})
    assert refused.value.reason == "INPUTS_DIFFER"
    with pytest.raises(Invalid, match="input 'more' is of the first only"):
        run_both(*reversed(sides), 0, {})


def test_inputs_that_a_side_refuses_are_tried_anew_and_then_told() -> None:
    tries: list[int] = []

    def picky(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tries.append(1)
        if len(tries) < 3:
            raise Invalid("not these")
        return {"y": feed["x"]}

    run_both(side({"x": [2]}, picky), side({"x": [2]}, lambda feed: {"y": feed["x"]}), 0, {})
    assert len(tries) == 3

    def never(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise Invalid("never")

    with pytest.raises(Invalid, match="the last were refused: never") as refused:
        run_both(side({"x": [2]}, never), side({"x": [2]}, never), 0, {})
    assert refused.value.reason == "NOT_COMPARED"


def test_random_numbers_say_nothing() -> None:
    node = helper.make_node("RandomNormalLike", ["x"], ["y"], name="noise")
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])]
    graph = helper.make_graph([node], "g", inputs, outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    plan = compile_model(made.SerializeToString(), {}, "the test", Stages(lambda stage: None)).plan
    noisy = Side(plan, explain(plan), Program(plan).run)
    found: Outcome = run_both(noisy, noisy, 0, {})
    assert found.is_random
    assert found.differences[0].largest > 0
