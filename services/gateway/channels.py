"""Channels to the services behind the door."""

import grpc
import grpc.aio

from libs.common.client import channel_options
from services.gateway.config import GatewayConfig
from services.gateway.sizes import SERVING

# A service that was restarted should be reachable again within seconds.
_LONGEST_RECONNECT_MS = 2_000


def open_channel(config: GatewayConfig, name: str, target: str) -> grpc.aio.Channel:
    """Return a channel to the upstream `name` that adds nothing to calls: they pass through as they came.

    Raises:
        FileNotFoundError: when a TLS file isn't there.
    """
    options = [
        *channel_options(config.largest_message_bytes if name == SERVING else config.max_message_bytes),
        ("grpc.max_reconnect_backoff_ms", _LONGEST_RECONNECT_MS),
    ]
    if config.upstream_ca_file is None:
        return grpc.aio.insecure_channel(target, options=options)
    certificate = config.upstream_cert_file.read_bytes() if config.upstream_cert_file else None
    key = config.upstream_key_file.read_bytes() if config.upstream_key_file else None
    credentials = grpc.ssl_channel_credentials(config.upstream_ca_file.read_bytes(), key, certificate)
    return grpc.aio.secure_channel(target, credentials, options=options)
