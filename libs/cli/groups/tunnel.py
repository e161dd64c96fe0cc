"""`isthmus tunnel`: what devices have sent."""

from __future__ import annotations

import base64
import json
from datetime import UTC
from pathlib import Path

import click

from isthmus.tunnel.v1 import tunnel_pb2, tunnel_pb2_grpc
from libs.cli.files import check_target, read_text
from libs.cli.following import resuming
from libs.cli.main import Group
from libs.cli.session import Session, with_session
from libs.common.fsio import write_atomic


@click.group(cls=Group)
def tunnel() -> None:
    """Read what devices have sent."""


@tunnel.command()
@click.option("--stream", default="", help='Only this stream, "<task>/<stream>", or this task\'s.')
@click.option("--device", default="", help="Only this device id.")
@click.option("--follow", is_flag=True, help="Go on waiting for more.")
@click.option("--limit", type=click.IntRange(1), help="End after so many.")
@click.option("--tombstones", is_flag=True, help="Show refused and dropped frames too.")
@click.option(
    "--position-file",
    type=click.Path(dir_okay=False),
    help="Start after the position in this file, and write the new one there.",
)
@with_session
def export(
    session: Session,
    stream: str,
    device: str,
    follow: bool,
    limit: int | None,
    tombstones: bool,
    position_file: str | None,
) -> None:
    """Print frames as JSON Lines."""
    if limit and position_file:
        raise click.UsageError("positions are known between pages only; give --limit or --position-file")
    path = Path(position_file) if position_file else None
    if path:
        check_target(path, "--position-file")
    request = tunnel_pb2.ExportRequest(
        parent=str(session.tenant),
        stream=stream,
        device=session.name("devices", device) if device else "",
        position=read_text(path, "--position-file").strip() if path and path.exists() else "",
        follow=follow,
        include_tombstones=tombstones,
    )
    stub = tunnel_pb2_grpc.ExportServiceStub(session.channel)
    count = 0
    timeout_s = None if follow else 3600
    pages = resuming(
        session, lambda: session.stream(stub.Export, request, timeout_s=timeout_s), endless=follow
    )
    for page in pages:
        for record in page.records:
            session.output.line(record_line(record))
            count += 1
            if count == limit:
                return
        # Where another stream goes on from, should this one break off.
        request.position = page.position
        if path:
            # After the lines are out: a kill in between repeats lines and never loses one.
            write_atomic(path.resolve(), page.position.encode() + b"\n")


def record_line(record: tunnel_pb2.Record) -> dict[str, object]:
    """Return what a line of the export says of a record; its payload decoded where it is JSON."""
    frame = record.frame
    value: dict[str, object] = {
        "device": record.device.rpartition("/")[2],
        "stream": frame.stream,
        "epoch": frame.epoch.hex(),
        "sequence": frame.sequence,
        "schema": frame.schema_id,
        # A tombstone may not know when what it stands for happened.
        "event_time": frame.event_time.ToDatetime(tzinfo=UTC).isoformat()
        if frame.HasField("event_time")
        else None,
        "receive_time": record.receive_time.ToDatetime(tzinfo=UTC).isoformat(),
    }
    if frame.tombstone_reason:
        value["tombstone"] = frame.tombstone_reason
    elif frame.codec == tunnel_pb2.Frame.CODEC_JSON:
        try:
            value["payload"] = json.loads(frame.payload)
        except ValueError:
            value["payload_base64"] = base64.b64encode(frame.payload).decode()
    else:
        value["payload_base64"] = base64.b64encode(frame.payload).decode()
    return value
