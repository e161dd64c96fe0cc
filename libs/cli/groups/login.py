"""`isthmus login`: remember where the gateway is and which key to use."""

from __future__ import annotations

import json
from pathlib import Path

import click

from libs.cli.session import Settings, user_settings_file
from libs.common.fsio import write_atomic


@click.command()
@click.option("--key-file", type=click.Path(dir_okay=False), required=True, help="File with the API key.")
@click.pass_obj
def login(settings: Settings, key_file: str) -> None:
    """Remember --gateway, --tenant, --ca-file and the API key's file, after trying them."""
    settings.api_key, settings.api_key_file = "", key_file
    with settings.session() as session:
        from grpc_health.v1 import health_pb2, health_pb2_grpc

        session.call(
            health_pb2_grpc.HealthStub(session.channel).Check,
            health_pb2.HealthCheckRequest(service="gateway"),
        )
        remembered = {
            "gateway": session.gateway,
            "api_key_file": str(Path(key_file).resolve()),
            "tenant": settings.tenant_name.tenant,
        }
        if settings.ca_file:
            remembered["ca_file"] = str(Path(settings.ca_file).resolve())
    path = user_settings_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(remembered, indent=2).encode() + b"\n", mode=0o600)
    settings.output.values({"settings_file": str(path)}, f"remembered in {path}")
