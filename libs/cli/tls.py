"""TLS to the gateway: whom it trusts, and why a connection doesn't come about."""

from __future__ import annotations

import re
import socket
import ssl
from pathlib import Path

from cryptography import x509

from libs.cli.files import error_from_os
from libs.common.errors import Invalid

_TARGET = re.compile(r"(?:(?:dns|ipv4|ipv6):(?:///?)?)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:/]+)):(?P<port>\d+)")
_PROBE_S = 3.0


def read_authority(path: Path) -> bytes:
    """Return the certificates in a --ca-file.

    Raises:
        Invalid, NotFound: when it can't be read or holds none.
    """
    try:
        roots = path.read_bytes()
    except OSError as error:
        raise error_from_os(error, f"--ca-file {path}") from error
    try:
        x509.load_pem_x509_certificates(roots)
    except ValueError as error:
        raise Invalid(
            f"--ca-file {path}: holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)",
            reason="BAD_CA_FILE",
        ) from error
    return roots


def explain_connection(gateway: str, ca_file: Path | None) -> str:
    """Return what is wrong between this side's TLS, or lack of it, and the gateway's; "" if nothing is.

    gRPC says of all such faults only that the connection failed; a handshake of our own says which it is.
    """
    target = _TARGET.fullmatch(gateway)
    if target is None:
        return ""
    host = target["v6"] or target["host"]
    context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    context.set_alpn_protocols(["h2"])
    if ca_file is None:
        # Nothing is sent over it: it only tells whether the other side speaks TLS.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((host, int(target["port"])), _PROBE_S) as plain:
            try:
                with context.wrap_socket(plain, server_hostname=host):
                    pass
            except ssl.SSLCertVerificationError as error:
                return (
                    f"the certificate of the gateway at {gateway} isn't trusted: {error.verify_message}; "
                    f"does --ca-file {ca_file} hold its authority?"
                )
            except TimeoutError:
                return ""
            except OSError:
                # Also ssl.SSLError: no TLS on the other side.
                return f"the gateway at {gateway} doesn't speak TLS; leave --ca-file out" if ca_file else ""
    except OSError:
        return ""
    return "" if ca_file else f"the gateway at {gateway} speaks TLS; give --ca-file with its authority"
