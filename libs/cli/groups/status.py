"""`isthmus status`: is the cloud well, seen through the gateway."""

from __future__ import annotations

import time

import click
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.cli.output import human_seconds
from libs.cli.session import Session, with_session
from libs.common.errors import Error, Unavailable


@click.command()
@with_session
def status(session: Session) -> None:
    """Show each service's health, as the gateway sees it; exit 5 unless all serve."""
    stub = health_pb2_grpc.HealthStub(session.channel)
    # Parts of the gateway are called by their full names; services by one word.
    known = session.call(stub.List, health_pb2.HealthListRequest()).statuses
    services = sorted(
        (name for name in known if name and "." not in name), key=lambda name: (name != "gateway", name)
    )
    rows: list[tuple[str, str, float]] = []
    for service in services:
        start = time.perf_counter()
        try:
            answer = session.call(stub.Check, health_pb2.HealthCheckRequest(service=service))
            state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        except Unavailable as error:
            if service == "gateway":
                raise
            state = f"UNREACHABLE: {error.message}"
        except Error as error:
            state = f"ERROR: {error.message}"
        rows.append((service, state, time.perf_counter() - start))
    if session.output.as_json:
        session.output.values({name: {"state": state, "seconds": spent} for name, state, spent in rows}, "")
    else:
        session.output.table(
            ("SERVICE", "STATE", "ANSWERED IN"),
            ((n, state, human_seconds(spent)) for n, state, spent in rows),
        )
    if any(state != "SERVING" for _, state, _ in rows):
        raise Unavailable("not every service is serving", reason="NOT_SERVING")
