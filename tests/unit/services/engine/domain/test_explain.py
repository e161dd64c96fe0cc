"""What is told of plans: steps, groups, figures at sizes, memory, and what became of ONNX nodes."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from libs.common.errors import Invalid
from libs.runtime.check import check_plan
from libs.runtime.layout import lay_out
from libs.runtime.plan import (
    Action,
    Block,
    Composition,
    DataType,
    NamedRegister,
    Plan,
    Register,
    Run,
    TensorType,
)
from libs.runtime.testing import DIGEST, PlanBuilder
from services.engine.domain.explain import explain
from services.engine.domain.explanation import Explanation
from services.engine.domain.living import living_bytes, unshared_bytes
from services.engine.domain.lower import lower
from services.engine.domain.merge import merge
from services.engine.pipeline import Compiled, Stages, compile_model
from services.engine.testing_models import attention
from services.engine.testing_programs import Sketch

F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
info = helper.make_tensor_value_info


def compiled(content: bytes, sizes: Mapping[str, int] | None = None, **bounds: tuple[int, int]) -> Compiled:
    return compile_model(content, bounds, "the test", Stages(lambda stage: None), sizes=sizes or {})


def told(content: bytes, sizes: Mapping[str, int] | None = None, **bounds: tuple[int, int]) -> Explanation:
    found = compiled(content, sizes, **bounds)
    return explain(found.plan, found.origins, sizes or {})


def model(nodes: list, inputs: list, outputs: list, constants: list = []) -> bytes:  # noqa: B006
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()


def branching(rounds: int | None = 10) -> bytes:
    """Return a model with an If, whose sides differ, then a Loop; without `rounds` data tell how many."""
    node = helper.make_node
    y = info("t", F, ["n"])
    then = helper.make_graph([node("Exp", ["x"], ["t"], name="then_exp")], "then", [], [y])
    other = helper.make_graph(
        [node("Neg", ["x"], ["u"], name="else_neg"), node("Abs", ["u"], ["t"], name="else_abs")],
        "else",
        [],
        [y],
    )
    body = helper.make_graph(
        [node("Tanh", ["c"], ["d"], name="turn"), node("Identity", ["on"], ["on_"], name="same")],
        "body",
        [info("i", I64, []), info("on", BOOL, []), info("c", F, ["n"])],
        [info("on_", BOOL, []), info("d", F, ["n"])],
    )
    nodes = [
        node("If", ["flag"], ["b"], name="choice", then_branch=then, else_branch=other),
        node("Loop", ["trips", ""], ["y"], name="turns", body=body)
        if rounds is None
        else node("Loop", ["count", ""], ["y"], name="turns", body=body),
    ]
    nodes[1].input.append("b")
    inputs = [info("flag", BOOL, []), info("x", F, ["n"])]
    constants = [] if rounds is None else [numpy_helper.from_array(np.array(rounds), "count")]
    if rounds is None:
        inputs.append(info("trips", I64, []))
    return model(nodes, inputs, [info("y", F, ["n"])], constants)


def test_memory_is_that_of_each_step() -> None:
    # A value from before, one that step 0 writes and step 1 reads, and a result.
    lives = [(-1, 0, 100), (0, 1, 10), (1, 2, 1)]
    assert living_bytes(lives, 2) == [110, 11]
    assert living_bytes(lives, 0) == []
    assert unshared_bytes(lives) == 128 + 64 + 64


def test_figures_are_those_at_the_sizes_that_are_asked_for() -> None:
    s = Sketch(n=(2, 64))
    x = s.input("x", "n", 16)
    y = s.compute("exp", s.compute("neg", s.compute("abs", x)))
    plan = lower(merge(s.program(y=y)), model_digest="sha256:" + "0" * 64, producer="the test")
    small, large = explain(plan), explain(plan, sizes={"n": 32})
    assert (small.sizes, large.sizes) == ({"n": 2}, {"n": 32})
    assert small.figures is not None
    assert large.figures is not None
    # abs and neg count 1 for an element, exp 8.
    assert [each.figures.calculations for each in (small, large) if each.figures] == [320, 5120]
    assert large.figures.moved_bytes == 16 * small.figures.moved_bytes == 3 * 2 * 32 * 16 * 4
    # The input lives beside the first; the others are written over it.
    assert [step.living_bytes for step in large.steps] == [2 * 32 * 16 * 4, 32 * 16 * 4, 32 * 16 * 4]
    assert large.figures.peak_bytes == large.figures.planned_bytes == lay_out(plan, (32,)).arena_bytes
    assert large.figures.unshared_bytes == 2 * large.figures.peak_bytes
    assert [step.reads for step in small.steps] == [(), (0,), (1,)]


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"lenght": 3}, "'lenght': the dimensions are batch, length; did you mean 'length'?"),
        ({"batch": 0}, "'batch': 0 is not in 1 to 8, which the plan is made for"),
        ({"batch": 9}, "'batch': 9 is not in 1 to 8"),
    ],
)
def test_sizes_that_there_arent_are_refused(sizes: dict[str, int], text: str) -> None:
    plan = compiled(attention(), batch=(1, 8)).plan
    with pytest.raises(Invalid, match=text.replace("?", r"\?")) as refused:
        explain(plan, sizes=sizes)
    assert refused.value.reason == "BAD_SIZE"


def test_sizes_that_must_be_equal_follow_one_another() -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"], name="sum")]
    plan = compiled(model(nodes, [info("a", F, ["n"]), info("b", F, ["m"])], [info("y", F, ["n"])])).plan
    assert explain(plan, sizes={"m": 7}).sizes == {"n": 7, "m": 7}
    assert explain(plan, sizes={"n": 7}).sizes == {"n": 7, "m": 7}
    with pytest.raises(Invalid, match="'n' and 'm' are 2 and 3; they must be equal"):
        explain(plan, sizes={"n": 2, "m": 3})


def test_before_and_after_merging_are_told_side_by_side() -> None:
    found = told(attention(), {"batch": 2, "length": 5})
    assert found.origins is not None
    before, after = found.origins.before, found.figures
    assert before is not None
    assert after is not None
    assert before.rasters == found.origins.rasters > after.rasters == found.rasters
    assert before.steps - before.rasters >= after.steps - after.rasters
    assert before.moved_bytes > after.moved_bytes
    assert before.moved_bytes - before.raster_bytes <= before.moved_bytes
    assert before.regions >= before.rasters
    assert before.calculations >= after.calculations
    assert before.unshared_bytes > after.unshared_bytes
    # What is planned holds what lives.
    assert all(each.peak_bytes <= each.planned_bytes for each in (before, after))
    assert after.moved_bytes == sum(step.moved_bytes for step in found.steps)
    assert after.regions == sum(step.regions for step in found.steps)


def test_each_node_is_found_again_in_the_steps() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], name="shape"),
        helper.make_node("Transpose", ["x"], ["t"], name="turn", perm=[1, 0]),
        helper.make_node("Exp", ["t"], ["e"], name="power"),
        helper.make_node("Relu", ["x"], ["nobody"], name="unread"),
        helper.make_node("Reshape", ["e", "s"], ["y"], name="back"),
    ]
    found = told(model(nodes, [info("x", F, ["n", 3])], [info("y", F, ["n", 3])]))
    assert found.origins is not None
    by_name = {
        node.name: (node, steps) for node, steps in zip(found.origins.nodes, found.became, strict=True)
    }
    assert list(by_name) == [node.name for node in nodes]
    power = [index for index, step in enumerate(found.steps) if step.operator == "exp"]
    assert by_name["power"][1] == tuple(power)
    # It reads through the transposition, which is no step of its own any more.
    assert by_name["turn"][0].written == 1
    assert by_name["turn"][1] == tuple(power)
    assert (by_name["shape"][0].written, by_name["shape"][1]) == (0, ())
    # Nothing reads it, so that it is gone.
    assert by_name["unread"][1] == ()
    assert by_name["back"][0].reads == (0, 2)


def test_branches_and_loops_are_groups_within_groups() -> None:
    found = told(branching(), {"n": 6})
    kinds = [(group.kind, group.parent) for group in found.groups]
    assert kinds[0] == ("plan", None)
    assert [kind for kind, _ in kinds if kind != "part"] == ["plan", "branch", "then", "else", "loop"]
    for place, group in enumerate(found.groups):
        assert group.parent is None or group.parent < place
    branch = next(index for index, (kind, _) in enumerate(kinds) if kind == "branch")
    assert {kinds[index][1] for index, (kind, _) in enumerate(kinds) if kind in ("then", "else")} == {branch}
    loop = next(group for group in found.groups if group.kind == "loop")
    assert loop.rounds == 10
    assert "turns (Loop)" in loop.origin
    inside = found.steps[loop.first_step : loop.first_step + loop.step_count]
    assert [step.operator for step in inside] == ["tanh"]
    # The first round reads what either side of the branch gives.
    assert {found.steps[read].operator for read in inside[0].reads} == {"exp", "abs"}
    assert loop.figures is not None
    assert loop.figures.calculations == 6 * 8
    assert found.operators == {"abs": 1, "branch": 1, "exp": 1, "loop": 1, "neg": 1, "tanh": 1}
    assert found.origins is not None
    assert found.origins.before is not None
    assert found.origins.before.operators == found.operators
    assert found.figures is not None
    assert found.figures.calculations == 6 * (8 + 1 + 1 + 8)
    assert found.origins.operators == {
        "Abs": 1, "Exp": 1, "Identity": 1, "If": 1, "Loop": 1, "Neg": 1, "Tanh": 1
    }  # fmt: skip
    nodes = {node.name: node for node in found.origins.nodes}
    assert nodes["turn"].inside == [node.name for node in found.origins.nodes].index("turns")
    assert nodes["choice"].inside is None
    assert nodes["turn"].written == nodes["turns"].written == 1


def test_rounds_that_data_tell_arent_told() -> None:
    loop = next(group for group in told(branching(None)).groups if group.kind == "loop")
    assert loop.rounds == 0


def test_sizes_that_data_decide_may_be_assumed() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"], name="where"),
        helper.make_node("Cast", ["places"], ["y"], name="numbers", to=F),
    ]
    content = model(nodes, [info("x", F, [100])], [info("y", F, None)])
    found = told(content)
    (name,) = found.sizes
    assert found.sizes == {name: 1}
    casts = [each.steps[-1].calculations for each in (found, told(content, {name: 50}))]
    assert casts == [1, 50]


def test_a_part_that_is_run_often_is_told_once_and_counted_each_time() -> None:
    plan = PlanBuilder()
    plan.output("y", plan.compute("neg", [plan.input("x", [4])], [4]))
    # Figures of hand-made plans are 0; operators are counted all the same.
    part = replace(plan.build(), model_digest="", producer="")
    count = 1_000
    registers = tuple(Register(TensorType(DataType.FLOAT32, (4,))) for _ in range(count + 1))
    actions = tuple(Action(Run(0, (number,), (number + 1,)), "turn (Neg)") for number in range(count))
    whole = Plan(
        model_digest=DIGEST,
        producer="the test",
        composition=Composition(
            (part,),
            registers,
            (NamedRegister("x", 0),),
            (NamedRegister("y", count),),
            (Block((), actions, (count,)),),
        ),
    )
    check_plan(whole)
    found = explain(whole)
    assert [step.operator for step in found.steps] == ["neg"]
    assert found.operators == {"neg": count}
    assert len(found.groups) == count + 1
    assert [group.step_count for group in found.groups[:3]] == [1, 1, 0]
    assert found.figures is not None
    assert found.figures.planned_bytes == count * 2 * 64


def test_of_very_many_steps_the_first_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.engine.domain.explain.MOST_STEPS", 3)
    found, figures = told(attention()), told(attention()).figures
    assert len(found.steps) == 3
    assert figures is not None
    assert figures.steps > 3
    assert found.groups[0].step_count == figures.steps
    assert all(step < figures.steps for steps in found.became for step in steps)
