"""The RPCs: each converts, calls the domain once, and converts back. Every name is the caller's tenant's.

Those about devices are in `services.deployer.service_devices`.
"""

# ruff: noqa: N802 - gRPC names the methods

from collections.abc import AsyncIterator
from typing import Any, TypeAlias, TypeVar

import grpc

from isthmus.deployer.v1 import (
    audit_pb2,
    audit_pb2_grpc,
    blob_pb2,
    blob_pb2_grpc,
    release_pb2,
    release_pb2_grpc,
    task_pb2,
    task_pb2_grpc,
    trust_service_pb2,
    trust_service_pb2_grpc,
)
from isthmus.trust.v1 import trust_pb2
from libs.common.access import require_tenant
from libs.common.identity import current_identity
from libs.common.names import DeviceName, ReleaseName, TaskName, TenantName, VersionName
from services.deployer import convert, convert_tasks
from services.deployer.domain.audit import Audit
from services.deployer.domain.blobs import Blobs
from services.deployer.domain.catalogue import Catalogue
from services.deployer.domain.releases import Releases
from services.deployer.domain.trust import Roots

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Name = TypeVar("Name", TaskName, VersionName, ReleaseName, DeviceName)


def own(name: Name) -> Name:
    """Return `name` if it is the caller's tenant's; raise NotFound otherwise."""
    require_tenant(current_identity(), name.tenant)
    return name


def own_tenant(parent: str) -> str:
    """Return the tenant of `parent` if it is the caller's; raise NotFound otherwise."""
    tenant = convert.tenant_of(parent)
    require_tenant(current_identity(), tenant)
    return tenant


def caller_tenant() -> str:
    """Return the tenant whose blobs the call is about: the caller's, or the one that a service acts for."""
    identity = current_identity()
    if identity.kind != "service":
        return identity.tenant
    return TenantName.parse("/".join(identity.on_behalf_of.split("/")[:2]), "on_behalf_of").tenant


def actor() -> str:
    """Return who calls, for the audit."""
    return current_identity().principal


