"""Who is calling: the identity that travels between services in `x-isthmus-identity`.

The gateway authenticates a caller once and vouches for it with a 60-second Ed25519-signed JWT whose audience
is the service it calls. A service verifies that token and nothing else, never forwards it, and mints its own,
kind "service", for its own calls. Signing and verifying cost 0.1 to 0.2 ms, so issuers use a token again
until half its life is over and verifiers remember verified tokens by their bytes until they expire.
"""

import binascii
import contextlib
import contextvars
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from libs.common.clock import Clock
from libs.common.errors import Invalid, Unauthenticated
from libs.common.keys import TrustDir as TrustDir
from libs.common.keys import load_or_create_key as load_or_create_key
from libs.common.keys import load_trust_dir as load_trust_dir
from libs.common.keys import publish_key as publish_key
from libs.common.names import shown

IDENTITY_HEADER = "x-isthmus-identity"
GATEWAY = "gateway"
LIFETIME_S = 60.0
# How far two machines' clocks may be apart.
LEEWAY_S = 5.0
_TYPE = "isthmus-identity+jwt"
_LONGEST_TOKEN = 8192

Kind = Literal["user", "service", "device"]
KINDS: frozenset[str] = frozenset({"user", "service", "device"})
# Anybody can send metadata: what a verifier may see.
Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is calling, as a verified token says.

    Attributes:
        tenant: whose data it may see; "" for services and for callers that have none yet.
        principal: the name of the key, the device or the service.
        kind: user, service or device.
        scopes: what a user may do, such as "tasks:read", "tasks:*" or "*".
        issuer: the service that vouches for all this.
        on_behalf_of: for a service, the resource name (tenant first) that it acts for.
    """

    tenant: str
    principal: str
    kind: Kind
    scopes: frozenset[str]
    issuer: str
    on_behalf_of: str = ""


class Authenticator(Protocol):
    """Whatever tells a server who is calling."""

    async def authenticate(self, method: str, metadata: Metadata) -> Identity | None:
        """Return who calls `method` (as "/package.Service/Method"), or None when no credential came.

        Raises:
            Unauthenticated: when a credential came that doesn't verify.
        """
        ...


class IdentityIssuer:
    """Mints this service's identity tokens; remembers them until half their life."""

    def __init__(
        self, name: str, private_key: Ed25519PrivateKey, clock: Clock, *, cache_size: int = 4096
    ) -> None:
        self.name = name
        self._key = private_key
        self._clock = clock
        self._cache_size = cache_size
        self._minted: OrderedDict[tuple[Identity, str], tuple[str, float]] = OrderedDict()

    def mint(self, identity: Identity, audience: str) -> str:
        """Return a token that says `identity` to the service `audience`; its issuer is always this one.

        At least half of its 60 seconds are left.
        """
        now = self._clock.now().timestamp()
        known = self._minted.get((identity, audience))
        if known is not None and now < known[1]:
            return known[0]
        token = jwt.encode(
            {
                "iss": self.name,
                "aud": audience,
                "sub": identity.principal,
                "tenant": identity.tenant,
                "kind": identity.kind,
                "scopes": sorted(identity.scopes),
                "on_behalf_of": identity.on_behalf_of,
                "iat": now,
                "exp": now + LIFETIME_S,
            },
            self._key,
            algorithm="EdDSA",
            headers={"kid": self.name, "typ": _TYPE},
        )
        self._minted[(identity, audience)] = (token, now + LIFETIME_S / 2)
        self._minted.move_to_end((identity, audience))
        while len(self._minted) > self._cache_size:
            self._minted.popitem(last=False)
        return token

    def mint_own(self, audience: str, on_behalf_of: str = "") -> str:
        """Return a token for a call of this service's own, for the resource `on_behalf_of`."""
        own = Identity("", self.name, "service", frozenset(), self.name, on_behalf_of)
        return self.mint(own, audience)


