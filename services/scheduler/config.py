"""The scheduler's settings."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from libs.common.config import ServiceConfig
from libs.common.service_config import is_loopback_target

_CA_FLAGS = {"--etcd-endpoints": "--etcd-ca-file", "--deployer-target": "--deployer-ca-file"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig(ServiceConfig):
    """What `python -m services.scheduler` takes: flags, or `ISTHMUS_SCHEDULER_*` variables."""

    port: int = field(
        default=7430, metadata={"help": "gRPC port; 0 takes a free one", "min": 0, "max": 65535}
    )
    metrics_port: int = field(
        default=8430,
        metadata={"help": "HTTP port of /metrics; 0 takes a free one, -1 none", "min": -1, "max": 65535},
    )
    etcd_endpoints: tuple[str, ...] = field(
        default=("127.0.0.1:7379",), metadata={"help": "host:port of each member of the etcd cluster"}
    )
    etcd_ca_file: Path | None = field(
        default=None, metadata={"help": "authority of the members' certificates (PEM); turns TLS to etcd on"}
    )
    etcd_cert_file: Path | None = field(
        default=None, metadata={"help": "this service's certificate for etcd (PEM)"}
    )
    etcd_key_file: Path | None = field(
        default=None, metadata={"help": "private key of that certificate (PEM)"}
    )
    data_dir: Path = field(
        default=Path("var/scheduler"),
        metadata={"help": "folder of the jobs' logs; replicas that are to serve them share it"},
    )
    advertised_address: str = field(
        default="",
        metadata={"help": "host:port that runners reach this replica at; empty takes host and port"},
    )
    deployer_target: str = field(
        default="",
        metadata={"help": "host:port of the deployer, which keeps artefacts; empty leaves their pins alone"},
    )
    deployer_ca_file: Path | None = field(
        default=None, metadata={"help": "authority of the deployer's certificate (PEM); turns TLS to it on"}
    )
    deployer_cert_file: Path | None = field(
        default=None, metadata={"help": "this service's certificate for the deployer (PEM)"}
    )
    deployer_key_file: Path | None = field(
        default=None, metadata={"help": "private key of that certificate (PEM)"}
    )
    operator_tenant: str = field(
        default="default", metadata={"help": "tenant whose keys with nodes:write change nodes"}
    )
    leader_ttl_s: float = field(
        default=5.0,
        metadata={"help": "seconds after which a dead leader is replaced", "min": 1.0, "max": 300.0},
    )
    liveness_s: float = field(
        default=10.0,
        metadata={
            "help": "seconds after which a node whose runner says nothing counts as lost",
            "min": 1.0,
            "max": 3600.0,
        },
    )
    log_keep_bytes: int = field(
        default=64 * 1024 * 1024,
        metadata={"help": "bytes kept of what a worker writes; the oldest go first", "min": 64 * 1024},
    )
    sweep_interval_s: float = field(
        default=600.0, metadata={"help": "seconds between removals of logs whose job is gone", "min": 1.0}
    )

    def validate(self) -> Iterable[str]:
        """Yield the faults that concern several settings at once."""
        yield from ServiceConfig.validate(self)
        if not self.etcd_endpoints:
            yield "--etcd-endpoints: is empty; name at least one member"
        if self.identity_trust_dir is None:
            yield "--identity-trust-dir: is missing; without it no caller can be believed"
        for flag, target, ca_file in (
            *(("--etcd-endpoints", endpoint, self.etcd_ca_file) for endpoint in self.etcd_endpoints),
            ("--deployer-target", self.deployer_target, self.deployer_ca_file),
        ):
            if target and ca_file is None and not is_loopback_target(target):
                yield f"{flag}: {target!r} is off the loopback; give {_CA_FLAGS[flag]}"
        for whom, cert_file, key_file in (
            ("etcd", self.etcd_cert_file, self.etcd_key_file),
            ("deployer", self.deployer_cert_file, self.deployer_key_file),
        ):
            if (cert_file is None) != (key_file is None):
                yield f"--{whom}-cert-file, --{whom}-key-file: give both or none"
