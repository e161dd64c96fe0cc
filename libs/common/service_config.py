"""The settings that every service has; each service's configuration extends this one."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar


def is_loopback(host: str) -> bool:
    """Tell whether `host` (a name or an address) can only be reached from this machine."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_loopback_target(target: str) -> bool:
    """Tell whether what `target` names ("host:port", "unix:path", "dns:///host:port") is on this machine."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    return is_loopback(target.removeprefix("dns:///").rpartition(":")[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Settings of a service."""

    # Whether whoever connects off the loopback must show a certificate. Services are called by services only;
    # the gateway, which people and devices call, authenticates them itself and sets this to False.
    needs_client_certificates: ClassVar[bool] = True

    host: str = field(
        default="127.0.0.1", metadata={"help": "address to listen on; off the loopback TLS files are needed"}
    )
    port: int = field(default=0, metadata={"help": "gRPC port; 0 takes a free one", "min": 0, "max": 65535})
    metrics_port: int = field(
        default=-1,
        metadata={"help": "HTTP port of /metrics; 0 takes a free one, -1 none", "min": -1, "max": 65535},
    )
    log_level: str = field(
        default="INFO",
        metadata={"help": "least level to log", "choices": ("DEBUG", "INFO", "WARNING", "ERROR")},
    )
    identity_key_file: Path | None = field(
        default=None,
        metadata={"help": "this service's private key for calls to others (PEM); made when missing"},
    )
    identity_trust_dir: Path | None = field(
        default=None,
        metadata={"help": "folder of <service>.pub files: whose identity tokens to believe"},
    )
    otlp_endpoint: str = field(
        default="", metadata={"help": "where to send traces (OTLP over gRPC, host:port); empty sends none"}
    )
    shutdown_grace_s: float = field(
        default=10.0,
        metadata={"help": "seconds for calls in flight to end after SIGTERM", "min": 0.0, "max": 3600.0},
    )
    max_message_bytes: int = field(
        default=4 * 1024 * 1024,
        metadata={"help": "largest message in bytes; bigger things travel in chunks", "min": 1024},
    )
    max_unary_s: float = field(
        default=60.0,
        metadata={"help": "deadline in seconds of a unary call that comes without one", "min": 0.001},
    )
    max_unary_in_flight: int = field(
        default=1024,
        metadata={"help": "unary calls at once; more are refused early, to keep memory bounded", "min": 1},
    )
    max_streams: int = field(
        default=65_536,
        metadata={"help": "response streams held at once; more are refused early, for the same", "min": 1},
    )
    max_pending_requests: int = field(
        default=1024,
        metadata={"help": "calls that may wait to be taken up, against reconnect storms", "min": 1},
    )
    tls_cert_file: Path | None = field(default=None, metadata={"help": "certificate chain (PEM)"})
    tls_key_file: Path | None = field(default=None, metadata={"help": "private key of the certificate (PEM)"})
    tls_client_ca_file: Path | None = field(
        default=None, metadata={"help": "authority of the callers' certificates (PEM); turns mTLS on"}
    )

    def validate(self) -> Iterable[str]:
        """Yield the faults that concern several settings at once."""
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            yield "--tls-cert-file, --tls-key-file: give both or none"
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            yield "--tls-client-ca-file: needs --tls-cert-file and --tls-key-file as well"
        if is_loopback(self.host):
            return
        if self.tls_cert_file is None:
            yield f"--host: {self.host!r} is off the loopback; give --tls-cert-file and --tls-key-file"
        if self.needs_client_certificates and self.tls_client_ca_file is None:
            yield f"--host: {self.host!r} is off the loopback; give --tls-client-ca-file as well"
