"""The stages: told in order, with what they did; faults of a model are told as such."""

import hashlib

import pytest

from libs.common.errors import Invalid
from services.engine.domain.model import Stage
from services.engine.pipeline import Stages, compile_model
from services.engine.testing_models import attention, mlp


def test_stages_are_told_with_what_they_did() -> None:
    told: list[Stage] = []
    compiled = compile_model(mlp(), {"batch": (2, 9)}, "the test", Stages(told.append))
    said = {stage.name: stage.summary for stage in told}
    assert list(said) == ["read", "decompose", "merge", "lower"]
    assert said["read"] == "4 nodes of opset 17"
    assert said["decompose"].endswith(f" atomic operators, {compiled.origins.rasters} rasters")
    assert said["merge"].endswith(" atomic operators, 0 rasters")
    assert said["lower"].startswith(f"{len(compiled.plan.steps)} steps, ")
    assert all(stage.elapsed_s >= 0 for stage in told)
    assert compiled.origins.operators == {"Gemm": 2, "Relu": 1, "Softmax": 1}
    plan = compiled.plan
    assert plan.producer == "the test"
    assert plan.model_digest == f"sha256:{hashlib.sha256(mlp()).hexdigest()}"
    assert [(d.name, d.minimum, d.maximum) for d in plan.dimensions] == [("batch", 2, 9)]


def test_bounds_for_which_numbers_overflow_are_told_with_what_to_do() -> None:
    largest = 2**31 - 1
    with pytest.raises(Invalid) as refused:
        compile_model(
            attention(), {"batch": (1, largest), "length": (1, largest)}, "the test", Stages(lambda s: None)
        )
    assert refused.value.reason == "BAD_BOUNDS"
    assert f"batch from 1 to {largest}" in str(refused.value)
    assert "give smaller bounds" in str(refused.value)
