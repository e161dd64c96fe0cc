"""For tests: a small sound file that is easily spoilt, graphs without a file, host operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper, numpy_helper

from libs.common.errors import Invalid
from libs.runtime.host import Limits, host_operator
from libs.runtime.kernels import DataFault
from libs.runtime.plan import DataType, Host
from services.engine.domain.assemble import register_type
from services.engine.domain.composed import Composed, HostInstruction
from services.engine.domain.extents import Bounds, Extent
from services.engine.domain.graph import Graph, Node
from services.engine.domain.program import ValueType


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
