"""Nobody gets at what isn't theirs: other tenants, wrong kinds of callers, too few scopes."""

from collections.abc import Awaitable, Callable

import grpc
import pytest

from isthmus.deployer.v1 import (
    audit_pb2,
    blob_pb2,
    blob_pb2_grpc,
    device_pb2,
    manifest_pb2,
    pull_pb2,
    push_index_pb2,
    release_pb2,
    task_pb2,
    trust_service_pb2,
)
from libs.common.errors import Forbidden, NotFound, Unauthenticated
from libs.common.identity import Identity
from services.deployer.testing import Client, Running, SimulatedDevice, index_stub, refused, user

TENANT = "tenants/acme"
TASK = f"{TENANT}/tasks/genres"
VERSION = f"{TASK}/versions/1.0.0"
DIGEST = "sha256:" + "0" * 64

CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "CreateTask": lambda c: c.tasks.CreateTask(task_pb2.CreateTaskRequest(parent=TENANT, task_id="new")),
    "GetTask": lambda c: c.tasks.GetTask(task_pb2.GetTaskRequest(name=TASK)),
    "ListTasks": lambda c: c.tasks.ListTasks(task_pb2.ListTasksRequest(parent=TENANT)),
    "PublishVersion": lambda c: c.tasks.PublishVersion(task_pb2.PublishVersionRequest(parent=TASK)),
    "GetVersion": lambda c: c.tasks.GetVersion(task_pb2.GetVersionRequest(name=VERSION)),
    "ListVersions": lambda c: c.tasks.ListVersions(task_pb2.ListVersionsRequest(parent=TASK)),
    "InstallRoot": lambda c: c.trust.InstallRoot(trust_service_pb2.InstallRootRequest(parent=TENANT)),
    "ListRoots": lambda c: c.trust.ListRoots(trust_service_pb2.ListRootsRequest(parent=TENANT)),
    "CreateEnrolmentToken": lambda c: c.devices.CreateEnrolmentToken(
        device_pb2.CreateEnrolmentTokenRequest(parent=TENANT)
    ),
    "GetDevice": lambda c: c.devices.GetDevice(device_pb2.GetDeviceRequest(name=f"{TENANT}/devices/d1")),
    "ListDevices": lambda c: c.devices.ListDevices(device_pb2.ListDevicesRequest(parent=TENANT)),
    "UpdateDevice": lambda c: c.devices.UpdateDevice(
        device_pb2.UpdateDeviceRequest(name=f"{TENANT}/devices/d1")
    ),
    "RevokeDevice": lambda c: c.devices.RevokeDevice(
        device_pb2.RevokeDeviceRequest(name=f"{TENANT}/devices/d1")
    ),
    "CreateRelease": lambda c: c.releases.CreateRelease(
        release_pb2.CreateReleaseRequest(parent=TENANT, version=VERSION)
    ),
    "GetRelease": lambda c: c.releases.GetRelease(
        release_pb2.GetReleaseRequest(name=f"{TENANT}/releases/r1")
    ),
    "ListReleases": lambda c: c.releases.ListReleases(release_pb2.ListReleasesRequest(parent=TENANT)),
    "WatchRelease": lambda c: c.releases.WatchRelease(
        release_pb2.WatchReleaseRequest(name=f"{TENANT}/releases/r1")
    ).read(),
    "PauseRelease": lambda c: c.releases.PauseRelease(
        release_pb2.PauseReleaseRequest(name=f"{TENANT}/releases/r1")
    ),
    "ResumeRelease": lambda c: c.releases.ResumeRelease(
        release_pb2.ResumeReleaseRequest(name=f"{TENANT}/releases/r1")
    ),
    "RollBackRelease": lambda c: c.releases.RollBackRelease(
        release_pb2.RollBackReleaseRequest(name=f"{TENANT}/releases/r1")
    ),
    "ListAuditEntries": lambda c: c.audit.ListAuditEntries(audit_pb2.ListAuditEntriesRequest(parent=TENANT)),
}
BLOB_CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "BeginBlob": lambda c: c.blobs.BeginBlob(
        blob_pb2.BeginBlobRequest(blob=manifest_pb2.BlobRef(digest=DIGEST, size_bytes=1))
    ),
    "WriteBlob": lambda c: c.blobs.WriteBlob(blob_pb2.WriteBlobRequest(upload_id="x")),
    "CommitBlob": lambda c: c.blobs.CommitBlob(blob_pb2.CommitBlobRequest(upload_id="x")),
    "StatBlob": lambda c: c.blobs.StatBlob(blob_pb2.StatBlobRequest(digest=DIGEST)),
    "ReadBlob": lambda c: c.read(DIGEST),  # type: ignore[dict-item]
}
FOR_DEVICES = {"StatBlob", "ReadBlob", "ListRoots"}


