"""The onnx package's own cases of every operator with a rule, through the plain interpreters."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

from services.engine.domain.check_program import check_program
from services.engine.domain.composed import Composed
from services.engine.domain.decompose.walk import decompose
from services.engine.domain.partition import partition
from services.engine.domain.reference import interpret
from services.engine.domain.reference_blocks import interpret_blocks
from services.engine.domain.registry import REGISTRY
from services.engine.reading import read_model
from services.engine.testing import host

Case = tuple[str, onnx.ModelProto, list[Any], list[Any], float, float]
# What is expected is random, rounding noise, or can't be compared; see tests/conformance/engine.
UNMATCHED = (
    "bernoulli",
    "dft_inverse",
    "loop16_seq_none",
    "training_dropout",
)
UNTESTED = {
    "Bernoulli",
    "ConcatFromSequence",
    "GlobalLpPool",
    "MaxRoiPool",
    "Multinomial",
    "Optional",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceLength",
}
"""Of these the package has only cases of several operators, which are under "", random ones, or none."""


@pytest.fixture(scope="module")
def cases() -> Mapping[str, Sequence[Case]]:
    """Every case of one operator, under its name; those of several under ""."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        collected: Any = collect_testcases(None)
    result: dict[str, list[Case]] = defaultdict(list)
    for case in collected:
        operators = {f"{node.domain}:{node.op_type}".lstrip(":") for node in case.model.graph.node}
        if not operators <= REGISTRY.keys() or any(word in case.name for word in UNMATCHED):
            continue
        key = min(operators) if len(operators) == 1 else ""
        for inputs, outputs in case.data_sets or []:
            item = (case.name, case.model, arrays(inputs), arrays(outputs), case.rtol, case.atol)
            result[key].append(item)
    return result


def arrays(items: Sequence[Any]) -> list[Any]:
    return [numpy_helper.to_array(each) if isinstance(each, onnx.TensorProto) else each for each in items]


def run(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any]:
    graph = read_model(model.SerializeToString())
    feed = dict(zip((port.name for port in model.graph.input), inputs, strict=False))
    program = decompose(graph)
    if isinstance(program, Composed):
        for part in partition(program).parts:
            check_program(part, "decompose")
        found = interpret_blocks(program, feed, host(program))
    else:
        check_program(program, "decompose")
        found = interpret(program, {name: feed[name] for name in graph.inputs})
    return [found[port.name] for port in model.graph.output]


@pytest.mark.parametrize("operator", ["", *REGISTRY])
def test_it_agrees_with_onnx(operator: str, cases: Mapping[str, Sequence[Case]]) -> None:
    assert bool(cases[operator]) != (operator in UNTESTED)
    wrong = []
    for name, model, inputs, outputs, rtol, atol in cases[operator]:
        try:
            with np.errstate(all="ignore"):
                Runner.assert_similar_outputs(outputs, run(model, inputs), rtol=rtol, atol=max(atol, 1e-6))
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    if wrong:  # not an assertion on the cases: they are long to show
        pytest.fail("\n".join(wrong), pytrace=False)
