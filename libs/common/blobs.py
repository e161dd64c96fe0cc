"""How a process brings files to the deployer's blob store and takes them from there.

Whose blobs they are is said around the call, as for any call between services:

    with on_behalf_of("tenants/acme"):
        ref = await blobs.upload(Path("model.onnx"))

Transfers go on where they broke off: an upload asks how much is there, a download asks for the rest. Nothing
that came is used before its digest was checked.
"""

import asyncio
import contextlib
import hashlib
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, Self, TypeVar

import grpc

from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc, manifest_pb2
from libs.common.clock import Clock, SystemClock
from libs.common.errors import Error, Internal, Invalid, NotFound, OutOfRange, Unavailable
from libs.common.fsio import disk_errors
from libs.common.names import shown
from libs.common.rand import Randomness, SystemRandomness
from libs.common.retry import DEFAULT_POLICY, RetryPolicy, retry

T = TypeVar("T")

MAX_BLOB_BYTES = 4 * 1024**3
_WRITE_BYTES = 512 * 1024
_HASH_BYTES = 1024 * 1024
_CALL_S = 30.0
# A chunk of a download must come within this time, in seconds; what stalls is asked for again.
_STALL_S = 30.0
# How often an upload that the deployer has forgotten meanwhile is begun again.
_BEGINS = 3
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class BlobRef:
    """What names a blob: its digest, `sha256:<64 hex digits>`, and its size in bytes."""

    digest: str
    size_bytes: int

    def __post_init__(self) -> None:
        """Raise Invalid for a malformed digest or a size out of range."""
        if not _DIGEST.fullmatch(self.digest):
            raise Invalid(
                f"digest: {shown(self.digest)} is not a digest; write 'sha256:' and 64 lower-case hex digits",
                reason="BAD_DIGEST",
                metadata={"field": "digest"},
            )
        if not 0 <= self.size_bytes <= MAX_BLOB_BYTES:
            raise Invalid(
                f"size_bytes: {self.size_bytes} is not between 0 and {MAX_BLOB_BYTES} (4 GiB)",
                reason="TOO_LARGE",
                metadata={"field": "size_bytes"},
            )

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return what names `content`."""
        return cls(f"sha256:{hashlib.sha256(content).hexdigest()}", len(content))

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Return what names the content of a file; blocks while reading it.

        Raises:
            Invalid: when it is no plain file (a pipe has no size and may never end) or has more than 4 GiB.
            OSError: when it can't be read.
        """
        if not path.is_file():
            raise Invalid(f"{path}: is no plain file", reason="BAD_FILE")
        hasher, size = hashlib.sha256(), 0
        with path.open("rb") as file:
            while chunk := file.read(_HASH_BYTES):
                hasher.update(chunk)
                size += len(chunk)
                if size > MAX_BLOB_BYTES:
                    break
        return cls(f"sha256:{hasher.hexdigest()}", size)

    @classmethod
    def from_proto(cls, message: manifest_pb2.BlobRef) -> Self:
        """Return what a message names; raise Invalid for a malformed one."""
        return cls(message.digest, message.size_bytes)

    def to_proto(self) -> manifest_pb2.BlobRef:
        """Return it as a message."""
        return manifest_pb2.BlobRef(digest=self.digest, size_bytes=self.size_bytes)


class _Sink(Protocol):
    """Where a download goes."""

    def write(self, data: bytes, /) -> object:
        """Take the next bytes."""
        ...


