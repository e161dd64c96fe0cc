"""What is said of files that are damaged, hostile, or use what isn't supported: each fault by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from libs.common.errors import Invalid
from services.engine.reading import read_model
from services.engine.testing import small

FLOAT = TensorProto.FLOAT
NEWEST = onnx.defs.onnx_opset_version()
Change = Callable[[ModelProto], object]


def at(model: ModelProto, path: str) -> Any:
    """Return what "node.1.op_type" of the graph is; "/x" starts at the model."""
    found: Any = model if path.startswith("/") else model.graph
    for part in filter(None, path.lstrip("/").split(".")):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found


def put(path: str, value: Any) -> Change:
    def change(model: ModelProto) -> None:
        parent, _, last = path.rpartition(".")
        where = at(model, parent)
        if last.isdigit():
            where[int(last)] = value
        else:
            setattr(where, last, value)

    return change


def add(path: str, *items: Any) -> Change:
    return lambda model: at(model, path).extend(items)


def clear(path: str, field: str) -> Change:
    return lambda model: at(model, path).ClearField(field)


def again(path: str) -> Change:
    """Append the first of a list once more."""
    return lambda model: at(model, path).append(at(model, path + ".0"))


def both(*changes: Change) -> Change:
    return lambda model: [change(model) for change in changes]


def softmax(*attributes: Any) -> Change:
    return both(put("node.1.op_type", "Softmax"), add("node.1.attribute", *attributes))


def _functions(model: ModelProto, *calls: tuple[str, list[str]]) -> None:
    """Add functions that call others, and call the first."""
    model.opset_import.append(helper.make_opsetid("mine", 1))
    for name, called in calls:
        nodes = [
            helper.make_node(other, ["a"], [f"t{position}"], domain="mine")
            for position, other in enumerate(called)
        ]
        nodes.append(helper.make_node("Identity", ["a"], ["b"]))
        imports = [helper.make_opsetid("", 13), helper.make_opsetid("mine", 1)]
        model.functions.append(helper.make_function("mine", name, ["a"], ["b"], nodes, imports))
    model.graph.node[1].CopyFrom(helper.make_node(calls[0][0], ["m"], ["r"], domain="mine"))


def _external(location: str) -> Change:
    def change(model: ModelProto) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return change


def _branch(*nodes: onnx.NodeProto, output: str = "w", inputs: tuple[str, ...] = ()) -> Change:
    """Add an If whose branches are `nodes`."""

    def change(model: ModelProto) -> None:
        ports = [helper.make_tensor_value_info(name, FLOAT, None) for name in inputs]
        body = helper.make_graph(nodes, "b", ports, [helper.make_tensor_value_info(output, FLOAT, None)])
        node = helper.make_node("If", ["x"], ["f"], name="i", then_branch=body, else_branch=body)
        model.graph.node.append(node)

    return change


def _map(model: ModelProto) -> None:
    model.graph.input[0].type.map_type.SetInParent()


def _sparse(shape: list[int], indices: list[int]) -> Change:
    values = helper.make_tensor("s", FLOAT, [len(indices)], [1.0] * len(indices))
    places = helper.make_tensor("", TensorProto.INT64, [len(indices)], indices)
    return add("sparse_initializer", helper.make_sparse_tensor(values, places, shape))


ATTRIBUTE = helper.make_attribute
X = "input.0.type.tensor_type"
DIMENSIONS = [helper.make_tensor_value_info(f"i{i}", FLOAT, [f"d{i}"]) for i in range(70)]
DOUBLING = [(f"F{i}", [f"F{i + 1}"] * 2) for i in range(18)]


def _attention(**attributes: Any) -> Change:
    def change(model: ModelProto) -> None:
        node = helper.make_node("Attention", ["q", "k", "v"], ["a"], "att", **attributes)
        model.graph.node.append(node)
        ports = [helper.make_tensor_value_info(name, FLOAT, [1, 1, 2, 2]) for name in "qkv"]
        model.graph.input.extend(ports)
        model.opset_import[0].version = 23

    return change


FAULTS: list[tuple[str, Change]] = [
    (rf"opset {NEWEST + 1}; 1 to {NEWEST} are supported", put("/opset_import.0.version", NEWEST + 1)),
    (r"opset -3; 1 to", put("/opset_import.0.version", -3)),
    ("imports no version of ONNX's operators", put("/opset_import.0.domain", "x")),
    ("imports versions 13 and 14 of ONNX's default", add("/opset_import", helper.make_opsetid("", 14))),
    ("version 99 of ai.onnx.ml; 1 to", add("/opset_import", helper.make_opsetid("ai.onnx.ml", 99))),
    (
        r"node #1 \(Relu\): .*doesn't import the operators of domain 'ai.onnx.ml'",
        put("node.1.domain", "ai.onnx.ml"),
    ),
    ("it has no graph", clear("/", "graph")),
    ("the model has no outputs", clear("", "output")),
    (
        "constant 'w': '../../etc/passwd' is the name of no file in the model's folder",
        _external("../../etc/passwd"),
    ),
    ("constant 'w' keeps its data in the file 'w.bin', which did not come", _external("w.bin")),
    ("constant 'w' declares 1099511627776 elements", put("initializer.0.dims.0", 1 << 39)),
    ("constant 'w' declares 8 elements, 32 bytes, but holds 24", put("initializer.0.dims.0", 4)),
    (r"constant 'w' has shape \[-1, 2\]", put("initializer.0.dims.0", -1)),
    ("constant 'w' has 11 axes", add("initializer.0.dims", *[1] * 9)),
    ("constant 'w' holds strings as raw bytes", put("initializer.0.data_type", 8)),
    ("constant 'w' has elements of type 99", put("initializer.0.data_type", 99)),
    ("constant 'c' declares 2 elements, but holds 3", add("initializer.1.float_data", 3)),
    ("constant 'w' is there twice", again("initializer")),
    ("input 'x' is there twice", again("input")),
    ("output 'y' is there twice", again("output")),
    ("the name of the model's output has 0 characters", put("output.0.name", "")),
    ("the name of the model's input has 5000 characters", put("input.0.name", "x" * 5000)),
    ("the name of the model's constant has 0", add("sparse_initializer", onnx.SparseTensorProto())),
    ("input 'x' is of no type", clear("input.0", "type")),
    ("input 'x' is map_type", _map),
    ("input 'x' has elements of type 77", put(X + ".elem_type", 77)),
    ("input 'x': size -4 of axis 1", put(X + ".shape.dim.1.dim_value", -4)),
    ("input 'x' has 9 axes", add(X + ".shape.dim", *[onnx.TensorShapeProto.Dimension()] * 7)),
    ("nothing writes the model's output 'yy'; did you mean 'y'", put("output.0.name", "yy")),
    (r"node last \(Add\): it reads 'cc', which nothing.*did you mean 'c'", put("node.2.input.1", "cc")),
    (r"node last \(Add\): it writes 'r', which node #1 \(Relu\) already", put("node.2.output.0", "r")),
    (r"node last \(Add\): it writes 'w', which an input or constant", put("node.2.output.0", "w")),
    (r"node first \(MatMul\) is on or behind a cycle", put("node.0.input.0", "y")),
    (r"node #1 \(Rellu\): ONNX has no operator.*did you mean 'Relu'", put("node.1.op_type", "Rellu")),
    (r"node #1 \(Gelu\): the operator is new in opset 20; the model has 13", put("node.1.op_type", "Gelu")),
    (r"node #1 \(Upsample\): .* deprecated since opset 10", put("node.1.op_type", "Upsample")),
    (r"node #1 \(Relu\): operator 'Relu' of domain 'com.microsoft'", put("node.1.domain", "com.microsoft")),
    (r"node #1 \(Relu\): operators of domain 'com.example' are not", put("node.1.domain", "com.example")),
    (r"node #1 \(Relu\): it has 2 inputs; 1 is allowed", add("node.1.input", "x")),
    (r"node #1 \(Relu\): it has 0 outputs; 1 is allowed", clear("node.1", "output")),
    (r"node #1 \(Relu\): attribute 'axis' is not one", add("node.1.attribute", ATTRIBUTE("axis", 1))),
    (r"node #1 \(Softmax\): attribute 'axes'.*did you mean 'axis'", softmax(ATTRIBUTE("axes", 1))),
    (r"\(Softmax\): attribute 'axis' is of type FLOAT; it must be.* INT", softmax(ATTRIBUTE("axis", 1.0))),
    (r"node #1 \(Softmax\): attribute 'axis' is given twice", softmax(*[ATTRIBUTE("axis", 1)] * 2)),
    (r"node #1 \(Concat\): attribute 'axis' is missing", put("node.1.op_type", "Concat")),
    (
        r"node deep \(Relu\): it reads 'zz', which nothing writes",
        _branch(helper.make_node("Relu", ["zz"], ["v"], name="deep"), output="v"),
    ),
    (
        r"\(If\): in its graph 'b': node #0 \(Relu\) writes 'm' once more",
        _branch(helper.make_node("Relu", ["x"], ["m"]), output="m"),
    ),
    (
        r"\(If\): attribute '(then|else)_branch': node #0 \(Rellu\): ONNX has no operator",
        _branch(helper.make_node("Rellu", ["x"], ["v"]), output="v"),
    ),
    (r"node i \(If\): attribute '.*_branch': input 'k' is there twice", _branch(inputs=("k", "k"))),
    ("constant 's' is sparse: its indices must ascend from 0 to below 4", _sparse([4], [2, 1])),
    ("constant 's' is sparse: its indices must ascend from 0 to below 4", _sparse([4], [3, 4])),
    ("constant 's': constants of the model come to more than", _sparse([1 << 30, 2], [1])),
    ("'s' declares 18446744073709551616 elements", _sparse([1 << 32, 1 << 32], [1])),
    ("function 'A' of the model calls itself", lambda m: _functions(m, ("A", ["B"]), ("B", ["A"]))),
    (r"has 524\d+ nodes, more than 100000", lambda m: _functions(m, *DOUBLING, ("F18", []))),
    ("defines a function twice", lambda m: _functions(m, ("A", []), ("A", []))),
    (
        "input 'data_0' is left out; it must be given",
        both(put("node.1.op_type", "Sum"), add("node.1.input", "")),
    ),
    (
        r"\(Attention\): attribute 'softcap' is nan; it must be a number from 0 on",
        _attention(softcap=float("nan")),
    ),
    (r"\(Attention\): attribute 'softcap' is -1;", _attention(softcap=-1.0)),
    (r"\(Attention\): attribute 'is_causal' is -2; use 0 to 1", _attention(is_causal=-2)),
    (
        r"\(Attention\): attribute 'qk_matmul_output_mode' is 4; use 0 to 3",
        _attention(qk_matmul_output_mode=4),
    ),
    (
        r"\(Attention\): attribute 'scale' is of type INT; it must be of type FLOAT",
        _attention(scale=1),
    ),
    ("more than 64 symbolic dimensions", add("input", *DIMENSIONS)),
    ("the model has 100001 nodes", add("node", *[onnx.NodeProto()] * 99998)),
    ("the model has 1025 outputs", add("output", *[onnx.ValueInfoProto()] * 1024)),
]


@pytest.mark.parametrize(("text", "change"), FAULTS, ids=range(len(FAULTS)))
def test_faults_are_named(text: str, change: Callable[[ModelProto], object]) -> None:
    model = small()
    change(model)
    with pytest.raises(Invalid, match=text):
        read_model(model.SerializeToString())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "the file is empty"),
        (b"\x08\x08", "it has no graph"),
        (b"#!/bin/sh\nexit 0\n", "not an ONNX model"),
        (b"\x00" * 100, "can't be parsed"),
        (
            small().SerializeToString().replace(b"last", b"\x80ast"),
            r"onnx.NodeProto.name is b'\\x80ast', not",
        ),
        (small().SerializeToString().replace(b"Relu", b"\xffelu"), r"onnx.NodeProto.op_type is b'\\xffelu'"),
        (small().SerializeToString()[:-7], "can't be parsed"),
    ],
)
def test_what_is_not_onnx(data: bytes, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        read_model(data)


def test_nesting_does_not_exhaust_the_stack() -> None:
    graph = b""
    for _ in range(5000):  # a graph in an attribute of a node of a graph …
        attribute = b"\x32" + _varint(len(graph)) + graph
        node = b"\x2a" + _varint(len(attribute)) + attribute
        graph = b"\x0a" + _varint(len(node)) + node
    with pytest.raises(Invalid, match="can't be parsed"):
        read_model(b"\x3a" + _varint(len(graph)) + graph)


def _varint(value: int) -> bytes:
    result = b""
    while value > 127:
        result, value = result + bytes([value & 127 | 128]), value >> 7
    return result + bytes([value])


@pytest.mark.parametrize("domain", ["com.microsoft.nchwc", "com.ms.internal.nhwc"])
def test_layouts_of_onnx_runtime_are_told_how_to_avoid(domain: str) -> None:
    made = small()
    made.graph.node[0].domain = domain
    made.opset_import.add(domain=domain, version=1)
    with pytest.raises(Invalid, match=r"save the optimised model at ORT_ENABLE_EXTENDED, not ORT_ENABLE_ALL"):
        read_model(made.SerializeToString())


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (helper.make_node("Add", ["x"], ["last"]), r"it has 1 input; 2 are allowed"),
        (helper.make_node("Clip", ["x"] * 4, ["last"]), r"it has 4 inputs; 1 to 3 are allowed"),
        (helper.make_node("Concat", [], ["last"], axis=0), r"it has 0 inputs; 1 or more are allowed"),
    ],
)
def test_how_many_inputs_there_are_is_told(node: NodeProto, said: str) -> None:
    made = small()
    del made.graph.node[:]
    made.graph.node.append(node)
    with pytest.raises(Invalid, match=said):
        read_model(made.SerializeToString())
