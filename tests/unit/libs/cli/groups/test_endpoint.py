"""`isthmus endpoint`: what is sent to serving, and what people see of its answers."""

import struct
from pathlib import Path

import pytest

from inference import open_inference_pb2
from isthmus.scheduler.v1 import object_pb2
from isthmus.serving.v1 import model_pb2
from libs.cli import deploying, following
from libs.cli.output import Output
from libs.cli.testing import FakeCloud
from tests.unit.libs.cli.groups.conftest import Isthmus

Put = model_pb2.PutModelRequest
Create = model_pb2.CreateModelVersionRequest
Version = model_pb2.ModelVersion


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_PAUSE_S", 0.01)
    monkeypatch.setattr(deploying, "_PAUSE_S", 0.01)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "ranker.onnx"
    path.write_bytes(b"the model")
    return path


def test_a_file_is_deployed_to_an_endpoint_that_is_made_for_it(
    cloud: FakeCloud, isthmus: Isthmus, model: Path
) -> None:
    ran = isthmus("endpoint", "deploy", "ranker", str(model))
    assert ran.code == 0, ran.err
    assert "version tenants/acme/models/ranker/versions/v1" in ran.lines
    assert "traffic has it now" in ran.lines
    assert "inputs x: FP32[any, 2]" in ran.lines
    assert "outputs y: FP32[any]" in ran.lines
    (put,) = cloud.serving.asked(Put)
    assert (put.model.name, put.model.live_version) == ("tenants/acme/models/ranker", "")
    checked, create = cloud.serving.asked(Create)
    assert (checked.validate_only, create.validate_only) == (True, False)
    assert create.version.platform == Version.PLATFORM_ONNX
    assert cloud.blobs[create.version.blob.digest] == b"the model"
    assert create.request_id


def test_the_next_version_takes_over_and_the_same_file_is_left_alone(
    cloud: FakeCloud, isthmus: Isthmus, model: Path
) -> None:
    isthmus("endpoint", "deploy", "ranker", str(model))
    again = isthmus("endpoint", "deploy", "ranker", str(model), "--json").json
    assert (again["outcome"], again["name"].rpartition("/")[2]) == ("unchanged", "v1")
    model.write_bytes(b"another")
    ran = isthmus("endpoint", "deploy", "ranker", str(model))
    assert "traffic has it now; v1 had it before" in ran.lines
    plan = model.with_suffix(".plan")
    plan.write_bytes(b"a plan")
    found = isthmus("endpoint", "deploy", "tenants/acme/models/ranker", str(plan), "--json").json
    assert (found["outcome"], found["previous_version"]) == ("deployed", "v2")
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    creates = cloud.serving.asked(Create)[1:]
    assert [each.version_id for each in creates] == ["v1", "v2", "v3"]
    assert creates[-1].version.platform == Version.PLATFORM_PLAN


def test_a_version_that_is_there_gets_the_traffic_back(
    cloud: FakeCloud, isthmus: Isthmus, model: Path
) -> None:
    isthmus("endpoint", "deploy", "ranker", str(model), "--version", "old")
    other = model.with_name("other.onnx")
    other.write_bytes(b"another")
    isthmus("endpoint", "deploy", "ranker", str(other), "--version", "new")
    refused = isthmus("endpoint", "deploy", "ranker", str(other), "--version", "old")
    assert (refused.code, "is there with another file" in refused.err) == (1, True)
    ran = isthmus("endpoint", "deploy", "ranker", str(model), "--version", "old", "--json")
    assert (ran.json["outcome"], ran.json["previous_version"]) == ("switched", "new")
    assert cloud.serving.models["ranker"].live_version == "old"
    assert cloud.serving.asked(Put)[-1].model.etag


def test_digests_and_artefacts_of_jobs_are_deployed(cloud: FakeCloud, isthmus: Isthmus) -> None:
    digest = cloud.put(b"one").digest
    assert isthmus("endpoint", "deploy", "ranker", digest, "--plan").code == 0
    job = object_pb2.Job(metadata=object_pb2.Metadata(name="tenants/acme/jobs/train"))
    job.status.artefacts.add(id="ranker", blob=cloud.put(b"two"))
    cloud.jobs["train"] = job
    assert isthmus("endpoint", "deploy", "ranker", "train/ranker").code == 0
    assert isthmus("endpoint", "deploy", "other", "tenants/acme/jobs/train/ranker").code == 0
    creates = [each for each in cloud.serving.asked(Create) if not each.validate_only]
    first, second, third = (each.version for each in creates)
    assert (first.platform, cloud.blobs[first.blob.digest]) == (Version.PLATFORM_PLAN, b"one")
    assert (second.platform, cloud.blobs[second.blob.digest]) == (Version.PLATFORM_ONNX, b"two")
    assert third.blob == second.blob


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("nothing.onnx", "there is no such file, and it is no digest"),
        ("train/gone", "has no artefact 'gone'"),
        ("gone/ranker", "not found"),
        ("sha256:gone", "sha256:gone: not found"),
    ],
)
def test_what_is_not_there_is_told(cloud: FakeCloud, isthmus: Isthmus, subject: str, said: str) -> None:
    cloud.jobs["train"] = object_pb2.Job(metadata=object_pb2.Metadata(name="tenants/acme/jobs/train"))
    ran = isthmus("endpoint", "deploy", "ranker", subject)
    assert (ran.code, said in ran.err) == (4, True), ran.err
    assert not cloud.serving.models


