"""Models and versions over real gRPC, SQL and a real deployer."""

import asyncio
import hashlib
from pathlib import Path

import grpc
import numpy as np
import pytest

from inference import open_inference_pb2 as oip
from isthmus.serving.v1 import model_pb2 as pb
from libs.common.client import Channel
from libs.common.testing import eventually
from services.deployer.testing import Running as Deployer
from services.serving.config import ServingServiceConfig
from services.serving.testing import Client, Running, running_serving
from services.serving.testing_models import scale

X = np.ones((1, 4), np.float32)
REQUEST = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


async def refused(call) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def answer(client: Client, version: str = "") -> float:
    return float((await client.infer("m", x=X, version=version))["y"][0, 0])


def states(versions: dict[str, pb.ModelVersion]) -> dict[str, str]:
    return {
        name: pb.ModelVersion.State.Name(each.state).removeprefix("STATE_") for name, each in versions.items()
    }


async def test_versions_take_the_traffic_and_leave_it(serving: Running, deployer: Deployer) -> None:
    client, files = serving.client(), deployer.client()
    blobs = [await files.upload(scale(float(factor))) for factor in (1, 2, 3)]
    await client.put("m")
    for index, blob in enumerate(blobs, 1):
        await client.create("m", f"v{index}", blob)
        assert await answer(client) == index
    await eventually(lambda: serving.serving.fleet.endpoints is not None)
    # The live one and the one before it stay; older ones go.
    assert await answer(client, "v2") == 2
    code, text = await refused(answer(client, "v1"))
    assert code is grpc.StatusCode.UNAVAILABLE
    found = await client.versions("m")
    assert list(found) == ["v3", "v2", "v1"]
    assert states(found) == {"v3": "READY", "v2": "READY", "v1": "UNLOADED"}
    code, text = await refused(answer(client, "v33"))
    assert (code, "did you mean" in text) == (grpc.StatusCode.NOT_FOUND, True)
    # Back to the first by name.
    assert (await client.put("m", live="v1")).live_version == "v1"
    assert await answer(client) == 1
    code, _ = await refused(client.put("m", live="v9"))
    assert code is grpc.StatusCode.NOT_FOUND
    name = f"{client.name('m')}/versions/"
    code, _ = await refused(client.models.DeleteModelVersion(pb.DeleteModelVersionRequest(name=f"{name}v1")))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    await client.models.DeleteModelVersion(pb.DeleteModelVersionRequest(name=f"{name}v3"))
    assert list(await client.versions("m")) == ["v2", "v1"]


async def test_a_version_with_other_tensors_takes_the_traffic_only_where_that_is_allowed(
    serving: Running, deployer: Deployer
) -> None:
    client, files = serving.client(), deployer.client()
    await client.put("m")
    await client.create("m", "v1", await files.upload(scale(1.0)))
    wider = await files.upload(scale(2.0, width=5))
    for validate_only in (True, False):
        code, text = await refused(client.create("m", "v2", wider, validate_only=validate_only))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "input 'x' was FP32[batch, 4] and is FP32[batch, 5]" in text
        assert "--allow-other-signature" in text
    assert await answer(client) == 1
    assert list(await client.versions("m")) == ["v1"]
    await client.create("m", "v2", wider, allow_other_signature=True)
    assert (await client.get("m")).live_version == "v2"


async def test_a_file_is_checked_without_a_model(serving: Running, deployer: Deployer) -> None:
    client, files = serving.client(), deployer.client()
    checked = await client.create("none", "v1", await files.upload(scale(1.0)), validate_only=True)
    assert checked.message == "only checked"
    code, _ = await refused(client.create("none", "v1", await files.upload(b"junk"), validate_only=True))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    code, _ = await refused(client.create("none", "v1", await files.upload(scale(1.0))))
    assert code is grpc.StatusCode.NOT_FOUND
    code, _ = await refused(client.get("none"))
    assert code is grpc.StatusCode.NOT_FOUND


