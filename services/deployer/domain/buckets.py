"""Which share of the devices a device belongs to.

A release draws a random salt; the salted hash of a device's id gives its bucket, 0 to 9999. A step of p
percent holds the devices whose bucket is below p x 100, so that a growing p only ever adds devices, and each
release begins with other devices than the last.
"""

import hashlib

SHARES = 10_000
"""Buckets: one is a hundredth of a percent."""


def bucket(salt: bytes, device: str) -> int:
    """Return the bucket of a device id, uniform over 0 to 9999.

    Keyed BLAKE2b (RFC 7693), eight bytes of it modulo 10,000: the modulo's bias is below 1e-15.
    """
    digest = hashlib.blake2b(device.encode(), key=salt, digest_size=8).digest()
    return int.from_bytes(digest, "big") % SHARES