def test_a_file_that_can_not_be_loaded_is_told(cloud: FakeCloud, isthmus: Isthmus, model: Path) -> None:
    cloud.serving.refused = "blob: it is no ONNX model"
    ran = isthmus("endpoint", "deploy", "ranker", str(model))
    assert (ran.code, f"error: {model}: it is no ONNX model" in ran.err) == (2, True)
    assert not cloud.serving.models


def test_deploying_goes_on_where_serving_was_away(cloud: FakeCloud, isthmus: Isthmus, model: Path) -> None:
    cloud.serving.cuts = 2
    cloud.serving.states.extend([Version.STATE_LOADING, Version.STATE_LOADING])
    ran = isthmus("endpoint", "deploy", "ranker", str(model))
    assert ran.code == 0, ran.err
    assert "state READY" in ran.lines
    assert ran.err.count("(waiting for it)") == 1
    creates = cloud.serving.asked(Create)[1:]
    assert len(creates) == 3
    assert len({each.request_id for each in creates}) == 1
    assert len(cloud.serving.versions["ranker"]) == 1


def test_every_call_of_a_deployment_outlives_a_restart(
    cloud: FakeCloud, isthmus: Isthmus, model: Path
) -> None:
    cloud.serving.restarts = 100
    ran = isthmus("endpoint", "deploy", "ranker", str(model), "--json")
    assert ran.code == 0, ran.err
    assert ran.json["outcome"] == "deployed"
    # Looked for, checked, made, created, read, described.
    assert 100 - cloud.serving.restarts == 12
    assert len(cloud.serving.versions["ranker"]) == 1
    other = model.with_name("other.onnx")
    other.write_bytes(b"another")
    cloud.serving.restarts = 100
    ran = isthmus("endpoint", "deploy", "ranker", str(other))
    assert ran.code == 0, ran.err
    assert "the service can't be reached" in ran.err
    assert cloud.serving.models["ranker"].live_version == "v2"
    cloud.serving.restarts = 100
    assert isthmus("endpoint", "switch", "ranker", "v1").code == 0
    assert cloud.serving.models["ranker"].live_version == "v1"