class TaskService(task_pb2_grpc.TaskServiceServicer):
    """Tasks and versions."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        task_pb2_grpc.add_TaskServiceServicer_to_server(self, server)

    async def CreateTask(
        self, request: task_pb2.CreateTaskRequest, context: Context
    ) -> task_pb2.CreateTaskResponse:
        """See the proto."""
        new = convert_tasks.new_task(request)
        own(new.name)
        task = await self._catalogue.create_task(new, actor())
        return task_pb2.CreateTaskResponse(task=convert_tasks.task(task))

    async def GetTask(self, request: task_pb2.GetTaskRequest, context: Context) -> task_pb2.GetTaskResponse:
        """See the proto."""
        task = await self._catalogue.get_task(own(TaskName.parse(request.name)))
        return task_pb2.GetTaskResponse(task=convert_tasks.task(task))

    async def ListTasks(
        self, request: task_pb2.ListTasksRequest, context: Context
    ) -> task_pb2.ListTasksResponse:
        """See the proto."""
        tenant = own_tenant(request.parent)
        after, limit = convert.text_page(request.page_token, request.page_size, "task")
        tasks = await self._catalogue.list_tasks(tenant, after, limit)
        page, token = convert.page(tasks, convert_tasks.task, limit, "task", lambda t: t.name.task)
        return task_pb2.ListTasksResponse(tasks=page, next_page_token=token)

    async def PublishVersion(
        self, request: task_pb2.PublishVersionRequest, context: Context
    ) -> task_pb2.PublishVersionResponse:
        """See the proto."""
        new = convert_tasks.publication(request)
        own(new.task)
        version = await self._catalogue.publish(new, actor())
        return task_pb2.PublishVersionResponse(version=convert_tasks.version(version))

    async def GetVersion(
        self, request: task_pb2.GetVersionRequest, context: Context
    ) -> task_pb2.GetVersionResponse:
        """See the proto."""
        version = await self._catalogue.get_version(own(VersionName.parse(request.name)))
        return task_pb2.GetVersionResponse(version=convert_tasks.version(version))

    async def ListVersions(
        self, request: task_pb2.ListVersionsRequest, context: Context
    ) -> task_pb2.ListVersionsResponse:
        """See the proto."""
        parent = own(TaskName.parse(request.parent, "parent"))
        before, limit = convert.number_page(request.page_token, request.page_size, "version")
        versions = await self._catalogue.list_versions(parent, before, limit)
        page, token = convert.page(versions, convert_tasks.version, limit, "version", lambda v: v.sequence)
        return task_pb2.ListVersionsResponse(versions=page, next_page_token=token)


class BlobService(blob_pb2_grpc.BlobServiceServicer):
    """Content-addressed storage."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        blob_pb2_grpc.add_BlobServiceServicer_to_server(self, server)

    async def BeginBlob(
        self, request: blob_pb2.BeginBlobRequest, context: Context
    ) -> blob_pb2.BeginBlobResponse:
        """See the proto."""
        upload = await self._blobs.begin(caller_tenant(), convert.blob_ref(request.blob))
        return blob_pb2.BeginBlobResponse(
            upload_id=upload.upload_id, offset_bytes=upload.offset_bytes, committed=upload.committed
        )

    async def WriteBlob(
        self, request: blob_pb2.WriteBlobRequest, context: Context
    ) -> blob_pb2.WriteBlobResponse:
        """See the proto."""
        offset = await self._blobs.write(
            caller_tenant(), request.upload_id, request.offset_bytes, request.data
        )
        return blob_pb2.WriteBlobResponse(offset_bytes=offset)

    async def CommitBlob(
        self, request: blob_pb2.CommitBlobRequest, context: Context
    ) -> blob_pb2.CommitBlobResponse:
        """See the proto."""
        blob = await self._blobs.commit(caller_tenant(), request.upload_id)
        return blob_pb2.CommitBlobResponse(blob=convert.blob(blob))

    async def StatBlob(
        self, request: blob_pb2.StatBlobRequest, context: Context
    ) -> blob_pb2.StatBlobResponse:
        """See the proto."""
        return convert.stat(await self._blobs.stat(caller_tenant(), request.digest))

    async def ReadBlob(
        self, request: blob_pb2.ReadBlobRequest, context: Context
    ) -> AsyncIterator[blob_pb2.ReadBlobResponse]:
        """See the proto."""
        first = True
        tenant = caller_tenant()
        async for data, size in self._blobs.read(
            tenant, request.digest, request.offset_bytes, request.length_bytes
        ):
            yield blob_pb2.ReadBlobResponse(data=data, size_bytes=size if first else 0)
            first = False

    async def PinBlob(self, request: blob_pb2.PinBlobRequest, context: Context) -> blob_pb2.PinBlobResponse:
        """See the proto."""
        count = await self._blobs.pin(caller_tenant(), actor(), request.resource, request.digest)
        return blob_pb2.PinBlobResponse(pin_count=count)

    async def UnpinBlobs(
        self, request: blob_pb2.UnpinBlobsRequest, context: Context
    ) -> blob_pb2.UnpinBlobsResponse:
        """See the proto."""
        count = await self._blobs.unpin(caller_tenant(), actor(), request.resource)
        return blob_pb2.UnpinBlobsResponse(pin_count=count)


