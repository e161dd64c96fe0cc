"""A tenant's trust roots, and the port to everything that signs or verifies."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from libs.common.clock import Clock
from libs.common.errors import AlreadyExists, Invalid, Precondition
from libs.common.names import DeviceName
from libs.task.manifest import CheckedManifest
from services.deployer.domain.model import AuditEntry, DeviceSet, Root
from services.deployer.store import Store, Tx


@dataclass(frozen=True, slots=True)
class OpenedRoot:
    """What a root that verified says."""

    tenant: str
    version: int
    expire_time: datetime
    deployer_key_ids: frozenset[str]
    deployer_threshold: int


@dataclass(frozen=True, slots=True)
class Key:
    """An Ed25519 public key, raw, with its id."""

    key_id: str
    public_key: bytes


@dataclass(frozen=True, slots=True)
class Signers:
    """Who signed a manifest, and who a root's author role says should have. All are key ids."""

    signed: tuple[str, ...]
    """The keys whose signatures are there, sorted, whether or not they hold."""
    held: frozenset[str]
    """Those of the authors whose signatures hold."""
    authors: frozenset[str]
    threshold: int

    @property
    def enough(self) -> bool:
        """Whether devices that pinned the root believe the manifest."""
        return len(self.held) >= self.threshold


class Notary(Protocol):
    """Signs and verifies. Bytes called `signed` are serialised `isthmus.trust.v1.Signed` messages."""

    def own_keys(self) -> tuple[Key, ...]:
        """Return the deployer's own keys, the newest first."""
        ...

    def open_root(self, signed: bytes, previous: bytes | None) -> OpenedRoot:
        """Verify a first root, or one that follows `previous`; raise Untrusted when it doesn't hold.

        So it does when it is larger than a root of 64 keys has to be.
        """
        ...

    def open_manifest(self, signed: bytes, root: bytes) -> tuple[CheckedManifest, str]:
        """Verify a manifest by the root's authors and check it; return it and its payload's digest.

        Raises:
            Untrusted: when too few signatures hold, or the whole is too large.
            Invalid: when the manifest breaks a rule.
        """
        ...

    def signers(self, signed: bytes, root: bytes) -> Signers:
        """Tell who signed a manifest, by the root's authors."""
        ...

    def add_signatures(self, stored: bytes, signed: bytes, root: bytes) -> bytes:
        """Return `stored` with those signatures of `signed` besides that hold by the root's authors.

        Both have the same payload. When there are none that it lacks, it comes back as it is.
        """
        ...

    def read_manifest(self, signed: bytes) -> CheckedManifest:
        """Return a manifest that was verified before."""
        ...

    def sign_set(self, device_set: DeviceSet) -> bytes:
        """Return a device set, signed with every key of the deployer's."""
        ...

    def credential(self, device: DeviceName, public_key: bytes, now: datetime) -> tuple[str, datetime]:
        """Return a device's credential and when it expires."""
        ...


class Roots:
    """What the trust API does."""

    def __init__(self, store: Store, notary: Notary, clock: Clock) -> None:
        self._store = store
        self._notary = notary
        self._clock = clock

    def deployer_keys(self) -> tuple[Key, ...]:
        """Return the deployer's own keys, the newest first."""
        return self._notary.own_keys()

    async def install(self, tenant: str, signed: bytes, actor: str) -> int:
        """Install a tenant's root and return its version.

        Raises:
            Untrusted: when it doesn't verify, by itself or by the root before it.
            Invalid: when it is another tenant's.
            AlreadyExists: when another root of that version is there.
            Precondition: when it has expired, or this deployer couldn't sign sets under it.
        """
        now = self._clock.now()

        def work(tx: Tx) -> int:
            newest = tx.newest_root(tenant)
            if newest is not None and newest.signed == signed:
                return newest.version
            try:
                opened = self._notary.open_root(signed, newest.signed if newest else None)
            except Invalid as error:
                if error.reason == "ROOT_VERSION" and newest is not None:
                    raise _not_next(tx, tenant, signed, newest, error) from None
                raise
            if opened.tenant != tenant:
                raise Invalid(f"root: is tenant {opened.tenant!r}'s, not {tenant!r}'s", reason="WRONG_TENANT")
            if newest is None and opened.version != 1:
                raise Invalid(
                    f"root: version {opened.version} can't be the first; install version 1",
                    reason="ROOT_VERSION",
                )
            if opened.expire_time <= now:
                raise Precondition(
                    f"root: expired at {opened.expire_time.isoformat()}; sign one that lives longer",
                    reason="ROOT_EXPIRED",
                )
            held = {key.key_id for key in self._notary.own_keys()} & opened.deployer_key_ids
            if len(held) < opened.deployer_threshold:
                raise Precondition(
                    f"root: its deployer role takes {opened.deployer_threshold} of "
                    f"{', '.join(sorted(opened.deployer_key_ids))}, and this deployer holds {len(held)}; "
                    "put the keys of GetDeployerKeys into the role, or devices would refuse every set",
                    reason="DEPLOYER_KEYS",
                )
            tx.add_root(Root(tenant, opened.version, signed, opened.expire_time))
            detail = f"version {opened.version}, expires {opened.expire_time.isoformat()}"
            tx.add_audit(AuditEntry(tenant, actor, "root.install", f"tenants/{tenant}", detail, now))
            return opened.version

        return await self._store.run(work)

    async def list(self, tenant: str, first: int, limit: int) -> list[Root]:
        """Return roots by ascending version, from `first` on."""
        return list(await self._store.read(lambda tx: tx.list_roots(tenant, first, limit)))


def _not_next(tx: Tx, tenant: str, signed: bytes, newest: Root, error: Invalid) -> Invalid | AlreadyExists:
    """Tell a root that is there already from one that comes out of turn."""
    if any(root.signed == signed for root in tx.list_roots(tenant, 1, newest.version)):
        return AlreadyExists(
            f"root: is installed already, and version {newest.version} is newer", reason="ROOT_REPLACED"
        )
    return Invalid(f"{error.message}; the newest installed is {newest.version}", reason=error.reason)


def newest_root(tx: Tx, tenant: str, now: datetime | None = None) -> Root:
    """Return the tenant's newest root; raise Precondition when it has none, or it has expired at `now`."""
    root = tx.newest_root(tenant)
    if root is None:
        raise Precondition(
            f"tenants/{tenant}: has no trust root yet; make one and install it (isthmus trust init)",
            reason="NO_ROOT",
        )
    if now is not None and root.expire_time <= now:
        raise Precondition(
            f"tenants/{tenant}: its trust root {root.version} expired at {root.expire_time.isoformat()}; "
            "install its successor",
            reason="ROOT_EXPIRED",
        )
    return root
