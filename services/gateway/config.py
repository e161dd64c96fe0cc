"""Settings of the gateway."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from libs.common.config import ServiceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig(ServiceConfig):
    """Settings of the gateway's role `gateway`; the role `tunnel` has its own."""

    # People and devices come with keys and tokens, not with certificates.
    needs_client_certificates: ClassVar[bool] = False

    port: int = field(
        default=7400, metadata={"help": "gRPC port; 0 takes a free one", "min": 0, "max": 65535}
    )
    http_port: int = field(
        default=7480,
        metadata={"help": "HTTP port for blobs; 0 takes a free one, -1 none", "min": -1, "max": 65535},
    )
    database_url: str = field(
        default="sqlite:///gateway.db",
        metadata={"help": "where tenants and keys are: sqlite:///PATH or postgresql://…", "secret": True},
    )
    upstreams: tuple[str, ...] = field(
        default=(
            "deployer=127.0.0.1:7410",
            "tunnel=127.0.0.1:7405",
            "engine=127.0.0.1:7420",
            "scheduler=127.0.0.1:7430",
            "serving=127.0.0.1:7450",
            "tuner=127.0.0.1:7440",
        ),
        metadata={"help": "NAME=HOST:PORT of each service behind the door; answers isthmus.NAME.v1"},
    )
    upstream_ca_file: Path | None = field(
        default=None,
        metadata={"help": "authority of the upstreams' certificates (PEM); turns TLS to them on"},
    )
    upstream_cert_file: Path | None = field(
        default=None, metadata={"help": "certificate that this gateway shows to upstreams (PEM)"}
    )
    upstream_key_file: Path | None = field(
        default=None, metadata={"help": "private key of that certificate (PEM)"}
    )
    operator_tenant: str = field(
        default="default",
        metadata={"help": "tenant whose keys with tenants:write manage every tenant"},
    )
    recheck_s: float = field(
        default=60.0,
        metadata={"help": "seconds between checks that callers of open streams may stay", "min": 0.1},
    )
    max_tensor_bytes: int = field(
        default=32 * 1024 * 1024,
        metadata={
            "help": "largest message to and from serving in bytes, since tensors don't travel in chunks; "
            "for all others --max-message-bytes holds",
            "min": 1024,
        },
    )
    max_held_bytes: int = field(
        default=1024 * 1024 * 1024,
        metadata={
            "help": "bytes of all requests above 64 KiB that are in hand; more are refused, to keep memory "
            "bounded. A tenant may hold as many as it leaves free",
            "min": 1024,
        },
    )
    max_watches: int = field(
        default=20_000, metadata={"help": "streams that idle devices may hold at once", "min": 1}
    )
    max_downloads: int = field(default=256, metadata={"help": "blobs sent over HTTP at once", "min": 1})
    max_download_s: float = field(
        default=3600.0, metadata={"help": "seconds that one blob may take over HTTP", "min": 1.0}
    )

    def validate(self) -> Iterable[str]:
        """Yield the faults that concern several of these settings; the base class's own come besides."""
        if self.identity_key_file is None:
            yield "--identity-key-file: needed, to vouch for callers to the services behind the door"
        if self.identity_trust_dir is None:
            yield "--identity-trust-dir: needed, to check devices' credentials by the deployer's key"
        names = [name for name, _ in self.targets()]
        for entry, name in zip(self.upstreams, names, strict=True):
            if not name or not entry.partition("=")[2]:
                yield f"--upstreams: {entry!r} isn't NAME=HOST:PORT, such as deployer=127.0.0.1:7410"
        if len(set(names)) != len(names):
            yield "--upstreams: a name comes twice"
        if (self.upstream_cert_file is None) != (self.upstream_key_file is None):
            yield "--upstream-cert-file, --upstream-key-file: give both or none"

    @property
    def largest_message_bytes(self) -> int:
        """Of what passes at all."""
        return max(self.max_message_bytes, self.max_tensor_bytes)

    def targets(self) -> list[tuple[str, str]]:
        """Return name and address of each upstream."""
        return [(name, target) for name, _, target in (entry.partition("=") for entry in self.upstreams)]
