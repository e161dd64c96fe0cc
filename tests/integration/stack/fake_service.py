"""A service that does nothing but serve its health and metrics, started in place of the real ones.

Reads the same settings as they do. Where its data folder holds a file ``crash``, it says so and ends at once.
"""

import os
import signal
import sys
import threading
from concurrent import futures
from pathlib import Path

import grpc
import prometheus_client
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def make_admin_key(arguments: list[str]) -> None:
    out = Path(arguments[arguments.index("--out") + 1])
    if not out.exists():
        out.write_text("isk_fake_" + os.urandom(8).hex())
        out.chmod(0o600)


def serve(name: str) -> None:
    def setting(key: str) -> str:
        return os.environ[f"ISTHMUS_{name.upper()}_{key}"]

    home = Path(setting("IDENTITY_KEY_FILE")).parent.parent
    if (home / name / "crash").exists():
        print(f"{name}: boom", file=sys.stderr)
        raise SystemExit(3)
    server = grpc.server(futures.ThreadPoolExecutor(2), options=(("grpc.so_reuseport", 0),))
    states = health.HealthServicer()
    # As the gateway, it also speaks for the others.
    for service in ("", "deployer", "tunnel"):
        states.set(service, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(states, server)
    address = f"{setting('HOST')}:{setting('PORT')}"
    certificate, key = (
        os.environ.get(f"ISTHMUS_{name.upper()}_{key}") for key in ("TLS_CERT_FILE", "TLS_KEY_FILE")
    )
    if certificate and key:
        pair = (Path(key).read_bytes(), Path(certificate).read_bytes())
        server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    else:
        server.add_insecure_port(address)
    prometheus_client.start_http_server(int(setting("METRICS_PORT")), setting("HOST"))
    server.start()
    print(f"{name}: serving with LOG_LEVEL={os.environ.get(f'ISTHMUS_{name.upper()}_LOG_LEVEL')}", flush=True)
    done = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: done.set())
    done.wait()
    server.stop(1).wait()


if __name__ == "__main__":
    if "admin-key" in sys.argv:
        make_admin_key(sys.argv)
    else:
        serve(sys.argv[1])
