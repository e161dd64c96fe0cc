"""The RPCs about devices, and those that devices call; as in `services.deployer.service`."""

# ruff: noqa: N802 - gRPC names the methods

from collections.abc import AsyncIterator

import grpc

from isthmus.deployer.v1 import (
    device_pb2,
    device_pb2_grpc,
    pull_pb2,
    pull_pb2_grpc,
    push_index_pb2,
    push_index_pb2_grpc,
)
from libs.common.identity import current_identity
from libs.common.names import DeviceName
from services.deployer import convert
from services.deployer.domain.feed import Feed
from services.deployer.domain.fleet import Fleet
from services.deployer.domain.pull import Pull
from services.deployer.service import Context, actor, own, own_tenant


def _device() -> DeviceName:
    """Return the device that calls."""
    return own(DeviceName.parse(current_identity().principal, "principal"))


class DeviceService(device_pb2_grpc.DeviceServiceServicer):
    """Devices, for people and programs."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        device_pb2_grpc.add_DeviceServiceServicer_to_server(self, server)

    async def CreateEnrolmentToken(
        self, request: device_pb2.CreateEnrolmentTokenRequest, context: Context
    ) -> device_pb2.CreateEnrolmentTokenResponse:
        """See the proto."""
        tenant, ttl = own_tenant(request.parent), convert.span(request.ttl, "ttl")
        token, expire_time = await self._fleet.create_token(
            tenant, dict(request.attributes), ttl, request.use_count, actor()
        )
        return device_pb2.CreateEnrolmentTokenResponse(
            token=token, expire_time=convert.timestamp(expire_time)
        )

    async def GetDevice(
        self, request: device_pb2.GetDeviceRequest, context: Context
    ) -> device_pb2.GetDeviceResponse:
        """See the proto."""
        view = await self._fleet.get(own(DeviceName.parse(request.name)))
        return device_pb2.GetDeviceResponse(device=convert.device(view))

    async def ListDevices(
        self, request: device_pb2.ListDevicesRequest, context: Context
    ) -> device_pb2.ListDevicesResponse:
        """See the proto."""
        tenant = own_tenant(request.parent)
        after, limit = convert.text_page(request.page_token, request.page_size, "device")
        views = await self._fleet.list(tenant, after, limit)
        page, token = convert.page(views, convert.device, limit, "device", lambda v: v.device.name.device)
        return device_pb2.ListDevicesResponse(devices=page, next_page_token=token)

    async def UpdateDevice(
        self, request: device_pb2.UpdateDeviceRequest, context: Context
    ) -> device_pb2.UpdateDeviceResponse:
        """See the proto."""
        name = own(DeviceName.parse(request.name))
        view = await self._fleet.update(name, dict(request.attributes), request.etag, actor())
        return device_pb2.UpdateDeviceResponse(device=convert.device(view))

    async def RevokeDevice(
        self, request: device_pb2.RevokeDeviceRequest, context: Context
    ) -> device_pb2.RevokeDeviceResponse:
        """See the proto."""
        view = await self._fleet.revoke(own(DeviceName.parse(request.name)), actor())
        return device_pb2.RevokeDeviceResponse(device=convert.device(view))


class EnrolmentService(device_pb2_grpc.EnrolmentServiceServicer):
    """How a device gets its credential."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        device_pb2_grpc.add_EnrolmentServiceServicer_to_server(self, server)

    async def Enrol(self, request: device_pb2.EnrolRequest, context: Context) -> device_pb2.EnrolResponse:
        """See the proto."""
        enrolled = await self._fleet.enrol(convert.enrolment(request))
        return device_pb2.EnrolResponse(
            device=str(enrolled.device),
            credential=enrolled.credential,
            expire_time=convert.timestamp(enrolled.expire_time),
            root=convert.signed(enrolled.root),
        )

    async def RenewCredential(
        self, request: device_pb2.RenewCredentialRequest, context: Context
    ) -> device_pb2.RenewCredentialResponse:
        """See the proto."""
        credential, expire_time = await self._fleet.renew(_device())
        return device_pb2.RenewCredentialResponse(
            credential=credential, expire_time=convert.timestamp(expire_time)
        )


class PullService(pull_pb2_grpc.PullServiceServicer):
    """The pull half of push-then-pull."""

    def __init__(self, pull: Pull) -> None:
        self._pull = pull

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        pull_pb2_grpc.add_PullServiceServicer_to_server(self, server)

    async def Plan(self, request: pull_pb2.PlanRequest, context: Context) -> pull_pb2.PlanResponse:
        """See the proto."""
        return convert.plan(await self._pull.plan(_device(), convert.wish(request)))

    async def Report(self, request: pull_pb2.ReportRequest, context: Context) -> pull_pb2.ReportResponse:
        """See the proto."""
        reports = [convert.stage_report(report, index) for index, report in enumerate(request.reports)]
        await self._pull.report(_device(), reports, list(request.profile))
        return pull_pb2.ReportResponse()


class PushIndexService(push_index_pb2_grpc.PushIndexServiceServicer):
    """Feeds the gateways."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        push_index_pb2_grpc.add_PushIndexServiceServicer_to_server(self, server)

    async def Watch(
        self, request: push_index_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[push_index_pb2.WatchResponse]:
        """See the proto."""
        async for batch in self._feed.watch(request.revision):
            yield convert.batch(batch)
