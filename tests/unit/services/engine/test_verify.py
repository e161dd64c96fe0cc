"""A plan that disagrees with ONNX Runtime is refused; one that agrees passes with the error that was seen."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from libs.common.errors import Invalid, Precondition
from libs.runtime.layout import lay_out
from libs.runtime.plan import Compute, Operation, Plan
from libs.runtime.testing import PlanBuilder
from services.engine.peers import EVALUATOR, Peer, is_a_gap
from services.engine.pipeline import Stages, compile_model
from services.engine.testing_models import MODELS, Model, mlp
from services.engine.verify import MAX_MEMORY_BYTES, difference, verify


def compiled(content: bytes, **dimensions: tuple[int, int]) -> Plan:
    return compile_model(content, dimensions, "the test", Stages(lambda stage: None)).plan


@pytest.mark.parametrize("name", MODELS)
def test_plans_agree_at_several_sizes(name: str) -> None:
    content = MODELS[name]()
    seen: list[dict[str, tuple[int, ...]]] = []

    def peer(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append({key: array.shape for key, array in feed.items()})
        return Peer(content).run(feed)

    verdict = verify(compiled(content), peer, 5)
    assert verdict.max_error < 1e-5
    assert verdict.comparisons == 8
    batches = {next(iter(shapes.values()))[0] for shapes in seen}
    assert batches == {1, 2, 3, 17}


def test_the_smallest_sizes_are_tried_however_much_they_take() -> None:
    m = Model("wide")
    grown = m.add("Expand", m.input("x", "batch", 1), m.constant(np.array([1, 5_000_000], np.int64)))
    m.add("ReduceMax", m.add("Neg", m.add("Neg", m.add("Neg", grown))), axes=[1], output="y")
    content = m.finish({"y": ("batch", 1)})
    plan = compiled(content)
    assert lay_out(plan, (17,)).arena_bytes > MAX_MEMORY_BYTES
    assert verify(plan, Peer(content).run, 5).comparisons == 6
    assert verify(compiled(content, batch=(17, 17)), Peer(content).run, 5).comparisons == 2


def test_a_fixed_dimension_is_compared_at_its_size_alone() -> None:
    verdict = verify(compiled(mlp(), batch=(4, 4)), Peer(mlp()).run, 5)
    assert verdict.comparisons == 2


def swapped(plan: Plan, old: str, new: str) -> Plan:
    """Return a plan with one atomic operator put for another."""
    steps = [
        replace(step, kind=replace(step.kind, operator=new))
        if isinstance(step.kind, Compute) and step.kind.operator == old
        else step
        for step in plan.steps
    ]
    assert steps != list(plan.steps)
    return replace(plan, steps=tuple(steps))


def test_a_wrong_plan_is_refused_with_output_error_and_sizes() -> None:
    with pytest.raises(Precondition) as refused:
        verify(swapped(compiled(mlp()), "exp", "tanh"), Peer(mlp()).run, 5)
    assert refused.value.reason == "PLAN_DISAGREES"
    assert "output 'y', whose values reach" in str(refused.value)
    assert "at batch=1" in str(refused.value)


def test_a_plan_that_is_wrong_at_one_size_only_is_refused() -> None:
    content = mlp()

    def peer(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = Peer(content).run(feed)
        return {name: array + (len(array) == 3) for name, array in outputs.items()}

    with pytest.raises(Precondition, match="at batch=3"):
        verify(compiled(content), peer, 5)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda y: y.astype(np.float64), "by its peer float64"),
        (lambda y: y[:, :2], r"by its peer float32\[1, 2\]"),
        (lambda y: y * np.float32(np.nan), "differs by inf"),
    ],
)
def test_other_types_shapes_and_nan(spoil: Callable[[np.ndarray], np.ndarray], text: str) -> None:
    content = mlp()
    with pytest.raises(Precondition, match=text):
        verify(compiled(content), lambda feed: {"y": spoil(Peer(content).run(feed)["y"])}, 5)


def test_answers_of_other_truth_are_refused() -> None:
    m = Model("comparison")
    m.add("Greater", m.input("x", "batch"), m.constant(np.float32(0)), output="y")
    content = m.finish({"y": ("batch",)}, type_=TensorProto.BOOL)
    plan = compiled(content)
    assert verify(plan, Peer(content).run, 5).max_error == 0
    with pytest.raises(Precondition, match="differs by inf"):
        verify(plan, lambda feed: {"y": ~Peer(content).run(feed)["y"]}, 5)


def test_indices_are_drawn_so_that_a_small_table_holds_them() -> None:
    m = Model("small_table")
    ids = m.input("ids", "batch", type_=TensorProto.INT64)
    m.add("Gather", m.weight(2, 3), ids, output="y")
    content = m.finish({"y": ("batch", 3)})
    assert verify(compiled(content), Peer(content).run, 5).comparisons == 8


def test_a_plan_that_is_unsound_between_its_smallest_and_largest_sizes_is_refused() -> None:
    """At n = 3 and n = 6 the view is the input; at 4 it reaches beyond, as nobody could see before."""
    builder = PlanBuilder()
    n = builder.dimension("n", 3, 6)
    more = builder.extent(Operation.MODULO, n, builder.size(3))
    size = builder.extent(Operation.ADD, n, more)
    x = builder.input("x", [n])
    builder.output("y", builder.compute("neg", [builder.view(x, [size], [1])], [size]))
    with pytest.raises(
        Precondition, match=r"at n=4: the plan can't be run: .*reaches elements 0 to 4"
    ) as refused:
        verify(builder.build(), lambda feed: {"y": -feed["x"]}, 5)
    assert refused.value.reason == "PLAN_DISAGREES"


def test_a_model_that_onnx_runtime_can_not_load_or_run() -> None:
    with pytest.raises(Invalid, match="ONNX Runtime can't load the model") as refused:
        Peer(b"nonsense")
    assert refused.value.reason == "PEER_FAILED"
    with pytest.raises(Invalid, match="ONNX Runtime can't run the model"):
        Peer(mlp()).run({"x": np.zeros((1, 9), np.float32)})


@pytest.mark.parametrize(
    ("got", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.2),
        ([0.1], [0.2], 0.1),
        ([np.inf, np.nan], [np.inf, np.nan], 0.0),
        ([np.inf], [-np.inf], np.inf),
        ([-np.inf, 1.0], [np.finfo(np.float64).min, 1.0], 0.0),
        ([np.inf], [1e300], np.inf),
        ([np.nan], [1.0], np.inf),
        ([1.0], [np.nan], np.inf),
        ([], [], 0.0),
        ([True], [True], 0.0),
        ([True], [False], np.inf),
        ([100_000], [100_000], 0.0),
        ([100_000], [100_001], np.inf),
    ],
)
def test_differences(got: list, expected: list, error: float) -> None:
    assert difference(np.array(got), np.array(expected)) == pytest.approx(error)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (TensorProto.FLOAT, TensorProto.BFLOAT16),
        (TensorProto.BFLOAT16, TensorProto.FLOAT),
        (TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FN),
        (TensorProto.FLOAT, TensorProto.FLOAT8E5M2),
        (TensorProto.FLOAT8E5M2FNUZ, TensorProto.FLOAT),
        (TensorProto.INT8, TensorProto.INT4),
        (TensorProto.UINT4, TensorProto.FLOAT),
    ],
)
def test_types_that_numpy_has_not_go_in_and_out(source: int, target: int) -> None:
    m = Model("narrow")
    m.add("Cast", m.input("x", 3, 5, type_=source), to=target, output="y")
    content = m.finish({"y": (3, 5)}, type_=target, opset=21)
    assert verify(compiled(content), Peer(content).run, 5).comparisons


def test_a_peer_says_why_another_answers() -> None:
    m = Model("lost")
    m.add("Or", m.input("x", 3, type_=TensorProto.UINT8), "x", output="y")
    peer = Peer(m.finish({"y": (3,)}, type_=TensorProto.BOOL))
    assert peer.name == EVALUATOR
    with pytest.raises(Invalid, match="there is no other"):
        peer.second_opinion({"x": np.zeros(3, np.uint8)})
    assert peer.refusal is not None
    assert "Type Error" in peer.refusal.message
    assert not is_a_gap(peer.refusal)
    assert Peer(mlp()).refusal is None


def test_where_onnx_runtime_is_wrong_the_evaluator_overrules_it() -> None:
    content = mlp()
    plan, right = compiled(content, batch=(4, 4)), Peer(content)

    def wrong(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: array + 1 for name, array in right.run(feed).items()}

    verdict = verify(plan, wrong, 5, right.second_opinion)
    assert (verdict.comparisons, verdict.overruled) == (2, 2)
    assert verdict.max_error < 1e-5
    assert verify(plan, right.run, 5, right.second_opinion).overruled == 0
    with pytest.raises(Precondition, match="differs by") as caught:
        verify(plan, wrong, 5)
    assert caught.value.reason == "PLAN_DISAGREES"
    with pytest.raises(Precondition, match="differs by"):
        verify(plan, wrong, 5, wrong)


def test_quantised_convolutions_of_full_range_are_right_on_every_processor() -> None:
    rng = np.random.default_rng(5)
    w = rng.integers(-128, 127, (6, 4, 3, 2), endpoint=True).astype(np.int8)
    constants = {
        "xs": np.float32(0.5), "xz": np.uint8(7), "w": w, "ws": np.float32(0.25), "wz": np.int8(0),
        "ys": np.float32(16), "yz": np.uint8(100),
    }  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("QLinearConv", ["x", *constants], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, (2, 4, 7, 6))],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    peer = Peer(content.SerializeToString())
    plan = compiled(content.SerializeToString())
    verdict = verify(plan, peer.run, 5, peer.second_opinion)
    assert verdict.max_error == 0
