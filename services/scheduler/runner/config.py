"""The runner's settings."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from libs.common.errors import Invalid
from libs.common.names import NodeName
from libs.common.service_config import is_loopback, is_loopback_target
from services.scheduler.runner.users import Users

_PORT = {"min": 1024, "max": 65535}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """What `python -m services.scheduler --role runner` takes: flags, or `ISTHMUS_SCHEDULER_RUNNER_*`."""

    node: str = field(default="local", metadata={"help": "this node's id, [a-z0-9-]{1,63}"})
    scheduler_target: tuple[str, ...] = field(
        default=("127.0.0.1:7430",),
        metadata={"help": "host:port of the scheduler; of each replica where there are several"},
    )
    deployer_target: str = field(
        default="127.0.0.1:7410", metadata={"help": "host:port of the deployer, for files and artefacts"}
    )
    state_dir: Path = field(
        default=Path("var/runner"),
        metadata={"help": "folder of the workers (0700): where they work, and how a restart finds them"},
    )
    cpu_millis: int = field(
        default=0,
        metadata={"help": "cores in thousandths that jobs may take; 0 means this machine's", "min": 0},
    )
    memory_bytes: int = field(
        default=0,
        metadata={"help": "memory that jobs may take; 0 means this machine's, less a tenth", "min": 0},
    )
    gpus: str = field(
        default="detect",
        metadata={"help": "'detect' asks nvidia-smi, 'none', or a JSON file that describes simulated ones"},
    )
    topology: tuple[str, ...] = field(
        default=(),
        metadata={"help": "network domains that this node hangs on, outermost first: zone-a,rack-3"},
    )
    advertised_host: str = field(
        default="127.0.0.1", metadata={"help": "where workers on other nodes reach those here"}
    )
    first_port: int = field(
        default=20_000, metadata={"help": "first of the TCP ports that gangs may meet on", **_PORT}
    )
    last_port: int = field(default=29_999, metadata={"help": "last of them", **_PORT})
    keep_workers: bool = field(
        default=True,
        metadata={
            "help": "workers go on when the runner is told to stop, and the next one finds them; "
            "--no-keep-workers ends them"
        },
    )
    worker_users: str = field(
        default="",
        metadata={
            "help": "range of user ids, such as 200000-200999, one for each worker; needs root. Empty runs "
            "workers as the runner's own user, who can read its key: for one trusted tenant only"
        },
    )
    log_bytes: int = field(
        default=64 * 2**20,
        metadata={"help": "output kept of each worker; what it writes beyond is dropped", "min": 4096},
    )
    log_bytes_per_s: float = field(
        default=16.0 * 2**20,
        metadata={"help": "output sent to the scheduler a second, of each worker", "min": 1024.0},
    )
    process_count: int = field(
        default=1024, metadata={"help": "processes of one worker; one with more is killed", "min": 1}
    )
    fetch_s: float = field(
        default=60.0, metadata={"help": "how long a job's files are tried to be fetched", "min": 0.0}
    )
    keep_s: float = field(
        default=600.0, metadata={"help": "how long artefacts are tried to be brought away", "min": 0.0}
    )
    identity_key_file: Path = field(
        default=Path("var/keys/scheduler-runner.key"),
        metadata={"help": "private key (PEM) for calls to scheduler and deployer; made (0600) when missing"},
    )
    identity_trust_dir: Path | None = field(
        default=None,
        metadata={"help": "folder of <service>.pub files; when given, the key's public half is put there"},
    )
    metrics_host: str = field(
        default="127.0.0.1",
        metadata={"help": "address of /metrics, which asks for a certificate where TLS files are given"},
    )
    metrics_port: int = field(
        default=-1,
        metadata={"help": "HTTP port of /metrics; 0 takes a free one, -1 none", "min": -1, "max": 65535},
    )
    log_level: str = field(
        default="INFO",
        metadata={"help": "least level to log", "choices": ("DEBUG", "INFO", "WARNING", "ERROR")},
    )
    tls_ca_file: Path | None = field(
        default=None, metadata={"help": "authority (PEM) of scheduler and deployer, off the loopback"}
    )
    tls_cert_file: Path | None = field(default=None, metadata={"help": "this runner's certificate (PEM)"})
    tls_key_file: Path | None = field(default=None, metadata={"help": "private key of the certificate (PEM)"})

    def validate(self) -> Iterable[str]:
        """Yield the faults that concern several settings at once."""
        try:
            NodeName(self.node)
        except Invalid as error:
            yield f"--node: {error.message}"
        try:
            Users.parse(self.worker_users)
        except Invalid as error:
            yield error.message
        if not self.scheduler_target:
            yield "--scheduler-target: is missing; give host:port"
        if self.first_port > self.last_port:
            yield f"--first-port: {self.first_port} is above --last-port, {self.last_port}"
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            yield "--tls-cert-file, --tls-key-file: give both or none"
        seen = self.metrics_port >= 0 and not is_loopback(self.metrics_host)
        if seen and (self.tls_cert_file is None or self.tls_ca_file is None):
            yield (
                f"--metrics-host: {self.metrics_host!r} is off the loopback; give --tls-ca-file, "
                "--tls-cert-file and --tls-key-file"
            )
        for target in (*self.scheduler_target, self.deployer_target):
            if self.tls_ca_file is None and not is_loopback_target(target):
                yield f"{target!r} is off the loopback; give --tls-ca-file"