class IdentityVerifier:
    """Tells who is calling from an identity token; remembers verified tokens until they expire."""

    def __init__(
        self,
        audience: str,
        trusted: Mapping[str, Ed25519PublicKey],
        clock: Clock,
        *,
        cache_size: int = 4096,
    ) -> None:
        self.audience = audience
        self._trusted = trusted
        self._clock = clock
        self._cache_size = cache_size
        self._verified: OrderedDict[str, tuple[Identity, float]] = OrderedDict()

    async def authenticate(self, method: str, metadata: Metadata) -> Identity | None:
        """Return the identity of the token in `x-isthmus-identity`; None when there is none."""
        token: str | bytes | None = None
        for key, value in metadata:
            if key == IDENTITY_HEADER:
                if token is not None:
                    raise _refused("comes more than once")
                token = value
        if token is None:
            return None
        return self.verify(token if isinstance(token, str) else token.decode("ascii", "replace"))

    def verify(self, token: str) -> Identity:
        """Return who the token speaks of.

        Raises:
            Unauthenticated: when the token doesn't verify, with reason BAD_IDENTITY or IDENTITY_EXPIRED.
        """
        now = self._clock.now().timestamp()
        known = self._verified.get(token)
        if known is not None and now < known[1]:
            return known[0]
        if len(token) > _LONGEST_TOKEN:
            raise _refused(f"is longer than {_LONGEST_TOKEN} characters")
        claims = self._signed_claims(token)
        identity, expires = self._identity_of(claims, now)
        self._verified[token] = (identity, expires)
        while len(self._verified) > self._cache_size:
            self._verified.popitem(last=False)
        return identity

    def _signed_claims(self, token: str) -> dict[str, object]:
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") != "EdDSA" or header.get("typ") != _TYPE or "crit" in header:
                raise _refused("is not an identity token")
            issuer = header.get("kid")
            key = self._trusted.get(issuer) if isinstance(issuer, str) else None
            if key is None:
                raise _refused(f"comes from {shown(str(issuer))}, whom this service doesn't trust")
            # Times and audience are checked below: by our clock, and with messages of our own.
            claims = cast(
                "dict[str, object]",
                jwt.decode(
                    token,
                    key,
                    algorithms=["EdDSA"],
                    options={
                        "verify_exp": False,
                        "verify_iat": False,
                        "verify_nbf": False,
                        "verify_aud": False,
                        "verify_iss": False,
                        "verify_sub": False,
                        "verify_jti": False,
                    },
                ),
            )
        except (jwt.PyJWTError, binascii.Error, ValueError, TypeError, RecursionError, Invalid):
            raise _refused("doesn't verify") from None
        if claims.get("iss") != issuer:
            raise _refused("doesn't verify")
        return claims

    def _identity_of(self, claims: dict[str, object], now: float) -> tuple[Identity, float]:
        issued, expires = claims.get("iat"), claims.get("exp")
        if not isinstance(issued, int | float) or not isinstance(expires, int | float):
            raise _refused("has no times")
        if claims.get("aud") != self.audience:
            raise _refused(f"is for {shown(str(claims.get('aud')))}, and this is {self.audience!r}")
        if not issued - LEEWAY_S <= now < expires + LEEWAY_S:
            raise Unauthenticated(
                f"{IDENTITY_HEADER}: expired, or from the future; it lives for {LIFETIME_S:.0f} s, "
                "so mint one for each call and check this machine's clock",
                reason="IDENTITY_EXPIRED",
            )
        if not 0 < expires - issued <= LIFETIME_S + 1:
            raise _refused(f"lives longer than {LIFETIME_S:.0f} s")
        texts = [claims.get(name) for name in ("tenant", "sub", "iss", "on_behalf_of")]
        kind, scopes = claims.get("kind"), claims.get("scopes")
        if (
            not all(isinstance(text, str) for text in texts)
            or kind not in KINDS
            or not isinstance(scopes, list)
            or not all(isinstance(scope, str) for scope in scopes)
        ):
            raise _refused("lacks a claim")
        tenant, principal, issuer, on_behalf_of = cast("list[str]", texts)
        if kind != "service" and issuer != GATEWAY:
            raise _refused(f"speaks of a {kind}, and only the gateway may")
        if kind == "service" and principal != issuer:
            raise _refused("speaks of another service than the one that signed it")
        identity = Identity(
            tenant, principal, cast("Kind", kind), frozenset(cast("list[str]", scopes)), issuer, on_behalf_of
        )
        return identity, float(expires)


def _refused(what: str) -> Unauthenticated:
    return Unauthenticated(
        f"{IDENTITY_HEADER}: the token {what}; call through the gateway, or with this service's own identity",
        reason="BAD_IDENTITY",
    )


_current: contextvars.ContextVar[Identity | None] = contextvars.ContextVar("isthmus_identity", default=None)


def current_identity() -> Identity:
    """Return who makes the call that is being served.

    Raises:
        Unauthenticated: outside a call, or in a public one that came without a credential.
    """
    identity = _current.get()
    if identity is None:
        raise Unauthenticated("nobody is known to be calling; send a credential", reason="NO_IDENTITY")
    return identity


def set_current_identity(identity: Identity | None) -> contextvars.Token[Identity | None]:
    """Say who is calling for the rest of this task; the server does it before each handler."""
    return _current.set(identity)


@contextlib.contextmanager
def acting_as(identity: Identity) -> Iterator[Identity]:
    """Make `identity` the current one inside the block: for tests and for work outside calls."""
    token = _current.set(identity)
    try:
        yield identity
    finally:
        _current.reset(token)
