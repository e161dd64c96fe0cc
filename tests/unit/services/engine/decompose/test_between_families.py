"""What goes wrong between operators: sizes demanded in bodies, strings that repeat, types of constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from libs.common.errors import Invalid
from libs.runtime.codec import decode, encode
from libs.runtime.program import Program
from services.engine.pipeline import Stages, compile_model


def program(text: str, opset: int = 20) -> Program:
    """Return the program of a graph as onnx writes it."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {text}')
    content: bytes = model.SerializeToString()
    compiled = compile_model(content, {}, "a test", Stages(lambda stage: None))
    return Program(decode(encode(compiled.plan)))


def run(text: str, **inputs: Any) -> dict[str, Any]:
    return dict(program(text).run(inputs))


def words(*items: str) -> np.ndarray[Any, Any]:
    return np.array(items, np.object_)


BRANCH = """
agraph (bool c, float[n, 2] x) => (float[m, 2] y)
<float[3, 2] k = {1, 2, 3, 4, 5, 6}> {
    y = If (c) <
        then_branch = t () => (float[a, 2] t1) { t1 = Add (x, k) },
        else_branch = e () => (float[b, 2] e1) { e1 = Neg (x) }
    >
}
"""


def test_what_a_branch_demands_of_sizes_holds_only_there() -> None:
    made = program(BRANCH)
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    added = made.run({"c": np.array(True), "x": x})["y"]
    np.testing.assert_array_equal(added, x + np.array([[1, 2], [3, 4], [5, 6]]))
    longer = np.ones((5, 2), np.float32)
    np.testing.assert_array_equal(made.run({"c": np.array(False), "x": longer})["y"], -longer)
    with pytest.raises(Invalid, match="n"):
        made.run({"c": np.array(True), "x": longer})


def test_a_loop_adds_rows_of_a_size_that_only_the_inputs_tell() -> None:
    text = """
    agraph (float[a, b, c] x) => (float[4, 2] total, float[a, 4, 2] sums)
    <float[4, 2] zero = {0, 0, 0, 0, 0, 0, 0, 0}, int64[2] shape = {1, 1}> {
        total, sums = Scan <num_scan_inputs = 1, body = body (float[4, 2] state, float[b, c] row)
            => (float[4, 2] after, float[4, 2] seen) {
                after = Add (state, row)
                seen = Identity (after)
            }> (zero, x)
    }
    """
    x = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    found = run(text, x=x)
    np.testing.assert_array_equal(found["total"], x.sum(0))
    np.testing.assert_array_equal(found["sums"], x.cumsum(0))


def test_a_condition_may_be_a_vector_whose_size_is_a_dimension() -> None:
    text = BRANCH.replace("bool c", "bool[k] c")
    x = np.ones((3, 2), np.float32)
    made = program(text)
    np.testing.assert_array_equal(made.run({"c": np.array([False]), "x": x})["y"], -x)
    with pytest.raises(Invalid):
        made.run({"c": np.array([False, True]), "x": x})


def test_known_strings_repeat_to_a_size_that_a_call_tells() -> None:
    text = """
    agraph (string[n, 2] x) => (string[n, 2] y)
    <string[2] k = {"!", "?"}> { y = StringConcat (x, k) }
    """
    x = words("a", "b", "a", "c").reshape(2, 2)
    np.testing.assert_array_equal(run(text, x=x)["y"], words("a!", "b?", "a!", "c?").reshape(2, 2))


def test_items_of_several_numbers_of_axes_go_into_one_sequence() -> None:
    text = """
    agraph (int64[n, 2] x, int64 at) => (int64[k, 2] y) {
        rows = SplitToSequence <axis = 0, keepdims = 0> (x)
        more = SequenceInsert (rows, x, at)
        y = SequenceAt (more, at)
    }
    """
    x = np.arange(6).reshape(3, 2)
    np.testing.assert_array_equal(run(text, x=x, at=np.array(1))["y"], x)


@pytest.mark.parametrize(
    "node",
    [
        "NegativeLogLikelihoodLoss (x, labels, weights)",
        "SoftmaxCrossEntropyLoss (x, labels, weights)",
    ],
)
def test_losses_take_constants_and_values_without_a_declared_type(node: str) -> None:
    text = f"""
    agraph (float[2, 3] a) => (float y)
    <int64[2] labels = {{2, 0}}, float[3] weights = {{1, 2, 0.5}}> {{ x = Neg (a)  y = {node} }}
    """
    a = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    scores = -a if node[0] == "N" else -a - np.log(np.exp(-a).sum(1, keepdims=True))
    wanted = -(0.5 * scores[0, 2] + scores[1, 0]) / 1.5
    np.testing.assert_allclose(run(text, a=a)["y"], wanted, rtol=1e-5)
