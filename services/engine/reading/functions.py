"""Functions of a model, and operators that ONNX defines by others: bodies are put in place of their calls."""

from __future__ import annotations

from onnx import FunctionProto, ModelProto, NodeProto, inliner

from libs.common.errors import Invalid
from services.engine.reading.limits import MOST_NODES, shown

Key = tuple[str, str, str]

EXPANDED = (
    "Attention",
    "NegativeLogLikelihoodLoss",
    "RotaryEmbedding",
    "SoftmaxCrossEntropyLoss",
    "SwiGLU",
)
"""Operators that are read by the body that ONNX gives them."""

_DEEPEST = 64
_MOST_EXPANDED = 1000
"""Nodes that become bodies, of up to a hundred nodes each."""


def inlined(model: ModelProto) -> ModelProto:
    """Return the model without functions of its own.

    Raises Invalid where they call themselves, nest too deep, or come to more nodes than a model may have.
    """
    if not model.functions:
        return model
    functions = {_key(function): function for function in model.functions}
    if len(functions) != len(model.functions):
        raise Invalid("the model defines a function twice")
    sizes: dict[Key, int] = {}
    for key in functions:
        _measure(key, functions, sizes, ())
    total = sum(_size(node, functions, sizes) for node in model.graph.node)
    if total > MOST_NODES:
        raise Invalid(f"with its functions put in place the model has {total} nodes, more than {MOST_NODES}")
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:  # whatever the C++ code says of a malformed body
        raise Invalid(f"the model's functions can't be put in place: {str(error)[:200]}") from error


def expanded(model: ModelProto) -> ModelProto:
    """Return the model without the operators of `EXPANDED`.

    Raises Invalid for too many of them, and for one whose body depends on what can't be told, with its name.
    """
    for _ in range(2):  # one of them is defined by another
        found = [node for node in model.graph.node if node.op_type in EXPANDED and not node.domain]
        if not found:
            return model
        if len(found) > _MOST_EXPANDED:
            raise Invalid(f"the model has {len(found)} nodes of {', '.join(EXPANDED)}; at most 1000 are read")
        names = sorted({node.op_type for node in found})
        try:
            model = inliner.inline_selected_functions(
                model, [("", name) for name in names], exclude=False, inline_schema_functions=True
            )
        except Exception as error:  # whatever the C++ code says of a malformed node
            what = f"nodes of {', '.join(names)} can't be written as what ONNX defines them by"
            raise Invalid(f"{what}: {str(error)[:200]}") from error
    return model


def _key(item: FunctionProto | NodeProto) -> Key:
    name = item.name if isinstance(item, FunctionProto) else item.op_type
    return item.domain, name, item.overload


def _size(node: NodeProto, functions: dict[Key, FunctionProto], sizes: dict[Key, int]) -> int:
    return sizes[_key(node)] if _key(node) in functions else 1


def _measure(
    key: Key, functions: dict[Key, FunctionProto], sizes: dict[Key, int], path: tuple[Key, ...]
) -> None:
    """Fill in how many nodes a function comes to, and those that it calls."""
    if key in sizes:
        return
    if key in path:
        raise Invalid(f"function {shown(key[1])} of the model calls itself")
    if len(path) >= _DEEPEST:
        raise Invalid(f"functions of the model call one another more than {_DEEPEST} deep")
    total = 0
    for node in functions[key].node:
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise Invalid(f"function {shown(key[1])}: control flow is not supported")
        called = _key(node)
        if called in functions:
            _measure(called, functions, sizes, (*path, key))
        total += _size(node, functions, sizes)
    sizes[key] = total
