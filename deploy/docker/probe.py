"""Asks a service in its own container whether it is well: `python -m deploy.docker.probe NAME [SERVICE]`.

Services off the loopback want a certificate of whoever calls, which the probes of Docker and Kubernetes can't
show; this shows the service's own. It reads the service's settings, so that a port stands in one place. A
NAME without a gRPC port, such as scheduler-runner, is asked for its metrics.
"""

import http.client
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

DEADLINE_S = 5.0
_HEALTH = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"
"""A HealthCheckResponse whose status is SERVING."""


def _settings(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    prefix = f"ISTHMUS_{name.upper().replace('-', '_')}_"
    return {key.removeprefix(prefix): value for key, value in environ.items() if key.startswith(prefix)}


def _authority(settings: Mapping[str, str]) -> str:
    """Return the file of whom the service's certificate is from: the authority of those it talks with."""
    for setting in ("TLS_CLIENT_CA_FILE", "UPSTREAM_CA_FILE", "TLS_CA_FILE"):
        if settings.get(setting):
            return settings[setting]
    return ""


def check_health(settings: Mapping[str, str], service: str) -> str:
    """Return "" when the service says SERVING, else what is wrong."""
    target = f"127.0.0.1:{settings['PORT']}"
    if settings.get("TLS_CERT_FILE"):
        credentials = grpc.ssl_channel_credentials(
            Path(_authority(settings)).read_bytes(),
            Path(settings["TLS_KEY_FILE"]).read_bytes(),
            Path(settings["TLS_CERT_FILE"]).read_bytes(),
        )
        channel = grpc.secure_channel(target, credentials, options=[("grpc.enable_http_proxy", 0)])
    else:
        channel = grpc.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)])
    name = service.encode()
    request = b"\n" + bytes([len(name)]) + name if name else b""
    with channel:
        check: Any = channel.unary_unary(_HEALTH)
        try:
            answer = check(request, timeout=DEADLINE_S)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return "" if answer == _SERVING else "it says that it isn't serving"


def check_metrics(settings: Mapping[str, str]) -> str:
    """Return "" when the metrics port answers, else what is wrong."""
    port = int(settings["METRICS_PORT"])
    context = ssl.create_default_context(cafile=_authority(settings))
    context.load_cert_chain(settings["TLS_CERT_FILE"], settings["TLS_KEY_FILE"])
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE_S, context=context)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return "" if answer.status == 200 else f"HTTP {answer.status}"
    except OSError as error:
        return str(error)
    finally:
        connection.close()


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command; return the exit status: 0 well, 1 not, 2 asked wrongly."""
    if not 1 <= len(arguments) <= 2 or any(len(each) > 100 for each in arguments):
        print("probe: give the service's NAME, and perhaps which of its gRPC services", file=sys.stderr)
        return 2
    name, service = arguments[0], "".join(arguments[1:])
    settings = _settings(name, environ)
    try:
        fault = check_health(settings, service) if "PORT" in settings else check_metrics(settings)
    except KeyError as error:
        setting = f"ISTHMUS_{name.upper().replace('-', '_')}_{error.args[0]}"
        print(f"probe: {setting} isn't set here", file=sys.stderr)
        return 2
    except OSError as error:
        fault = str(error)
    if fault:
        print(f"probe: {name}: {fault}", file=sys.stderr)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
