"""Serving's settings."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from libs.common.config import ServiceConfig
from libs.common.service_config import is_loopback_target

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingServiceConfig(ServiceConfig):
    """What `python -m services.serving` takes: flags, or `ISTHMUS_SERVING_*` variables."""

    port: int = field(
        default=7450, metadata={"help": "gRPC port; 0 takes a free one", "min": 0, "max": 65535}
    )
    metrics_port: int = field(
        default=8450,
        metadata={"help": "HTTP port of /metrics; 0 takes a free one, -1 none", "min": -1, "max": 65535},
    )
    max_message_bytes: int = field(
        default=256 * _MIB, metadata={"help": "largest request or answer in bytes", "min": 1024}
    )
    max_unary_in_flight: int = field(
        default=16_384,
        metadata={"help": "unary calls at once; each model's own queue refuses before that", "min": 1},
    )
    max_pending_requests: int = field(
        default=8192, metadata={"help": "calls that may wait to be taken up", "min": 1}
    )
    data_dir: Path = field(
        default=Path("var/serving"), metadata={"help": "folder of models' files; one process's own"}
    )
    database_url: str = field(
        default="",
        metadata={
            "help": "SQL database, one process's own; empty takes serving.db in the data folder",
            "secret": True,
        },
    )
    deployer_target: str = field(
        default="127.0.0.1:7410", metadata={"help": "host:port of the deployer, for models' files"}
    )
    deployer_ca_file: Path | None = field(
        default=None, metadata={"help": "authority (PEM) of the deployer, off the loopback"}
    )
    deployer_cert_file: Path | None = field(
        default=None, metadata={"help": "certificate (PEM) shown to the deployer"}
    )
    deployer_key_file: Path | None = field(
        default=None, metadata={"help": "private key (PEM) of that certificate"}
    )
    pin_blobs: bool = field(
        default=True,
        metadata={"help": "whether models' files are kept in the deployer; off for an instance on trial"},
    )
    max_models: int = field(default=1000, metadata={"help": "models of all tenants", "min": 1})
    max_versions: int = field(
        default=1000, metadata={"help": "versions of a model; each file stays on the disk", "min": 1}
    )
    max_held_bytes: int = field(
        default=1024 * _MIB,
        metadata={
            "help": "bytes of all requests in hand; a tenant may hold as much as it leaves free",
            "min": _MIB,
        },
    )
    plan_memory_bytes: int = field(
        default=1024 * _MIB, metadata={"help": "bytes of the buffers of one plan", "min": _MIB}
    )

    def validate(self) -> Iterable[str]:
        """Yield the faults that concern several settings at once."""
        if (self.deployer_cert_file is None) != (self.deployer_key_file is None):
            yield "--deployer-cert-file, --deployer-key-file: give both or none"
        if not is_loopback_target(self.deployer_target) and self.deployer_ca_file is None:
            yield f"--deployer-target: {self.deployer_target!r} is off the loopback; give --deployer-ca-file"
        if self.identity_trust_dir is None:
            yield "--identity-trust-dir: is missing; without it no caller can be believed"
