"""The simulator's settings."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from libs.common.config import ServiceConfig
from libs.common.service_config import is_loopback_target

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorConfig(ServiceConfig):
    """What `python -m services.device_agent --role simulator` takes: flags, or `ISTHMUS_SIMULATOR_*`."""

    port: int = field(
        default=7460, metadata={"help": "gRPC port; 0 takes a free one", "min": 0, "max": 65535}
    )
    metrics_port: int = field(
        default=8460,
        metadata={"help": "HTTP port of /metrics; 0 takes a free one, -1 none", "min": -1, "max": 65535},
    )
    max_unary_s: float = field(
        default=240.0,
        metadata={"help": "deadline in seconds of a unary call that comes without one", "min": 0.001},
    )
    data_dir: Path = field(
        default=Path("var/simulator"), metadata={"help": "folder of simulations' files; one process's own"}
    )
    deployer_target: str = field(
        default="127.0.0.1:7410", metadata={"help": "host:port of the deployer, for versions' files"}
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
    max_simulations: int = field(
        default=2, metadata={"help": "simulations at once; more are refused with a retry hint", "min": 1}
    )
    deadline_s: float = field(
        default=60.0,
        metadata={"help": "seconds that a simulation may take once its files are here", "min": 1.0},
    )
    scratch_bytes: int = field(
        default=256 * _MIB,
        metadata={"help": "bytes that a simulation may write besides its version's files", "min": _MIB},
    )
    allow_unconfined: bool = field(
        default=False,
        metadata={
            "help": "try versions though the kernel can't keep scripts from this machine's files and sockets "
            "(no Landlock or seccomp); only where every author may read this service's key"
        },
    )
    disk_reserve_bytes: int = field(
        default=64 * _MIB, metadata={"help": "disk space that simulations leave free", "min": 0}
    )

    def validate(self) -> Iterable[str]:
        """Yield the faults that concern several settings at once."""
        yield from ServiceConfig.validate(self)
        if (self.deployer_cert_file is None) != (self.deployer_key_file is None):
            yield "--deployer-cert-file, --deployer-key-file: give both or none"
        if not is_loopback_target(self.deployer_target) and self.deployer_ca_file is None:
            yield f"--deployer-target: {self.deployer_target!r} is off the loopback; give --deployer-ca-file"
        if self.identity_trust_dir is None:
            yield "--identity-trust-dir: is missing; without it no caller can be believed"
