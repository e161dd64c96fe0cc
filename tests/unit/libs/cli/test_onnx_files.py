"""Which files a model keeps its data in, without the onnx package."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, ModelProto, TensorProto, helper

from libs.cli.onnx_files import external_files


def outside(location: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="offset", value="0")
    tensor.external_data.add(key="location", value=location)
    return tensor


def model() -> ModelProto:
    constant = helper.make_node("Constant", [], ["c"], value=outside("deep/c.bin"))
    body = helper.make_graph([constant], "b", [], [], [outside("body.bin")])
    held = AttributeProto(name="then_branch", type=AttributeProto.GRAPH, g=body)
    branch = helper.make_node("If", ["q"], ["y"])
    branch.attribute.append(held)
    inside = helper.make_tensor("i", TensorProto.FLOAT, [2], [1.0, 2.0])
    graph = helper.make_graph([branch], "g", [], [], [outside("w.bin"), outside("w.bin"), inside])
    graph.sparse_initializer.append(
        helper.make_sparse_tensor(outside("s.bin"), helper.make_tensor("", 7, [2], [0, 1]), [9])
    )
    made = helper.make_model(graph, doc_string="location: not/me")
    made.functions.append(helper.make_function("d", "f", [], ["c"], [constant], []))
    made.functions[0].node[0].attribute[0].t.external_data[1].value = "function.bin"
    return made


WANTED = ["body.bin", "deep/c.bin", "function.bin", "s.bin", "w.bin"]


def test_files_of_every_tensor_are_found(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model().SerializeToString())
    assert external_files(path) == WANTED


@pytest.mark.parametrize("content", [b"", b"the model", b"\x3a\xff\xff\xff\xff\x0f", b"\x3a" + b"\xff" * 20])
def test_what_is_not_onnx_has_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert external_files(path) == []


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutated") / "m.onnx"


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_files_do_no_harm(scratch: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(model().SerializeToString())
    for place, byte in changes:
        data[place % len(data)] = byte
    scratch.write_bytes(data)
    assert all(isinstance(name, str) for name in external_files(scratch))
