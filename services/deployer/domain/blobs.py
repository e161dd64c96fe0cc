"""Blobs: content-addressed bytes, stored once, seen through each tenant's own references.

An upload's id spells its digest and size, and belongs to the tenant of whoever uses it: two clients that
upload the same file share one upload, and repeating what the other wrote does no harm. A tenant gets its
reference only by bringing all the bytes, even where another tenant's are stored already: a digest grants
nothing.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from libs.common.clock import Clock
from libs.common.errors import Internal, Invalid, NotFound, OutOfRange
from libs.common.names import shown
from services.deployer.domain.model import BlobRecord, BlobRef
from services.deployer.store import Store, Tx

T = TypeVar("T")
P = ParamSpec("P")

MAX_BLOB_BYTES = 4 * 1024**3
MAX_WRITE_BYTES = 1024**2
READ_BYTES = 256 * 1024
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_UPLOAD = re.compile(r"([0-9a-f]{64})-(0|[1-9][0-9]{0,10})")
_SWEEP = 1000
_LONGEST_RESOURCE = 320
_ID = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]{1,128}"
PINNERS = {"engine": "models", "scheduler": "jobs", "scheduler-runner": "jobs", "serving": "models"}
"""Which services pin blobs or end pins, each for resources of one collection."""


class Files(Protocol):
    """Where the bytes are; see `services.deployer.blob_files.BlobFiles`, whose methods block."""

    def begin(self, tenant: str, blob: BlobRef) -> int:
        """Make or find an upload; return its durable bytes."""
        ...

    def write(self, tenant: str, blob: BlobRef, offset: int, data: bytes) -> int:
        """Append to an upload; return its durable bytes."""
        ...

    def commit(self, tenant: str, blob: BlobRef) -> bool:
        """Check an upload and put it in its place."""
        ...

    def stored_size(self, digest: str) -> int | None:
        """Return the size of a stored blob."""
        ...

    def read(self, digest: str, offset: int, length: int) -> bytes:
        """Read from a stored blob."""
        ...

    def remove(self, digest: str) -> None:
        """Remove a stored blob."""
        ...

    def stored_before(self, time_s: float) -> Iterator[str]:
        """Yield the blobs stored before a time."""
        ...

    def drop_uploads_before(self, time_s: float) -> int:
        """Remove uploads not touched since a time."""
        ...


@dataclass(frozen=True, slots=True)
class Upload:
    """Where an upload stands."""

    upload_id: str
    offset_bytes: int
    committed: bool


class Blobs:
    """What the blob API does, for one tenant at a time."""

    def __init__(
        self,
        store: Store,
        files: Files,
        clock: Clock,
        *,
        on_bytes: Callable[[str, int], None] = lambda direction, count: None,
    ) -> None:
        """Count bytes by `on_bytes("written" | "read", count)`."""
        self._store = store
        self._files = files
        self._clock = clock
        self._on_bytes = on_bytes
        self._locks = Locks()

    async def begin(self, tenant: str, blob: BlobRef) -> Upload:
        """Start or resume an upload.

        Raises:
            Invalid: for a malformed digest or a size above 4 GiB.
            Exhausted: when the disk is full.
        """
        check_ref(blob, "blob")
        async with self._locks.of(blob.digest):
            now = self._clock.now()
            record = await self._store.read(lambda tx: tx.get_blob(tenant, blob.digest))
            if record is not None and await _off_loop(self._files.stored_size, blob.digest) is not None:
                if record.blob != blob:
                    raise _other_size(blob, record.blob.size_bytes)
                # Asking for it starts its grace period anew, so that it isn't collected before it is pinned.
                await self._store.run(lambda tx: tx.put_blob(tenant, blob, now))
                return Upload("", blob.size_bytes, committed=True)
            offset = await _off_loop(self._files.begin, tenant, blob)
        return Upload(f"{blob.digest.removeprefix('sha256:')}-{blob.size_bytes}", offset, committed=False)

    async def write(self, tenant: str, upload_id: str, offset: int, data: bytes) -> int:
        """Append to an upload; return how many bytes are durable then.

        Raises:
            Invalid: for more than 1 MiB at once, too many bytes, or other bytes than those that are there.
            NotFound: when the tenant has no such upload.
            OutOfRange: when the offset is beyond what is there.
            Exhausted: when the disk is full.
        """
        blob = parse_upload_id(upload_id)
        if len(data) > MAX_WRITE_BYTES:
            raise Invalid(
                f"data: has {len(data)} bytes; write at most {MAX_WRITE_BYTES} at once", reason="TOO_LARGE"
            )
        async with self._locks.of(blob.digest):
            if await self._done(tenant, blob):
                return blob.size_bytes
            durable = await _off_loop(self._files.write, tenant, blob, offset, data)
        self._on_bytes("written", len(data))
        return durable

    async def commit(self, tenant: str, upload_id: str) -> BlobRef:
        """Check an upload's digest and make the blob readable.

        Raises:
            NotFound: when the tenant has no such upload.
            OutOfRange: when bytes are missing.
            Invalid: when the digest differs.
            Exhausted: when the disk is full.
        """
        blob = parse_upload_id(upload_id)
        async with self._locks.of(blob.digest):
            if await self._done(tenant, blob):
                return blob
            if not await _off_loop(self._files.commit, tenant, blob):
                raise NotFound("upload_id: no such upload; begin again", reason="NO_UPLOAD")
            # Killed before this, the bytes lie there without a reference, and the collection removes them.
            now = self._clock.now()
            await self._store.run(lambda tx: tx.put_blob(tenant, blob, now))
        return blob

    async def _done(self, tenant: str, blob: BlobRef) -> bool:
        """Tell whether the tenant has the blob: what comes late for its upload is a repetition."""
        return await self._store.read(lambda tx: tx.get_blob(tenant, blob.digest)) is not None and (
            await _off_loop(self._files.stored_size, blob.digest) is not None
        )

    async def stat(self, tenant: str, digest: str) -> BlobRecord:
        """Return the tenant's reference; raise NotFound when it has none."""
        check_digest(digest, "digest")
        record = await self._store.read(lambda tx: tx.get_blob(tenant, digest))
        if record is None:
            raise _no_blob(digest)
        return record

    async def pin(self, tenant: str, caller: str, resource: str, digest: str) -> int:
        """Keep a blob as long as `resource` needs it; return how many resources pin it then.

        Args:
            tenant: whose blob.
            caller: the service that asks; see `PINNERS`.
            resource: the name of what needs it.
            digest: of the blob.

        Raises:
            Invalid: when the resource isn't one that the caller keeps for this tenant.
            NotFound: when the tenant has no such blob.
        """
        check_digest(digest, "digest")
        _check_pinner(tenant, caller, resource)

        def keep(tx: Tx) -> BlobRecord | None:
            if tx.get_blob(tenant, digest) is not None:
                tx.pin_blobs(tenant, resource, [digest])
            return tx.get_blob(tenant, digest)

        record = await self._store.run(keep)
        if record is None:
            raise _no_blob(digest)
        return record.pin_count

    async def unpin(self, tenant: str, caller: str, resource: str) -> int:
        """End every pin of `resource`; return how many there were.

        What loses its last pin has its grace period before it, as if it had been uploaded now.

        Raises:
            Invalid: when the resource isn't one that the caller keeps for this tenant.
        """
        _check_pinner(tenant, caller, resource)
        now = self._clock.now()
        return await self._store.run(lambda tx: tx.unpin_blobs(tenant, resource, now))

    async def read(
        self, tenant: str, digest: str, offset: int, length: int
    ) -> AsyncIterator[tuple[bytes, int]]:
        """Yield pieces of at most 256 KiB, each with the blob's whole size; at least one, though it be empty.

        Args:
            tenant: whose reference counts.
            digest: of the blob.
            offset: first byte.
            length: how many bytes; 0 means to the end, and more than there are too.

        Raises:
            NotFound: when the tenant has no such blob.
            OutOfRange: when the offset is beyond the end.
        """
        size = (await self.stat(tenant, digest)).blob.size_bytes
        if offset > size:
            raise OutOfRange(f"offset_bytes: {offset} is beyond the blob's {size} bytes", reason="BEYOND_END")
        end = min(size, offset + length) if length else size
        if offset == end:
            yield b"", size
        while offset < end:
            start, wanted = offset, min(READ_BYTES, end - offset)
            piece = await _off_loop(self._files.read, digest, start, wanted)
            if not piece:
                raise Internal(
                    f"{digest}: ends after {offset} of {size} bytes on the deployer's disk; upload it again"
                )
            offset += len(piece)
            self._on_bytes("read", len(piece))
            yield piece, size

    async def load(self, tenant: str, digest: str, most: int) -> bytes:
        """Return a whole blob of at most `most` bytes."""
        pieces = [piece async for piece, _ in self.read(tenant, digest, 0, most)]
        return b"".join(pieces)

    async def collect(self, grace: timedelta) -> int:
        """Remove what nobody pins, refers to or writes and hasn't for `grace`; return how many things.

        References go first, then the bytes of digests without any, then uploads.
        """
        before = self._clock.now() - grace
        count = 0
        while dropped := await self._store.run(lambda tx: tx.drop_unpinned_blobs(before, _SWEEP)):
            count += len(dropped)
        for digest in await _off_loop(self._stored_before, before.timestamp()):
            async with self._locks.of(digest):
                if not await self._store.read(partial(_in_use, digest=digest)):
                    await _off_loop(self._files.remove, digest)
                    count += 1
        return count + await _off_loop(self._files.drop_uploads_before, before.timestamp())

    def _stored_before(self, time_s: float) -> list[str]:
        return list(self._files.stored_before(time_s))