async def test_a_version_that_cant_be_loaded_changes_nothing(serving: Running, deployer: Deployer) -> None:
    client, files = serving.client(), deployer.client()
    await client.put("m")
    await client.create("m", "v1", await files.upload(scale(1.0)))
    junk = await files.upload(b"no model at all")
    code, text = await refused(client.create("m", "v2", junk))
    assert (code, "no ONNX model" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    code, _ = await refused(client.create("m", "v2", junk, pb.ModelVersion.PLATFORM_PLAN))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    code, text = await refused(client.create("m", "v2", junk, pb.ModelVersion.PLATFORM_UNSPECIFIED))
    assert (code, "PLATFORM_ONNX" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    theirs = await deployer.client("rival").upload(scale(9.0))
    code, _ = await refused(client.create("m", "v2", theirs))
    assert code is grpc.StatusCode.NOT_FOUND
    assert list(await client.versions("m")) == ["v1"]
    assert await answer(client) == 1
    # The name is free, and nothing of the tries stays on the disk.
    await client.create("m", "v2", await files.upload(scale(2.0)))
    assert await answer(client) == 2


async def test_a_repeated_request_gets_its_first_answer(serving: Running, deployer: Deployer) -> None:
    client = serving.client()
    blob = await deployer.client().upload(scale(1.0))
    other = await deployer.client().upload(scale(2.0))
    await client.put("m")
    first = await client.create("m", "v1", blob, request_id=REQUEST)
    assert await client.create("m", "v1", blob, request_id=REQUEST) == first
    code, _ = await refused(client.create("m", "v1", blob))
    assert code is grpc.StatusCode.ALREADY_EXISTS
    code, _ = await refused(client.create("m", "v1", other, request_id=REQUEST))
    assert code is grpc.StatusCode.ALREADY_EXISTS
    code, _ = await refused(client.create("m", "v2", blob, request_id="yes"))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_versions_are_bounded_by_their_number(
    tmp_path: Path, deployer: Deployer, to_deployer: Channel
) -> None:
    folder = tmp_path / "bounded"
    config = ServingServiceConfig(
        port=0, metrics_port=-1, data_dir=folder, identity_trust_dir=folder, max_versions=1
    )
    async with running_serving(folder, to_deployer, config=config) as serving:
        client = serving.client()
        blob = await deployer.client().upload(scale(1.0))
        await client.put("m")
        await client.create("m", "v1", blob)
        code, text = await refused(client.create("m", "v2", blob))
        assert (code, "has 1 versions" in text) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
        await client.put("n")
        await client.create("n", "v1", blob)


async def test_a_check_changes_nothing(serving: Running, deployer: Deployer) -> None:
    client = serving.client()
    await client.put("m", validate_only=True)
    code, _ = await refused(client.get("m"))
    assert code is grpc.StatusCode.NOT_FOUND
    await client.put("m")
    await client.create("m", "v1", await deployer.client().upload(scale(1.0)), validate_only=True)
    assert await client.versions("m") == {}
    assert (await client.get("m")).live_version == ""


async def test_etags_and_ranges_are_checked(serving: Running) -> None:
    client = serving.client()
    made = await client.put("m")
    assert (made.config.max_batch_rows, made.config.queue_capacity) == (64, 1024)
    changed = await client.put("m", pb.ServingConfig(max_batch_rows=8), etag=made.etag)
    assert changed.etag != made.etag
    code, _ = await refused(client.put("m", etag=made.etag))
    assert code is grpc.StatusCode.ABORTED
    code, text = await refused(client.put("m", pb.ServingConfig(max_batch_rows=5000)))
    assert (code, "config.max_batch_rows: 5000" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    negative = pb.ServingConfig()
    negative.max_batch_delay.seconds = -1
    code, text = await refused(client.put("m", negative))
    assert (code, "max_batch_delay" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert (await client.get("m")).config.max_batch_rows == 8


async def test_models_come_in_pages(serving: Running) -> None:
    client = serving.client()
    for index in range(5):
        await client.put(f"m{index}")
    await serving.client("rival").put("theirs")
    names, token = [], ""
    while True:
        request = pb.ListModelsRequest(parent=client.parent, page_size=2, page_token=token)
        page = await client.models.ListModels(request)
        names.extend(each.name for each in page.models)
        token = page.next_page_token
        if not token:
            break
    assert names == [client.name(f"m{index}") for index in range(5)]


async def test_no_request_fails_while_all_is_changed(serving: Running, deployer: Deployer) -> None:
    client, files = serving.client(), deployer.client()
    await client.put("m")
    await client.create("m", "v1", await files.upload(scale(1.0)))
    done, answers = asyncio.Event(), []

    async def ask() -> None:
        while not done.is_set():
            answers.append(await answer(client))

    async with asyncio.TaskGroup() as group:
        askers = [group.create_task(ask()) for _ in range(8)]
        for factor in range(2, 5):
            await client.create("m", f"v{factor}", await files.upload(scale(float(factor))))
            before = len(answers)
            await eventually(lambda before=before: len(answers) > before + 8)
            await client.put("m", pb.ServingConfig(max_batch_rows=factor, instance_count=factor))
            before = len(answers)
            await eventually(lambda before=before: len(answers) > before + 8)
        done.set()
    assert all(asker.done() for asker in askers)
    assert set(answers) == {1.0, 2.0, 3.0, 4.0}
    stats = (await client.oip.ModelStatistics(oip.ModelStatisticsRequest(name="m"))).model_stats
    assert all(each.inference_stats.fail.count == 0 for each in stats)
    # Versions that are gone don't stay in memory; what answers counts on over a new configuration.
    assert {each.version for each in stats} >= {"v3", "v4"}


async def test_a_model_can_be_unloaded_and_loaded(serving: Running, deployer: Deployer) -> None:
    client = serving.client()
    await client.put("m")
    code, _ = await refused(client.oip.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name="m")))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    await client.create("m", "v1", await deployer.client().upload(scale(1.0)))
    await client.oip.RepositoryModelUnload(oip.RepositoryModelUnloadRequest(model_name="m"))
    assert not (await client.oip.ModelReady(oip.ModelReadyRequest(name="m"))).ready
    assert (await client.get("m")).unloaded
    code, text = await refused(answer(client))
    assert (code, "doesn't answer" in text) == (grpc.StatusCode.UNAVAILABLE, True)
    await client.oip.RepositoryModelLoad(oip.RepositoryModelLoadRequest(model_name="m"))
    assert await answer(client) == 1
    request = oip.RepositoryModelLoadRequest(model_name="m")
    request.parameters["config"].string_param = "{}"
    code, text = await refused(client.oip.RepositoryModelLoad(request))
    assert (code, "'config' isn't taken" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


async def test_deleting_lets_go_of_everything(serving: Running, deployer: Deployer, tmp_path: Path) -> None:
    client = serving.client()
    content = scale(1.0)
    blob = await deployer.client().upload(content)
    await client.put("m")
    await client.create("m", "v1", blob)
    file = tmp_path / "serving" / "models" / hashlib.sha256(content).hexdigest()
    assert file.exists()
    assert (await pins(deployer, blob.digest)) == 1
    await client.models.DeleteModel(pb.DeleteModelRequest(name=client.name("m")))
    assert not file.exists()
    assert (await pins(deployer, blob.digest)) == 0
    code, _ = await refused(client.get("m"))
    assert code is grpc.StatusCode.NOT_FOUND
    code, text = await refused(answer(client))
    assert (code, "there is no model 'm'" in text) == (grpc.StatusCode.NOT_FOUND, True)
    assert (
        serving.metrics.get_sample_value(
            "isthmus_serving_version_ready", {"tenant": "acme", "model": "m", "version": "v1"}
        )
        is None
    )


async def pins(deployer: Deployer, digest: str) -> int:
    record = await deployer.deployer.blobs.stat("acme", digest)
    return record.pin_count


async def test_a_start_brings_back_what_was_served(
    tmp_path: Path, deployer: Deployer, to_deployer: Channel
) -> None:
    folder = tmp_path / "again"
    async with running_serving(folder, to_deployer) as first:
        client = first.client()
        await client.put("m", pb.ServingConfig(max_batch_rows=7))
        for factor in (1, 2):
            blob = await deployer.client().upload(scale(float(factor)))
            await client.create("m", f"v{factor}", blob)
    (folder / "models" / "left-over").write_bytes(b"")
    damaged, *_ = (folder / "models").iterdir()
    damaged.write_bytes(b"damaged")
    async with running_serving(folder, to_deployer) as second:
        client = second.client()
        await eventually(lambda: second.serving.fleet.ready)
        assert await answer(client) == 2
        assert await answer(client, "v1") == 1
        assert (await client.get("m")).config.max_batch_rows == 7
        await eventually(lambda: len(list((folder / "models").iterdir())) == 2)
