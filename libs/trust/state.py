"""A device's trusted state: the only place where bytes from outside become trusted. Pure: no IO, no clock.

One instance is one session of updating, with one reference time, used in this order:

    state = TrustedState(pinned root, device, reference_time, last accepted set)
    state.update_root(signed)          # as often as there are newer roots, ascending
    state.accept_device_set(signed)    # what to run now
    state.accept_manifest(signed)      # for each entry that is new
    state.manifest(task)               # then: fetch its files, each checked against its digest

Whoever owns the files stores `root_signed` and `device_set_payload` together after each accepted step,
before acting on it. A method that raises leaves the state as it was: keep the last good and install nothing.
What was activated runs on without asking here again; only an accepted set changes what a device runs.

What it defends against, after TUF: a stolen author key alone can't make a device run something (the
deployer must name it), nor can a stolen deployer key (the author must have signed it); rollback (the
counter), freeze (expiry), mix-and-match (the set is the complete list, with each manifest's digest),
another device's or tenant's set.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from google.protobuf.message import DecodeError

from isthmus.deployer.v1 import manifest_pb2, pull_pb2
from isthmus.trust.v1 import trust_pb2
from libs.common.errors import Invalid
from libs.common.names import DeviceName, ReleaseName, check_id, check_version
from libs.trust.digests import parse_digest, sha256_of
from libs.trust.errors import Untrusted
from libs.trust.root import Root, verify_first_root, verify_next_root
from libs.trust.signing import verify

MANIFEST_TYPE = "isthmus.deployer.v1.TaskManifest"
DEVICE_SET_TYPE = "isthmus.deployer.v1.DeviceSet"
MAX_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class SetEntry:
    """One version that a device is to run."""

    task: str
    version: str
    manifest_digest: str
    release: str
    """The release that put it there; may be empty."""

    @property
    def key(self) -> str:
        """`task@version`, as in the profile."""
        return f"{self.task}@{self.version}"


@dataclass(frozen=True, slots=True)
class DeviceSet:
    """An accepted set: all that the device is to run."""

    device: DeviceName
    counter: int
    sign_time: datetime
    expire_time: datetime
    entries: Mapping[str, SetEntry]
    """By task."""


@dataclass(frozen=True, slots=True)
class TrustedManifest:
    """A manifest that the author signed and the set names; `libs.task.manifest` checks what it says."""

    entry: SetEntry
    payload: bytes
    manifest: manifest_pb2.TaskManifest


class TrustedState:
    """See the module's text.

    Args: root: the pinned root, from enrolment or from the device's own storage. device: whose state this
    is. reference_time: the session's only "now", aware; by the device's clock corrected for its known
    offset. device_set_payload: the payload of the last accepted set, from the device's own storage, which
    is trusted as the pinned root is. It counts against rollback even when the keys that signed it have
    since been retired.

    Raises Untrusted when the root or the stored set is malformed or another tenant's or device's.
    """

    def __init__(
        self,
        root: trust_pb2.Signed,
        device: DeviceName,
        reference_time: datetime,
        device_set_payload: bytes | None = None,
    ) -> None:
        if reference_time.tzinfo is None:
            raise ValueError("reference_time must be aware")
        self._device = device
        self._reference_time = reference_time
        self._root = verify_first_root(root)
        self._root_signed = root
        if self._root.tenant != device.tenant:
            text = f"root is tenant {self._root.tenant!r}'s, not {device.tenant!r}'s"
            raise Untrusted(text, reason="WRONG_TENANT")
        self._payload = device_set_payload
        self._set = None if device_set_payload is None else self._parse_set(device_set_payload)
        # Whether the set was accepted in this session and under this root, so that manifests may follow.
        self._set_is_current = False
        self._manifests: dict[str, TrustedManifest] = {}

    @property
    def root(self) -> Root:
        """The root now trusted."""
        return self._root

    @property
    def root_signed(self) -> trust_pb2.Signed:
        """The root now trusted, as it came: to store."""
        return self._root_signed

    @property
    def device_set(self) -> DeviceSet | None:
        """The last accepted set, None before the first; it may have expired, and what it names runs on."""
        return self._set

    @property
    def device_set_payload(self) -> bytes | None:
        """The last accepted set's payload, or None: to store with the root."""
        return self._payload

    @property
    def manifests(self) -> Mapping[str, TrustedManifest]:
        """The manifests accepted in this session under the current set, by task."""
        return MappingProxyType(self._manifests)

    def manifest(self, task: str) -> TrustedManifest:
        """Return a task's accepted manifest; raise Untrusted (NOT_IN_SET) when none was accepted."""
        try:
            return self._manifests[task]
        except KeyError:
            raise Untrusted(f"no manifest of task {task[:80]!r} was accepted", reason="NOT_IN_SET") from None

    def update_root(self, signed: trust_pb2.Signed) -> Root:
        """Accept the next root.

        An expired one is taken as a step on the way to its successors, so that a device that slept through
        several can catch up; nothing else is accepted while the current root is expired. The set and the
        manifests must be accepted anew, for whoever signed them may have lost its key. When none of the
        deployer's keys stays, the last set is forgotten and its counter starts over: so a device recovers
        from a stolen key that signed a huge one.

        Raises Untrusted: SIGNATURE_THRESHOLD unless the current root's threshold and its own are met,
        ROOT_VERSION unless its version is exactly one more, WRONG_TENANT, TYPE_MISMATCH, MALFORMED.
        """
        root = verify_next_root(self._root, signed)
        if not set(root.deployer.keys) & set(self._root.deployer.keys):
            # Nothing that those keys signed can be replayed any more.
            self._set, self._payload = None, None
        self._root, self._root_signed = root, signed
        self._set_is_current = False
        self._manifests = {}
        return root

    def accept_device_set(self, signed: trust_pb2.Signed) -> DeviceSet:
        """Accept what the deployer wants this device to run.

        The very set that was accepted last is accepted again, also when it is signed anew with a later
        expiry.

        Raises Untrusted: ROOT_EXPIRED; SIGNATURE_THRESHOLD by the deployer's keys; TYPE_MISMATCH;
        MALFORMED; WRONG_TENANT or WRONG_DEVICE; EXPIRED at the reference time; ROLLBACK when its counter is
        less than the last accepted one's, or equal and the set isn't that one.
        """
        self._check_root_current()
        payload = verify(signed, DEVICE_SET_TYPE, self._root.deployer)
        new = self._parse_set(payload)
        if self._reference_time >= new.expire_time:
            text = f"device set {new.counter} expired at {new.expire_time.isoformat()}"
            raise Untrusted(text, reason="EXPIRED")
        last = self._set
        if last is not None and payload != self._payload:
            same = new.entries == last.entries and new.expire_time >= last.expire_time
            if new.counter < last.counter or (new.counter == last.counter and not same):
                text = f"device set {new.counter} is no newer than {last.counter}, which was accepted before"
                raise Untrusted(text, reason="ROLLBACK")
        self._set, self._payload, self._set_is_current = new, payload, True
        wanted = new.entries
        self._manifests = {
            task: trusted for task, trusted in self._manifests.items() if wanted.get(task) == trusted.entry
        }
        return new

    def accept_manifest(self, signed: trust_pb2.Signed) -> TrustedManifest:
        """Accept the manifest of an entry of the current set.

        Raises Untrusted: ROOT_EXPIRED; NOT_IN_SET when no set was
        accepted in this session under this root, or it doesn't name this task and version with the digest
        of these bytes; SIGNATURE_THRESHOLD by the author's keys; TYPE_MISMATCH; MALFORMED when the bytes
        are no manifest.
        """
        self._check_root_current()
        if self._set is None or not self._set_is_current:
            text = "no device set was accepted in this session under this root, so no manifest can be"
            raise Untrusted(text, reason="NOT_IN_SET")
        payload = verify(signed, MANIFEST_TYPE, self._root.author)
        manifest = manifest_pb2.TaskManifest()
        try:
            manifest.ParseFromString(payload)
        except DecodeError:
            raise Untrusted("manifest: the bytes are none", reason="MALFORMED") from None
        entry = self._set.entries.get(manifest.task)
        digest = sha256_of(payload)
        if entry is None or (entry.version, entry.manifest_digest) != (manifest.version, digest):
            text = f"the device set doesn't name {manifest.task[:80]}@{manifest.version[:160]} with {digest}"
            raise Untrusted(text, reason="NOT_IN_SET")
        trusted = TrustedManifest(entry, payload, manifest)
        self._manifests[entry.task] = trusted
        return trusted

    def _check_root_current(self) -> None:
        if self._root.expired(self._reference_time):
            text = f"root {self._root.version} expired at {self._root.expire_time.isoformat()}"
            raise Untrusted(text, reason="ROOT_EXPIRED")

    def _parse_set(self, payload: bytes) -> DeviceSet:
        message = pull_pb2.DeviceSet()
        try:
            message.ParseFromString(payload)
            device = DeviceName(message.tenant, message.device)
            entries = {entry.task: _entry(entry) for entry in message.entries}
            if len(entries) != len(message.entries) or len(entries) > MAX_ENTRIES:
                raise Invalid(f"it names a task twice, or more than {MAX_ENTRIES}")
            parsed = DeviceSet(
                device=device,
                counter=message.counter,
                sign_time=message.sign_time.ToDatetime(UTC),
                expire_time=message.expire_time.ToDatetime(UTC),
                entries=MappingProxyType(entries),
            )
        except DecodeError:
            raise Untrusted("device set: the bytes are none", reason="MALFORMED") from None
        except (Invalid, ValueError, OverflowError) as error:
            raise Untrusted(f"device set: {error}", reason="MALFORMED") from None
        if device.tenant != self._device.tenant:
            raise Untrusted(f"device set is tenant {device.tenant!r}'s", reason="WRONG_TENANT")
        if device != self._device:
            raise Untrusted(f"device set is device {device.device!r}'s", reason="WRONG_DEVICE")
        return parsed


def _entry(entry: pull_pb2.DeviceSet.Entry) -> SetEntry:
    parse_digest(entry.manifest_digest, "manifest_digest")
    if entry.release:
        ReleaseName.parse(entry.release, "release")
    return SetEntry(
        task=check_id(entry.task, "task"),
        version=check_version(entry.version, "version"),
        manifest_digest=entry.manifest_digest,
        release=entry.release,
    )
