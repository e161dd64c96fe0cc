"""`isthmus model explain`: what is asked of the service, and how its answers are told and drawn."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from onnx import helper

from isthmus.engine.v1 import engine_pb2
from libs.cli.local_engine import looks_like_plan
from libs.cli.model_texts import became, group_label, step_kind
from libs.cli.testing import FakeCloud
from libs.runtime.codec import encode
from libs.runtime.testing import identity_plan
from services.engine.convert_explanation import explanation
from services.engine.domain.explain import explain
from services.engine.pipeline import Stages, compile_model
from services.engine.testing_models import attention
from tests.unit.libs.cli.groups.conftest import Isthmus
from tests.unit.services.engine.domain.test_explain import branching

Group = engine_pb2.GroupSpec


def explained(content: bytes, **sizes: int) -> engine_pb2.Explanation:
    found = compile_model(content, {}, "the test", Stages(lambda stage: None), sizes=sizes)
    return explanation(explain(found.plan, found.origins, sizes))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"the model")
    return path


def test_sizes_are_asked_for_and_figures_shown_side_by_side(
    cloud: FakeCloud, isthmus: Isthmus, model: Path
) -> None:
    cloud.explanation = found = explained(attention(), batch=2, length=5)
    ran = isthmus("model", "explain", str(model), "--size", "batch=2", "--size", "length=5")
    assert ran.code == 0, ran.err
    (request,) = cloud.asked(engine_pb2.ExplainRequest)
    assert dict(request.sizes) == {"batch": 2, "length": 5}
    assert "figures at batch = 2, length = 5" in ran.lines
    rasters = (found.raster_count_before, found.raster_count_after)
    ratio = f"{rasters[1] / rasters[0]:.2f}"
    assert f"of them rasters {rasters[0]} {rasters[1]} {ratio}" in ran.lines
    assert any(line.startswith("memory without reuse ") for line in ran.lines)
    wrong = isthmus("model", "explain", str(model), "--size", "batch")
    assert (wrong.code, "write NAME=SIZE, such as batch=8" in wrong.err) == (2, True)
    twice = isthmus("model", "explain", str(model), "--size", "b=1", "--size", "b=2")
    assert (twice.code, "--size: a dimension is given twice" in twice.err) == (2, True)


def test_an_answer_of_an_older_engine_is_shown_without_figures(
    cloud: FakeCloud, isthmus: Isthmus, model: Path
) -> None:
    found = explained(attention())
    for field in ("before", "after", "sizes", "nodes", "groups"):
        found.ClearField(field)
    cloud.explanation = found
    ran = isthmus("model", "explain", str(model), "--steps", "--svg", str(model.with_suffix(".svg")))
    assert ran.code == 0, ran.err
    assert not any(line.startswith("bytes moved") for line in ran.lines)
    ElementTree.parse(model.with_suffix(".svg"))


def test_what_became_of_each_node_is_shown(cloud: FakeCloud, isthmus: Isthmus, model: Path) -> None:
    cloud.explanation = found = explained(attention())
    ran = isthmus("model", "explain", str(model), "--nodes")
    assert ran.code == 0, ran.err
    heading = ran.lines.index("NODE OPERATOR AS DECOMPOSED BECAME")
    shown = ran.lines[heading + 1 :]
    assert len(shown) == len(found.nodes)
    (softmax,) = [line for line in shown if " Softmax " in line]
    (node,) = [node for node in found.nodes if node.operator == "Softmax"]
    assert softmax.startswith(f"{node.name} Softmax {node.written_count} {node.steps[0]} ")
    (transposed,) = [line for line in shown if line.endswith("node") and " Transpose " in line][:1]
    assert transposed.endswith("with 1 other node")


def test_control_flow_is_shown_as_groups_within_groups(
    cloud: FakeCloud, isthmus: Isthmus, model: Path
) -> None:
    cloud.explanation = explained(branching(), n=6)
    svg = model.with_suffix(".svg")
    ran = isthmus("model", "explain", str(model), "--steps", "--nodes", "--svg", str(svg))
    assert ran.code == 0, ran.err
    raw = ran.out.splitlines()
    for line in (
        "  branch: choice (If)",
        "    where it holds",
        "    else",
        "  loop: turns (Loop) × 10 rounds",
    ):
        assert any(row.startswith(line) for row in raw), line
    assert any("1 branch, 1 loop; both sides of a branch count" in line for line in ran.lines)
    assert "choice If 1 a branch" in ran.lines
    assert "turns Loop 1 a loop" in ran.lines
    assert f"drawn to {svg}" in ran.lines
    texts = [each.text for each in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"loop: turns (Loop) × 10 rounds", "tanh", "in choice (If)", "after: 4 steps"} <= set(texts)
    # The Identity in the loop leaves nothing behind, and reads nothing that is a node's.
    assert "before: 7 ONNX nodes, 1 constant not drawn" in texts
    as_json = isthmus("model", "explain", str(model), "--svg", str(svg), "--json").json
    assert as_json["svg"] == str(svg)
    assert as_json["before"]["operators"]


def test_a_picture_that_cant_be_put_there_is_told_before_anything_is_asked(
    cloud: FakeCloud, isthmus: Isthmus, model: Path
) -> None:
    ran = isthmus("model", "explain", str(model), "--svg", "/nowhere/at/all.svg")
    assert (ran.code, "--svg /nowhere/at/all.svg" in ran.err) == (4, True)
    assert not cloud.requests


def test_a_digest_isnt_explained_locally(cloud: FakeCloud, isthmus: Isthmus) -> None:
    ran = isthmus("model", "explain", "sha256:0", "--local")
    assert (ran.code, "--local explains files" in ran.err) == (2, True)


@pytest.mark.parametrize("name", ["x.plan", "x.bin"])
def test_plans_are_known_by_their_name_or_how_they_begin(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(encode(identity_plan()))
    assert looks_like_plan(path)


@pytest.mark.parametrize("content", [attention(), b"", b"\x08\x02", b"\x08\x02\x1a\x40", b"sha256:"])
def test_what_is_no_plan_isnt_taken_for_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    assert not looks_like_plan(path)
    assert not looks_like_plan(tmp_path / "gone")


def test_words_for_groups_steps_and_nodes() -> None:
    loop = Group(kind=Group.KIND_LOOP, origin="a (Loop) + b (Add)")
    assert group_label(loop) == "loop: a (Loop) × as many rounds as data say"
    assert group_label(Group(kind=Group.KIND_PART, step_count=1)) == "part: 1 step"
    kinds = [step_kind(engine_pb2.StepSpec(operator=name)) for name in ("raster", "add", "sequence_at")]
    assert kinds == ["raster", "compute", "host"]
    steps = [engine_pb2.StepSpec(operator="add", origin="a (X) + b (Y)")] * 9
    assert became(engine_pb2.NodeSpec(written_count=2), steps, {}) == "merged away"
    assert became(engine_pb2.NodeSpec(), steps, {}) == "known when the plan is made"
    assert became(engine_pb2.NodeSpec(steps=[0]), steps, {}) == "0 add with 1 other node"
    # Steps that the message doesn't hold have numbers only.
    assert became(engine_pb2.NodeSpec(steps=[900]), steps, {}) == "900"
    many = became(engine_pb2.NodeSpec(steps=range(9)), [], {})
    assert many == "0, 1, 2, 3, 4, 5, and 3 more"


UNREADABLE = helper.make_model(
    helper.make_graph([helper.make_node("Sorcery", ["x"], ["y"], name="n")], "g", [], []),
    opset_imports=[helper.make_opsetid("", 17)],
).SerializeToString()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"just text\n", "the file is not an ONNX model, or is damaged"),
        (attention()[:200], "the file is not an ONNX model, or is damaged"),
    ],
)
def test_a_file_that_cant_be_read_here_is_named(
    isthmus: Isthmus, tmp_path: Path, content: bytes, said: str
) -> None:
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    good.write_bytes(attention())
    bad.write_bytes(content)
    for arguments in (("inspect", bad), ("explain", "--local", bad), ("compare", good, bad)):
        ran = isthmus("model", *map(str, arguments))
        assert (ran.code, ran.err.startswith(f"error: {bad}: {said}")) == (2, True), ran.err


def test_compare_says_which_of_the_files_has_what_isnt_read(isthmus: Isthmus, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    good.write_bytes(attention())
    bad.write_bytes(UNREADABLE)
    for pair in ((good, bad), (bad, good)):
        ran = isthmus("model", "compare", *map(str, pair))
        assert (ran.code, ran.err.startswith(f"error: {bad}: ")) == (2, True), ran.err


def test_a_reason_of_many_nodes_is_told_once(isthmus: Isthmus, tmp_path: Path) -> None:
    nodes = [
        helper.make_node(
            "Conv" if number else "ReorderInput", ["x"], [f"y{number}"], name=f"n{number}", domain=domain
        )
        for number, domain in enumerate(["com.microsoft.nchwc"] * 60)
    ]
    nodes += [helper.make_node("Nope", ["x"], ["z"], name="alone")]
    path = tmp_path / "m.onnx"
    made = helper.make_model(
        helper.make_graph(nodes, "g", [], [helper.make_empty_tensor_value_info("z")]),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft.nchwc", 1)],
    )
    path.write_bytes(made.SerializeToString())
    ran = isthmus("model", "inspect", str(path))
    assert ran.code == 0, ran.err
    many = [line for line in ran.lines if "operators of domain" in line]
    assert len(many) == 1
    prefix = "com.microsoft.nchwc:"
    said = f"60 nodes: n0, n1, n2, … {prefix}ReorderInput, {prefix}Conv operators of domain"
    assert many[0].startswith(said)
    assert ran.out.count("ORT_ENABLE_EXTENDED") == 1
    assert any(line.startswith("alone Nope ") for line in ran.lines)
    faults = isthmus("model", "inspect", str(path), "--json").json["faults"]
    assert [fault["node"] for fault in faults] == [*(f"n{number}" for number in range(60)), "alone"]


def test_names_out_of_a_model_dont_steer_the_terminal(
    cloud: FakeCloud, isthmus: Isthmus, model: Path
) -> None:
    cloud.explanation = explained(attention())
    cloud.explanation.nodes[0].name = "x\x1b[31m"
    cloud.explanation.inputs[0].name = "in\nput\x9b2J"
    ran = isthmus("model", "explain", str(model), "--nodes", "--steps")
    assert ran.code == 0, ran.err
    assert not set(ran.out) & set("\x1b\x9b")
    assert any("in\\nput\\x9b2J: float32[" in line for line in ran.lines)
