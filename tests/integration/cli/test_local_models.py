"""`isthmus model inspect`, `explain --local` and `compare` on this machine, with no service anywhere."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from libs.cli.local_engine import ask_engine
from libs.common.errors import Internal, Invalid, NotFound, Precondition
from libs.runtime.codec import encode
from services.engine.pipeline import Stages, compile_model
from tests.unit.libs.cli.groups.conftest import Isthmus, Ran, cloud, isthmus

__all__ = ["cloud", "isthmus"]
F = TensorProto.FLOAT


def network(scale: float = 1.0, *, out: str = "y", operator: str = "Relu") -> ModelProto:
    """Return y = operator(x · w), with x [batch, 3]."""
    weights = np.arange(6, dtype=np.float32).reshape(3, 2) * np.float32(scale)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
            helper.make_node(operator, ["m"], [out], name="last"),
        ],
        "net",
        [helper.make_tensor_value_info("x", F, ["batch", 3])],
        [helper.make_tensor_value_info(out, F, ["batch", 2])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(network(), tmp_path / "a.onnx")
    onnx.save(network(1.001), tmp_path / "near.onnx")
    onnx.save(network(out="z"), tmp_path / "other.onnx")
    onnx.save(network(operator="Abs"), tmp_path / "abs.onnx")
    content = (tmp_path / "a.onnx").read_bytes()
    compiled = compile_model(content, {}, "the test", Stages(lambda stage: None))
    (tmp_path / "a.bin").write_bytes(encode(compiled.plan))
    return tmp_path


@pytest.fixture
def alone(isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch) -> Isthmus:
    """Runs the command where there is no gateway."""
    monkeypatch.setenv("ISTHMUS_ADDRESS", "127.0.0.1:1")
    return isthmus


def texts(path: Path) -> set[str]:
    return {each.text or "" for each in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")}


def test_a_model_is_inspected(alone: Isthmus, folder: Path) -> None:
    svg = folder / "a.svg"
    ran = alone("model", "inspect", str(folder / "a.onnx"), "--svg", str(svg))
    assert ran.code == 0, ran.err
    assert "inputs x: float32[batch, 3]" in ran.lines
    assert "nodes 2: 1 MatMul, 1 Relu" in ran.lines
    assert "parameters 24 B: 6 float32" in ran.lines
    assert ran.lines[-1] == "nothing keeps the engine from reading it"
    assert {"MatMul", "Relu", "product"} <= texts(svg)


def test_what_cant_be_read_is_all_told(alone: Isthmus, folder: Path) -> None:
    made = network(operator="Rleu")
    made.graph.node.add(op_type="Nope", input=["x"], output=["n"], name="more", domain="elsewhere")
    made.opset_import.add(domain="elsewhere", version=1)
    path = folder / "bad.onnx"
    path.write_bytes(made.SerializeToString())
    svg = folder / "bad.svg"
    ran = alone("model", "inspect", str(path), "--svg", str(svg))
    assert ran.code == 0, ran.err
    assert any(line.startswith("last Rleu ") and "did you mean 'Relu'" in line for line in ran.lines)
    assert any(line.startswith("more elsewhere:Nope ") for line in ran.lines)
    assert ran.lines[-1] == "there may be more behind these"
    assert "can't be read" in texts(svg)
    found = alone("model", "inspect", str(path), "--json").json
    assert [fault["node"] for fault in found["faults"]] == ["last", "more"]
    assert (found["complete"], found["node_count"]) == (False, 3)


def test_a_plan_is_inspected(alone: Isthmus, folder: Path) -> None:
    svg = folder / "plan.svg"
    # It isn't called *.plan: how it begins says what it is.
    ran = alone("model", "inspect", str(folder / "a.bin"), "--size", "batch=10", "--svg", str(svg))
    assert ran.code == 0, ran.err
    assert "steps 2: 1 matmul, 1 max" in ran.lines
    assert "figures at batch = 10" in ran.lines
    assert {"matmul", "max"} <= texts(svg)
    found = alone("model", "inspect", str(folder / "a.bin"), "--size", "batch=10", "--json").json
    # 2·3·2 for each row, and a maximum of 2.
    assert found["after"]["calculations"] == 10 * (12 + 2)


def test_a_model_is_explained_locally(alone: Isthmus, folder: Path) -> None:
    ran = alone("model", "explain", "--local", str(folder / "a.onnx"), "--size", "batch=4", "--nodes")
    assert ran.code == 0, ran.err
    assert "product MatMul 1 0 matmul" in ran.lines
    assert any(line.startswith("bytes moved ") for line in ran.lines)
    wrong = alone("model", "explain", "--local", str(folder / "a.onnx"), "--size", "bath=4")
    assert (wrong.code, "did you mean 'batch'" in wrong.err) == (2, True)


def test_a_model_and_its_plan_agree(alone: Isthmus, folder: Path) -> None:
    ran = alone(
        "model", "compare", str(folder / "a.onnx"), str(folder / "a.bin"), "--run", "--size", "batch=7"
    )
    assert ran.code == 0, ran.out + ran.err
    assert "inputs the same: x: float32[batch, 3]" in ran.lines
    assert "calculations 98 98 1.00" in ran.lines
    assert "matmul 1 1 1.00" in ran.lines
    assert ran.lines[-1] == "outputs agree within 0.0001"
    (shape,) = [line for line in ran.lines if line.startswith("y float32[7, 2]")]
    assert shape


def compared(alone: Isthmus, folder: Path, other: str, *flags: str) -> tuple[Ran, Any]:
    ran = alone("model", "compare", str(folder / "a.onnx"), str(folder / other), *flags, "--json")
    return ran, json.loads(ran.out) if ran.out else None


def test_outputs_that_differ_fail(alone: Isthmus, folder: Path) -> None:
    ran, found = compared(alone, folder, "near.onnx", "--run")
    assert (ran.code, found["agrees"]) == (1, False)
    (difference,) = found["outcome"]["differences"]
    assert 1e-4 < difference["largest"] < 0.1
    ran, found = compared(alone, folder, "near.onnx", "--run", "--tolerance", "0.1", "--seed", "3")
    assert (ran.code, found["agrees"]) == (0, True)
    assert found["outcome"]["differences"][0]["largest"] != difference["largest"]


def test_outputs_of_other_names_differ(alone: Isthmus, folder: Path) -> None:
    ran, found = compared(alone, folder, "other.onnx", "--run")
    assert ran.code == 1
    assert (found["same_inputs"], found["same_outputs"]) == (True, False)
    told = {each["output"]: each["text"] for each in found["outcome"]["differences"]}
    assert told == {"y": "isn't an output of the second", "z": "isn't an output of the first"}


def test_without_running_operators_are_counted_only(alone: Isthmus, folder: Path) -> None:
    ran, found = compared(alone, folder, "abs.onnx")
    assert (ran.code, found["agrees"], found["outcome"]) == (0, None, None)
    assert found["right"]["onnx_operators"] == {"Abs": 1, "MatMul": 1}
    assert found["ratios"]["steps"] == 1


@pytest.mark.parametrize(
    ("content", "said"), [(b"junk", "not an ONNX model"), (b"\x08\x02\x1a\x47sha256:", "gone.bin")]
)
def test_what_is_neither_is_refused(alone: Isthmus, folder: Path, content: bytes, said: str) -> None:
    (folder / "gone.bin").write_bytes(content)
    ran = alone("model", "inspect", str(folder / "gone.bin"))
    assert (ran.code, said in ran.err) == (2, True), ran.err


def job(path: Path) -> dict[str, Any]:
    return {"command": "inspect", "file": str(path), "is_plan": False, "dimensions": {}, "sizes": {}}


def test_refusals_are_the_engines_own(folder: Path) -> None:
    with pytest.raises(NotFound, match=r"gone\.onnx: there is no such file"):
        ask_engine(job(folder / "gone.onnx"))
    with pytest.raises(Invalid, match="can't be read: Is a directory"):
        ask_engine(job(folder))
    with pytest.raises(Internal, match="the engine failed: KeyError: 'command'"):
        ask_engine({})


def test_without_the_engine_what_to_install_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libs.cli.local_engine._NEEDED", ("numpy", "no_such_package"))
    with pytest.raises(Precondition, match=r"no_such_package isn't installed.*isthmus\[engine\]"):
        ask_engine(job(folder / "a.onnx"))


def test_a_crash_of_the_engine_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen

    def crashing(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return real([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), 11)"], **options)

    monkeypatch.setattr("libs.cli.local_engine.subprocess.Popen", crashing)
    with pytest.raises(Invalid, match=r"crash \(SIGSEGV\)") as refused:
        ask_engine(job(folder / "a.onnx"))
    assert refused.value.reason == "MODEL_CRASHES"
