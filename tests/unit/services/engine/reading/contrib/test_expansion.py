"""Definitions in place of nodes: in bodies, behind one another, with names taken; and what is refused."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from libs.common.errors import Invalid
from services.engine.peers import Peer
from services.engine.pipeline import Stages, compile_model
from services.engine.reading import read_model
from services.engine.reading.contrib.registry import CONTRIB
from services.engine.reading.inspection import inspect_model
from tests.unit.services.engine.reading.contrib.cases import Case, normal, number, planned, whole

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64
INFO = helper.make_tensor_value_info
DOMAIN = "com.microsoft"


def contrib(operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> NodeProto:
    return helper.make_node(operator, inputs, outputs, domain=DOMAIN, **attributes)


def model_of(nodes: list[NodeProto], inputs: list[Any], outputs: list[str], **more: Any) -> ModelProto:
    versions = more.pop("opsets", {"": 17, DOMAIN: 1})
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    ends = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "g", inputs, ends, more.pop("constants", []))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def agrees(model: ModelProto, **feed: Any) -> None:
    expected = Peer(model.SerializeToString()).run(dict(feed))
    for name, array in planned(model, feed).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-5)


X = INFO("x", FLOAT, ["batch", 3, 8])
SCALE = numpy_helper.from_array(normal(8), "scale")


def test_types_are_known_behind_other_definitions() -> None:
    # Nothing but x is declared: what is known of the rest goes through definitions and other nodes.
    nodes = [
        contrib("SkipLayerNormalization", ["x", "x", "scale"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 1]),
        contrib("FusedMatMul", ["b", "a"], ["c"], alpha=0.5),
        helper.make_node("Shape", ["c"], ["d"]),
        helper.make_node("Reshape", ["c", "d"], ["e"]),
        contrib("QuickGelu", ["e"], ["f"]),
        contrib("FusedMatMul", ["f", "f"], ["y"], transB=1),
    ]
    agrees(model_of(nodes, [X], ["y"], constants=[SCALE]), x=normal(2, 3, 8))


def test_nodes_may_be_in_any_order() -> None:
    # ONNX Runtime's optimiser writes them so.
    nodes = [
        contrib("FusedMatMul", ["b", "b"], ["y"], transB=1),
        helper.make_node("Neg", ["a"], ["b"]),
        contrib("Gelu", ["x"], ["a"]),
    ]
    agrees(model_of(nodes, [X], ["y"]), x=normal(2, 3, 8))


def test_bodies_are_read_with_what_is_around_them() -> None:
    def side(name: str, *nodes: NodeProto) -> Any:
        return helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info(name)])

    inner = contrib("FusedMatMul", ["a", "a"], ["then"], transB=1, alpha=0.25)
    other = helper.make_node("MatMul", ["a", "t"], ["else"])
    turned = helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1])
    nodes = [
        contrib("Gelu", ["x"], ["a"]),
        helper.make_node(
            "If", ["q"], ["y"], then_branch=side("then", inner), else_branch=side("else", turned, other)
        ),
    ]
    model = model_of(nodes, [X, INFO("q", BOOL, [])], ["y"])
    for chosen in (True, False):
        agrees(model, x=normal(2, 3, 8), q=np.array(chosen))


def test_names_that_definitions_would_take_are_left_alone() -> None:
    nodes = [
        contrib("QuickGelu", ["contrib.1.quickgelu.mul1"], ["contrib_.x"]),
        contrib("QuickGelu", ["contrib_.x"], ["y"]),
    ]
    agrees(
        model_of(nodes, [INFO("contrib.1.quickgelu.mul1", FLOAT, ["n", 3])], ["y"]),
        **{"contrib.1.quickgelu.mul1": normal(4, 3)},
    )


def test_many_nodes_take_no_square_time() -> None:
    names = ["x", *[f"v{index}" for index in range(3000)]]
    nodes = []
    for before, after in itertools.pairwise(names):
        nodes += [
            helper.make_node("Neg", [before], [f"n{after}"]),
            contrib("QuickGelu", [f"n{after}"], [after]),
        ]
    assert len(read_model(model_of(nodes, [X], [names[-1]]).SerializeToString()).nodes) > 15_000


def test_unnamed_nodes_keep_the_name_of_their_position() -> None:
    nodes = [contrib("QuickGelu", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["b"], alpha=1.0)]
    with pytest.raises(Invalid, match=r"node #1 \(Relu\): attribute 'alpha'"):
        read_model(model_of(nodes, [X], ["b"]).SerializeToString())


def refused(nodes: list[NodeProto], text: str, **more: Any) -> None:
    model = model_of(nodes, [X], [nodes[-1].output[0]], **more)
    with pytest.raises(Invalid, match=text):
        read_model(model.SerializeToString())


def test_the_domain_needs_no_import_but_has_one_version() -> None:
    agrees(model_of([contrib("Gelu", ["x"], ["y"])], [X], ["y"], opsets={"": 17}), x=normal(2, 3, 8))
    node = contrib("Gelu", ["x"], ["y"], name="g")
    refused([node], r"node g \(Gelu\): the model has version 2 of", opsets={"": 17, DOMAIN: 2})
    text = r"node g \(Gelu\): the model imports no version of ONNX's default operators"
    refused([node], text, opsets={"ai.onnx.ml": 3, DOMAIN: 1})


def test_old_opsets_are_refused_by_name() -> None:
    node = contrib("Gelu", ["x"], ["y"], name="g")
    text = r"node g \(Gelu\): it is read by operators of opset 9; the model has opset 8: convert it"
    refused([node], text, opsets={"": 8, DOMAIN: 1})


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "text"),
    [
        ("Gelu", 2, {}, r"it has 2 inputs; 1 is allowed"),
        ("FusedMatMul", 2, {"alpa": 0.5}, r"attribute 'alpa' is not one .*did you mean 'alpha'"),
        ("FusedMatMul", 2, {"alpha": 1}, r"attribute 'alpha' is of type INT; it must be of type FLOAT"),
        ("MultiHeadAttention", 3, {}, r"attribute 'num_heads' is missing"),
        (
            "FusedGemm",
            2,
            {"activation": "Reluu"},
            r"attribute 'activation' is 'Reluu'; .*did you mean 'Relu'",
        ),
        ("FusedGemm", 2, {}, r"attribute 'activation' is missing"),
        ("FusedMatMull", 2, {}, r"operator 'FusedMatMull' of domain .*did you mean 'FusedMatMul'"),
        ("Attention", 2, {"num_heads": 2, "do_rotary": 1}, r"attribute 'do_rotary' is not supported"),
        ("Attention", 5, {"num_heads": 2}, r"input 4 \('x'\) is not supported: leave it out"),
        ("MultiHeadAttention", 1, {"num_heads": 2}, r"in one input are not supported: give three"),
        ("MultiHeadAttention", 3, {"num_heads": 3}, r"a size of 8 can't be divided into 3 heads"),
        (
            "Attention",
            2,
            {"num_heads": 2, "qkv_hidden_sizes": [-8, -8, 24]},
            r"don't hold .* of \[-8, -8, 24\]",
        ),
        ("MatMulNBits", 3, {"K": 2**63 - 1, "N": 8, "block_size": 16}, r"use a power of 2 from 16 on"),
        ("QLinearConcat", 4, {"axis": 0}, r"it has 2 inputs after the first two"),
        ("MatMulNBits", 3, {"K": 8, "N": 8, "block_size": 16, "bits": 3}, r"attribute 'bits' is 3; use"),
        ("MatMulNBits", 5, {"K": 8, "N": 8, "block_size": 16}, r"input 4 \('x'\) is not supported"),
        ("MatMulNBits", 3, {"K": 8, "N": 8, "block_size": 24}, r"'block_size', 'K' and 'N' are 24, 8 and 8"),
        ("RotaryEmbedding", 4, {"is_packed_batching": 1}, r"'is_packed_batching' is not supported"),
        ("FusedConv", 2, {"activation": "Clip"}, r"'activation_params' has 0 numbers; Clip takes 2"),
    ],
)
def test_what_is_refused(operator: str, inputs: int, attributes: dict[str, Any], text: str) -> None:
    node = contrib(operator, ["x"] * inputs, ["y"], name="only", **attributes)
    refused([node], rf"node only \({operator}\): .*{text}")


def test_types_that_an_operator_doesnt_take_are_refused() -> None:
    for type_ in (TensorProto.STRING, TensorProto.BOOL, TensorProto.INT32):
        nodes = [
            helper.make_node("Cast", ["x"], ["t"], to=type_),
            contrib("QuickGelu", ["t"], ["y"], name="q"),
        ]
        refused(nodes, r"node q \(QuickGelu\): its inputs must hold floating-point numbers")


@pytest.mark.parametrize("seed", range(3))
def test_whatever_a_node_has_is_read_or_refused(seed: int) -> None:
    random = np.random.default_rng(seed)
    types = [FLOAT, TensorProto.FLOAT16, TensorProto.UINT8, TensorProto.INT32, TensorProto.STRING]
    sizes: list[Any] = [0, 1, 3, 8, "n", None, 2**40]
    values = {
        "INT": [0, 1, 2, -1, 16, 2**62],
        "FLOAT": [0.0, 0.5, float("nan"), float("inf"), 1e38],
        "STRING": ["Relu", "Clip", "", "VALID"],
        "INTS": [[1], [8, 8, 8], [0, 0, 2**62], [-1, 2]],
        "FLOATS": [[0.5], [0.0, float("nan")]],
    }

    def pick(choices: list[Any]) -> Any:
        return choices[random.integers(len(choices))]

    for operator in [*CONTRIB.values()] * 4:
        schema = operator.schema
        main = pick(types)
        ports = [
            INFO(
                f"i{index}",
                main if random.random() < 0.7 else pick(types),
                [pick(sizes) for _ in range(rank)],
            )
            for index, rank in enumerate(random.integers(0, 5, len(operator.inputs.split())))
        ]
        attributes = {
            name: pick(values[declared.type.name])
            for name, declared in schema.attributes.items()
            if declared.required or random.random() < 0.6
        }
        node = helper.make_node(operator.name, [port.name for port in ports], ["y"], domain=operator.domain)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        opsets = {"": pick([7, 10, 13, 17, 21]), DOMAIN: 1}
        data = model_of([node], ports, ["y"], opsets=opsets).SerializeToString()
        with contextlib.suppress(Invalid):
            compile_model(data, {}, "a test", Stages(lambda stage: None))
        inspect_model(data, {}, None)


def test_what_stands_before_may_be_malformed() -> None:
    # ONNX's own inference crashes on it: it is asked only of nodes that have what they need.
    nodes = [
        helper.make_node("Resize", ["", "", ""], ["r"]),
        helper.make_node("Pad", ["x", ""], ["p"]),
        helper.make_node("Slice", ["x", ""], ["s"]),
        contrib("QuickGelu", ["p"], ["y"], name="q"),
    ]
    refused(nodes, r"node q \(QuickGelu\): the definition depends on the type of 'p', which isn't known")


def test_the_first_that_cant_be_read_is_named() -> None:
    nodes = [
        contrib("CropAndResize", ["x", "x", "x", "x"], ["a"], name="first"),
        helper.make_node("Neg", ["a"], ["b"]),
        contrib("FusedMatMul", ["b", "b"], ["y"], name="last", transB=1),
    ]
    refused(nodes, r"node first \(CropAndResize\): operator 'CropAndResize' of domain")
    found = inspect_model(model_of(nodes, [X], ["y"]).SerializeToString(), {}, None)
    # What comes behind it is not at fault.
    assert [fault.node for fault in found.faults] == ["first"]


def test_outputs_without_a_definition_are_refused() -> None:
    node = contrib("MultiHeadAttention", ["x"] * 3, ["y", "", "", "scores"], name="only", num_heads=2)
    refused([node], r"node only \(MultiHeadAttention\): output 3 \('scores'\) is not supported")
    node = contrib("SkipSimplifiedLayerNormalization", ["x", "x", "scale"], ["y", "mean"], name="only")
    refused([node], r"\(SkipSimplifiedLayerNormalization\): output 1 \('mean'\)", constants=[SCALE])


def test_types_that_nothing_tells_are_refused_by_name() -> None:
    looped = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["d"]),
            contrib("FusedMatMul", ["v", "v"], ["w"], name="inner", transB=1),
        ],
        "body",
        [INFO("i", INT64, []), INFO("c", BOOL, []), helper.make_empty_tensor_value_info("v")],
        [INFO("d", BOOL, []), helper.make_empty_tensor_value_info("w")],
    )
    nodes = [helper.make_node("Loop", ["", "q", "x"], ["y"], body=looped)]
    model = model_of(nodes, [X, INFO("q", BOOL, [])], ["y"])
    with pytest.raises(
        Invalid, match=r"node inner \(FusedMatMul\): .* axes of 'v', which isn't known; declare"
    ):
        read_model(model.SerializeToString())


def test_inspection_names_every_node_that_cant_be_read() -> None:
    nodes = [
        contrib("Gelu", ["x", "x"], ["a"], name="first"),
        contrib("QuickGelu", ["x"], ["b"], name="fine"),
        contrib("Gellu", ["b"], ["c"], name="second"),
        contrib("Attention", ["x", "x"], ["d"], name="third"),
        helper.make_node("Rellu", ["b"], ["y"]),
    ]
    found = inspect_model(model_of(nodes, [X], ["y"]).SerializeToString(), {}, None)
    assert {(fault.node, fault.operator) for fault in found.faults} == {
        ("first", "com.microsoft:Gelu"),
        ("second", "com.microsoft:Gellu"),
        ("third", "com.microsoft:Attention"),
        ("#4", "Rellu"),
    }
    reasons = {fault.node: fault.reason for fault in found.faults}
    assert reasons["first"] == "it has 2 inputs; 1 is allowed"
    assert "did you mean 'Gelu'" in reasons["second"]
    assert found.operators["com.microsoft:QuickGelu"] == 1


def test_inspection_has_no_faults_where_all_can_be_read() -> None:
    case = Case(
        "QLinearAdd", [whole(9), number(0.5), number(3, np.uint8)] * 2 + [number(1.0), number(9, np.uint8)]
    )
    assert inspect_model(case.model().SerializeToString(), {}, None).faults == ()
