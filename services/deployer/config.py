"""The deployer's settings."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from libs.common.config import ServiceConfig
from libs.common.service_config import is_loopback_target


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployerConfig(ServiceConfig):
    """What `python -m services.deployer` takes: flags, or `ISTHMUS_DEPLOYER_*` variables."""

    port: int = field(
        default=7410, metadata={"help": "gRPC port; 0 takes a free one", "min": 0, "max": 65535}
    )
    metrics_port: int = field(
        default=8410,
        metadata={"help": "HTTP port of /metrics; 0 takes a free one, -1 none", "min": -1, "max": 65535},
    )
    database_url: str = field(
        default="sqlite:///var/deployer/deployer.db",
        metadata={
            "help": "sqlite:///FILE (one replica) or postgresql+psycopg://USER@HOST/DATABASE",
            "secret": True,
        },
    )
    data_dir: Path = field(
        default=Path("var/deployer"), metadata={"help": "folder of the blobs; one file system, local"}
    )
    signing_key_file: Path = field(
        default=Path("var/deployer/signing.key"),
        metadata={"help": "private key (PEM) that signs device sets; made (0600) when missing"},
    )
    next_signing_key_file: Path | None = field(
        default=None,
        metadata={"help": "the key that takes its place, during a rotation; made (0600) when missing"},
    )
    credential_ttl_s: float = field(
        default=30 * 86400.0,
        metadata={
            "help": "seconds that a device's credential is good for; devices renew at half of it",
            "min": 60.0,
            "max": 365 * 86400.0,
        },
    )
    device_set_ttl_s: float = field(
        default=86400.0,
        metadata={
            "help": "seconds after which a device refuses to install a set; bounds a freeze attack",
            "min": 60.0,
            "max": 30 * 86400.0,
        },
    )
    blob_grace_s: float = field(
        default=86400.0,
        metadata={"help": "seconds that an unpinned blob or an unfinished upload is kept", "min": 60.0},
    )
    sweep_interval_s: float = field(
        default=3600.0, metadata={"help": "seconds between collections of what nobody needs", "min": 1.0}
    )
    reconcile_interval_s: float = field(
        default=10.0,
        metadata={
            "help": "seconds after which a running release is looked at though nothing was reported",
            "min": 0.1,
        },
    )
    simulator_target: str = field(
        default="",
        metadata={"help": "host:port of the simulator that tries versions; empty publishes them untried"},
    )
    simulator_ca_file: Path | None = field(
        default=None, metadata={"help": "authority (PEM) of the simulator, off the loopback"}
    )
    simulator_cert_file: Path | None = field(
        default=None, metadata={"help": "certificate (PEM) shown to the simulator"}
    )
    simulator_key_file: Path | None = field(
        default=None, metadata={"help": "private key (PEM) of that certificate"}
    )
    simulator_timeout_s: float = field(
        default=200.0, metadata={"help": "seconds that publishing waits for the simulator", "min": 1.0}
    )
    push_log_count: int = field(
        default=200_000,
        metadata={"help": "changes kept for gateways that lag (about 250 bytes each)", "min": 1000},
    )

    def validate(self) -> Iterable[str]:
        """Yield the faults that concern several settings at once."""
        yield from ServiceConfig.validate(self)
        if self.next_signing_key_file == self.signing_key_file:
            yield "--next-signing-key-file: is the same file as --signing-key-file"
        if (self.simulator_cert_file is None) != (self.simulator_key_file is None):
            yield "--simulator-cert-file, --simulator-key-file: give both or none"
        target = self.simulator_target
        if target and not is_loopback_target(target) and self.simulator_ca_file is None:
            yield f"--simulator-target: {target!r} is off the loopback; give --simulator-ca-file"
        if self.identity_trust_dir is None:
            yield "--identity-trust-dir: is missing; without it no caller can be believed"