class Locks:
    """A lock for each key, kept only while somebody wants it."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Hold the lock of `key` inside the block."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)


def _in_use(tx: Tx, digest: str) -> bool:
    return tx.blob_in_use(digest)


def check_digest(digest: str, field: str) -> str:
    """Return `digest` if it is `sha256:<64 hex digits>`; raise Invalid naming `field` otherwise."""
    if not _DIGEST.fullmatch(digest):
        raise Invalid(
            f"{field}: {shown(digest)} is not a digest; it is 'sha256:' and 64 lower-case hex digits",
            reason="BAD_DIGEST",
            metadata={"field": field},
        )
    return digest


def check_ref(blob: BlobRef, field: str) -> BlobRef:
    """Return `blob` if its digest is well formed and its size at most 4 GiB; raise Invalid otherwise."""
    check_digest(blob.digest, f"{field}.digest")
    if blob.size_bytes > MAX_BLOB_BYTES:
        raise Invalid(
            f"{field}.size_bytes: {blob.size_bytes} is more than {MAX_BLOB_BYTES} (4 GiB)",
            reason="TOO_LARGE",
            metadata={"field": f"{field}.size_bytes"},
        )
    return blob


def parse_upload_id(upload_id: str) -> BlobRef:
    """Return what an upload is of; raise NotFound when no upload can have this id."""
    match = _UPLOAD.fullmatch(upload_id)
    if match is None:
        raise NotFound(f"upload_id: {shown(upload_id)} isn't one that BeginBlob gave out", reason="NO_UPLOAD")
    return BlobRef(f"sha256:{match[1]}", int(match[2]))


def _no_blob(digest: str) -> NotFound:
    return NotFound(f"digest: {digest} isn't a blob of this tenant; upload it first", reason="NO_BLOB")


def _check_pinner(tenant: str, caller: str, resource: str) -> None:
    collection = PINNERS.get(caller, "")
    form = f"tenants/{re.escape(tenant)}/{collection}/{_ID}(/{_ID}){{0,4}}"
    if len(resource) > _LONGEST_RESOURCE or not re.fullmatch(form, resource):
        raise Invalid(
            f"resource: {shown(resource)} is nothing that {caller} keeps for this tenant; "
            f"name one of tenants/{tenant}/{collection}/",
            reason="BAD_NAME",
            metadata={"field": "resource"},
        )


def _other_size(blob: BlobRef, size: int) -> Invalid:
    return Invalid(
        f"blob.size_bytes: {blob.digest} has {size} bytes, not {blob.size_bytes}",
        reason="SIZE_MISMATCH",
        metadata={"field": "blob.size_bytes"},
    )


async def _off_loop(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` on a thread, to its end even when the call is cancelled: its lock must outlast it."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    finally:
        if not running.done():
            await asyncio.wait([running])