class BlobClient:
    """A client of `isthmus.deployer.v1.BlobService`; safe to share between tasks."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        policy: RetryPolicy = DEFAULT_POLICY,
    ) -> None:
        """Call over `channel`, which stays the caller's to close; `policy` says how long to try."""
        self._stub = blob_pb2_grpc.BlobServiceStub(channel)
        self._clock = clock or SystemClock()
        self._randomness = randomness or SystemRandomness()
        self._policy = policy

    async def upload(self, content: bytes | Path) -> BlobRef:
        """Bring bytes or a file unless the tenant has them; return what names them.

        Raises:
            Invalid: when a path is no plain file, or the file changed meanwhile.
            Exhausted, Unavailable: when the deployer has no room, or isn't there for too long.
            OSError: when the file can't be read.
        """
        if isinstance(content, Path):
            ref = await asyncio.to_thread(BlobRef.of_file, content)
        else:
            ref = await asyncio.to_thread(BlobRef.of, content)
        for remaining in reversed(range(_BEGINS)):
            try:
                await self._upload_once(ref, content)
            except (NotFound, OutOfRange):
                # The deployer collected the upload, or lost bytes that it hadn't called durable yet.
                if not remaining:
                    raise
            else:
                break
        return ref

    async def _upload_once(self, ref: BlobRef, content: bytes | Path) -> None:
        begin = blob_pb2.BeginBlobRequest(blob=ref.to_proto())
        begun = await self._call(lambda: self._stub.BeginBlob(begin, timeout=_CALL_S))
        if begun.committed:
            return
        offset = begun.offset_bytes
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(content.open("rb")) if isinstance(content, Path) else None
            while offset < ref.size_bytes:
                if file is None:
                    data = bytes(content[offset : offset + _WRITE_BYTES])  # type: ignore[index]
                else:
                    data = await asyncio.to_thread(_read_at, file, offset)
                if not data:
                    raise Invalid(f"{content!s}: became shorter while it was uploaded", reason="BAD_FILE")
                write = blob_pb2.WriteBlobRequest(upload_id=begun.upload_id, offset_bytes=offset, data=data)
                # The loop waits for the call before it goes on to the next piece.
                written = await self._call(lambda: self._stub.WriteBlob(write, timeout=_CALL_S))  # noqa: B023
                if written.offset_bytes <= offset:
                    raise Unavailable(
                        f"{ref.digest}: the deployer stays at byte {offset}, whatever it is given",
                        reason="STALLED",
                    )
                offset = written.offset_bytes
        commit = blob_pb2.CommitBlobRequest(upload_id=begun.upload_id)
        # Checking the digest of a large blob takes the deployer a while.
        await self._call(lambda: self._stub.CommitBlob(commit, timeout=2 * _CALL_S))

    async def download(self, ref: BlobRef, path: Path) -> None:
        """Put a blob at `path`: whole and checked, or not at all.

        The bytes aren't synced to the disk. The folder must be there; a file there already is replaced.

        Raises:
            NotFound: when the tenant has no such blob.
            Internal: when what came isn't what the digest names.
            Exhausted: when the disk is full.
            Unavailable: when the deployer isn't there for too long.
            OSError: when the file can't be written.
        """
        part = path.with_name(f".{path.name[:64]}.{self._randomness.id(8)}.part")
        try:
            with disk_errors(path):
                with part.open("xb") as file:
                    await self._download(ref, file)
                os.replace(part, path)  # noqa: PTH105 - one call, no second stat
        finally:
            part.unlink(missing_ok=True)

    async def read(self, ref: BlobRef, max_bytes: int) -> bytes:
        """Return a blob of at most `max_bytes`.

        Raises:
            Invalid: when it is larger.
            NotFound, Internal, Unavailable: as for `download`.
        """
        if ref.size_bytes > max_bytes:
            raise Invalid(
                f"{ref.digest}: has {ref.size_bytes} bytes, and at most {max_bytes} are taken here",
                reason="TOO_LARGE",
            )
        content = bytearray()
        await self._download(ref, _Bytes(content))
        return bytes(content)

    async def stat(self, digest: str) -> BlobRef:
        """Return what names a blob that the tenant has.

        Raises:
            NotFound: when the tenant has no such blob.
            Unavailable: when the deployer isn't there for too long.
        """
        request = blob_pb2.StatBlobRequest(digest=digest)
        return BlobRef.from_proto(
            (await self._call(lambda: self._stub.StatBlob(request, timeout=_CALL_S))).blob
        )

    async def pin(self, ref: BlobRef, resource: str) -> None:
        """Keep a blob as long as `resource` (a name of a kind that this service owns) needs it.

        Raises:
            NotFound: when the tenant has no such blob.
            Invalid: when the resource isn't one that this service keeps.
        """
        request = blob_pb2.PinBlobRequest(digest=ref.digest, resource=resource)
        await self._call(lambda: self._stub.PinBlob(request, timeout=_CALL_S))

    async def unpin(self, resource: str) -> int:
        """End every pin of `resource`; return how many there were."""
        request = blob_pb2.UnpinBlobsRequest(resource=resource)
        return (await self._call(lambda: self._stub.UnpinBlobs(request, timeout=_CALL_S))).pin_count

    async def _download(self, ref: BlobRef, sink: _Sink) -> None:
        """Write a blob into `sink`, going on where a stream broke off, and check the whole."""
        hasher, taken = hashlib.sha256(), 0

        def take(data: bytes) -> None:
            hasher.update(data)
            sink.write(data)

        async def go_on() -> None:
            nonlocal taken
            request = blob_pb2.ReadBlobRequest(digest=ref.digest, offset_bytes=taken)
            call = self._stub.ReadBlob(request)
            try:
                while True:
                    async with asyncio.timeout(_STALL_S):
                        answer = await call.read()
                    if not isinstance(answer, blob_pb2.ReadBlobResponse):
                        return  # grpc.aio.EOF
                    if taken + len(answer.data) > ref.size_bytes:
                        raise _differs(ref, f"more than its {ref.size_bytes} bytes came")
                    await asyncio.to_thread(take, answer.data)
                    taken += len(answer.data)
            except TimeoutError:
                raise Unavailable(
                    f"{ref.digest}: nothing more came for {_STALL_S:g} s", reason="STALLED"
                ) from None
            finally:
                call.cancel()

        # What a broken stream brought counts: only tries in a row that bring nothing use up the policy.
        while True:
            before = taken
            try:
                await self._call(go_on)
            except Error as error:
                if not error.retriable or taken == before:
                    raise
            else:
                break
        if taken != ref.size_bytes:
            raise _differs(ref, f"{taken} of {ref.size_bytes} bytes came")
        if f"sha256:{hasher.hexdigest()}" != ref.digest:
            raise _differs(ref, "other bytes came than its digest names")

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry(
            call, idempotent=True, clock=self._clock, randomness=self._randomness, policy=self._policy
        )


class _Bytes:
    """A download kept in memory."""

    def __init__(self, content: bytearray) -> None:
        self._content = content

    def write(self, data: bytes, /) -> None:
        self._content.extend(data)


def _read_at(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    return file.read(_WRITE_BYTES)


def _differs(ref: BlobRef, how: str) -> Internal:
    return Internal(f"{ref.digest}: {how}", reason="DIGEST_MISMATCH")
