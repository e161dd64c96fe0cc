"""The engine's settings."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from libs.common.config import ServiceConfig
from libs.common.service_config import is_loopback_target

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(ServiceConfig):
    """What `python -m services.engine` takes: flags, or `ISTHMUS_ENGINE_*` variables."""

    port: int = field(
        default=7420, metadata={"help": "gRPC port; 0 takes a free one", "min": 0, "max": 65535}
    )
    metrics_port: int = field(
        default=8420,
        metadata={"help": "HTTP port of /metrics; 0 takes a free one, -1 none", "min": -1, "max": 65535},
    )
    data_dir: Path = field(
        default=Path("var/engine"),
        metadata={"help": "folder of the plan cache and of work; one replica's own"},
    )
    deployer_target: str = field(
        default="127.0.0.1:7410", metadata={"help": "host:port of the deployer, for models and plans"}
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
    workers: int = field(
        default=2, metadata={"help": "models worked on at once, each in a process", "min": 1, "max": 256}
    )
    worker_queue: int = field(
        default=16, metadata={"help": "models that may wait for a worker; more are refused", "min": 0}
    )
    worker_memory_bytes: int = field(
        default=4096 * _MIB,
        metadata={
            "help": "address space of a worker in bytes; a model of 500 MiB needs about 4 GiB",
            "min": 512 * _MIB,
        },
    )
    worker_cpu_s: int = field(
        default=300, metadata={"help": "processor seconds that one model may take", "min": 1}
    )
    worker_wall_s: float = field(
        default=600.0, metadata={"help": "seconds that one model may take", "min": 1.0}
    )
    cache_bytes: int = field(
        default=2048 * _MIB, metadata={"help": "bytes of plans kept on disk; the least used go", "min": 0}
    )
    infer_threads: int = field(default=2, metadata={"help": "inferences at once", "min": 1, "max": 1024})
    infer_queue: int = field(
        default=64, metadata={"help": "inferences that may wait; more are refused", "min": 0}
    )
    infer_memory_bytes: int = field(
        default=1024 * _MIB,
        metadata={"help": "bytes of plans kept in memory, their buffers included", "min": _MIB},
    )
    infer_call_bytes: int = field(
        default=512 * _MIB, metadata={"help": "bytes of buffers that one plan's calls may take", "min": _MIB}
    )
    infer_call_work: int = field(
        default=50_000_000_000,
        metadata={
            "help": "calculations that one call of a plan may take, about a nanosecond each; eight of a "
            "product of floats count as one",
            "min": 1,
        },
    )
    plan_memory_bytes: int = field(
        default=2048 * _MIB,
        metadata={"help": "bytes of plans that calls hold at once while they read them", "min": _MIB},
    )

    def validate(self) -> Iterable[str]:
        """Yield the faults that concern several settings at once."""
        if (self.deployer_cert_file is None) != (self.deployer_key_file is None):
            yield "--deployer-cert-file, --deployer-key-file: give both or none"
        if not is_loopback_target(self.deployer_target) and self.deployer_ca_file is None:
            yield f"--deployer-target: {self.deployer_target!r} is off the loopback; give --deployer-ca-file"
        if self.identity_trust_dir is None:
            yield "--identity-trust-dir: is missing; without it no caller can be believed"
