"""What follows a release and the tunnel goes on where the gateway or the service behind it was away."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from isthmus.deployer.v1 import device_pb2, device_pb2_grpc, release_pb2, release_pb2_grpc
from isthmus.tunnel.v1 import tunnel_pb2, tunnel_pb2_grpc
from libs.cli import following
from libs.cli.testing import FakeCloud
from tests.unit.libs.cli.groups.conftest import Isthmus

State = release_pb2.Release
BROKEN = [
    (grpc.StatusCode.UNKNOWN, "Stream removed (Socket closed)"),
    (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
    (grpc.StatusCode.CANCELLED, "CANCELLED"),
    (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
]
Cut = tuple[grpc.StatusCode, str]
REACHED = (
    grpc.StatusCode.UNAVAILABLE,
    "the service 'deployer' can't be reached; it may be restarting: try again",
)
QUIET = grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"


class Cloud:
    """What the streams bring, one list each; a cut ends one with its status."""

    def __init__(self) -> None:
        self.streams: deque[list[Any]] = deque()
        self.devices: list[device_pb2.Device] = []
        self.more = ""
        self.may_list = True
        self.positions: list[str] = []

    def play(self, context: grpc.ServicerContext) -> Iterator[Any]:
        for each in self.streams.popleft():
            if isinstance(each, tuple):
                context.abort(*each)
            else:
                yield each


class Releases(release_pb2_grpc.ReleaseServiceServicer):
    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud

    def CreateRelease(self, request: Any, context: Any) -> Any:  # noqa: N802
        return release_pb2.CreateReleaseResponse(release=made(State.STATE_RUNNING))

    def GetRelease(self, request: Any, context: Any) -> Any:  # noqa: N802
        return release_pb2.GetReleaseResponse(release=made(State.STATE_RUNNING))

    def WatchRelease(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        for each in self.cloud.play(context):
            yield release_pb2.WatchReleaseResponse(release=each)


class Devices(device_pb2_grpc.DeviceServiceServicer):
    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud

    def ListDevices(self, request: Any, context: Any) -> Any:  # noqa: N802
        if not self.cloud.may_list:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "needs devices:read")
        return device_pb2.ListDevicesResponse(devices=self.cloud.devices, next_page_token=self.cloud.more)


class Exports(tunnel_pb2_grpc.ExportServiceServicer):
    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud

    def Export(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self.cloud.positions.append(request.position)
        yield from self.cloud.play(context)


def made(state: release_pb2.Release.State.ValueType) -> release_pb2.Release:
    counts = release_pb2.Counts(targeted_count=2, confirmed_count=2 if state == State.STATE_SUCCEEDED else 1)
    version = "tenants/acme/tasks/clicks/versions/1.0.0"
    return release_pb2.Release(
        name="tenants/acme/releases/first", version=version, state=state, steps_percent=[100], counts=counts
    )


def device(name: str, seen_s: int, *, reported: bool = False, revoked: bool = False) -> device_pb2.Device:
    found = device_pb2.Device(name=f"tenants/acme/devices/{name}", wanted=["clicks@1.0.0"], revoked=revoked)
    found.last_seen_time.FromSeconds(seen_s)
    if reported:
        found.reported.append("clicks@1.0.0")
    return found


@pytest.fixture
def served(cloud: FakeCloud, isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setattr(following, "_PAUSE_S", 0.01)
    found = Cloud()
    server = grpc.server(ThreadPoolExecutor(8))
    release_pb2_grpc.add_ReleaseServiceServicer_to_server(Releases(found), server)  # type: ignore[abstract]
    device_pb2_grpc.add_DeviceServiceServicer_to_server(Devices(found), server)  # type: ignore[abstract]
    tunnel_pb2_grpc.add_ExportServiceServicer_to_server(Exports(found), server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    monkeypatch.setenv("ISTHMUS_ADDRESS", target)
    server.start()
    try:
        yield found
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("cut", [*BROKEN, REACHED])
@pytest.mark.parametrize("command", [("watch", "first"), ("create", "clicks@1.0.0", "--watch")])
def test_watching_a_release_goes_on_after_a_restart(
    served: Cloud, isthmus: Isthmus, cut: Cut, command: tuple[str, ...]
) -> None:
    served.streams.extend(
        [[made(State.STATE_RUNNING), cut], [cut], [made(State.STATE_RUNNING)], [made(State.STATE_SUCCEEDED)]]
    )
    ran = isthmus("release", *command)
    assert ran.code == 0, ran.err
    assert ran.err.count("(waiting for it)") == 1
    assert ran.err.count("RUNNING") == 1
    if cut is REACHED:
        assert "the service 'deployer' can't be reached" in ran.err
    else:
        assert "the gateway at 127.0.0.1:" in ran.err
        assert cut[1] not in ran.err


@pytest.mark.parametrize("cut", BROKEN)
def test_a_broken_connection_is_said_in_our_words(served: Cloud, isthmus: Isthmus, cut: Cut) -> None:
    served.streams.append([cut])
    ran = isthmus("release", "watch", "first")
    assert ran.code == 5
    assert "went away" in ran.err
    assert cut[1] not in ran.err


def test_following_the_tunnel_loses_and_repeats_nothing(served: Cloud, isthmus: Isthmus) -> None:
    def page(number: int) -> tunnel_pb2.ExportResponse:
        frame = tunnel_pb2.Frame(stream="clicks/count", sequence=number)
        record = tunnel_pb2.Record(device="tenants/acme/devices/d", frame=frame)
        return tunnel_pb2.ExportResponse(records=[record], position=f"after-{number}")

    served.streams.extend([[page(1), page(2), BROKEN[0]], [REACHED], [page(3)], [page(4)]])
    ran = isthmus("tunnel", "export", "--follow", "--limit", "4")
    assert ran.code == 0, ran.err
    assert [f'"sequence": {number}' in line for number, line in enumerate(ran.lines, 1)] == [True] * 4
    assert served.positions == ["", "after-2", "after-2", "after-3"]


def test_a_release_says_for_whom_it_waits(served: Cloud, isthmus: Isthmus) -> None:
    served.devices = [
        device("dev1", 100),
        device("dev2", 200, reported=True),
        device("dev3", 50, revoked=True),
    ]
    quiet = [made(State.STATE_RUNNING), QUIET]
    served.streams.extend([quiet, quiet, [made(State.STATE_SUCCEEDED)]])
    waits = (
        "1 device: dev1, last seen 1970-01-01 00:01:40Z; revoke what won't come back "
        "(isthmus device revoke dev1) or use a policy"
    )
    ran = isthmus("release", "watch", "first")
    assert ran.code == 0, ran.err
    assert ran.err.count(f"waiting for {waits}") == 1
    assert f"waits for {waits}" in isthmus("release", "get", "first").lines


def test_of_many_devices_only_some_are_named(served: Cloud, isthmus: Isthmus) -> None:
    served.devices = [device(f"dev{number}", number) for number in range(1, 6)]
    said = isthmus("release", "get", "first").out
    assert "5 devices: dev1, " in said
    assert "and 2 more" in said
    served.more = "next"
    said = isthmus("release", "get", "first").out
    assert "1 device; `isthmus device list` says when each was last seen" in said


def test_who_may_not_see_devices_is_told_of_none(served: Cloud, isthmus: Isthmus) -> None:
    served.may_list = False
    ran = isthmus("release", "get", "first")
    assert ran.code == 0, ran.err
    assert "waits for" not in ran.out
