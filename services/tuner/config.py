"""The tuner's settings."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from libs.common.config import ServiceConfig
from libs.common.service_config import is_loopback_target


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerConfig(ServiceConfig):
    """What `python -m services.tuner` takes: flags, or `ISTHMUS_TUNER_*` variables."""

    port: int = field(
        default=7440, metadata={"help": "gRPC port; 0 takes a free one", "min": 0, "max": 65535}
    )
    metrics_port: int = field(
        default=8440,
        metadata={"help": "HTTP port of /metrics; 0 takes a free one, -1 none", "min": -1, "max": 65535},
    )
    data_dir: Path = field(
        default=Path("var/tuner"), metadata={"help": "folder of keys and of trials' files"}
    )
    database_url: str = field(
        default="sqlite:///var/tuner/tuner.db",
        metadata={
            "help": "where experiments are: sqlite:///PATH or postgresql+psycopg://…; one tuner's own",
            "secret": True,
        },
    )
    serving_target: str = field(
        default="127.0.0.1:7450", metadata={"help": "host:port of serving, whose models are tuned"}
    )
    deployer_target: str = field(
        default="127.0.0.1:7410", metadata={"help": "host:port of the deployer, for models' files"}
    )
    upstream_ca_file: Path | None = field(
        default=None, metadata={"help": "authority (PEM) of serving and the deployer, off the loopback"}
    )
    upstream_cert_file: Path | None = field(
        default=None, metadata={"help": "certificate (PEM) shown to them"}
    )
    upstream_key_file: Path | None = field(
        default=None, metadata={"help": "private key (PEM) of that certificate"}
    )
    most_trials: int = field(
        default=1,
        metadata={
            "help": "trials at once on this machine, of all experiments; those at the same time "
            "disturb each other's figures",
            "min": 1,
            "max": 64,
        },
    )
    most_running: int = field(
        default=8, metadata={"help": "experiments of a tenant that run at once; more are refused", "min": 1}
    )
    start_s: float = field(
        default=60.0, metadata={"help": "seconds that a trial's instance may take to answer", "min": 1.0}
    )

    def validate(self) -> Iterable[str]:
        """Yield the faults that concern several settings at once."""
        if (self.upstream_cert_file is None) != (self.upstream_key_file is None):
            yield "--upstream-cert-file, --upstream-key-file: give both or none"
        for flag, target in (
            ("--serving-target", self.serving_target),
            ("--deployer-target", self.deployer_target),
        ):
            if not is_loopback_target(target) and self.upstream_ca_file is None:
                yield f"{flag}: {target!r} is off the loopback; give --upstream-ca-file"
        if self.identity_trust_dir is None:
            yield "--identity-trust-dir: is missing; without it no caller can be believed"
