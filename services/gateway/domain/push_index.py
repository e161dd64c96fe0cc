"""The push index: which devices should run something else than they last reported, in compact arrays.

A device is known by a 16-byte keyed fingerprint of its name; beside it lie the 16 bytes of its wanted
profile's digest. The key is drawn per process, so that nobody can choose names that collide. Records are
packed into small buckets that grow by linear hashing (Litwin, "Linear hashing: a new tool for file and table
addressing", 1980):
one bucket is split at a time, so that no insertion ever pauses for a rehash of millions; deleting moves the
bucket's last record into the gap, so that nothing dead stays behind.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

DIGEST_BYTES = 16
_PRINT_BYTES = 16
_RECORD_BYTES = _PRINT_BYTES + DIGEST_BYTES
# A bucket is searched linearly: this trades lookup time against the ~64 bytes of overhead that a bucket has.
_RECORDS_PER_BUCKET = 32


class CompactTable:
    """A map from 16-byte fingerprints to 16-byte digests at about 36 bytes an entry. Not thread-safe."""

    __slots__ = ("_buckets", "_count", "_half", "_split")

    def __init__(self) -> None:
        self._buckets: list[bytearray] = [bytearray()]
        self._count = 0
        # Buckets [0, _split) and their images [_half, _half + _split) are addressed with one bit more.
        self._half = 1
        self._split = 0

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        """Bytes held by the buckets and their list, the allocator's slack included."""
        return sum(bucket.__sizeof__() for bucket in self._buckets) + self._buckets.__sizeof__()

    def _bucket(self, fingerprint: bytes) -> bytearray:
        number = int.from_bytes(fingerprint[:8], "little")
        index = number & (self._half - 1)
        if index < self._split:
            index = number & (2 * self._half - 1)
        return self._buckets[index]

    @staticmethod
    def _find(bucket: bytearray, fingerprint: bytes) -> int:
        offset = bucket.find(fingerprint)
        while offset >= 0 and offset % _RECORD_BYTES:  # bytes that straddle records can look like one
            offset = bucket.find(fingerprint, offset + 1)
        return offset

    def get(self, fingerprint: bytes) -> bytes | None:
        """Return the digest stored for a fingerprint, or None."""
        bucket = self._bucket(fingerprint)
        offset = self._find(bucket, fingerprint)
        return None if offset < 0 else bytes(bucket[offset + _PRINT_BYTES : offset + _RECORD_BYTES])

    def set(self, fingerprint: bytes, digest: bytes) -> None:
        """Store a digest for a fingerprint, replacing what was there."""
        bucket = self._bucket(fingerprint)
        offset = self._find(bucket, fingerprint)
        if offset >= 0:
            bucket[offset + _PRINT_BYTES : offset + _RECORD_BYTES] = digest
            return
        bucket += fingerprint
        bucket += digest
        self._count += 1
        if self._count > len(self._buckets) * _RECORDS_PER_BUCKET:
            self._grow()

    def discard(self, fingerprint: bytes) -> bool:
        """Remove a fingerprint; return whether it was there. Buckets stay for the next wave of a release."""
        bucket = self._bucket(fingerprint)
        offset = self._find(bucket, fingerprint)
        if offset < 0:
            return False
        last = len(bucket) - _RECORD_BYTES
        if offset != last:
            bucket[offset : offset + _RECORD_BYTES] = bucket[last:]
        del bucket[last:]
        self._count -= 1
        return True

    def _grow(self) -> None:
        """Split the next bucket in turn into two, by one more bit of the fingerprint."""
        old = self._buckets[self._split]
        stay, move = bytearray(), bytearray()
        for offset in range(0, len(old), _RECORD_BYTES):
            record = old[offset : offset + _RECORD_BYTES]
            number = int.from_bytes(record[:8], "little")
            if number & self._half:
                move += record
            else:
                stay += record
        self._buckets[self._split] = stay
        self._buckets.append(move)
        self._split += 1
        if self._split == self._half:
            self._half *= 2
            self._split = 0


@dataclass(frozen=True, slots=True)
class Change:
    """One device's news: `wanted_digest` of 16 bytes, or None when it runs what it should."""

    device: str
    wanted_digest: bytes | None
    revoked: bool = False


class Fingerprints:
    """Turns device names into 16-byte fingerprints with one secret key."""

    __slots__ = ("_seed",)

    def __init__(self, key: bytes) -> None:
        """`key`: 16 to 64 unpredictable bytes."""
        self._seed = hashlib.blake2b(digest_size=_PRINT_BYTES, key=key)

    def of(self, device: str) -> bytes:
        """Return the fingerprint of a device's resource name."""
        state = self._seed.copy()
        state.update(device.encode())
        return state.digest()


class PushIndex:
    """Wanted digests and revocations of all devices. One event loop's; not thread-safe."""

    __slots__ = ("_fingerprints", "_revoked", "_wanted", "revision")

    def __init__(self, fingerprints: Fingerprints) -> None:
        self._fingerprints = fingerprints
        self._wanted = CompactTable()
        self._revoked: set[bytes] = set()
        #: Revision of the deployer's feed up to which this index is complete; 0 before the first snapshot.
        self.revision = 0

    def __len__(self) -> int:
        return len(self._wanted)

    @property
    def revoked_count(self) -> int:
        """How many devices are revoked."""
        return len(self._revoked)

    @property
    def memory_bytes(self) -> int:
        """Bytes that the table of wanted digests holds."""
        return self._wanted.memory_bytes

    def apply(self, change: Change) -> bytes:
        """Take one change in and return the device's fingerprint."""
        fingerprint = self._fingerprints.of(change.device)
        if change.revoked:
            self._revoked.add(fingerprint)
            self._wanted.discard(fingerprint)
            return fingerprint
        self._revoked.discard(fingerprint)
        if change.wanted_digest is None:
            self._wanted.discard(fingerprint)
        else:
            self._wanted.set(fingerprint, change.wanted_digest)
        return fingerprint

    def apply_all(self, changes: Iterable[Change]) -> Iterator[bytes]:
        """Take changes in one by one, yielding each device's fingerprint."""
        for change in changes:
            yield self.apply(change)

    def wanted(self, fingerprint: bytes) -> bytes | None:
        """Return the digest a device should report, or None when it runs what it should."""
        return self._wanted.get(fingerprint)

    def differs(self, fingerprint: bytes, profile_digest: bytes) -> bool:
        """Say whether a device with this profile should pull."""
        wanted = self._wanted.get(fingerprint)
        return wanted is not None and wanted != profile_digest

    def is_revoked(self, fingerprint: bytes) -> bool:
        """Say whether a device may not come in any more."""
        return fingerprint in self._revoked