def test_a_service_that_stays_away_is_told(
    cloud: FakeCloud, isthmus: Isthmus, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_PATIENCE_S", 0.02)
    cloud.serving.cuts = 10**6
    ran = isthmus("endpoint", "deploy", "ranker", str(model), "--json")
    assert (ran.code, ran.error["reason"]) == (5, "UNAVAILABLE")


def test_another_signature_is_let_in_where_the_flag_says_so(
    cloud: FakeCloud, isthmus: Isthmus, model: Path
) -> None:
    isthmus("endpoint", "deploy", "ranker", str(model))
    assert not any(each.allow_other_signature for each in cloud.serving.asked(Create))
    model.write_bytes(b"another")
    isthmus("endpoint", "deploy", "ranker", str(model), "--allow-other-signature")
    assert cloud.serving.asked(Create)[-1].allow_other_signature


def test_switching_to_another_signature_is_warned_of(cloud: FakeCloud, isthmus: Isthmus, model: Path) -> None:
    isthmus("endpoint", "deploy", "ranker", str(model))
    model.write_bytes(b"another")
    isthmus("endpoint", "deploy", "ranker", str(model))
    assert isthmus("endpoint", "switch", "ranker", "v1").err == ""
    tensor = open_inference_pb2.ModelMetadataResponse.TensorMetadata
    cloud.serving.inputs_of["v2"] = [tensor(name="x", datatype="FP32", shape=[-1, 3])]
    ran = isthmus("endpoint", "switch", "ranker", "v2")
    assert ran.code == 0
    assert "x: FP32[any, 3] -> y: FP32[any]; before: x: FP32[any, 2] -> y: FP32[any]" in ran.err


def test_a_version_that_fails_after_a_restart_is_told(
    cloud: FakeCloud, isthmus: Isthmus, model: Path
) -> None:
    cloud.serving.states.extend([Version.STATE_LOADING, Version.STATE_FAILED])
    ran = isthmus("endpoint", "deploy", "ranker", str(model))
    assert (ran.code, "can't be loaded: it says why" in ran.err) == (1, True)


def test_a_dry_run_changes_nothing(cloud: FakeCloud, isthmus: Isthmus, model: Path) -> None:
    for made in (False, True):
        ran = isthmus("endpoint", "deploy", "ranker", str(model), "--dry-run")
        assert ran.code == 0, ran.err
        assert "checked it can be loaded; nothing was changed: --dry-run" in ran.lines
        assert bool(cloud.serving.models) == made
        isthmus("endpoint", "put", "ranker")
    assert all(each.validate_only for each in cloud.serving.asked(Create))
    assert cloud.serving.versions["ranker"] == []
    found = isthmus("endpoint", "put", "ranker", "--threads", "2", "--dry-run", "--json").json
    assert (found["outcome"], found["config"]["intra_op_thread_count"]) == ("checked", 2)
    assert cloud.serving.asked(Put)[-1].validate_only


def test_a_configuration_is_changed_in_what_is_given_and_in_nothing_else(
    cloud: FakeCloud, isthmus: Isthmus
) -> None:
    flags: tuple[str, ...] = (
        "--max-batch-rows",
        "16",
        "--max-batch-delay",
        "5ms",
        "--instances",
        "2",
        "--threads",
        "3",
    )
    flags += ("--queue", "10", "--queue-timeout", "2s", "--keep", "4")
    ran = isthmus("endpoint", "put", "ranker", *flags)
    assert ran.code == 0, ran.err
    assert "batching 16 rows at most, held back 5.0 ms at most" in ran.lines
    assert "instances 2, 3 threads each" in ran.lines
    assert "queue 10 requests, 2.0 s at most" in ran.lines
    assert "live version none yet: isthmus endpoint deploy" in ran.lines
    isthmus("endpoint", "put", "ranker", "--max-batch-rows", "1", "--max-batch-delay", "0s")
    first, second = (each.model for each in cloud.serving.asked(Put))
    expected = model_pb2.ServingConfig()
    expected.CopyFrom(first.config)
    expected.max_batch_rows = 1
    expected.max_batch_delay.FromSeconds(0)
    assert second.config == expected
    assert (first.etag, second.etag) == ("", "1")
    assert isthmus("endpoint", "put", "ranker", "--etag", "1").code == 1
    assert "batching off" in isthmus("endpoint", "get", "ranker").lines


def test_endpoints_and_versions_are_listed(cloud: FakeCloud, isthmus: Isthmus, model: Path) -> None:
    assert isthmus("endpoint", "list").out == "(none)\n"
    isthmus("endpoint", "deploy", "ranker", str(model))
    isthmus("endpoint", "put", "empty")
    rows = isthmus("endpoint", "list").lines
    assert rows[1].startswith("empty - - 64 0.0 ms 1 1 2027-01-15")
    assert rows[2].startswith("ranker v1 READY 64 0.0 ms 1 1 2027-01-15")
    model.write_bytes(b"another")
    isthmus("endpoint", "deploy", "ranker", str(model))
    rows = isthmus("endpoint", "versions", "ranker").lines
    assert rows[1].startswith("v2 live READY ONNX 7 B sha256:")
    assert rows[2].startswith("v1 - READY ONNX 9 B sha256:")
    ran = isthmus("endpoint", "switch", "ranker", "v1")
    assert "live version v1" in ran.lines
    assert cloud.serving.asked(Put)[-1].model.etag
    assert [each["name"] for each in isthmus("endpoint", "list", "--json").json] == [
        "tenants/acme/models/empty",
        "tenants/acme/models/ranker",
    ]


def test_endpoints_and_versions_are_deleted(cloud: FakeCloud, isthmus: Isthmus) -> None:
    isthmus("endpoint", "put", "ranker")
    ran = isthmus("endpoint", "delete", "ranker", "--version", "v1", "--json")
    assert ran.json == {"deleted": "tenants/acme/models/ranker/versions/v1"}
    assert isthmus("endpoint", "delete", "ranker", "--version", "v1", "--etag", "1").code == 2
    assert isthmus("endpoint", "delete", "ranker").out == "tenants/acme/models/ranker: deleted\n"
    assert not cloud.serving.models
    assert isthmus("endpoint", "get", "ranker").code == 4


def test_statistics_are_means(cloud: FakeCloud, isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cloud.serving.statistics.model_stats.add(
        name="ranker", version="v1", inference_count=30, execution_count=4
    )
    monkeypatch.setattr(Output, "_width", staticmethod(lambda: 80))
    found.inference_stats.success.MergeFrom(open_inference_pb2.StatisticDuration(count=10, ns=42_000_000))
    found.inference_stats.queue.MergeFrom(open_inference_pb2.StatisticDuration(count=10, ns=10_000_000))
    cloud.serving.statistics.model_stats.add(name="idle", version="v1")
    rows = isthmus("endpoint", "stats").lines
    assert rows[0] == "ENDPOINT VERSION ANSWERED FAILED ROWS RUNS ROWS/RUN MEAN WAITING"
    assert rows[1:] == ["ranker v1 10 0 30 4 7.5 4.2 ms 1.0 ms", "idle v1 0 0 0 0 - - -"]
    assert isthmus("endpoint", "stats", "--version", "v1").code == 2
    isthmus("endpoint", "stats", "tenants/acme/models/ranker", "--version", "v1")
    asked = cloud.serving.asked(open_inference_pb2.ModelStatisticsRequest)[-1]
    assert (asked.name, asked.version) == ("ranker", "v1")


def test_an_endpoint_infers(cloud: FakeCloud, isthmus: Isthmus, tmp_path: Path) -> None:
    isthmus("endpoint", "put", "ranker")
    answer = cloud.serving.answer
    answer.outputs.add(name="y", datatype="FP32", shape=[2])
    answer.raw_output_contents.append(struct.pack("<2f", 0.5, float("inf")))
    inputs = tmp_path / "inputs.json"
    inputs.write_text('{"x": [[1, 2.5]]}')
    ran = isthmus("endpoint", "infer", "ranker", "--inputs", f"@{inputs}", "--version", "v2")
    assert ran.out == 'y = [0.5, "inf"]\n'
    (request,) = cloud.serving.asked(open_inference_pb2.ModelInferRequest)
    assert (request.model_name, request.model_version) == ("ranker", "v2")
    assert list(request.raw_input_contents) == [struct.pack("<2f", 1, 2.5)]
    assert isthmus("endpoint", "infer", "ranker", "--inputs", '{"x": [[1, 2]]}', "--json").json == {
        "y": [0.5, "inf"]
    }


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("infer", "ranker", "--inputs", "{"), 2, "--inputs: is no JSON"),
        (("infer", "ranker", "--inputs", '{"z": 1}'), 2, "inputs: 'z' is unknown"),
        (("infer", "ranker", "--inputs", '{"x": ["a"]}'), 2, "input 'x': 'a' is no FP32"),
        (("infer", "other", "--inputs", "{}"), 4, "no model 'other'"),
        (("infer", "a/b", "--inputs", "{}"), 2, "names nothing in models"),
        (("deploy", "Bad Name!", "x"), 2, "ENDPOINT: 'Bad Name!' can't be the name of a model; use 1 to 128"),
        (("put", "ranker", "--queue-timeout", "2h"), 2, "2h is too long; it may be 60m at most"),
        (("deploi", "ranker"), 2, "did you mean 'deploy'"),
        (("put", "ranker", "--max-batch-rows", "0"), 2, "--max-batch-rows"),
        (("put", "ranker", "--max-batch-delay", "soon"), 2, "--max-batch-delay"),
        (("put", "ranker", "--live", "a/b"), 2, "--live: 'a/b' names no version"),
    ],
)
def test_what_is_wrong_is_told(
    cloud: FakeCloud, isthmus: Isthmus, arguments: tuple[str, ...], code: int, said: str
) -> None:
    isthmus("endpoint", "put", "ranker")
    ran = isthmus("endpoint", *arguments)
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert not cloud.serving.asked(open_inference_pb2.ModelInferRequest)


@pytest.mark.parametrize("flag", ["--max-batch-rows", "--instances", "--threads", "--queue", "--keep"])
def test_a_number_out_of_range_is_refused_with_the_range(
    cloud: FakeCloud, isthmus: Isthmus, flag: str
) -> None:
    for value in ("0", "65537", "99999999999"):
        ran = isthmus("endpoint", "put", "ranker", flag, value)
        assert ran.code == 2
        assert flag in ran.err
        assert f"{value} is not in the range 1<=x<=" in ran.err
    assert cloud.serving.asked(Put) == []


def test_a_version_that_is_removed_while_it_is_waited_for_is_missed(
    cloud: FakeCloud, isthmus: Isthmus, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isthmus("endpoint", "deploy", "ranker", str(model))
    cloud.serving.states.extend([Version.STATE_LOADING])
    listed = deploying.list_versions
    answers = iter([listed, lambda *_: []])
    monkeypatch.setattr(deploying, "list_versions", lambda session, name: next(answers)(session, name))
    ran = isthmus("endpoint", "deploy", "ranker", str(model), "--json")
    assert (ran.code, ran.error["reason"]) == (4, "VERSION_NOT_FOUND")
    assert "versions/v1: was removed while it was waited for" in ran.error["message"]
