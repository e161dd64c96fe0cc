"""`isthmus status`: is the cloud well, seen through the gateway."""

from __future__ import annotations

import time

import click
from grpc_health.v1 import health_pb2, health_pb2_grpc

from libs.cli.output import human_seconds
from libs.cli.session import Session, with_session
from libs.common.errors import Error, Forbidden, Unauthenticated, Unavailable

_SERVICES = ("gateway", "deployer", "tunnel")


@click.command()
@with_session
def status(session: Session) -> None:
    """Show each service's health, as the gateway sees it; exit 5 unless all serve."""
    stub = health_pb2_grpc.HealthStub(session.channel)
    rows: list[tuple[str, str, float]] = []
    for service in _SERVICES:
        start = time.perf_counter()
        try:
            answer = session.call(stub.Check, health_pb2.HealthCheckRequest(service=service))
            state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        except Unavailable as error:
            if service == "gateway":
                raise
            state = f"UNREACHABLE: {error.message}"
        except (Unauthenticated, Forbidden):
            # Anybody may ask for the health, so a credential that is refused counts as none there. Here it
            # doesn't, and its refusal is the real message.
            session.call(stub.List, health_pb2.HealthListRequest())
            raise
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
