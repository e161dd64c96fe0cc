"""Graphs within nodes: their names, order and types; functions, definitions and other domains."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain.graph import Body, LooseTensor, Parameter
from services.engine.reading import read_model
from services.engine.reading.expansion import EXPANDED, expanded
from services.engine.reading.versions import opsets_of
from services.engine.testing import small

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
INFO = helper.make_tensor_value_info
NODE = helper.make_node


def model_of(nodes: list[NodeProto], inputs: list[Any], outputs: list[str], **more: Any) -> ModelProto:
    opsets = [
        helper.make_opsetid(domain, version) for domain, version in more.pop("opsets", {"": 18}).items()
    ]
    ends = [INFO(name, FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", inputs, ends, more.pop("constants", []))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)


def loop(
    *nodes: NodeProto, parameters: tuple[str, ...] = ("i", "c", "v"), results: tuple[str, ...]
) -> NodeProto:
    ports = [INFO("i", INT64, []), INFO("c", BOOL, []), *[INFO(name, FLOAT, None) for name in parameters[2:]]]
    ends = [INFO(results[0], BOOL, []), *[INFO(name, FLOAT, None) for name in results[1:]]]
    body = helper.make_graph(nodes, "round", ports, ends, [numpy_helper.from_array(np.float32(2), "two")])
    return NODE("Loop", ["n", "", "x"], ["y"], name="loop", body=body)


X = [INFO("x", FLOAT, ["a", 2]), INFO("n", INT64, [])]


def test_a_body_reads_what_is_around_it_and_its_nodes_are_sorted() -> None:
    rounds = loop(
        NODE("Add", ["t", "outer"], ["w"], name="second"),
        NODE("Mul", ["v", "two"], ["t"], name="first"),
        results=("c", "w"),
    )
    # The node that the body needs stands behind it in the file.
    graph = read_model(model_of([rounds, NODE("Neg", ["x"], ["outer"])], X, ["y"]).SerializeToString())
    assert [node.operator for node in graph.nodes] == ["Neg", "Loop"]
    body = graph.nodes[1].attributes["body"]
    assert isinstance(body, Body)
    assert [node.name for node in body.nodes] == ["first", "second"]
    assert body.inputs[0] == Parameter("i", LooseTensor(DataType.INT64, 0))
    assert body.inputs[2] == Parameter("v", LooseTensor(DataType.FLOAT32))
    assert body.outputs == ("c", "w")
    assert list(body.constants) == ["two"]
    assert body.reads() == {"outer": "second (Add)"}
    assert set(graph.nodes[1].reads()) == {"n", "x", "outer"}
    assert graph.types["outer"] == LooseTensor(DataType.FLOAT32, 2)


def test_an_input_of_a_body_hides_what_is_around_it() -> None:
    # The body's own x: the outer one is written by nobody else, and the order doesn't depend on it.
    rounds = loop(NODE("Neg", ["x"], ["w"]), parameters=("i", "c", "x"), results=("c", "w"))
    graph = read_model(model_of([rounds], X, ["y"]).SerializeToString())
    body = graph.nodes[0].attributes["body"]
    assert isinstance(body, Body)
    assert body.reads() == {}


def test_a_cycle_through_a_body_is_seen() -> None:
    rounds = loop(NODE("Add", ["v", "z"], ["w"]), results=("c", "w"))
    model = model_of([rounds, NODE("Neg", ["y"], ["z"])], X, ["y"])
    with pytest.raises(Invalid, match=r"node loop \(Loop\) is on or behind a cycle"):
        read_model(model.SerializeToString())


def test_graphs_nest_thirty_deep() -> None:
    node = NODE("Neg", ["x"], ["v"])
    other = helper.make_graph([NODE("Abs", ["x"], ["u"])], "e", [], [INFO("u", FLOAT, None)])
    for level in range(30):
        body = helper.make_graph([node], "b", [], [INFO(node.output[0], FLOAT, None)])
        node = NODE("If", ["q"], [f"v{level}"], then_branch=body, else_branch=other)
    model = model_of([node], [INFO("x", FLOAT, [2]), INFO("q", BOOL, [])], ["v29"])
    graph = read_model(model.SerializeToString())
    depth, nodes = 0, graph.nodes
    while nodes[0].bodies:
        depth, nodes = depth + 1, nodes[0].attributes["then_branch"].nodes  # type: ignore[union-attr]
    assert (depth, nodes[0].operator) == (30, "Neg")


def test_many_bodies_take_no_square_time() -> None:
    branch = helper.make_graph([], "b", [], [INFO("x", FLOAT, None)])
    nodes = [NODE("If", ["q"], [f"v{i}"], then_branch=branch, else_branch=branch) for i in range(20_000)]
    model = model_of(nodes, [INFO("x", FLOAT, [2]), INFO("q", BOOL, [])], ["v7"])
    assert len(read_model(model.SerializeToString()).nodes) == 20_000


def test_other_domains_are_part_of_the_name() -> None:
    binarizer = NODE("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.5)
    opsets = {"ai.onnx.ml": 3, "": 18}
    graph = read_model(model_of([binarizer], X, ["y"], opsets=opsets).SerializeToString())
    assert graph.nodes[0].operator == "ai.onnx.ml:Binarizer"
    assert (graph.opset, graph.domains) == (18, {"ai.onnx.ml": 3})
    alone = read_model(model_of([binarizer], X, ["y"], opsets={"ai.onnx.ml": 3}).SerializeToString())
    assert alone.opset == onnx.defs.onnx_opset_version()
    contrib = NODE("FusedGem", ["x"], ["y"], domain="com.microsoft")
    model = model_of([contrib], X, ["y"], opsets={"com.microsoft": 1, "": 18})
    with pytest.raises(
        Invalid,
        match=r"node #0 \(FusedGem\): .*'FusedGem' of domain 'com.microsoft' .*did you mean 'FusedGemm'",
    ):
        read_model(model.SerializeToString())


def test_functions_with_control_flow_are_put_in_place_inside_bodies() -> None:
    inner = helper.make_graph([NODE("Neg", ["a"], ["p"])], "t", [], [INFO("p", FLOAT, None)])
    other = helper.make_graph([NODE("Abs", ["a"], ["q"])], "e", [], [INFO("q", FLOAT, None)])
    function = helper.make_function(
        "mine",
        "Choose",
        ["k", "a"],
        ["b"],
        [NODE("If", ["k"], ["b"], then_branch=inner, else_branch=other)],
        [helper.make_opsetid("", 18)],
    )
    rounds = loop(NODE("Choose", ["c", "v"], ["w"], domain="mine"), results=("c", "w"))
    opsets = {"": 18, "mine": 1}
    model = model_of([rounds], X, ["y"], opsets=opsets, functions=[function])
    body = read_model(model.SerializeToString()).nodes[0].attributes["body"]
    assert isinstance(body, Body)
    assert [node.operator for node in body.nodes] == ["If"]


def test_a_function_of_an_older_opset_is_converted() -> None:
    squeezing = NODE("Squeeze", ["a"], ["b"], axes=[0])  # an attribute then, an input since opset 13
    function = helper.make_function("mine", "Flat", ["a"], ["b"], [squeezing], [helper.make_opsetid("", 11)])
    model = model_of(
        [NODE("Flat", ["x"], ["y"], domain="mine")],
        [INFO("x", FLOAT, [1, 2])],
        ["y"],
        opsets={"": 18, "mine": 1},
        functions=[function],
    )
    graph = read_model(model.SerializeToString())
    assert [len(node.inputs) for node in graph.nodes if node.operator == "Squeeze"] == [2]


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        collected: Any = collect_testcases(None)
    return {case.name: case for case in collected}


def test_definitions_compute_what_their_operators_do(cases: dict[str, Any]) -> None:
    """Also with inputs and attributes left out, which ONNX's own inliner of definitions doesn't take."""
    seen: set[str] = set()
    for case in cases.values():
        operators = {node.op_type for node in case.model.graph.node}
        if not operators & set(EXPANDED) or "Bernoulli" in operators:  # that one is random
            continue
        if operators <= seen and len(case.name) % 5:
            continue  # a fifth of the cases of each operator
        seen |= operators
        replaced = expanded(case.model, opsets_of(case.model))
        assert not operators & {node.op_type for node in replaced.graph.node} & set(EXPANDED)
        evaluator = ReferenceEvaluator(replaced)
        for inputs, outputs in case.data_sets:
            feed = dict(zip([info.name for info in replaced.graph.input], inputs, strict=True))
            with warnings.catch_warnings(), np.errstate(all="ignore"):  # of the reference, over -inf
                warnings.simplefilter("ignore")
                found: Any = evaluator.run(None, feed)
            for got, wanted in zip(found, outputs, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-3, err_msg=case.name)
    assert seen >= set(EXPANDED) - {"Bernoulli"}


def test_a_definition_that_depends_on_what_is_not_known_is_refused_by_name() -> None:
    node = NODE("Attention", ["q", "k", "v"], ["y"], name="att", q_num_heads=1, kv_num_heads=1)
    model = model_of(
        [node],
        [helper.make_value_info(n, helper.make_sequence_type_proto(X[0].type)) for n in "qkv"],
        ["y"],
        opsets={"": 23},
    )
    with pytest.raises(Invalid, match=r"node att \(Attention\)"):
        read_model(model.SerializeToString())


def test_what_inference_says_is_kept_where_a_name_means_one_thing() -> None:
    model = small()
    graph = read_model(model.SerializeToString())
    assert graph.types["m"] == LooseTensor(DataType.FLOAT32, 2)
    assert graph.types["c"] == LooseTensor(DataType.FLOAT32, 1)
    model.graph.node[
        0
    ].op_type = "Gather"  # which takes no floats as indices: inference fails, reading doesn't
    assert read_model(model.SerializeToString()).nodes[0].operator == "Gather"
