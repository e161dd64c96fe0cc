"""Models that are nearly right: real files with a few things in them changed, and bytes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from services.engine.testing_graphs.drawing import Draw

_INTEGERS = (-1, 0, 1, 2, 3, 7, 255, -(1 << 31), 1 << 31, (1 << 62), -(1 << 63), (1 << 63) - 1)
_FLOATS = (0.0, -1.0, 0.5, 1e30, float("inf"), float("nan"))
_TEXTS = ("", "SAME_UPPER", "linear", "none", "no such", "i,j->ij", "x" * 100)


def mutated(model: ModelProto, draw: Draw) -> bytes:
    """Return a model as bytes, after a few changes of what it says, and at times of its bytes."""
    changed = ModelProto()
    changed.CopyFrom(model)
    for _ in range(draw.integer(1, 3)):
        draw.choice(_CHANGES)(changed, draw)
    data = bytearray(changed.SerializeToString())
    for _ in range(draw.integer(1, 4) if draw.chance(4) else 0):
        if data:
            data[draw.integer(0, len(data) - 1)] = draw.integer(0, 255)
    return bytes(data)


def _graphs(graph: GraphProto) -> list[GraphProto]:
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                found += _graphs(attribute.g)
    return found


def _node(model: ModelProto, draw: Draw) -> NodeProto | None:
    nodes = [node for graph in _graphs(model.graph) for node in graph.node]
    return draw.choice(nodes) if nodes else None


def _names(model: ModelProto) -> list[str]:
    graph = model.graph
    return [
        *(port.name for port in graph.input),
        *(tensor.name for tensor in graph.initializer),
        *(name for node in graph.node for name in node.output),
        "",
        "nowhere",
    ]


def _change_attribute(model: ModelProto, draw: Draw) -> None:
    node = _node(model, draw)
    if node is None or not node.attribute:
        return
    attribute = draw.choice(list(node.attribute))
    match draw.integer(0, 3):
        case 0:
            node.attribute.remove(attribute)
        case 1:
            attribute.type = draw.choice((AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.INTS))
        case _:
            _change_value(attribute, draw)


def _change_value(attribute: AttributeProto, draw: Draw) -> None:
    match attribute.type:
        case AttributeProto.INT:
            attribute.i = draw.choice(_INTEGERS)
        case AttributeProto.FLOAT:
            attribute.f = draw.choice(_FLOATS)
        case AttributeProto.STRING:
            attribute.s = draw.choice(_TEXTS).encode()
        case AttributeProto.INTS:
            if attribute.ints and draw.boolean():
                attribute.ints[draw.integer(0, len(attribute.ints) - 1)] = draw.choice(_INTEGERS)
            elif attribute.ints and draw.boolean():
                attribute.ints.pop()
            else:
                attribute.ints.append(draw.choice(_INTEGERS))
        case AttributeProto.TENSOR:
            _change_tensor_itself(attribute.t, draw)


def _change_operator(model: ModelProto, draw: Draw) -> None:
    node = _node(model, draw)
    if node is not None:
        schemas = onnx.defs.get_all_schemas()
        node.op_type = draw.choice([schema.name for schema in schemas if schema.domain == ""])


def _change_input(model: ModelProto, draw: Draw) -> None:
    node = _node(model, draw)
    if node is None:
        return
    if node.input and draw.boolean():
        node.input[draw.integer(0, len(node.input) - 1)] = draw.choice(_names(model))
    elif node.input and draw.boolean():
        node.input.pop()
    else:
        node.input.append(draw.choice(_names(model)))


def _change_outputs(model: ModelProto, draw: Draw) -> None:
    node = _node(model, draw)
    if node is None:
        return
    if node.output and draw.boolean():
        node.output.pop()
    else:
        node.output.append(draw.choice(("", "another", *_names(model)[:3])))


def _remove_node(model: ModelProto, draw: Draw) -> None:
    nodes = model.graph.node
    if nodes:
        nodes.pop(draw.integer(0, len(nodes) - 1))


def _swap_nodes(model: ModelProto, draw: Draw) -> None:
    nodes = model.graph.node
    if len(nodes) > 1:
        place = draw.integer(0, len(nodes) - 2)
        moved = NodeProto()
        moved.CopyFrom(nodes[place])
        nodes.pop(place)
        nodes.append(moved)


def _change_port(model: ModelProto, draw: Draw) -> None:
    ports = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    if not ports:
        return
    type_ = draw.choice(ports).type.tensor_type
    if draw.boolean():
        type_.elem_type = draw.integer(0, 27)
    elif type_.shape.dim and draw.boolean():
        size = draw.choice(list(type_.shape.dim))
        if draw.boolean():
            size.dim_value = draw.choice(_INTEGERS)
        else:
            size.dim_param = draw.choice(("n", "m", "", "-1"))
    elif draw.boolean():
        type_.shape.dim.add().dim_value = draw.choice(_INTEGERS)
    else:
        type_.ClearField("shape")


def _change_tensor(model: ModelProto, draw: Draw) -> None:
    if model.graph.initializer:
        _change_tensor_itself(draw.choice(list(model.graph.initializer)), draw)


def _change_tensor_itself(tensor: TensorProto, draw: Draw) -> None:
    match draw.integer(0, 3):
        case 0:
            tensor.data_type = draw.integer(0, 27)
        case 1:
            tensor.dims.append(draw.choice(_INTEGERS))
        case 2:
            if tensor.dims:
                tensor.dims[draw.integer(0, len(tensor.dims) - 1)] = draw.choice(_INTEGERS)
        case _:
            tensor.raw_data = tensor.raw_data[: draw.integer(0, len(tensor.raw_data))]


def _change_versions(model: ModelProto, draw: Draw) -> None:
    if model.opset_import and draw.boolean():
        model.opset_import[0].version = draw.choice((0, 1, 6, 7, 9, 11, 13, 18, 23, 28, 99, -1))
    elif draw.boolean():
        model.ir_version = draw.choice((0, 1, 3, 8, 99))
    else:
        model.opset_import.add(domain=draw.choice(("", "ai.onnx", "somebody")), version=1)


_CHANGES: Sequence[Callable[[ModelProto, Draw], None]] = (
    _change_attribute,
    _change_attribute,
    _change_input,
    _change_input,
    _change_operator,
    _change_outputs,
    _change_port,
    _change_port,
    _change_tensor,
    _remove_node,
    _swap_nodes,
    _change_versions,
)
