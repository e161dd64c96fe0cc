"""`isthmus key`: API keys of a tenant."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from isthmus.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from libs.cli.files import put_at
from libs.cli.main import Group
from libs.cli.output import human_time
from libs.cli.session import Session, with_session
from libs.cli.values import DURATION


@click.group(cls=Group)
def key() -> None:
    """Make, list and revoke API keys of the tenant."""


@key.command()
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    help='What it may do, such as "releases:write"; repeat.',
)
@click.option("--ttl", type=DURATION, help="How long it works, such as 30d; default: for ever.")
@click.option("--display-name", default="", help="For people.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False),
    help="Write the key to this new file (0600) instead of printing it.",
)
@with_session
def create(
    session: Session, scopes: tuple[str, ...], ttl: float | None, display_name: str, out: str | None
) -> None:
    """Make a key. Its secret is shown once."""
    request = gateway_pb2.CreateKeyRequest(
        parent=str(session.tenant), display_name=display_name, scopes=scopes
    )
    if ttl is not None:
        request.ttl.FromMicroseconds(round(ttl * 1e6))
    stub = gateway_pb2_grpc.KeyServiceStub(session.channel)
    if out:
        # Another key's file is never overwritten: its secret can't be had again.
        with put_at(Path(out), "--out", replace=False) as file:
            made = session.call(stub.CreateKey, request)
            file.write(made.secret.encode() + b"\n")
        made.secret = ""
    else:
        made = session.call(stub.CreateKey, request)
    session.output.message(
        made,
        [
            ("key", made.key.name),
            ("scopes", " ".join(made.key.scopes)),
            ("secret", f"in {out}" if out else f"{made.secret}   (shown once)"),
        ],
    )


@key.command("list")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@with_session
def list_(session: Session, limit: int | None) -> None:
    """List the tenant's keys, without their secrets."""
    stub = gateway_pb2_grpc.KeyServiceStub(session.channel)
    request = gateway_pb2.ListKeysRequest(parent=str(session.tenant))
    found = [each for page in session.pages(stub.ListKeys, request, limit) for each in page.keys]
    now = datetime.now(UTC)
    session.output.messages(
        found,
        ("KEY", "FOR PEOPLE", "SCOPES", "EXPIRES", "STATE"),
        (
            (
                each.name,
                each.display_name,
                " ".join(each.scopes),
                human_time(each.expire_time.ToDatetime(tzinfo=UTC))
                if each.HasField("expire_time")
                else "never",
                _state(each, now),
            )
            for each in found
        ),
    )


def _state(found: gateway_pb2.Key, now: datetime) -> str:
    if found.revoked:
        return "revoked"
    expired = found.HasField("expire_time") and found.expire_time.ToDatetime(tzinfo=UTC) <= now
    return "expired" if expired else "good"


@key.command()
@click.argument("key_id")
@with_session
def revoke(session: Session, key_id: str) -> None:
    """Revoke the key KEY_ID; every gateway refuses it within 60 s."""
    request = gateway_pb2.RevokeKeyRequest(name=session.name("keys", key_id))
    gone = session.call(gateway_pb2_grpc.KeyServiceStub(session.channel).RevokeKey, request).key
    session.output.message(gone, [("revoked", gone.name)])
