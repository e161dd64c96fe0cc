"""Who is calling: from the credentials in a call's metadata to a `Caller`, mostly out of a cache.

authorization: Bearer isk_<key id>_<secret>        people and programs
authorization: Device <device token>               devices, together with
x-isthmus-credential: <credential>
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from libs.common.clock import Clock
from libs.common.errors import Forbidden, Unauthenticated, Unavailable
from libs.common.identity import GATEWAY, Identity
from services.gateway.domain.cache import Cache
from services.gateway.domain.devices import LEEWAY_S, Credential, verify_credential, verify_token
from services.gateway.domain.keys import Key, split_key
from services.gateway.domain.push_index import Fingerprints

#: How long a verified caller is believed before it is looked up again, in seconds.
CACHE_S = 60.0
# Metadata as gRPC and HTTP give it.
Value = str | bytes

_GET_A_KEY = (
    "send the metadata 'authorization: Bearer isk_…'; an operator makes keys with"
    " KeyService.CreateKey (`isthmus key create`)"
)


@dataclass(slots=True, eq=False)
class Caller:
    """Somebody whose credentials verified.

    `valid_until` is monotonic time; `fingerprint` is a device's in the push index, None for others;
    `expire_s` is when its credential ends (Unix seconds); `tokens` holds the identity tokens minted for this
    caller by audience, each with the monotonic time until which to reuse it.
    """

    identity: Identity
    valid_until: float
    authorization: str = ""
    fingerprint: bytes | None = None
    expire_s: float | None = None
    tokens: dict[str, tuple[str, float]] = field(default_factory=dict)


def anonymous() -> Caller:
    """Return who calls a public method without credentials."""
    return Caller(Identity("", "anonymous", "device", frozenset(), GATEWAY), valid_until=0.0)


def require_device(caller: Caller) -> bytes:
    """Return a device's fingerprint; raise Forbidden for anybody else."""
    if caller.fingerprint is None:
        raise Forbidden("this call is for devices", reason="NOT_A_DEVICE")
    return caller.fingerprint


class KeyRing:
    """Looks keys up by id, each at most once a minute, and never the same one twice at a time."""

    def __init__(
        self,
        find: Callable[[str], Awaitable[Key | None]],
        clock: Clock,
        *,
        cache_size: int = 20_000,
        most_lookups: int = 256,
    ) -> None:
        """`most_lookups`: how many may be in flight, so that made-up keys can't pile up at the store."""
        self._find = find
        self._clock = clock
        self._most_lookups = most_lookups
        self._known: Cache[str, tuple[Key, float]] = Cache(cache_size)
        # Kept apart, so that made-up keys don't push real ones out.
        self._missing: Cache[str, float] = Cache(cache_size)
        self._lookups: dict[str, asyncio.Task[tuple[Key | None, float]]] = {}

    async def get(self, key_id: str) -> tuple[Key | None, float]:
        """Return the key, if there is one, and when it was read (monotonic).

        Raises:
            Unavailable: when too many lookups wait for the store already.
        """
        oldest = self._clock.monotonic() - CACHE_S
        known = self._known.get(key_id)
        if known is not None and known[1] > oldest:
            return known
        missed = self._missing.get(key_id)
        if missed is not None and missed > oldest:
            return None, missed
        lookup = self._lookups.get(key_id)
        if lookup is None:
            if len(self._lookups) >= self._most_lookups:
                raise Unavailable(
                    "too many keys are being looked up at once", reason="BUSY", retry_after_s=1.0
                )
            lookup = self._lookups[key_id] = asyncio.create_task(self._look_up(key_id))
            lookup.add_done_callback(lambda done: self._finish(key_id, done))
        return await asyncio.shield(lookup)

    def _finish(self, key_id: str, done: asyncio.Task[tuple[Key | None, float]]) -> None:
        del self._lookups[key_id]
        if not done.cancelled():
            done.exception()  # seen, even when every caller that waited has gone

    async def _look_up(self, key_id: str) -> tuple[Key | None, float]:
        read_at = self._clock.monotonic()
        key = await self._find(key_id)
        if key is None:
            self._missing.put(key_id, read_at)
        else:
            self._known.put(key_id, (key, read_at))
        return key, read_at

    def forget(self, key_id: str) -> None:
        """Look a key up again at its next use: it was made or revoked just now."""
        self._known.pop(key_id)
        self._missing.pop(key_id)


