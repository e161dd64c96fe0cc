"""The onnx package's own cases of every operator that is read, through the plain interpreter."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from libs.common.errors import Invalid
from services.engine.domain.check_program import check_program
from services.engine.domain.decompose.walk import decompose
from services.engine.domain.reference import interpret
from services.engine.domain.registry import REGISTRY
from services.engine.reading import read_model
from services.engine.reading.expansion import EXPANDED
from services.engine.reading.tensors import TYPES

Case = tuple[str, onnx.ModelProto, list[Any], list[Any]]

# Why a case may be refused.
PATTERNS = (
    r"which is not supported; use one of|elements of ONNX's type \d+ are not supported",  # 4 bits, text, …
    r"only dense tensors are supported",
    r"in training mode",
    r"output 1, the indices, is not supported",
    r"scales of shape .* are not supported",  # blocks
    r"nodes of Attention can't be written as .*Type unknown",
    r"floating-point inputs must be constants",
    r"is 'tf_crop_and_resize'; use|'antialias' = 1 is not supported|'keep_aspect_ratio_policy' is",
)
# Inputs that must be known when the plan is made; here they are given as such.
STATIC = r"must be known when the plan is made|must be one constant|must be a constant list|in training mode"


@pytest.fixture(scope="module")
def cases() -> Mapping[str, Sequence[Case]]:
    """Every case whose nodes are all read, under its operator, or under "" where they are several."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        collected: Any = collect_testcases(None)
    result: dict[str, list[Case]] = defaultdict(list)
    for case in collected:
        operators = {node.op_type for node in case.model.graph.node}
        if operators <= REGISTRY.keys() | set(EXPANDED):
            for inputs, outputs in case.data_sets or []:
                for item in case.model.opset_import:
                    item.version = max(item.version, 7)  # a few are older, and mean the same
                key = min(operators) if len(operators) == 1 else ""
                result[key].append((case.name, case.model, inputs, outputs))
    return result


def run(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, Any]:
    graph = read_model(model.SerializeToString())
    program = decompose(graph)
    check_program(program, "decompose")
    return interpret(program, {name: inputs[name] for name in graph.inputs})


def with_constants(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> onnx.ModelProto:
    """Return the model with its small inputs as constants."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    kept = []
    for info in changed.graph.input:
        array = np.asarray(inputs[info.name])
        if array.ndim <= 1:
            changed.graph.initializer.append(numpy_helper.from_array(array, info.name))
        else:
            kept.append(info)
    del changed.graph.input[:]
    changed.graph.input.extend(kept)
    return changed


def array_of(item: Any) -> Any:
    """Return what the package gives as a tensor as an array, or None."""
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item) if item.data_type in TYPES else None
    return np.asarray(item) if isinstance(item, np.ndarray | np.generic) else None


def agree(found: Any, expected: Any) -> bool:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    tolerance = 2e-3 if found.dtype == np.float16 else 1e-5
    close: bool = np.allclose(
        found.astype(np.float64), expected.astype(np.float64), rtol=1e-3, atol=tolerance, equal_nan=True
    )
    return close


@pytest.mark.parametrize("operator", ["", *REGISTRY, *EXPANDED])
def test_it_agrees_with_onnx(operator: str, cases: Mapping[str, Sequence[Case]]) -> None:
    compared = 0
    for name, model, inputs, outputs in cases[operator]:
        inputs, outputs = [array_of(item) for item in inputs], [array_of(item) for item in outputs]
        if any(item is None for item in (*inputs, *outputs)):
            continue  # sequences, and elements of types that numpy doesn't have
        named = {info.name: item for info, item in zip(model.graph.input, inputs, strict=False)}
        try:
            try:
                results = run(model, named)
            except Invalid as error:
                if not re.search(STATIC, error.message):
                    raise
                results = run(with_constants(model, named), named)
        except Invalid as error:
            if not any(re.search(pattern, error.message) for pattern in PATTERNS):
                pytest.fail(f"{name} is refused: {error}")
            continue
        for info, expected in zip(model.graph.output, outputs, strict=True):
            assert agree(results[info.name], expected), (name, info.name)
            compared += 1
    assert compared or operator in ("GlobalLpPool",), "no case was compared"
