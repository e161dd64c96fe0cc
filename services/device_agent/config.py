"""What the agent can be told. Environment `ISTHMUS_DEVICE_AGENT_*`, flags win."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from libs.common.errors import Invalid
from libs.common.names import check_id
from libs.common.service_config import is_loopback

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of the device agent."""

    state_dir: Path = field(
        metadata={"help": "folder of everything the agent keeps (0700); one agent at a time uses it"}
    )
    device_id: str = field(
        default="", metadata={"help": "this device's id, [a-z0-9-]{1,63}; needed for the first start"}
    )
    gateway_target: str = field(
        default="127.0.0.1:7400", metadata={"help": "host:port of the gateway; empty runs without a cloud"}
    )
    gateway_ca_file: Path | None = field(
        default=None, metadata={"help": "authority of the gateway's certificate (PEM); default the system's"}
    )
    gateway_server_name: str = field(
        default="", metadata={"help": "name in the gateway's certificate when it isn't the target's host"}
    )
    plaintext: bool = field(
        default=False, metadata={"help": "speak to the gateway without TLS; only over the loopback"}
    )
    enrolment_token: str = field(
        default="", metadata={"help": "one-time token, needed until the device is enrolled", "secret": True}
    )
    attributes: tuple[str, ...] = field(
        default=(), metadata={"help": "what the device says of itself at enrolment, key=value,…"}
    )
    socket_path: Path | None = field(
        default=None, metadata={"help": "Unix socket for apps (0600); default <state_dir>/agent.sock"}
    )
    events_file: str = field(
        default="", metadata={"help": "events to read, one JSON object a line; - is the standard input"}
    )
    events_follow: bool = field(
        default=False, metadata={"help": "go on reading the events file as it grows, as an app's log does"}
    )
    events_speed: float = field(
        default=0.0,
        metadata={
            "help": "replay the events file at this multiple of its event times; 0 as fast as runs keep up",
            "min": 0.0,
        },
    )
    metrics_host: str = field(
        default="127.0.0.1",
        metadata={"help": "address of /metrics, on the loopback: it asks nobody who they are"},
    )
    metrics_port: int = field(
        default=-1,
        metadata={"help": "HTTP port of /metrics; 0 takes a free one, -1 none", "min": -1, "max": 65535},
    )
    log_level: str = field(
        default="INFO",
        metadata={"help": "least level to log", "choices": ("DEBUG", "INFO", "WARNING", "ERROR")},
    )
    otlp_endpoint: str = field(default="", metadata={"help": "where to send traces; empty sends none"})
    shutdown_grace_s: float = field(
        default=5.0,
        metadata={
            "help": "seconds for apps' calls in flight to end after SIGTERM; runs are made again",
            "min": 0.0,
        },
    )
    pull_interval_s: float = field(
        default=3600.0,
        metadata={"help": "seconds between pulls without a hint, ±10 %; a hint pulls at once", "min": 1.0},
    )
    retry_initial_s: float = field(
        default=1.0, metadata={"help": "wait before the first retry of a call to the cloud", "min": 0.001}
    )
    retry_max_s: float = field(
        default=300.0,
        metadata={"help": "longest wait between retries; spreads a fleet after an outage", "min": 0.001},
    )
    hint_jitter_s: float = field(
        default=0.25,
        metadata={
            "help": "longest wait before a hinted pull, drawn: a fleet told at once doesn't ask at once",
            "min": 0.0,
        },
    )
    fenced_wait_s: float = field(
        default=300.0,
        metadata={"help": "wait after another agent took over this identity's tunnel", "min": 0.001},
    )
    vm_workers: int = field(
        default=2, metadata={"help": "processes that run tasks; each takes 10 to 30 MiB", "min": 1, "max": 64}
    )
    max_unprocessed_events: int = field(
        default=100_000,
        metadata={"help": "events that may wait for their triggers; beyond it, refused", "min": 1},
    )
    max_events: int = field(
        default=200_000, metadata={"help": "events kept; cuts windows when they need more", "min": 1}
    )
    max_event_bytes: int = field(
        default=128 * MIB, metadata={"help": "bytes of events kept, as JSON; cuts windows too", "min": 1024}
    )
    max_event_age_s: float = field(
        default=7 * 86400.0,
        metadata={"help": "seconds an event is kept when no window needs it longer", "min": 0.0},
    )
    max_results: int = field(default=10_000, metadata={"help": "results kept for apps", "min": 1})
    max_frames: int = field(
        default=50_000,
        metadata={"help": "frames waiting for the cloud; the oldest become tombstones", "min": 1},
    )
    max_frame_bytes: int = field(
        default=64 * MIB, metadata={"help": "payload bytes waiting for the cloud, the same way", "min": 1024}
    )
    max_tombstones: int = field(
        default=500_000,
        metadata={"help": "waiting entries of one stream; beyond it the stream starts anew", "min": 1},
    )
    disk_reserve_bytes: int = field(
        default=64 * MIB, metadata={"help": "disk space that installing leaves free", "min": 0}
    )
    housekeeping_s: float = field(
        default=30.0, metadata={"help": "seconds between rounds of retention and idle health", "min": 0.01}
    )

    @property
    def socket(self) -> Path:
        """Where apps find the agent."""
        return self.socket_path if self.socket_path is not None else self.state_dir / "agent.sock"

    def validate(self) -> Iterable[str]:
        """Yield the faults that one field's type can't tell."""
        if self.device_id:
            try:
                check_id(self.device_id, "--device-id")
            except Invalid as error:
                yield error.message
        for attribute in self.attributes:
            if not attribute.partition("=")[0] or "=" not in attribute:
                yield f"--attributes: {attribute!r} is not key=value"
        host = self.gateway_target.rpartition(":")[0]
        if self.gateway_target and not host:
            yield f"--gateway-target: {self.gateway_target!r} is not host:port"
        if self.plaintext and self.gateway_target and not is_loopback(host):
            yield f"--plaintext: the gateway at {self.gateway_target!r} is off the loopback; use TLS"
        if self.plaintext and self.gateway_ca_file is not None:
            yield "--gateway-ca-file: of no use with --plaintext"
        if self.metrics_port >= 0 and not is_loopback(self.metrics_host):
            yield (
                f"--metrics-host: {self.metrics_host!r} is off the loopback, where /metrics would be open to "
                "anybody; scrape it from this machine"
            )
        if len(str(self.socket).encode()) > 100:
            yield f"--socket-path: {self.socket} is too long for a Unix socket; 100 bytes at most"
        if self.retry_max_s < self.retry_initial_s:
            yield "--retry-max-s: less than --retry-initial-s"

    def attribute_map(self) -> Mapping[str, str]:
        """Return the attributes by key."""
        return dict(attribute.split("=", 1) for attribute in self.attributes)
