"""One call at the door: its metadata taken apart, who makes it, and what its answer's trailers say."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from libs.common.clock import Clock
from libs.common.errors import Unauthenticated
from libs.common.identity import IDENTITY_HEADER, Identity, IdentityIssuer
from libs.task.profile import HEADER as PROFILE_HEADER
from libs.task.profile import UPDATE_TRAILER, parse_profile_header
from services.gateway.domain.callers import Caller, CallerAuthenticator, Value, anonymous
from services.gateway.domain.push import PushState

AUTHORIZATION = "authorization"
CREDENTIAL = "x-isthmus-credential"
TIME_TRAILER = "x-isthmus-time"

Metadata = Sequence[tuple[str, Value]]

# What belongs to this hop alone: ours, what gRPC and HTTP set on each connection, and the trace, which goes
# on from this process's span.
_HOP = frozenset(
    {
        *(AUTHORIZATION, CREDENTIAL, IDENTITY_HEADER, PROFILE_HEADER),
        *("connection", "content-type", "host", "te", "transfer-encoding", "user-agent"),
        *("traceparent", "tracestate"),
    }
)
# An identity token has at least half of its 60 s left when minted; it isn't kept for longer than this.
_REUSE_TOKEN_S = 10.0


@dataclass(slots=True)
class Visit:
    """One call. `forwarded` is what of its metadata goes on; `profile_digest` is None where none came."""

    caller: Caller
    profile_digest: bytes | None = None
    forwarded: list[tuple[str, Value]] = field(default_factory=list)


_current: ContextVar[Visit] = ContextVar("isthmus_gateway_visit")


def current_visit() -> Visit:
    """Return the call that is being served.

    Raises:
        Unauthenticated: when nobody is known to make it.
    """
    visit = _current.get(None)
    if visit is None:
        raise Unauthenticated("nobody is known to be calling; send a credential", reason="NO_CREDENTIAL")
    return visit


class DoorAuthenticator:
    """Tells the server who is calling, and notes the visit for the handler."""

    def __init__(self, callers: CallerAuthenticator, anonymous_methods: Collection[str]) -> None:
        """`anonymous_methods`: those that are passed on without looking at credentials."""
        self._callers = callers
        self._anonymous_methods = frozenset(anonymous_methods)

    async def authenticate(self, method: str, metadata: Metadata) -> Identity | None:
        """Return who calls; None for an anonymous method, or where no credentials came at all.

        Raises:
            Unauthenticated: when the credentials don't verify, or come twice.
            Unavailable: when they can't be checked now.
            Invalid: when the profile is malformed.
        """
        authorization: Value | None = None
        credential: Value | None = None
        profile_digest: bytes | None = None
        forwarded: list[tuple[str, Value]] = []
        for entry in metadata:
            key = entry[0]
            if key not in _HOP:
                if not key.startswith("grpc-"):
                    forwarded.append(entry)
            elif key == AUTHORIZATION:
                if authorization is not None:
                    raise _twice(key)
                authorization = entry[1]
            elif key == CREDENTIAL:
                if credential is not None:
                    raise _twice(key)
                credential = entry[1]
            elif key == PROFILE_HEADER:
                profile_digest = parse_profile_header(entry[1])
        if method in self._anonymous_methods:
            _current.set(Visit(anonymous(), None, forwarded))
            return None
        caller = None if authorization is None else self._callers.known(authorization, credential)
        if caller is None:
            caller = await self._callers.authenticate(authorization, credential)
        _current.set(Visit(caller, profile_digest, forwarded))
        return caller.identity


def _twice(key: str) -> Unauthenticated:
    return Unauthenticated(f"{key} comes more than once; send it once", reason="MALFORMED_CREDENTIALS")


class Stamp:
    """Makes the trailers of every answer: the time and, for a device that should pull, the hint."""

    def __init__(self, push: PushState, clock: Clock, count_hint: Callable[[str], None]) -> None:
        """`count_hint` is told each time a hint is given, by which way: "trailer" or "stream"."""
        self._push = push
        self._clock = clock
        self.count_hint = count_hint

    def time(self) -> tuple[tuple[str, str], ...]:
        """Return the trailer from which devices learn how far their clock is off: Unix seconds."""
        return ((TIME_TRAILER, f"{self._clock.now().timestamp():.3f}"),)

    def trailers(self, visit: Visit) -> tuple[tuple[str, str], ...]:
        """Return the trailers for a call that ends now."""
        fingerprint = visit.caller.fingerprint
        if (
            visit.profile_digest is not None
            and fingerprint is not None
            and self._push.differs(fingerprint, visit.profile_digest)
        ):
            self.count_hint("trailer")
            return (*self.time(), (UPDATE_TRAILER, "1"))
        return self.time()

    @contextmanager
    def at_the_end(self, context: Any) -> Iterator[None]:
        """Set the trailers of a long call when the block ends, so that they hold the time of then."""
        try:
            yield
        finally:
            context.set_trailing_metadata(self.time())


class Passport:
    """Makes the identity header that a caller's request travels on with."""

    def __init__(self, issuer: IdentityIssuer, clock: Clock) -> None:
        self._issuer = issuer
        self._clock = clock

    def header(self, caller: Caller, audience: str) -> tuple[str, str]:
        """Return `x-isthmus-identity` for a service; the caller's last one while it is fresh."""
        now = self._clock.monotonic()
        kept = caller.tokens.get(audience)
        if kept is not None and now < kept[1]:
            return IDENTITY_HEADER, kept[0]
        token = self._issuer.mint(caller.identity, audience)
        caller.tokens[audience] = (token, now + _REUSE_TOKEN_S)
        return IDENTITY_HEADER, token
