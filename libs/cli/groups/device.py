"""`isthmus device`: devices and enrolment tokens."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import click

from isthmus.deployer.v1 import device_pb2, device_pb2_grpc
from libs.cli.files import put_at
from libs.cli.main import Group
from libs.cli.output import human_time
from libs.cli.session import Session, with_session
from libs.cli.values import DURATION, parse_attributes


@click.group(cls=Group)
def device() -> None:
    """Devices of the tenant."""


def _show(session: Session, found: device_pb2.Device) -> None:
    session.output.message(
        found,
        [
            ("device", found.name),
            ("state", "revoked" if found.revoked else "enrolled"),
            ("attributes", " ".join(f"{k}={v}" for k, v in sorted(found.attributes.items())) or "-"),
            ("runs", " ".join(found.reported) or "-"),
            ("should run", " ".join(found.wanted) or "-"),
            ("last seen", human_time(found.last_seen_time.ToDatetime(tzinfo=UTC))),
            *(("failed", _failure(each)) for each in found.failures),
        ],
    )


def _failure(failure: device_pb2.VersionFailure) -> str:
    """Return what failed, why, when and under which release."""
    version = failure.version.split("/")
    when = human_time(failure.event_time.ToDatetime(tzinfo=UTC)) if failure.HasField("event_time") else "-"
    said = f": {' '.join(failure.message.split())}" if failure.message else ""
    release = failure.release.rpartition("/")[2]
    return f"{version[3]}@{version[5]} under {release}, {when}: {failure.reason}{said}"


@device.command()
@click.option(
    "--attribute", "attributes", multiple=True, help="KEY=VALUE that devices enrolled with it get; repeat."
)
@click.option("--ttl", type=DURATION, help="How long it works; default 24h.")
@click.option(
    "--uses", type=click.IntRange(1, 1_000_000), default=1, help="How many devices may enrol with it."
)
@click.option(
    "--out", type=click.Path(dir_okay=False), help="Write the token to this file (0600), don't print it."
)
@with_session
def token(
    session: Session, attributes: tuple[str, ...], ttl: float | None, uses: int, out: str | None
) -> None:
    """Make an enrolment token. It is shown once."""
    request = device_pb2.CreateEnrolmentTokenRequest(
        parent=str(session.tenant), attributes=parse_attributes(attributes), use_count=uses
    )
    if ttl is not None:
        request.ttl.FromMicroseconds(round(ttl * 1e6))
    stub = device_pb2_grpc.DeviceServiceStub(session.channel)
    if out:
        with put_at(Path(out), "--out") as file:
            made = session.call(stub.CreateEnrolmentToken, request)
            file.write(made.token.encode() + b"\n")
        made.token = ""
    else:
        made = session.call(stub.CreateEnrolmentToken, request)
    session.output.message(
        made,
        [
            ("token", f"in {out}" if out else f"{made.token}   (shown once)"),
            ("enrols", "one device" if uses == 1 else f"{uses:,} devices"),
            ("works until", human_time(made.expire_time.ToDatetime(tzinfo=UTC))),
        ],
    )


@device.command("list")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@with_session
def list_(session: Session, limit: int | None) -> None:
    """List the tenant's devices."""
    stub = device_pb2_grpc.DeviceServiceStub(session.channel)
    pages = session.pages(stub.ListDevices, device_pb2.ListDevicesRequest(parent=str(session.tenant)), limit)
    found = [each for page in pages for each in page.devices]
    session.output.messages(
        found,
        ("DEVICE", "STATE", "RUNS", "SHOULD RUN", "LAST SEEN"),
        (
            (
                each.name.rpartition("/")[2],
                "revoked" if each.revoked else "enrolled",
                " ".join(each.reported) or "-",
                " ".join(each.wanted) or "-",
                human_time(each.last_seen_time.ToDatetime(tzinfo=UTC)),
            )
            for each in found
        ),
    )


@device.command()
@click.argument("device_id")
@with_session
def get(session: Session, device_id: str) -> None:
    """Show the device DEVICE_ID."""
    stub = device_pb2_grpc.DeviceServiceStub(session.channel)
    name = session.name("devices", device_id)
    _show(session, session.call(stub.GetDevice, device_pb2.GetDeviceRequest(name=name)).device)


@device.command("set")
@click.argument("device_id")
@click.argument("attributes", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--etag", default="", help="Only if nobody wrote since this etag was read.")
@with_session
def set_(session: Session, device_id: str, attributes: tuple[str, ...], etag: str) -> None:
    """Replace the attributes of DEVICE_ID."""
    stub = device_pb2_grpc.DeviceServiceStub(session.channel)
    request = device_pb2.UpdateDeviceRequest(
        name=session.name("devices", device_id), attributes=parse_attributes(attributes), etag=etag
    )
    _show(session, session.call(stub.UpdateDevice, request).device)


@device.command()
@click.argument("device_id")
@with_session
def revoke(session: Session, device_id: str) -> None:
    """Revoke DEVICE_ID: its credential stops working at once."""
    stub = device_pb2_grpc.DeviceServiceStub(session.channel)
    request = device_pb2.RevokeDeviceRequest(name=session.name("devices", device_id))
    _show(session, session.call(stub.RevokeDevice, request).device)
