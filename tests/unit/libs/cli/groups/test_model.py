"""`isthmus model`: what is sent to the engine, and what people see of its answers."""

import struct
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from onnx import GraphProto, ModelProto, TensorProto

from isthmus.engine.v1 import engine_pb2, plan_pb2
from libs.cli.model_operators import workload
from libs.cli.testing import FakeCloud
from libs.runtime.atomic import ATOMICS, HOST
from libs.runtime.workload import workload as count
from libs.runtime.workload import workload_table
from services.engine.convert import operators
from services.engine.domain.registry import REGISTRY
from tests.unit.libs.cli.groups.conftest import Isthmus

Kind = engine_pb2.OperatorSpec


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "click.onnx"
    path.write_bytes(b"the model")
    return path


def explanation() -> engine_pb2.Explanation:
    port = engine_pb2.TensorSpec(name="x", type=plan_pb2.DATA_TYPE_FLOAT32, shape=["batch", "2"])
    score = engine_pb2.TensorSpec(name="score", type=plan_pb2.DATA_TYPE_FLOAT32, shape=["batch"])
    return engine_pb2.Explanation(
        model_digest="sha256:m",
        inputs=[port],
        outputs=[score],
        dimensions=[plan_pb2.Dimension(name="batch", minimum=1, maximum=64)],
        operators_before=[engine_pb2.OperatorCount(operator="Gemm", count=1)],
        operators_after=[
            engine_pb2.OperatorCount(operator="add", count=1),
            engine_pb2.OperatorCount(operator="matmul", count=2),
        ],
        steps=[
            engine_pb2.StepSpec(
                operator="matmul", output=score, origin="fc (Gemm)", calculations=2048, moved_bytes=4096
            ),
            engine_pb2.StepSpec(index=1, operator="raster", output=score, region_count=3),
        ],
        raster_count_before=5,
        raster_count_after=1,
        constant_bytes=2048,
        buffer_bytes=1024,
    )


