"""`isthmus audit`: who did what, when."""

from __future__ import annotations

from datetime import UTC

import click

from isthmus.deployer.v1 import audit_pb2, audit_pb2_grpc
from libs.cli.main import Group
from libs.cli.output import human_time
from libs.cli.session import Session, with_session


@click.group(cls=Group)
def audit() -> None:
    """Who did what, when."""


@audit.command("list")
@click.option("--resource", default="", help="Only entries of this resource name.")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@with_session
def list_(session: Session, resource: str, limit: int | None) -> None:
    """List entries, newest first."""
    request = audit_pb2.ListAuditEntriesRequest(parent=str(session.tenant), resource=resource)
    stub = audit_pb2_grpc.AuditServiceStub(session.channel)
    found = [each for page in session.pages(stub.ListAuditEntries, request, limit) for each in page.entries]
    session.output.messages(
        found,
        ("WHEN", "WHO", "WHAT", "TO WHAT", "DETAIL"),
        (
            (human_time(e.event_time.ToDatetime(tzinfo=UTC)), e.actor, e.action, e.resource, e.detail)
            for e in found
        ),
    )
