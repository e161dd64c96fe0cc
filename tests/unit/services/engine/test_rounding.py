"""Rounding is told from disagreement by the same plan in 64-bit floats."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto

from libs.common.errors import Precondition
from libs.runtime.check import check_plan
from libs.runtime.layout import check_layouts
from libs.runtime.plan import Compute, DataType, Plan
from libs.runtime.program import Program
from services.engine.peers import Peer
from services.engine.pipeline import Stages, compile_model
from services.engine.rounding import Rounding, widened
from services.engine.testing_models import MODELS, Model
from services.engine.verify import HALF_TOLERANCE, TOLERANCE, verify

LARGE = 1 << 30


def compiled(content: bytes) -> Plan:
    return compile_model(content, {}, "the test", Stages(lambda stage: None)).plan


def cancelling() -> bytes:
    """Return a model whose outputs are what is left of sums of millions."""
    m = Model("cancelling")
    x = m.input("x", "batch", 512)
    m.add("MatMul", x, m.weight(512, 16, scale=3e5), output="y")
    return m.finish({"y": ("batch", 16)})


@pytest.mark.parametrize("name", MODELS)
def test_a_wide_plan_is_sound_and_computes_the_same(name: str) -> None:
    plan = compiled(MODELS[name]())
    wide = widened(plan)
    check_plan(wide)
    check_layouts(wide)
    assert not {tensor.type for tensor in wide.tensors} & {DataType.FLOAT16, DataType.FLOAT32}
    narrow, exact = Program(plan), Program(wide)
    feed = {}
    for spec in narrow.inputs:
        shape = [size if isinstance(size, int) else 3 for size in spec.shape]
        feed[spec.name] = np.random.default_rng(1).integers(0, 3, shape).astype(spec.dtype)
    types = {spec.name: spec.dtype for spec in exact.inputs}
    answer = exact.run({key: array.astype(types[key]) for key, array in feed.items()})
    for key, array in narrow.run(feed).items():
        assert answer[key].dtype == np.float64
        np.testing.assert_allclose(array, answer[key], rtol=1e-4, atol=1e-5)


def test_outputs_that_cancel_are_compared_by_what_rounding_explains() -> None:
    content = cancelling()
    plan = compiled(content)
    verdict = verify(plan, Peer(content).run, 5)
    assert verdict.comparisons == 8
    feed = {"x": np.random.default_rng(5).standard_normal((4, 512)).astype(np.float32)}
    right = Peer(content).run(feed)["y"]
    assert Rounding(plan, LARGE).at(feed).explain("y", right, TOLERANCE)
    # A thousandth of the largest value is no rounding, nor is one element of ten times its noise.
    assert not Rounding(plan, LARGE).at(feed).explain("y", right + np.float32(1e4), TOLERANCE)
    spoilt = right.copy()
    spoilt[0, 0] += np.float32(300)
    assert not Rounding(plan, LARGE).at(feed).explain("y", spoilt, TOLERANCE)


def test_16_bits_round_more() -> None:
    m = Model("halves")
    x = m.input("x", "batch", type_=TensorProto.FLOAT16)
    squared = m.add("Mul", x, x)
    m.add("Sub", m.add("Sub", squared, x), squared, output="y")
    plan = compiled(m.finish({"y": ("batch",)}, type_=TensorProto.FLOAT16))
    feed = {"x": np.linspace(3, 20, 99).astype(np.float16)}
    exact = -feed["x"]
    rounded = np.abs(Program(plan).run(feed)["y"].astype(float) - exact.astype(float))
    assert rounded.max() > 2e-3 * 20
    assert Rounding(plan, LARGE).at(feed).explain("y", exact, HALF_TOLERANCE)
    assert not Rounding(plan, LARGE).at(feed).explain("y", exact + np.float16(3), HALF_TOLERANCE)


def test_a_wrong_plan_is_as_wrong_in_64_bits() -> None:
    content = cancelling()
    plan = compiled(content)
    wrong = []
    for step in plan.steps:
        if isinstance(step.kind, Compute) and step.kind.operator == "matmul":
            weights = step.kind.inputs[1]
            backwards = replace(weights, axes=(weights.axes[0], replace(weights.axes[1], stride=zero(plan))))
            step = replace(step, kind=replace(step.kind, inputs=(step.kind.inputs[0], backwards)))
        wrong.append(step)
    with pytest.raises(Precondition, match="more than rounding explains"):
        verify(replace(plan, steps=tuple(wrong)), Peer(content).run, 5)


def zero(plan: Plan) -> int:
    """Return the number of the extent that is 0."""
    return next(i for i, e in enumerate(plan.extents) if e.operation.name == "CONSTANT" and e.value == 0)


def test_infinities_and_other_types_are_no_rounding() -> None:
    content = cancelling()
    plan, feed = compiled(content), {"x": np.ones((1, 512), np.float32)}
    right = Peer(content).run(feed)["y"]
    for spoilt in (right * np.float32(np.inf), right > 0):
        assert not Rounding(plan, LARGE).at(feed).explain("y", spoilt, TOLERANCE)
    m = Model("integers")
    m.add("Neg", m.input("x", "batch", type_=TensorProto.INT64), output="y")
    plan = compiled(m.finish({"y": ("batch",)}, type_=TensorProto.INT64))
    numbers = np.arange(3)
    assert not Rounding(plan, LARGE).at({"x": numbers}).explain("y", numbers, TOLERANCE)


def beside() -> bytes:
    """Return a model with a column of sums of millions, and one of single products."""
    m = Model("beside")
    x = m.input("x", "batch", 512)
    weights = np.random.default_rng(2).standard_normal((512, 2)).astype(np.float32) * np.float32(3e5)
    weights[:, 1] = 0
    weights[0, 1] = 0.5
    m.add("MatMul", x, m.constant(weights), output="y")
    return m.finish({"y": ("batch", 2)})


def test_a_small_element_does_not_hide_behind_the_noise_of_a_large_one() -> None:
    content = beside()
    plan = compiled(content)
    feed = {"x": np.random.default_rng(5).standard_normal((4, 512)).astype(np.float32)}
    right = Peer(content).run(feed)["y"]
    assert np.abs(right[:, 0]).min() > 1e5
    assert np.abs(right[:, 1]).max() < 2
    assert Rounding(plan, LARGE).at(feed).explain("y", right, TOLERANCE)
    for column, wrong in ((0, False), (1, True)):
        spoilt = right.copy()
        spoilt[0, column] += np.float32(0.25)
        assert Rounding(plan, LARGE).at(feed).explain("y", spoilt, TOLERANCE) is not wrong