@pytest.fixture
async def device(client: Client) -> SimulatedDevice:
    """A device of the tenant, with a version released to it as r1."""
    await client.publish()
    made = await client.enrol("d1")
    await client.release(release_id="r1")
    return made


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_another_tenants_things_are_not_found(
    running: Running, device: SimulatedDevice, call: Callable[[Client], Awaitable[object]]
) -> None:
    with refused(NotFound):
        await call(running.client("other"))


@pytest.mark.parametrize(("name", "call"), (CALLS | BLOB_CALLS).items(), ids=CALLS | BLOB_CALLS)
async def test_devices_and_those_without_the_scope_may_not(
    running: Running, device: SimulatedDevice, name: str, call: Callable[[Client], Awaitable[object]]
) -> None:
    acting_as = running.channel.acting_as
    with refused(Forbidden, reason="MISSING_SCOPE"):
        await call(Client(acting_as, "acme", user("acme", "keys:read")))
    with refused(Unauthenticated):
        await call(Client(lambda _: acting_as(None), "acme"))
    if name not in FOR_DEVICES:
        with refused(Forbidden, reason="WRONG_KIND"):
            await call(Client(acting_as, "acme", device.identity))


async def test_devices_read_blobs_and_roots_of_their_own_tenant(
    running: Running, client: Client, device: SimulatedDevice
) -> None:
    ref = await client.upload(b"model")
    mine = Client(running.channel.acting_as, "acme", device.identity)
    assert await mine.read(ref.digest) == b"model"
    await mine.trust.ListRoots(trust_service_pb2.ListRootsRequest(parent=TENANT))
    with refused(NotFound):
        await mine.trust.ListRoots(trust_service_pb2.ListRootsRequest(parent="tenants/other"))
    foreign = Identity("other", "tenants/other/devices/d1", "device", frozenset(), "gateway")
    with refused(NotFound):
        await Client(running.channel.acting_as, "other", foreign).read(ref.digest)


async def test_users_and_devices_pin_nothing(running: Running, device: SimulatedDevice) -> None:
    for identity in (user(), device.identity):
        stub = blob_pb2_grpc.BlobServiceStub(running.channel.acting_as(identity))
        with refused(Forbidden, reason="WRONG_KIND"):
            await stub.PinBlob(blob_pb2.PinBlobRequest(digest=DIGEST, resource=f"{TENANT}/jobs/train"))
        with refused(Forbidden, reason="WRONG_KIND"):
            await stub.UnpinBlobs(blob_pb2.UnpinBlobsRequest(resource=f"{TENANT}/jobs/train"))


async def test_only_devices_pull_and_only_as_themselves(running: Running, device: SimulatedDevice) -> None:
    request = pull_pb2.PlanRequest(agent_version="0.1.0", python_version="3.11")
    stub = type(device.pull)
    with refused(Forbidden, reason="WRONG_KIND"):
        await stub(running.channel.acting_as(user())).Plan(request)
    crossed = Identity("other", device.name, "device", frozenset(), "gateway")
    with refused(NotFound):
        await stub(running.channel.acting_as(crossed)).Plan(request)


async def test_only_a_gateway_follows_the_push_index(running: Running) -> None:
    for identity in (
        user(),
        Identity("acme", f"{TENANT}/devices/d1", "device", frozenset(), "gateway"),
    ):
        stub = type(index_stub(running.channel.acting_as))(running.channel.acting_as(identity))
        with refused(Forbidden):
            await stub.Watch(push_index_pb2.WatchRequest()).read()


async def test_an_unknown_method_is_unimplemented(running: Running) -> None:
    call = running.channel.acting_as(user()).unary_unary("/isthmus.deployer.v1.TaskService/GetTusk")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "GetTask" in (caught.value.details() or "")
