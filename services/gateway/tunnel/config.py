"""Configuration of the role `tunnel`: environment `ISTHMUS_TUNNEL_*`, flags win."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from libs.common.config import ServiceConfig
from libs.common.service_config import is_loopback_target
from services.gateway.tunnel.domain.checks import Limits
from services.gateway.tunnel.store.files import LogSettings
from services.gateway.tunnel.store.writer import BATCH_BYTES

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelConfig(ServiceConfig):
    """Settings of the tunnel."""

    port: int = field(
        default=7405, metadata={"help": "gRPC port; 0 takes a free one", "min": 0, "max": 65535}
    )
    data_dir: Path | None = field(
        default=None, metadata={"help": "folder of the log; its parent must be there. Required"}
    )
    partitions: int = field(
        default=8,
        metadata={
            "help": "partitions of the log, each with a writer of its own; fixed once the log is created",
            "min": 1,
            "max": 256,
        },
    )
    segment_bytes: int = field(
        default=16 * _MIB,
        metadata={
            "help": "size in bytes at which a log segment is sealed; after a crash the last one of each "
            "partition is read whole before the tunnel serves: 1 to 2 s for 16 MiB of small frames",
            "min": 64 * 1024,
            "max": 256 * _MIB,
        },
    )
    retention_bytes: int = field(
        default=8 * 1024 * _MIB,
        metadata={"help": "the log's size in bytes beyond which its oldest segments go", "min": _MIB},
    )
    retention_age_s: float = field(
        default=7 * 86400.0, metadata={"help": "seconds after which frames go: a week", "min": 1.0}
    )
    queue_bytes: int = field(
        default=32 * _MIB,
        metadata={
            "help": "bytes waiting for one partition's writer beyond which frames are refused",
            "min": BATCH_BYTES,
        },
    )
    max_frame_bytes: int = field(
        default=256 * 1024, metadata={"help": "largest payload of a frame in bytes", "min": 1024, "max": _MIB}
    )
    max_streams: int = field(default=64, metadata={"help": "streams of a device", "min": 1, "max": 64})
    connection_bytes: int = field(
        default=_MIB,
        metadata={
            "help": "bytes read from one connection and not durable yet, beyond which its reading pauses",
            "min": 64 * 1024,
            "max": BATCH_BYTES // 2,
        },
    )
    serving_target: str = field(
        default="",
        metadata={"help": "host:port of serving, which answers devices' requests; empty refuses them"},
    )
    serving_ca_file: Path | None = field(
        default=None, metadata={"help": "authority (PEM) of serving, off the loopback"}
    )
    serving_cert_file: Path | None = field(
        default=None, metadata={"help": "certificate (PEM) shown to serving"}
    )
    serving_key_file: Path | None = field(
        default=None, metadata={"help": "private key (PEM) of that certificate"}
    )
    max_requests: int = field(
        default=512,
        metadata={
            "help": "devices' requests to models that are open at once; more are refused. A tenant may hold "
            "as many as it leaves free. Each takes up to 256 KiB, its answer up to 1 MiB",
            "min": 1,
            "max": 65_536,
        },
    )
    max_connections: int = field(default=10_000, metadata={"help": "devices connected at once", "min": 1})
    hello_s: float = field(
        default=10.0, metadata={"help": "seconds in which a connection's Hello must come", "min": 0.1}
    )
    check_every_s: float = field(
        default=5.0,
        metadata={
            "help": "seconds between two looks at the log's health; also retries a full disk",
            "min": 0.05,
        },
    )
    trim_every_s: float = field(
        default=60.0, metadata={"help": "seconds between two trims of the log to its retention", "min": 0.05}
    )

    def validate(self) -> Iterable[str]:
        """Yield the faults that concern several settings at once."""
        yield from ServiceConfig.validate(self)
        if self.data_dir is None:
            yield "--data-dir: is required; say where the log may keep its files"
        if self.identity_trust_dir is None:
            yield "--identity-trust-dir: is required; the gateway's public key, gateway.pub, is sought there"
        if self.serving_target:
            if self.identity_key_file is None:
                yield "--identity-key-file: is required with --serving-target; serving must know who calls it"
            if self.serving_ca_file is None and not is_loopback_target(self.serving_target):
                yield f"--serving-target: {self.serving_target!r} is off the loopback; give --serving-ca-file"
        if (self.serving_cert_file is None) != (self.serving_key_file is None):
            yield "--serving-cert-file, --serving-key-file: give both or none"
        if self.retention_bytes < 2 * self.segment_bytes * self.partitions:
            yield (
                f"--retention-bytes: {self.retention_bytes} is too little for two segments a partition; "
                "give at "
                f"least {2 * self.segment_bytes * self.partitions}, or smaller segments"
            )

    @property
    def log(self) -> LogSettings:
        """The log's part."""
        return LogSettings(
            partitions=self.partitions,
            segment_bytes=self.segment_bytes,
            retention_bytes=self.retention_bytes,
            retention_age_s=self.retention_age_s,
            queue_bytes=self.queue_bytes,
        )

    @property
    def limits(self) -> Limits:
        """The connections' part."""
        return Limits(
            frame_bytes=self.max_frame_bytes,
            streams=self.max_streams,
            connection_bytes=self.connection_bytes,
            connections=self.max_connections,
            hello_s=self.hello_s,
            requests_in_all=self.max_requests,
        )
