"""Which devices a release waits for."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

from isthmus.deployer.v1 import device_pb2, device_pb2_grpc, release_pb2
from libs.cli.output import human_time
from libs.common.errors import Forbidden
from libs.common.names import VersionName

if TYPE_CHECKING:
    from libs.cli.session import Session

_DEVICES_MAX = 100
_NAMED_MAX = 3


def absent_devices(session: Session, release: release_pb2.Release) -> str:
    """Return whom a running release waits for, when each was last seen and what can be done; "" for nobody.

    It is found in the list of devices: those that should run the version and haven't reported that they do.
    Where there are more than 100 devices it only says where to look.

    Raises:
        Error: when they can't be asked for; none when the API key may not.
    """
    counts = release.counts
    open_count = counts.targeted_count - counts.confirmed_count - counts.failed_count
    if release.state != release_pb2.Release.STATE_RUNNING or open_count <= 0:
        return ""
    request = device_pb2.ListDevicesRequest(parent=str(session.tenant), page_size=_DEVICES_MAX)
    try:
        page = session.call(device_pb2_grpc.DeviceServiceStub(session.channel).ListDevices, request)
    except Forbidden:
        return ""
    if page.next_page_token:
        return f"{_count(open_count)}; `isthmus device list` says when each was last seen"
    version = VersionName.parse(release.version)
    entry = f"{version.task}@{version.version}"
    found = [
        each
        for each in page.devices
        if not each.revoked and entry in each.wanted and entry not in each.reported
    ]
    if not found:
        return ""
    found.sort(key=lambda each: each.last_seen_time.ToNanoseconds())
    named = [
        f"{_id(each)}, last seen {human_time(each.last_seen_time.ToDatetime(tzinfo=UTC))}"
        for each in found[:_NAMED_MAX]
    ]
    if len(found) > _NAMED_MAX:
        named.append(f"and {len(found) - _NAMED_MAX} more")
    return (
        f"{_count(len(found))}: {'; '.join(named)}; revoke what won't come back "
        f"(isthmus device revoke {_id(found[0])}) or use a policy"
    )


def _id(device: device_pb2.Device) -> str:
    return device.name.rpartition("/")[2]


def _seen(device: device_pb2.Device) -> str:
    return human_time(device.last_seen_time.ToDatetime(tzinfo=UTC))


def _count(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"
