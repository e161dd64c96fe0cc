"""Devices: how they enrol, what they are like, and how they leave."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography.exceptions import InvalidSignature

from libs.common.clock import Clock
from libs.common.errors import AlreadyExists, Conflict, Forbidden, Invalid, Unauthenticated
from libs.common.names import DeviceName, check_id, shown
from libs.common.rand import Randomness
from libs.trust.keys import public_from_raw
from services.deployer.domain.missing import not_found
from services.deployer.domain.model import AuditEntry, Device, EnrolmentToken, VersionFailure
from services.deployer.domain.rollout import Book, Books, failures_of, profile_of
from services.deployer.domain.signals import Signals
from services.deployer.domain.texts import check_text
from services.deployer.domain.trust import Notary, newest_root
from services.deployer.store import Store, Tx

PROOF_DOMAIN = b"isthmus-enrol-v1"
TOKEN_PREFIX = "ise_"
DEFAULT_TTL, MAX_TTL = timedelta(hours=24), timedelta(days=30)
MAX_USES = 1_000_000
MAX_ATTRIBUTES = 64
MAX_FAILURES = 20
"""That a device is shown with."""
MAX_VALUE_BYTES = 256
_KEY = re.compile(r"[a-z][a-z0-9_]{0,62}")
_LONGEST_TOKEN = 256


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What a device sends to enrol."""

    token: str
    device_id: str
    public_key: bytes
    proof: bytes
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Enrolled:
    """What it gets."""

    device: DeviceName
    credential: str
    expire_time: datetime
    root: bytes


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device, and what it should run."""

    device: Device
    wanted: tuple[str, ...]
    failures: tuple[VersionFailure, ...] = ()
    """What failed on it, by newest release; left out of lists."""


class Fleet:
    """What the device and enrolment APIs do."""

    def __init__(
        self,
        store: Store,
        books: Books,
        notary: Notary,
        signals: Signals,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._store = store
        self._books = books
        self._notary = notary
        self._signals = signals
        self._clock = clock
        self._randomness = randomness

    async def create_token(
        self, tenant: str, attributes: Mapping[str, str], ttl: timedelta, uses: int, actor: str
    ) -> tuple[str, datetime]:
        """Make an enrolment token; return it and when it expires. Zero `ttl` and `uses` take the defaults.

        Raises:
            Invalid: for attributes, a ttl or a count beyond their limits.
        """
        check_attributes(attributes)
        ttl = ttl or DEFAULT_TTL
        if not timedelta(0) < ttl <= MAX_TTL:
            raise Invalid(f"ttl: {ttl} is not between 0 and {MAX_TTL.days} days", reason="BAD_TTL")
        if uses > MAX_USES:
            raise Invalid(f"use_count: {uses} is more than {MAX_USES}", reason="BAD_USE_COUNT")
        now = self._clock.now()
        secret = TOKEN_PREFIX + self._randomness.bytes(32).hex()
        token = EnrolmentToken(token_hash(secret), tenant, dict(attributes), now + ttl, uses or 1)

        def work(tx: Tx) -> None:
            tx.add_token(token)
            detail = f"{token.uses_left} uses until {token.expire_time.isoformat()}"
            tx.add_audit(AuditEntry(tenant, actor, "token.create", f"tenants/{tenant}", detail, now))

        await self._store.run(work)
        return secret, token.expire_time

    async def enrol(self, wish: Enrolment) -> Enrolled:
        """Exchange a token and proof of a key for a credential.

        Idempotent by device id and key: a device that is there needs only a token that once was its tenant's,
        used up or expired, and uses none up.

        Raises:
            Invalid: for a malformed id, key or attribute.
            Unauthenticated: for an unknown, expired or used-up token, or a proof that doesn't hold.
            AlreadyExists: when another key has the id.
            Forbidden: when the device was revoked.
            Precondition: when the tenant has no trust root.
        """
        check_id(wish.device_id, "device_id")
        check_attributes(wish.attributes)
        _check_proof(wish)
        now = self._clock.now()

        def work(tx: Tx) -> tuple[DeviceName, bytes, bool]:
            token = tx.get_token(token_hash(wish.token))
            if token is None:
                raise Unauthenticated(
                    "token: isn't one that this deployer gave out; ask for a new one (isthmus device token)",
                    reason="BAD_TOKEN",
                )
            name = DeviceName(token.tenant, wish.device_id)
            root = newest_root(tx, token.tenant).signed
            device = tx.get_device(name)
            if device is not None and device.public_key == wish.public_key:
                if device.revoked:
                    raise revoked_error(name)
                return name, root, False
            if token.expire_time <= now:
                raise Unauthenticated(
                    f"token: expired at {token.expire_time.isoformat()}; ask for a new one",
                    reason="TOKEN_EXPIRED",
                )
            if device is not None:
                raise AlreadyExists(
                    f"{name}: is enrolled with another key. Two agents can't share an identity: "
                    "give this one an id of its own. If it is the same machine and has lost its key, "
                    "enrol it under a new id and revoke the old one",
                    reason="OTHER_KEY",
                )
            if not tx.use_token(token.token_hash):
                raise Unauthenticated(
                    "token: is used up; ask for one with enough uses (use_count)", reason="TOKEN_USED_UP"
                )
            attributes = {**wish.attributes, **token.attributes}
            if len(attributes) > MAX_ATTRIBUTES:
                raise _too_many(len(attributes))
            tx.add_device(Device(name, wish.public_key, attributes, now, now))
            detail = f"attributes {dict(sorted(attributes.items()))}"[:1000]
            tx.add_audit(AuditEntry(name.tenant, str(name), "device.enrol", str(name), detail, now))
            return name, root, True

        name, root, new = await self._store.run(work)
        if new:
            await self._changed(name)
        credential, expire_time = self._notary.credential(name, wish.public_key, now)
        return Enrolled(name, credential, expire_time, root)

    async def renew(self, name: DeviceName) -> tuple[str, datetime]:
        """Return a new credential; raise NotFound or Forbidden when the device is gone or revoked."""
        device = await self._store.read(lambda tx: known_device(tx, name))
        return self._notary.credential(name, device.public_key, self._clock.now())

    async def get(self, name: DeviceName) -> DeviceView:
        """Return a device; raise NotFound."""

        def work(tx: Tx) -> DeviceView:
            return self._view(tx, _device(tx, name), self._books.of(tx, name.tenant))

        return await self._store.read(work)

    async def list(self, tenant: str, after: str, limit: int) -> list[DeviceView]:
        """Return devices by ascending id, those after `after`."""

        def work(tx: Tx) -> list[DeviceView]:
            book = self._books.of(tx, tenant)
            return [self._short_view(tx, device, book) for device in tx.list_devices(tenant, after, limit)]

        return await self._store.read(work)

    async def update(
        self, name: DeviceName, attributes: Mapping[str, str], etag: str, actor: str
    ) -> DeviceView:
        """Replace a device's attributes.

        Raises:
            Invalid: for attributes beyond their limits.
            NotFound: when there is no such device.
            Conflict: when the etag is stale.
            Forbidden: when it is revoked.
        """
        check_attributes(attributes)
        now = self._clock.now()

        def work(tx: Tx) -> DeviceView:
            device = _device(tx, name)
            check_etag(name, device.revision, etag)
            if device.revoked:
                raise revoked_error(name)
            changed = replace(device, attributes=dict(attributes), revision=device.revision + 1)
            tx.update_device(changed)
            book = self._books.of(tx, name.tenant)
            self._move(tx, device, changed, book)
            detail = f"{dict(sorted(device.attributes.items()))} -> {dict(sorted(attributes.items()))}"[:1000]
            tx.add_audit(AuditEntry(name.tenant, actor, "device.update", str(name), detail, now))
            return self._view(tx, changed, book)

        view = await self._store.run(work)
        await self._changed(name)
        return view

    async def revoke(self, name: DeviceName, actor: str) -> DeviceView:
        """Revoke a device for good; doing it again changes nothing. Raise NotFound when there is none."""
        now = self._clock.now()

        def work(tx: Tx) -> DeviceView:
            device = _device(tx, name)
            book = self._books.of(tx, name.tenant)
            if not device.revoked:
                changed = replace(device, revoked=True, revision=device.revision + 1)
                tx.update_device(changed)
                tx.drop_stages(name, [offer.release.sequence for offer in book.open_releases()])
                tx.add_audit(AuditEntry(name.tenant, actor, "device.revoke", str(name), "", now))
                device = changed
            return self._view(tx, device, book)

        view = await self._store.run(work)
        await self._changed(name)
        return view

    def _move(self, tx: Tx, before: Device, after: Device, book: Book) -> None:
        """Follow a change of attributes out of open releases and into others."""
        device = after.name.device
        stages = tx.device_stages(after.name)
        for offer in book.open_releases():
            was = book.counts(offer, device, before.attributes, stages)
            now = book.counts(offer, device, after.attributes, stages)
            if was and not now:
                tx.drop_stages(after.name, [offer.release.sequence])
            elif now and not was and offer.entry in after.reported:
                tx.put_running(offer.release, [device])

    def _view(self, tx: Tx, device: Device, book: Book) -> DeviceView:
        failures = tuple(tx.device_failures(device.name, MAX_FAILURES))
        return replace(self._short_view(tx, device, book), failures=failures)

    def _short_view(self, tx: Tx, device: Device, book: Book) -> DeviceView:
        if device.revoked:
            return DeviceView(device, ())
        failures = failures_of(tx.device_stages(device.name))
        return DeviceView(device, profile_of(book.wanted(device.name.device, device.attributes, failures)))

    async def _changed(self, name: DeviceName) -> None:
        book = await self._store.read(lambda tx: self._books.of(tx, name.tenant))
        self._signals.device_changed(name)
        self._signals.releases_changed([offer.release.name for offer in book.open_releases()])


def token_hash(token: str) -> bytes:
    """Return what is stored of a token: the secret has 256 bits, so that a plain SHA-256 is enough."""
    return hashlib.sha256(token.encode()).digest()


def known_device(tx: Tx, name: DeviceName) -> Device:
    """Return the device that calls; raise NotFound when it is gone, Forbidden when it is revoked."""
    device = _device(tx, name)
    if device.revoked:
        raise revoked_error(name)
    return device


def check_etag(name: object, revision: int, etag: str) -> None:
    """Raise Conflict unless `etag` is empty or that of `revision`."""
    if etag and etag != str(revision):
        raise Conflict(
            f"{name}: was changed since it was read (etag {shown(etag)}, now '{revision}'); read it again",
            reason="STALE_ETAG",
            metadata={"etag": str(revision)},
        )


def check_attributes(attributes: Mapping[str, str]) -> None:
    """Raise Invalid unless at most 64, with keys [a-z][a-z0-9_]{0,62} and values up to 256 bytes."""
    if len(attributes) > MAX_ATTRIBUTES:
        raise _too_many(len(attributes))
    for key, value in attributes.items():
        if not _KEY.fullmatch(key):
            raise Invalid(
                f"attributes: key {shown(key)} is not of the form [a-z][a-z0-9_]{{0,62}}",
                reason="BAD_ATTRIBUTE",
                metadata={"field": "attributes"},
            )
        check_text(value, f"attributes.{key}", MAX_VALUE_BYTES)


def _check_proof(wish: Enrolment) -> None:
    if len(wish.token) > _LONGEST_TOKEN:
        raise Invalid(f"token: is longer than {_LONGEST_TOKEN} characters", reason="BAD_TOKEN")
    public = public_from_raw(wish.public_key, "public_key")
    message = b"\0".join((PROOF_DOMAIN, wish.token.encode(), wish.device_id.encode(), wish.public_key))
    try:
        public.verify(wish.proof, message)
    except InvalidSignature:
        raise Unauthenticated(
            "proof: isn't public_key's signature over the token, device_id and public_key of this request",
            reason="BAD_PROOF",
        ) from None


def _device(tx: Tx, name: DeviceName) -> Device:
    device = tx.get_device(name)
    if device is None:
        raise not_found(name)
    return device


def revoked_error(name: DeviceName) -> Forbidden:
    """Return what a revoked device is told; the gateway says the same."""
    return Forbidden(
        f"{name}: this device was revoked, for good; if it shall come back, enrol it under a new id",
        reason="DEVICE_REVOKED",
    )


def _too_many(count: int) -> Invalid:
    return Invalid(
        f"attributes: has {count} entries; at most {MAX_ATTRIBUTES} are kept",
        reason="BAD_ATTRIBUTE",
        metadata={"field": "attributes"},
    )
