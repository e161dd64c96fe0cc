"""Paging of List methods: opaque tokens and bounded page sizes.

A token is not a secret and not signed: whoever decodes one treats what is inside as a caller's input. The
checksum only tells a truncated or mistyped token from a whole one.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Mapping

from libs.common.errors import Invalid

_LONGEST = 4096


def encode_token(position: Mapping[str, object]) -> str:
    """Return the opaque token for a position made of JSON values; an empty position gives ""."""
    if not position:
        return ""
    body = json.dumps(dict(position), separators=(",", ":"), sort_keys=True).encode()
    return base64.urlsafe_b64encode(zlib.crc32(body).to_bytes(4, "big") + body).rstrip(b"=").decode()


def decode_token(token: str) -> dict[str, object]:
    """Return the position inside `token`; "" gives {} (the first page).

    Raises:
        Invalid: when it isn't a token made by `encode_token`.
    """
    if not token:
        return {}
    try:
        if len(token) > _LONGEST:
            raise ValueError(token)
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        body = raw[4:]
        if zlib.crc32(body).to_bytes(4, "big") != raw[:4]:
            raise ValueError(token)
        position = json.loads(body)
        if not isinstance(position, dict):
            raise ValueError(token)
    except (ValueError, binascii.Error, RecursionError):
        raise Invalid(
            "page_token: not a token that this service gave out; leave it empty for the first page",
            reason="BAD_PAGE_TOKEN",
            metadata={"field": "page_token"},
        ) from None
    return position


def page_size(requested: int, default: int = 50, maximum: int = 1000) -> int:
    """Return how many items to give: `default` for 0, at most `maximum`.

    Raises:
        Invalid: when `requested` is negative.
    """
    if requested < 0:
        raise Invalid(
            f"page_size: {requested} is negative; use 1 to {maximum}, or 0 for {default}",
            reason="BAD_PAGE_SIZE",
            metadata={"field": "page_size"},
        )
    return min(requested, maximum) or default
