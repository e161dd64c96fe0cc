"""For tests: a small sound file that is easily spoilt, graphs without a file, host operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper, numpy_helper

from libs.common.errors import Invalid
from libs.runtime.codec import decode, encode
from libs.runtime.host import Limits, host_operator
from libs.runtime.kernels import DataFault
from libs.runtime.plan import DataType, Host
from libs.runtime.program import Program
from services.engine.domain.assemble import register_type
from services.engine.domain.bounds import Bounds
from services.engine.domain.composed import Composed, HostInstruction
from services.engine.domain.extents import Extent
from services.engine.domain.graph import Graph, Node
from services.engine.domain.program import ValueType
from services.engine.pipeline import Stages, compile_model


def small() -> ModelProto:
    """Return y = relu(x · w) + c of opset 13, with x [batch, 3], w [3, 2] raw and c [2] not."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], name="first"),
            helper.make_node("Relu", ["m"], ["r"]),
            helper.make_node("Add", ["r", "c"], ["y"], name="last"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        [
            numpy_helper.from_array(np.ones((3, 2), np.float32), "w"),
            helper.make_tensor("c", TensorProto.FLOAT, [2], [1.0, 2.0]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def graph_of(
    nodes: Sequence[Node],
    inputs: Mapping[str, tuple[int | str, ...]],
    outputs: Sequence[str],
    constants: Mapping[str, npt.NDArray[np.generic]] | None = None,
    *,
    opset: int = 18,
    type_: DataType = DataType.FLOAT32,
    bounds: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> Graph:
    """Return a graph without a file: inputs of one type by shape, where words are dimensions of 1 to 64."""
    ranges = {size: (1, 64) for shape in inputs.values() for size in shape if isinstance(size, str)}
    ranges |= bounds
    types = {
        name: ValueType(
            type_,
            tuple(Extent.dimension(size) if isinstance(size, str) else Extent.of(size) for size in shape),
        )
        for name, shape in inputs.items()
    }
    digest = "sha256:" + "0" * 64
    return Graph(
        "g", opset, digest, types, tuple(outputs), dict(constants or {}), tuple(nodes), Bounds(ranges)
    )


def model_of(
    operator: str,
    arrays: Sequence[npt.NDArray[Any] | None],
    outputs: Sequence[int],
    *,
    opset: int = 26,
    symbolic: bool | Collection[int] = False,
    constants: Collection[int] = (),
    **attributes: Any,
) -> ModelProto:
    """Return a model of one node: inputs i0, i1, … of these types and shapes, outputs o0, o1, ….

    Args:
        operator: by its name, of ONNX's own domain.
        arrays: the inputs; None for one that is left out.
        outputs: their types, as ONNX numbers them.
        opset: of the model.
        symbolic: sizes get names of their own instead, of all inputs or those with these numbers.
        constants: numbers of inputs that the model holds.
        attributes: of the node.
    """
    names = ["" if array is None else f"i{index}" for index, array in enumerate(arrays)]
    results = [f"o{index}" for index in range(len(outputs))]
    named = range(len(arrays) if symbolic else 0) if isinstance(symbolic, bool) else symbolic
    inputs = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            [f"{name}_{axis}" for axis in range(array.ndim)] if index in named else array.shape,
        )
        for index, (name, array) in enumerate(zip(names, arrays, strict=True))
        if array is not None and index not in constants
    ]
    held = [
        numpy_helper.from_array(np.asarray(array), names[index])
        for index, array in enumerate(arrays)
        if index in constants
    ]
    node = helper.make_node(operator, names, results, name=f"the_{operator}", **attributes)
    made = [
        helper.make_tensor_value_info(name, type_, None) for name, type_ in zip(results, outputs, strict=True)
    ]
    graph = helper.make_graph([node], "one", inputs, made, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def applied(
    operator: str,
    arrays: Sequence[npt.NDArray[Any] | None],
    outputs: Sequence[int],
    **options: Any,
) -> list[npt.NDArray[Any]]:
    """Return what a node's plan makes of arrays, through all stages; options are those of `model_of`."""
    content = model_of(operator, arrays, outputs, **options).SerializeToString()
    compiled = compile_model(content, {}, "a test", Stages(lambda stage: None))
    given = [index for index in range(len(arrays)) if index not in options.get("constants", ())]
    feed = {f"i{index}": array for index in given if (array := arrays[index]) is not None}
    found = Program(decode(encode(compiled.plan))).run(feed)
    return [found[f"o{index}"] for index in range(len(outputs))]


def host(composed: Composed) -> Callable[[HostInstruction, Sequence[Any]], Sequence[Any]]:
    """Return the runtime's host operators for `services.engine.domain.reference_blocks`."""

    def apply(instruction: HostInstruction, given: Sequence[Any]) -> Sequence[Any]:
        action = Host(instruction.operator, (), (), instruction.integers, instruction.texts)
        types = [register_type(composed, composed.values[output]) for output in instruction.outputs]
        try:
            return host_operator(action, types)(given, Limits(1 << 30))
        except DataFault as error:
            raise Invalid(str(error)) from None

    return apply
