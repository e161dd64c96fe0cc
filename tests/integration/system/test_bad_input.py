"""Bad input through the real gateway: a clear status that names what is wrong, and nobody else suffers."""

import json
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from deploy.local.stack import Stack
from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc, manifest_pb2, task_pb2, task_pb2_grpc
from libs.trust.digests import sha256_of
from libs.trust.keys import SigningKey
from libs.trust.signing import sign_message
from tests.integration.system.wire import (
    bearer,
    refusal,
    upload,
)
from tests.integration.system.world import Cloud, CommandFailed, code_of

MIB = 1 << 20
INVALID = grpc.StatusCode.INVALID_ARGUMENT
TASKS, BLOBS = "/isthmus.deployer.v1.TaskService/", "/isthmus.deployer.v1.BlobService/"
OURS = task_pb2.ListTasksRequest(parent="tenants/ours").SerializeToString()
SCRIPT = b"def run(context):\n    return {}\n"


# ---- names ----


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (
            "/isthmus.deployer.v1.TaskService/ListTask",
            "did you mean '/isthmus.deployer.v1.TaskService/ListTasks'",
        ),
        (
            "/isthmus.deployer.v1.TaskServise/ListTasks",
            "did you mean '/isthmus.deployer.v1.TaskService/ListTasks'",
        ),
        (
            "/isthmus.deploier.v1.TaskService/ListTasks",
            "did you mean '/isthmus.deployer.v1.TaskService/ListTasks'",
        ),
        ("/isthmus.serving.v1.ModelService/Predict", "/isthmus.serving.v1.ModelService/Predict"),
        ("/nonsense", "/nonsense"),
    ],
    ids=["method", "service", "package", "later-service", "nonsense"],
)
def test_an_unknown_service_or_method_is_named(stack: Stack, cloud: Cloud, method: str, says: str) -> None:
    refused = refusal(stack.gateway, method, b"", bearer(cloud.key))
    assert refused.code is grpc.StatusCode.UNIMPLEMENTED
    assert says in refused.text


@pytest.mark.parametrize("method", ["ListTasks", "PublishVersion", "CreateTask"])
def test_bytes_that_are_no_message_are_the_callers_fault(stack: Stack, cloud: Cloud, method: str) -> None:
    refused = refusal(stack.gateway, TASKS + method, b"\xff\xff\xff\xff", bearer(cloud.key))
    assert refused.code is INVALID


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tenants/ours/tasks/UPPER", "UPPER"),
        ("tenants/ours/task/x", "tenants/ours/task/x"),
        ("", "name"),
        ("tenants/ours/tasks/../../etc", "tenants/ours/tasks/../../etc"),
        ("tenants/ours/tasks/" + "x" * 64, "x" * 64),
    ],
    ids=["case", "collection", "empty", "dots", "long"],
)
def test_a_malformed_resource_name_is_shown(stack: Stack, cloud: Cloud, name: str, says: str) -> None:
    request = task_pb2.GetTaskRequest(name=name).SerializeToString()
    refused = refusal(stack.gateway, TASKS + "GetTask", request, bearer(cloud.key))
    assert refused.code is INVALID
    assert says in refused.text


# ---- a task as a person writes it, with the command ----


