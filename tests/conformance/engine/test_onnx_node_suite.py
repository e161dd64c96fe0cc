"""The onnx package's own tests of operators: each agrees through all stages, or is refused with a reason."""

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
from onnx.backend.test.case.node import collect_testcases

from libs.common.errors import Invalid
from libs.runtime.codec import decode, encode
from libs.runtime.program import Program
from services.engine.pipeline import Stages, compile_model

PASSED = 860
"""At least so many of onnx 1.23's 1,884 pass; the others have operators or types that aren't supported."""

pytestmark = pytest.mark.timeout(600)


def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # generating the cases divides by 0 on purpose
        found: list[Any] = list(collect_testcases(None))
    return found


def run(case: Any) -> None:
    """Raise AssertionError where a case comes out differently, Invalid where it is refused."""
    model = case.model
    plan = compile_model(model.SerializeToString(), {}, "the suite", Stages(lambda stage: None)).plan
    program = Program(decode(encode(plan)))
    wanted = {spec.name for spec in program.inputs}
    for inputs, outputs in case.data_sets:
        feed = {
            info.name: array
            for info, array in zip(model.graph.input, inputs, strict=False)
            if info.name in wanted
        }
        got = program.run(feed)
        for info, expected in zip(model.graph.output, outputs, strict=True):
            array = got[info.name]
            assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(array, expected, rtol=case.rtol, atol=max(case.atol, 1e-6))


def test_every_case_agrees_or_is_refused() -> None:
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for case in cases():
        try:
            run(case)
        except Invalid:
            outcomes["refused"] += 1
        except Exception as error:
            outcomes["wrong"] += 1
            wrong.append(f"{case.name}: {type(error).__name__}: {error}")
        else:
            outcomes["passed"] += 1
    assert not wrong, "\n".join(wrong[:20])
    assert outcomes["passed"] >= PASSED, outcomes
