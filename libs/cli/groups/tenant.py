"""`isthmus tenant`: tenants, for operators."""

from __future__ import annotations

import uuid
from datetime import UTC

import click

from isthmus.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from libs.cli.main import Group
from libs.cli.output import human_time
from libs.cli.session import Session, with_session


@click.group(cls=Group)
def tenant() -> None:
    """Tenants, for operators."""


@tenant.command()
@click.argument("tenant_id")
@click.option("--display-name", default="", help="For people.")
@with_session
def create(session: Session, tenant_id: str, display_name: str) -> None:
    """Make the tenant TENANT_ID."""
    request = gateway_pb2.CreateTenantRequest(
        tenant_id=tenant_id, display_name=display_name, request_id=str(uuid.uuid4())
    )
    made = session.call(gateway_pb2_grpc.TenantServiceStub(session.channel).CreateTenant, request).tenant
    session.output.message(made, [("tenant", made.name)])


@tenant.command("list")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@with_session
def list_(session: Session, limit: int | None) -> None:
    """List all tenants."""
    stub = gateway_pb2_grpc.TenantServiceStub(session.channel)
    pages = session.pages(stub.ListTenants, gateway_pb2.ListTenantsRequest(), limit)
    found = [each for page in pages for each in page.tenants]
    session.output.messages(
        found,
        ("TENANT", "FOR PEOPLE", "MADE"),
        (
            (each.name, each.display_name, human_time(each.create_time.ToDatetime(tzinfo=UTC)))
            for each in found
        ),
    )
