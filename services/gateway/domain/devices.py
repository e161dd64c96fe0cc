"""Who a device is: its credential (signed by the deployer) and its short-lived token (signed by itself).

Two JWTs, both EdDSA. The credential binds a resource name to the device's public key (`cnf.x`) for 30 days;
the token, good for at most five minutes, proves that the caller holds the private half now.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from libs.common.errors import Invalid, Unauthenticated
from libs.common.names import DeviceName

CREDENTIAL_TYPE = "isthmus-credential+jwt"
TOKEN_TYPE = "isthmus-device+jwt"
AUDIENCE = "gateway"
ISSUER = "deployer"
LEEWAY_S = 60.0
LONGEST_TOKEN_S = 300.0
# Whoever adds 300 to a time with a fraction may get a hair more.
_ROUNDING_S = 0.001
# No honest token or credential comes near; what is longer isn't even parsed.
_LONGEST_TEXT = 4096
_ENROL_AGAIN = "enrol the device again with a new enrolment token"


@dataclass(frozen=True, slots=True)
class Credential:
    """A verified credential: who, with which key, until when (Unix seconds)."""

    device: DeviceName
    public_key: Ed25519PublicKey
    expire_s: float


def _refuse(message: str, reason: str) -> Unauthenticated:
    return Unauthenticated(message, reason=reason)


def _decode(text: str, key: Ed25519PublicKey, kind: str, what: str) -> Mapping[str, Any]:
    """Return the claims of a JWT that `key` signed and whose `typ` is `kind`; time isn't checked here."""
    if len(text) > _LONGEST_TEXT:
        raise _refuse(f"the {what} is longer than {_LONGEST_TEXT} characters", "MALFORMED_TOKEN")
    try:
        decoded = jwt.decode_complete(
            text,
            key,
            algorithms=["EdDSA"],
            options={"verify_exp": False, "verify_iat": False, "verify_nbf": False, "verify_aud": False},
        )
    except jwt.InvalidSignatureError:
        raise _refuse(f"the {what}'s signature doesn't verify", "BAD_SIGNATURE") from None
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, RecursionError):
        raise _refuse(f"the {what} is no JWT signed with EdDSA", "MALFORMED_TOKEN") from None
    if decoded["header"].get("typ") != kind:
        raise _refuse(f"the {what} must have the JWT type {kind!r}", "MALFORMED_TOKEN")
    claims: Mapping[str, Any] = decoded["payload"]
    return claims


def _seconds(claims: Mapping[str, Any], claim: str, what: str) -> float:
    value = claims.get(claim)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise _refuse(f"the {what}'s claim {claim!r} must be Unix seconds", "MALFORMED_TOKEN")
    return float(value)


def _check_window(claims: Mapping[str, Any], now_s: float, what: str, remedy: str) -> tuple[float, float]:
    """Return issue and expiry times; raise when now is outside of them by more than the leeway."""
    issued_s, expire_s = _seconds(claims, "iat", what), _seconds(claims, "exp", what)
    if now_s >= expire_s + LEEWAY_S:
        raise _refuse(
            f"the {what} expired {now_s - expire_s:.0f} s ago; {remedy}"
            f" (server time {now_s:.0f}, also in the trailer x-isthmus-time)",
            "EXPIRED",
        )
    if issued_s > now_s + LEEWAY_S:
        raise _refuse(
            f"the {what} was issued {issued_s - now_s:.0f} s in the future: the device's clock is ahead;"
            f" correct it by the trailer x-isthmus-time (server time {now_s:.0f})",
            "CLOCK_SKEW",
        )
    return issued_s, expire_s


def verify_credential(text: str, deployer_key: Ed25519PublicKey, now_s: float) -> Credential:
    """Return what a credential says.

    Raises:
        Unauthenticated: when it is malformed, not signed by the deployer, expired, or from the future.
    """
    claims = _decode(text, deployer_key, CREDENTIAL_TYPE, "credential")
    _, expire_s = _check_window(claims, now_s, "credential", _ENROL_AGAIN)
    if claims.get("iss") != ISSUER:
        raise _refuse("the credential wasn't issued by the deployer", "MALFORMED_TOKEN")
    confirmation, subject = claims.get("cnf"), claims.get("sub")
    try:
        device = DeviceName.parse(str(subject))
        x = str(confirmation["x"]) if isinstance(confirmation, dict) else ""
        key = Ed25519PublicKey.from_public_bytes(
            base64.b64decode(x + "=" * (-len(x) % 4), b"-_", validate=True)
        )
    except (Invalid, ValueError, KeyError, binascii.Error):
        raise _refuse("the credential must name a device and its key", "MALFORMED_TOKEN") from None
    if claims.get("tenant", device.tenant) != device.tenant:
        raise _refuse("the credential's tenant isn't its device's", "MALFORMED_TOKEN")
    return Credential(device, key, expire_s)


def verify_token(text: str, credential: Credential, now_s: float) -> float:
    """Check a device token against its credential; return when it expires (Unix seconds).

    Raises:
        Unauthenticated: when it is malformed, not signed by the device's key, for someone else, expired, from
            the future, or good for longer than five minutes.
    """
    claims = _decode(text, credential.public_key, TOKEN_TYPE, "device token")
    issued_s, expire_s = _check_window(claims, now_s, "device token", "sign a new one")
    if expire_s - issued_s > LONGEST_TOKEN_S + _ROUNDING_S:
        raise _refuse(
            f"the device token is good for {expire_s - issued_s:.0f} s; {LONGEST_TOKEN_S:.0f} s are allowed",
            "TOKEN_TOO_LONG",
        )
    if claims.get("aud") != AUDIENCE:
        raise _refuse(f"the device token must be for the audience {AUDIENCE!r}", "WRONG_AUDIENCE")
    if claims.get("sub") != str(credential.device):
        raise _refuse("the device token names another device than the credential", "WRONG_SUBJECT")
    return expire_s
