"""Branches whose sides differ, against ONNX Runtime."""

import numpy as np
import onnx
import pytest

from libs.common.errors import Invalid
from libs.runtime.codec import decode, encode
from libs.runtime.program import Program
from services.engine.peers import Peer
from services.engine.pipeline import Stages, compile_model

CHOICE = """
    c = If (flag) <
        then_branch = one () => (s) { s = Squeeze (v) },
        else_branch = two () => (w) { w = Add (v, v) }
    >
"""
NESTED = """
    c = If (flag) <
        then_branch = one () => (a) {
            a = If (other) <
                then_branch = three () => (s) { s = Squeeze (v) },
                else_branch = four () => (t) { t = Neg (v) }
            >
        },
        else_branch = two () => (w) { w = Add (v, v) }
    >
"""


def model(nodes: str, outputs: str) -> bytes:
    ports = "float[3, n] x, float[1] v, bool flag, bool other"
    text = f'<ir_version: 9, opset_import: ["" : 18]> g ({ports}) => ({outputs}) {{ {nodes} }}'
    return onnx.parser.parse_model(text).SerializeToString()


@pytest.mark.parametrize("choice", [CHOICE, NESTED])
@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_a_scalar_or_a_vector_of_one_goes_with_what_has_axes(choice: str, flag: bool, other: bool) -> None:
    content = model(choice + "m = Mul (x, c) y = Where (flag, m, c)", "float[3, n] y, float c")
    program = Program(decode(encode(compile_model(content, {}, "a test", Stages(lambda stage: None)).plan)))
    feed = {
        "x": np.arange(12, dtype=np.float32).reshape(3, 4),
        "v": np.array([2.5], np.float32),
        "flag": np.array(flag),
        "other": np.array(other),
    }
    found = program.run(feed)
    for name, expected in Peer(content).run(feed).items():
        np.testing.assert_array_equal(found[name], expected, strict=True)


def test_alone_it_has_a_number_of_axes_that_is_not_known() -> None:
    content = model(CHOICE + "y = Shape (c)", "int64[k] y")
    with pytest.raises(Invalid, match="number of axes that isn't known"):
        compile_model(content, {}, "a test", Stages(lambda stage: None))


@pytest.mark.parametrize("longs", [(), (3,), (0, 11), tuple(range(12))])
def test_sizes_of_many_that_broadcast_get_names(longs: tuple[int, ...]) -> None:
    count = 12
    lines = [f"r{i} = ConstantOfShape <value: tensor = float[1] {{1}}> (s{i})" for i in range(count)]
    lines += ["t0 = Identity (r0)"] + [f"t{i} = Add (t{i - 1}, r{i})" for i in range(1, count)]
    ports = ", ".join(f"int64[1] s{i}" for i in range(count))
    outputs = f"float[k] t{count - 1}"
    text = f'<ir_version: 9, opset_import: ["" : 18]> g ({ports}) => ({outputs}) {{ {" ".join(lines)} }}'
    content = onnx.parser.parse_model(text).SerializeToString()
    program = Program(compile_model(content, {}, "a test", Stages(lambda stage: None)).plan)
    feed = {f"s{i}": np.array([5 if i in longs else 1]) for i in range(count)}
    (found,) = program.run(feed).values()
    np.testing.assert_array_equal(found, np.full(5 if longs else 1, count, np.float32), strict=True)
