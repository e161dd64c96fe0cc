"""What both kinds of channel have in common: checks of what the caller gave, credentials, options."""

import ipaddress
import os
from pathlib import Path

import grpc

DEADLINE_S = 30.0
"""Deadline of a call that sets none itself, in seconds."""

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    # A peer that is gone without a word (a sleeping laptop, a dropped NAT entry) is noticed within 40 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
)

Metadata = tuple[tuple[str, str | bytes], ...]


def authorization(api_key: str) -> tuple[str, str]:
    """Return the metadata entry that carries the key.

    Raises:
        ValueError: what was given can't be a key.
    """
    key = api_key.strip()
    if not key.startswith("isk_") or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(
            "api_key isn't an API key: one begins with 'isk_' and has no spaces; "
            "give the key itself, not the name of the file that holds it"
        )
    return ("authorization", f"Bearer {key}")


def is_loopback(address: str) -> bool:
    """Say whether an address of gRPC's stays on this machine."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]") or address
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def credentials(
    address: str, ca_file: str | os.PathLike[str] | None, plaintext: bool
) -> grpc.ChannelCredentials | None:
    """Return how the channel is secured: TLS credentials, or None for plaintext.

    Raises:
        ValueError: the address has a scheme or no port, or plaintext was asked for off the loopback.
        OSError: ``ca_file`` can't be read.
    """
    if "://" in address or not address.rpartition(":")[2]:
        raise ValueError(f"address {address!r} isn't of the form host:port; leave out http:// and https://")
    if not plaintext:
        return grpc.ssl_channel_credentials(Path(ca_file).read_bytes() if ca_file is not None else None)
    if ca_file is not None:
        raise ValueError("ca_file has no use with plaintext=True; leave one of the two out")
    if not is_loopback(address):
        raise ValueError(
            f"plaintext=True would send the API key to {address!r} in the clear; it is for the loopback only"
        )
    return None