def task_folder(folder: Path, **changes: object) -> Path:
    members: dict[str, object] = {
        "task": "wrong",
        "version": "1",
        "phases": [{"kind": "post", "script": "run.py", "entry_point": "run"}],
        "trigger": {"sequence": [{"event": "tick"}]},
    }
    (folder / "task.json").write_text(json.dumps(members | changes, indent=2))
    (folder / "run.py").write_bytes(SCRIPT)
    return folder


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"triger": {}}, ["triger", "did you mean 'trigger'"]),
        ({"phases": [{"kind": "post", "scrpt": "run.py", "entry_point": "run"}]}, ["scrpt", "'script'"]),
        ({"trigger": {"sequnce": []}}, ["$.trigger", "sequnce", "did you mean 'sequence'"]),
        ({"trigger": {"sequence": []}}, ["$.trigger.sequence"]),
        (
            {"trigger": {"sequence": [{"event": "a"}, {"evnt": "b"}]}},
            ["$.trigger.sequence[1]", "evnt", "'event'"],
        ),
        (
            {"trigger": {"sequence": [{"event": "a", "where": {"equals": ["x", 1]}}]}},
            ["$.trigger.sequence[0].where", "equals"],
        ),
        (
            {"trigger": {"sequence": [{"event": "a"}], "within": "30 parsecs"}},
            ["$.trigger.within", "30 parsecs"],
        ),
        ({"uploads": {"out": {"n": "numbr"}}}, ["$.uploads.out.n", "numbr", "number"]),
        ({"limits": {"wall_time": "9999h"}}, ["$.limits.wall_time"]),
        ({"resources": [{"path": "../../etc/passwd"}]}, ["../../etc/passwd"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_command_names_the_place_in_task_json(
    cloud: Cloud, tmp_path: Path, changes: dict[str, object], says: list[str]
) -> None:
    with pytest.raises(CommandFailed) as caught:
        cloud.isthmus(
            "task", "publish", str(task_folder(tmp_path, **changes)), "--keys", str(cloud.home / "keys")
        )
    assert caught.value.status == 2
    message = caught.value.error["message"]
    assert [text for text in says if text not in message] == [], message


def test_the_command_shows_line_and_text_of_a_syntax_error(cloud: Cloud, tmp_path: Path) -> None:
    folder = task_folder(tmp_path)
    (folder / "run.py").write_text("def run(context):\n    x = 1\n    return {x ++}\n")
    with pytest.raises(CommandFailed) as caught:
        cloud.isthmus("task", "publish", str(folder), "--keys", str(cloud.home / "keys"))
    assert caught.value.status == 2
    assert "line 3" in caught.value.error["message"]
    assert "return {x ++}" in caught.value.error["message"]


def test_broken_json_is_shown_with_line_and_column(cloud: Cloud, tmp_path: Path) -> None:
    folder = task_folder(tmp_path)
    (folder / "task.json").write_text('{\n  "task": "wrong",\n  "version" "1"\n}\n')
    with pytest.raises(CommandFailed) as caught:
        cloud.isthmus("task", "check", str(folder))
    assert "line 3" in caught.value.error["message"]


# ---- a manifest that somebody made without the command ----


@pytest.fixture
def author(cloud: Cloud) -> SigningKey:
    return SigningKey.load(cloud.home / "keys" / "author.key")


@pytest.fixture(scope="module")
def job(cloud: Cloud) -> str:
    """A task to publish versions of."""
    request = task_pb2.CreateTaskRequest(parent="tenants/ours", task_id="wrong", request_id="wrong")
    return task_pb2_grpc.TaskServiceStub(cloud.channel).CreateTask(request).task.name


def manifest(cloud: Cloud, script: bytes = SCRIPT) -> manifest_pb2.TaskManifest:
    blob = upload(cloud, script)
    return manifest_pb2.TaskManifest(
        task="wrong",
        version="1",
        phases=[
            manifest_pb2.Phase(
                kind=manifest_pb2.Phase.KIND_POST, script=blob, entry_point="run", path="run.py"
            )
        ],
        trigger_json='{"sequence": [{"event": "tick"}]}',
    )


Change = Callable[[manifest_pb2.TaskManifest], object]


def unknown_blob(changed: manifest_pb2.TaskManifest) -> None:
    changed.phases[0].script.digest = sha256_of(b"nobody has this")


def wrong_size(changed: manifest_pb2.TaskManifest) -> None:
    changed.phases[0].script.size_bytes += 1


def climbing_path(changed: manifest_pb2.TaskManifest) -> None:
    changed.phases[0].path = "../run.py"


def broken_trigger(changed: manifest_pb2.TaskManifest) -> None:
    changed.trigger_json = '{"sequence": [\n{"event": "tick",}]}'


def wrong_trigger(changed: manifest_pb2.TaskManifest) -> None:
    changed.trigger_json = '{"sequence": [{"event": "tick", "where": {"gt": ["n"]}}]}'


def no_such_function(changed: manifest_pb2.TaskManifest) -> None:
    changed.phases[0].entry_point = "rum"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (unknown_blob, [sha256_of(b"nobody has this"), "upload them first"]),
        (wrong_size, ["33 bytes", "it has 32"]),
        (climbing_path, ["../run.py"]),
        (broken_trigger, ["line 2"]),
        (wrong_trigger, ["where"]),
        (no_such_function, ["rum", "did you mean 'run'"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_deployer_checks_a_manifest_again(
    cloud: Cloud, job: str, author: SigningKey, change: Change, says: list[str]
) -> None:
    changed = manifest(cloud)
    change(changed)
    stub = task_pb2_grpc.TaskServiceStub(cloud.channel)
    with pytest.raises(grpc.RpcError) as caught:
        stub.PublishVersion(
            task_pb2.PublishVersionRequest(parent=job, manifest=sign_message(changed, [author]))
        )
    assert isinstance(caught.value, grpc.Call)
    text = caught.value.details() or ""
    assert code_of(caught.value) in (
        INVALID,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
    ), text
    assert [each for each in says if each not in text] == [], text


def test_the_deployer_compiles_scripts_and_shows_the_line(cloud: Cloud, job: str, author: SigningKey) -> None:
    broken = manifest(cloud, b"def run(context):\n    return {1 ++}\n")
    stub = task_pb2_grpc.TaskServiceStub(cloud.channel)
    with pytest.raises(grpc.RpcError) as caught:
        stub.PublishVersion(
            task_pb2.PublishVersionRequest(parent=job, manifest=sign_message(broken, [author]))
        )
    assert code_of(caught.value) is INVALID
    assert "line 2" in str(caught.value)
    assert "return {1 ++}" in str(caught.value)


def test_only_an_authors_signature_over_these_very_bytes_counts(
    cloud: Cloud, theirs: Cloud, job: str, author: SigningKey
) -> None:
    good = sign_message(manifest(cloud), [author])
    stranger = sign_message(manifest(cloud), [SigningKey.generate()])
    other_tenant = sign_message(manifest(cloud), [SigningKey.load(theirs.home / "keys" / "author.key")])
    root_holder = sign_message(manifest(cloud), [SigningKey.load(cloud.home / "keys" / "root.key")])
    changed, other_type, unsigned = type(good)(), type(good)(), type(good)()
    changed.CopyFrom(good)
    changed.payload = good.payload.replace(b"tick", b"tock")
    other_type.CopyFrom(good)
    other_type.type = "isthmus.deployer.v1.DeviceSet"
    unsigned.CopyFrom(good)
    unsigned.ClearField("signatures")
    stub = task_pb2_grpc.TaskServiceStub(cloud.channel)
    for signed in (stranger, other_tenant, root_holder, changed, other_type, unsigned):
        with pytest.raises(grpc.RpcError) as caught:
            stub.PublishVersion(task_pb2.PublishVersionRequest(parent=job, manifest=signed))
        assert code_of(caught.value) in (INVALID, grpc.StatusCode.PERMISSION_DENIED), caught.value
    listed = stub.ListVersions(task_pb2.ListVersionsRequest(parent=job))
    assert not listed.versions


def test_a_blob_that_is_not_what_was_announced_is_refused(cloud: Cloud) -> None:
    stub = blob_pb2_grpc.BlobServiceStub(cloud.channel)
    blob = manifest_pb2.BlobRef(digest=sha256_of(b"announced"), size_bytes=9)
    begun = stub.BeginBlob(blob_pb2.BeginBlobRequest(blob=blob))
    stub.WriteBlob(blob_pb2.WriteBlobRequest(upload_id=begun.upload_id, offset_bytes=0, data=b"delivered"))
    with pytest.raises(grpc.RpcError) as caught:
        stub.CommitBlob(blob_pb2.CommitBlobRequest(upload_id=begun.upload_id))
    assert code_of(caught.value) is INVALID
    assert blob.digest in str(caught.value)
    with pytest.raises(grpc.RpcError) as caught:
        stub.StatBlob(blob_pb2.StatBlobRequest(digest=blob.digest))
    assert code_of(caught.value) is grpc.StatusCode.NOT_FOUND