class CallerAuthenticator:
    """Verifies credentials: `known` answers out of the cache without waiting, `authenticate` works."""

    def __init__(
        self,
        *,
        keys: KeyRing,
        deployer_key: Callable[[], Ed25519PublicKey | None],
        fingerprints: Fingerprints,
        admit: Callable[[bytes], None],
        clock: Clock,
        cache_size: int = 20_000,
    ) -> None:
        """Verify with these.

        Args:
            keys: finds API keys.
            deployer_key: the key that credentials are signed with, or None while it isn't known.
            fingerprints: names devices as the push index does.
            admit: raises for a device that is revoked, or of which nobody can tell yet.
            clock: time.
            cache_size: callers, and credentials, that are remembered.
        """
        self._keys = keys
        self._deployer_key = deployer_key
        self._fingerprints = fingerprints
        self._admit = admit
        self._clock = clock
        self._callers: Cache[tuple[Value, Value | None], Caller] = Cache(cache_size)
        self._credentials: Cache[str, tuple[Credential, float]] = Cache(cache_size)

    def known(self, authorization: Value, credential: Value | None) -> Caller | None:
        """Return the caller if these very credentials verified within the last minute, else None.

        Raises:
            Unauthenticated: when it is a device that has been revoked since.
        """
        caller = self._callers.get((authorization, credential))
        if caller is None or caller.valid_until <= self._clock.monotonic():
            return None
        if caller.fingerprint is not None:
            self._admit(caller.fingerprint)
        return caller

    async def authenticate(self, authorization: Value | None, credential: Value | None) -> Caller:
        """Return who is calling.

        Raises:
            Unauthenticated: saying what is wrong with the credentials; it never repeats a secret.
            Unavailable: when they can't be checked right now.
        """
        if authorization is None:
            raise Unauthenticated(f"no credentials: {_GET_A_KEY}", reason="NO_CREDENTIALS")
        caller = self.known(authorization, credential)
        if caller is not None:
            return caller
        scheme, _, proof = _text(authorization, "authorization").strip().partition(" ")
        match scheme.lower():
            case "bearer":
                caller = await self._authenticate_key(proof.strip())
            case "device":
                if credential is None:
                    raise Unauthenticated(
                        "a device sends its credential in x-isthmus-credential, beside its token",
                        reason="NO_CREDENTIAL",
                    )
                caller = self._authenticate_device(
                    proof.strip(), _text(credential, "x-isthmus-credential").strip()
                )
            case _:
                raise Unauthenticated(
                    f"authorization must start with 'Bearer ' or 'Device ': {_GET_A_KEY}", reason="BAD_SCHEME"
                )
        self._callers.put((authorization, credential), caller)
        return caller

    async def _authenticate_key(self, text: str) -> Caller:
        parts = split_key(text)
        if parts is None:
            raise Unauthenticated(
                f"malformed API key: it must read isk_<16 characters>_<64 hex digits>; {_GET_A_KEY}",
                reason="MALFORMED_KEY",
            )
        key, read_at = await self._keys.get(parts[0])
        # One answer for both, so that nobody learns which key ids exist.
        if key is None or not key.matches(parts[1]):
            raise Unauthenticated(f"unknown or wrong API key; {_GET_A_KEY}", reason="WRONG_KEY")
        now = self._clock.now()
        _check_usable(key, now)
        identity = Identity(key.tenant, key.name, "user", key.scopes, GATEWAY)
        valid_until = read_at + CACHE_S
        if key.expire_time is not None:
            left_s = (key.expire_time - now).total_seconds()
            valid_until = min(valid_until, self._clock.monotonic() + left_s)
        return Caller(identity, valid_until, authorization=text)

    def _authenticate_device(self, token: str, credential_text: str) -> Caller:
        now_s = self._clock.now().timestamp()
        monotonic = self._clock.monotonic()
        credential = self._verify_credential(credential_text, now_s, monotonic)
        expire_s = verify_token(token, credential, now_s)
        name = str(credential.device)
        fingerprint = self._fingerprints.of(name)
        self._admit(fingerprint)
        valid_until = min(monotonic + CACHE_S, monotonic + expire_s + LEEWAY_S - now_s)
        identity = Identity(credential.device.tenant, name, "device", frozenset(), GATEWAY)
        return Caller(identity, valid_until, fingerprint=fingerprint, expire_s=credential.expire_s)

    def _verify_credential(self, text: str, now_s: float, monotonic: float) -> Credential:
        cached = self._credentials.get(text)
        if cached is not None and monotonic < cached[1]:
            return cached[0]
        key = self._deployer_key()
        if key is None:
            raise Unavailable(
                "the deployer's public key isn't there yet, so credentials can't be checked; has it started?",
                reason="NO_DEPLOYER_KEY",
                retry_after_s=2.0,
            )
        credential = verify_credential(text, key, now_s)
        valid_until = min(monotonic + CACHE_S, monotonic + credential.expire_s + LEEWAY_S - now_s)
        self._credentials.put(text, (credential, valid_until))
        return credential

    async def recheck(self, caller: Caller) -> None:
        """Check that a caller whose stream is still open may stay.

        Raises:
            Unauthenticated: when its key or device was revoked, or its key or credential has expired.
        """
        if caller.fingerprint is not None:
            self._admit(caller.fingerprint)
            if caller.expire_s is not None and self._clock.now().timestamp() >= caller.expire_s + LEEWAY_S:
                raise Unauthenticated("the credential has expired; renew it", reason="EXPIRED")
        elif caller.authorization:
            await self._authenticate_key(caller.authorization)

    def forget(self, principal: str) -> None:
        """Verify a principal's credentials again at its next call."""
        for caller in self._callers.values():
            if caller.identity.principal == principal:
                caller.valid_until = 0.0


def _check_usable(key: Key, now: datetime) -> None:
    if key.revoked:
        raise Unauthenticated(f"the API key {key.name} was revoked; {_GET_A_KEY}", reason="REVOKED_KEY")
    if key.expire_time is not None and now >= key.expire_time:
        raise Unauthenticated(
            f"the API key {key.name} expired at {key.expire_time:%Y-%m-%d %H:%M:%S} UTC; {_GET_A_KEY}",
            reason="EXPIRED_KEY",
        )


def _text(value: Value, header: str) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if not text.isascii():
        raise Unauthenticated(f"{header} must be ASCII", reason="MALFORMED_CREDENTIALS")
    return text