class TrustService(trust_service_pb2_grpc.TrustServiceServicer):
    """Trust roots."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        trust_service_pb2_grpc.add_TrustServiceServicer_to_server(self, server)

    async def GetDeployerKeys(
        self, request: trust_service_pb2.GetDeployerKeysRequest, context: Context
    ) -> trust_service_pb2.GetDeployerKeysResponse:
        """See the proto."""
        return trust_service_pb2.GetDeployerKeysResponse(
            keys=[
                trust_pb2.Key(key_id=key.key_id, public_key=key.public_key)
                for key in self._roots.deployer_keys()
            ]
        )

    async def InstallRoot(
        self, request: trust_service_pb2.InstallRootRequest, context: Context
    ) -> trust_service_pb2.InstallRootResponse:
        """See the proto."""
        tenant = own_tenant(request.parent)
        version = await self._roots.install(tenant, convert.signed_bytes(request.root), actor())
        return trust_service_pb2.InstallRootResponse(version=version)

    async def ListRoots(
        self, request: trust_service_pb2.ListRootsRequest, context: Context
    ) -> trust_service_pb2.ListRootsResponse:
        """See the proto."""
        tenant = own_tenant(request.parent)
        first, limit = convert.number_page(request.page_token, request.page_size, "root")
        roots = await self._roots.list(tenant, first or convert.number(request.first_version), limit)
        page, token = convert.page(
            roots, lambda root: convert.signed(root.signed), limit, "root", lambda root: root.version + 1
        )
        return trust_service_pb2.ListRootsResponse(roots=page, next_page_token=token)


class ReleaseService(release_pb2_grpc.ReleaseServiceServicer):
    """Staged releases."""

    def __init__(self, releases: Releases) -> None:
        self._releases = releases

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        release_pb2_grpc.add_ReleaseServiceServicer_to_server(self, server)

    async def CreateRelease(
        self, request: release_pb2.CreateReleaseRequest, context: Context
    ) -> release_pb2.CreateReleaseResponse:
        """See the proto."""
        own_tenant(request.parent)
        view = await self._releases.create(
            convert.new_release(request), actor(), validate_only=request.validate_only
        )
        return release_pb2.CreateReleaseResponse(release=convert.release(view))

    async def GetRelease(
        self, request: release_pb2.GetReleaseRequest, context: Context
    ) -> release_pb2.GetReleaseResponse:
        """See the proto."""
        view = await self._releases.get(own(ReleaseName.parse(request.name)))
        return release_pb2.GetReleaseResponse(release=convert.release(view))

    async def ListReleases(
        self, request: release_pb2.ListReleasesRequest, context: Context
    ) -> release_pb2.ListReleasesResponse:
        """See the proto."""
        tenant = own_tenant(request.parent)
        before, limit = convert.number_page(request.page_token, request.page_size, "release")
        views = await self._releases.list(tenant, before, limit)
        page, token = convert.page(views, convert.release, limit, "release", lambda v: v.release.sequence)
        return release_pb2.ListReleasesResponse(releases=page, next_page_token=token)

    async def WatchRelease(
        self, request: release_pb2.WatchReleaseRequest, context: Context
    ) -> AsyncIterator[release_pb2.WatchReleaseResponse]:
        """See the proto."""
        async for view in self._releases.watch(own(ReleaseName.parse(request.name))):
            yield release_pb2.WatchReleaseResponse(release=convert.release(view))

    async def PauseRelease(
        self, request: release_pb2.PauseReleaseRequest, context: Context
    ) -> release_pb2.PauseReleaseResponse:
        """See the proto."""
        name = own(ReleaseName.parse(request.name))
        view = await self._releases.pause(name, request.reason, request.etag, actor())
        return release_pb2.PauseReleaseResponse(release=convert.release(view))

    async def ResumeRelease(
        self, request: release_pb2.ResumeReleaseRequest, context: Context
    ) -> release_pb2.ResumeReleaseResponse:
        """See the proto."""
        name = own(ReleaseName.parse(request.name))
        view = await self._releases.resume(name, request.etag, actor())
        return release_pb2.ResumeReleaseResponse(release=convert.release(view))

    async def RollBackRelease(
        self, request: release_pb2.RollBackReleaseRequest, context: Context
    ) -> release_pb2.RollBackReleaseResponse:
        """See the proto."""
        name = own(ReleaseName.parse(request.name))
        view = await self._releases.roll_back(name, request.reason, request.etag, actor())
        return release_pb2.RollBackReleaseResponse(release=convert.release(view))


class AuditService(audit_pb2_grpc.AuditServiceServicer):
    """Who did what."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        audit_pb2_grpc.add_AuditServiceServicer_to_server(self, server)

    async def ListAuditEntries(
        self, request: audit_pb2.ListAuditEntriesRequest, context: Context
    ) -> audit_pb2.ListAuditEntriesResponse:
        """See the proto."""
        tenant = own_tenant(request.parent)
        before, limit = convert.number_page(request.page_token, request.page_size, "audit")
        entries = await self._audit.list(tenant, request.resource, before, limit)
        page, token = convert.page(entries, convert.audit_entry, limit, "audit", lambda e: e.sequence)
        return audit_pb2.ListAuditEntriesResponse(entries=page, next_page_token=token)