def beside(path: str) -> bytes:
    """Return a model that keeps weights in a file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=path)
    return ModelProto(graph=GraphProto(initializer=[tensor])).SerializeToString()


def test_files_that_a_model_keeps_its_data_in_are_sent_along(
    cloud: FakeCloud, isthmus: Isthmus, model: Path
) -> None:
    model.write_bytes(beside("deep/w.bin"))
    (model.parent / "deep").mkdir()
    (model.parent / "deep" / "w.bin").write_bytes(b"weights")
    plan = cloud.put(b"the plan")
    cloud.result = engine_pb2.OptimizeResult(plan=plan, explanation=explanation())
    ran = isthmus("model", "optimize", str(model))
    assert ran.code == 0, ran.err
    (request,) = cloud.asked(engine_pb2.OptimizeRequest)
    assert cloud.blobs[request.external_data["deep/w.bin"].digest] == b"weights"


@pytest.mark.parametrize(
    ("path", "text"), [("w.bin", "'w.bin', which isn't beside it"), ("../w.bin", "outside of its own folder")]
)
def test_files_of_data_elsewhere_are_refused(
    cloud: FakeCloud, isthmus: Isthmus, model: Path, path: str, text: str
) -> None:
    model.write_bytes(beside(path))
    ran = isthmus("model", "optimize", str(model))
    assert ran.code != 0
    assert text in ran.err
    assert not cloud.asked(engine_pb2.OptimizeRequest)


@pytest.mark.parametrize("path", ["w.bin", "deep/w.bin"])
@pytest.mark.parametrize("command", ["optimize", "explain"])
def test_links_to_data_arent_followed(
    cloud: FakeCloud, isthmus: Isthmus, model: Path, path: str, command: str
) -> None:
    real = model.parent / "real"
    real.mkdir()
    (real / "w.bin").write_bytes(b"weights")
    (model.parent / "deep").symlink_to(real)
    (model.parent / "w.bin").symlink_to(real / "w.bin")
    model.write_bytes(beside(path))
    ran = isthmus("model", command, str(model))
    assert (ran.code, ran.err) == (
        2,
        f"error: {model}: keeps its data in {path!r}, which can't be opened in the model's folder "
        "(Too many levels of symbolic links); links aren't followed\n",
    )
    assert not cloud.asked(engine_pb2.OptimizeRequest) + cloud.asked(engine_pb2.ExplainRequest)


def test_a_model_becomes_a_plan_with_progress(
    cloud: FakeCloud, isthmus: Isthmus, model: Path, tmp_path: Path
) -> None:
    cloud.stages = [
        engine_pb2.Stage(name=name, elapsed_time=Duration(nanos=4_200_000), summary="did it")
        for name in ("read", "verify")
    ]
    plan = cloud.put(b"the plan")
    cloud.result = engine_pb2.OptimizeResult(
        plan=plan, explanation=explanation(), max_error=3e-7, comparison_count=12, cached=True
    )
    out = tmp_path / "click.plan"
    ran = isthmus(
        "model", "optimize", str(model), "--dim", "batch=1..64", "--dim", "items=50", "--out", str(out)
    )
    assert ran.code == 0, ran.err
    assert [line for line in ran.err.splitlines() if "did it" in line] == [
        "read: did it (4.2 ms)",
        "verify: did it (4.2 ms)",
    ]
    assert out.read_bytes() == b"the plan"
    (request,) = cloud.asked(engine_pb2.OptimizeRequest)
    assert request.parent == "tenants/acme"
    assert cloud.blobs[request.model.digest] == b"the model"
    bounds = [(each.name, each.minimum, each.maximum) for each in request.dimensions]
    assert bounds == [("batch", 1, 64), ("items", 50, 50)]
    assert f"plan {plan.digest} (8 B)" in ran.lines
    assert "inputs x: float32[batch, 2]" in ran.lines
    assert "dimensions batch from 1 to 64" in ran.lines
    assert "steps 3: 2 matmul, 1 add" in ran.lines
    assert "rasters 5 written, 1 left after merging" in ran.lines
    assert "checked 12 comparisons with ONNX Runtime, differing by 3e-07 at most, from the cache" in ran.lines
    as_json = isthmus("model", "optimize", plan.digest, "--json").json
    assert (as_json["plan"]["digest"], as_json["comparison_count"]) == (plan.digest, 12)


def test_a_dry_run_keeps_no_plan(cloud: FakeCloud, isthmus: Isthmus, model: Path) -> None:
    cloud.result.plan.digest = "sha256:p"
    ran = isthmus("model", "optimize", str(model), "--dry-run")
    assert "plan sha256:p, not kept: --dry-run" in ran.lines
    assert cloud.asked(engine_pb2.OptimizeRequest)[0].validate_only
    both = isthmus("model", "optimize", str(model), "--dry-run", "--out", "x")
    assert (both.code, "--dry-run keeps no plan" in both.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("optimize", "/nowhere.onnx"), 4, "/nowhere.onnx: there is no such file, and it is no digest"),
        (("optimize", "sha256:gone"), 4, "sha256:gone: not found"),
        (("optimize", "{model}", "--dim", "batch"), 2, "'batch': write NAME=LEAST..MOST"),
        (("optimize", "{model}", "--dim", "batch=9..3"), 2, "from 9 to 3 is no range of sizes"),
        (("optimize", "{model}", "--dim", "b=1..9000000000000000000"), 2, "size allowed is 2147483647"),
        (("optimize", "{model}", "--dim", "batch=2147483648"), 2, "the largest size allowed is 2147483647"),
        (("explain", "{model}", "--size", "batch=9" + "0" * 18), 2, "size allowed is 1000000000000000000"),
        (("optimize", "{model}", "--dim", "batch=0"), 2, "from 0 to 0 is no range of sizes"),
        (("optimize", "{model}", "--dim", "a=1", "--dim", "a=2"), 2, "a dimension is given twice"),
        (("optimize", "{model}", "--out", "/nowhere/x.plan"), 4, "/nowhere/x.plan"),
        (("explain", "{model}", "--plan", "--dim", "a=1"), 2, "a plan has its dimensions' bounds in it"),
        (("infer", "{model}", "--inputs", "{"), 2, "--inputs: is no JSON"),
        (("infer", "{model}", "--inputs", "@/nowhere.json"), 4, "/nowhere.json"),
        (("infer", "{model}", "--inputs", '{"y": 1}'), 2, "inputs: 'y' is unknown"),
        (("infer", "{model}", "--inputs", "{}"), 2, "inputs: 'x' is missing"),
        (("infer", "{model}", "--inputs", "[]"), 2, "inputs: must be an object of arrays by name"),
        (
            ("infer", "{model}", "--inputs", '{"x": [[1], [1, 2]]}'),
            2,
            "aren't equally long: 2 here, 1 elsewhere",
        ),
        (("infer", "{model}", "--inputs", '{"x": [[1], 2]}'), 2, "aren't equally deep"),
        (("infer", "{model}", "--inputs", '{"x": [1, [2]]}'), 2, "aren't equally deep"),
        (("infer", "{model}", "--inputs", '{"x": ["a"]}'), 2, "input 'x': 'a' is no float32"),
        (("infer", "{model}", "--inputs", '{"x": [true]}'), 2, "input 'x': true is no float32"),
        (("infer", "{model}", "--inputs", '{"x": [1e400]}'), 2, "'1e400' is too large for any type"),
        (("infer", "{model}", "--inputs", '{"x": [-1e400]}'), 2, "'-1e400' is too large for any type"),
        (("infer", "{model}", "--inputs", '{"x": [1], "x": [2]}'), 2, "'x' is given twice"),
        (("infer", "{model}", "--inputs", '{"x": [1e300]}'), 2, "input 'x': 1e+300 is no float32"),
        (("infer", "{model}", "--inputs", '{"x": [[[[[[[[[1]]]]]]]]]}'), 2, "more than 8 dimensions"),
    ],
)
def test_what_is_wrong_is_told(
    cloud: FakeCloud, isthmus: Isthmus, model: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    cloud.explanation = explanation()
    ran = isthmus("model", *(str(model) if each == "{model}" else each for each in arguments))
    assert ran.code == code, ran.err
    assert said in ran.err
    assert not cloud.asked(engine_pb2.InferRequest)


@pytest.mark.parametrize("command", ["optimize", "explain", "infer"])
def test_what_the_service_refuses_begins_with_the_files_name(
    cloud: FakeCloud, isthmus: Isthmus, model: Path, command: str
) -> None:
    cloud.engine_refusal = "the file is damaged"
    more = ("--inputs", "{}") if command == "infer" else ()
    ran = isthmus("model", command, str(model), *more)
    assert (ran.code, ran.err) == (2, f"error: {model}: the file is damaged\n")
    cloud.engine_refusal = f"{model}: no plan"
    assert isthmus("model", command, str(model), *more).err == f"error: {model}: no plan\n"


@pytest.mark.parametrize("command", ["optimize", "explain", "infer"])
def test_an_empty_file_is_told_before_it_is_sent(
    cloud: FakeCloud, isthmus: Isthmus, model: Path, command: str
) -> None:
    model.write_bytes(b"")
    ran = isthmus("model", command, str(model), *(("--inputs", "{}") if command == "infer" else ()))
    assert (ran.code, ran.err) == (2, f"error: {model}: is empty\n")
    assert not cloud.requests


def test_no_plan_is_made_of_a_plan(cloud: FakeCloud, isthmus: Isthmus, model: Path) -> None:
    plan = model.with_suffix(".plan")
    plan.write_bytes(b"any")
    ran = isthmus("model", "optimize", str(plan))
    assert (ran.code, f"{plan}: is a plan, not an ONNX file; " in ran.err) == (2, True)
    assert not cloud.requests


def test_a_model_and_a_plan_are_explained(cloud: FakeCloud, isthmus: Isthmus, model: Path) -> None:
    cloud.explanation = explanation()
    ran = isthmus("model", "explain", str(model), "--dim", "batch=8", "--steps")
    assert ran.code == 0, ran.err
    assert "work 2,048 calculations, 4.0 KiB moved" in ran.lines
    assert "0 matmul float32[batch] - 2,048 4.0 KiB fc (Gemm)" in ran.lines
    plan = model.with_suffix(".plan")
    plan.write_bytes(b"the plan")
    isthmus("model", "explain", str(plan))
    isthmus("model", "explain", cloud.put(b"the plan").digest, "--plan", "--json")
    first, second, third = cloud.asked(engine_pb2.ExplainRequest)
    assert (first.WhichOneof("subject"), first.dimensions[0].name) == ("model", "batch")
    assert second.WhichOneof("subject") == third.WhichOneof("subject") == "plan"


def test_a_plan_is_run_on_nested_lists(cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path) -> None:
    cloud.explanation = explanation()
    cloud.outputs = [
        engine_pb2.InferTensor(
            name="score",
            type=plan_pb2.DATA_TYPE_FLOAT32,
            shape=[2, 2],
            data=struct.pack("<4f", 1, 2, 0.5, float("nan")),
        ),
        engine_pb2.InferTensor(name="count", type=plan_pb2.DATA_TYPE_INT64, data=struct.pack("<q", -3)),
        engine_pb2.InferTensor(name="none", type=plan_pb2.DATA_TYPE_BOOL, shape=[0, 3]),
    ]
    inputs = tmp_path / "inputs.json"
    inputs.write_text('{"x": [[1, 2.5]]}')
    digest = cloud.put(b"the plan").digest
    ran = isthmus("model", "infer", digest, "--inputs", f"@{inputs}")
    assert ran.code == 0, ran.err
    assert ran.lines == ['score = [[1.0, 2.0], [0.5, "nan"]]', "count = -3", "none = []"]
    (request,) = cloud.asked(engine_pb2.InferRequest)
    (sent,) = request.inputs
    assert (sent.name, sent.type, list(sent.shape)) == ("x", plan_pb2.DATA_TYPE_FLOAT32, [1, 2])
    assert sent.data == struct.pack("<2f", 1, 2.5)
    assert isthmus("model", "infer", digest, "--inputs", '{"x": [[1, 2]]}', "--json").json["count"] == -3


@pytest.mark.parametrize(
    ("type_", "value", "data"),
    [
        (plan_pb2.DATA_TYPE_BOOL, [True, False], b"\1\0"),
        (plan_pb2.DATA_TYPE_INT8, [-1], b"\xff"),
        (plan_pb2.DATA_TYPE_INT64, 7, struct.pack("<q", 7)),
        (plan_pb2.DATA_TYPE_UINT16, [], b""),
        (plan_pb2.DATA_TYPE_FLOAT16, [1], b"\x00\x3c"),
    ],
)
def test_each_type_has_its_bytes(
    cloud: FakeCloud, isthmus: Isthmus, type_: plan_pb2.DataType.ValueType, value: object, data: bytes
) -> None:
    cloud.explanation.inputs.add(name="x", type=type_)
    ran = isthmus("model", "infer", cloud.put(b"p").digest, "--inputs", f'{{"x": {str(value).lower()}}}')
    assert ran.code == 0, ran.err
    assert cloud.asked(engine_pb2.InferRequest)[0].inputs[0].data == data


def test_operators_are_listed_with_the_kernels_they_save(cloud: FakeCloud, isthmus: Isthmus) -> None:
    cloud.operators = engine_pb2.ListOperatorsResponse(
        operators=[
            Kind(name="Add", kind=Kind.KIND_ATOMIC, since_opset=7, family="elementwise"),
            Kind(name="Concat", kind=Kind.KIND_TRANSFORM, since_opset=4, family="movement"),
            Kind(name="If", kind=Kind.KIND_CONTROL, since_opset=7, family="control"),
        ],
        atomic_operators=["add", "matmul"],
        host_operators=["sequence_at"],
    )
    ran = isthmus("model", "operators")
    assert "Concat transform 4 movement" in ran.lines
    assert "each operator for each backend 1 × 16 1 × 16 0 × 16 1 33" in ran.lines
    # The host operator, branches and loops are written once.
    assert "atomic operators and the raster for each backend (2 + 1) × 16 1 0 1 + 3 53" in ran.lines
    assert ran.lines[-2:] == ["atomic operators: add, matmul", "host operators: sequence_at"]
    found = isthmus("model", "operators", "--backends", "1", "--json").json
    assert (found["workload"]["before"], found["workload"]["after"]) == (3, 8)
    assert found["host_operators"] == ["sequence_at"]


def test_the_workload_is_shown_beside_the_published_one(cloud: FakeCloud, isthmus: Isthmus) -> None:
    cloud.operators = operators(REGISTRY, engine_pb2.ListOperatorsRequest(page_size=1000))
    ran = isthmus("model", "operators", "--workload")
    assert "Walle as published, 16 backends 124 1,954 1,055 46 %" in ran.lines
    assert len(ran.lines) == 5
    rows = isthmus("model", "operators", "--workload", "--json").json["workloads"]
    kinds = [operator.kind for operator in REGISTRY.values()]
    for row, (name, counted) in zip(rows, workload_table(kinds, len(ATOMICS), len(HOST)), strict=True):
        assert (row["name"], row["before"], row["after"]) == (name, counted.before, counted.after)


def test_the_workload_is_the_papers_for_the_papers_counts() -> None:
    kinds = {Kind.KIND_ATOMIC: 61, Kind.KIND_TRANSFORM: 45, Kind.KIND_COMPOSITE: 16, Kind.KIND_STATIC: 9}
    found = [Kind(kind=kind) for kind, count in kinds.items() for _ in range(count)]
    work = workload(found, 61, 0, 16)
    # Less its 2 operators of control flow before; ours come with a runtime's branches and loops after.
    assert (work["before"], work["after"]) == (1954 - 2, 1055)


@pytest.mark.parametrize("backends", [1, 16])
def test_the_workload_is_what_the_engine_counts_itself(backends: int) -> None:
    answer = operators(REGISTRY, engine_pb2.ListOperatorsRequest(page_size=1000))
    assert not answer.next_page_token
    found = workload(
        list(answer.operators), len(answer.atomic_operators), len(answer.host_operators), backends
    )
    counted = count((operator.kind for operator in REGISTRY.values()), len(ATOMICS), len(HOST), backends)
    assert (found["before"], found["after"]) == (counted.before, counted.after)
    kinds = (found["atomic"], found["transform"], found["composite"], found["atomic_operators"])
    assert kinds == (counted.atomic, counted.transform, counted.composite, counted.atoms)


def test_a_plan_is_run_on_an_archive_of_arrays(cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path) -> None:
    cloud.explanation = explanation()
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, x=np.array([[1, 2.5]], np.float32))
    ran = isthmus("model", "infer", cloud.put(b"the plan").digest, "--inputs", f"@{inputs}")
    assert ran.code == 0, ran.err
    (request,) = cloud.asked(engine_pb2.InferRequest)
    assert request.inputs[0].data == struct.pack("<2f", 1, 2.5)
    for group in ("model", "endpoint"):
        told = " ".join(isthmus(group, "infer", "--help").lines)
        assert "@FILE.npz of numpy.savez" in told
