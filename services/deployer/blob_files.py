"""Blobs as files: `blobs/<two hex digits>/<hex>`, and `uploads/<tenant>/<hex>-<size>` while they arrive.

The partial file is the whole state of an upload: its size is what is durable, so that nothing has to be
written elsewhere, and a process that was killed goes on from there. Every method blocks on the disk; call
them on a thread. Whoever calls them takes care that one upload is written by one thread at a time.
"""

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from libs.common.errors import Internal, Invalid, NotFound, OutOfRange
from libs.common.fsio import disk_errors, fsync_dir
from services.deployer.domain.model import BlobRef

_PIECE = 1024 * 1024


class BlobFiles:
    """The folder that holds the bytes."""

    def __init__(self, folder: Path) -> None:
        """Make the folder and those inside it; raise OSError when that can't be done."""
        self._blobs = folder / "blobs"
        self._uploads = folder / "uploads"
        for path in (self._blobs, self._uploads):
            path.mkdir(parents=True, exist_ok=True)
        fsync_dir(folder)

    def begin(self, tenant: str, blob: BlobRef) -> int:
        """Make an upload's file, or find it; return how many bytes of it are durable.

        Raises:
            Exhausted: reason DISK_FULL.
        """
        path = self._upload(tenant, blob)
        with disk_errors(path):
            if not path.parent.is_dir():
                path.parent.mkdir(exist_ok=True)
                fsync_dir(self._uploads)
            fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                # A process killed between write and fsync left bytes that only look durable.
                os.fsync(fd)
                size = os.fstat(fd).st_size
                os.utime(fd)
            finally:
                os.close(fd)
            fsync_dir(path.parent)
        return size

    def write(self, tenant: str, blob: BlobRef, offset: int, data: bytes) -> int:
        """Append `data` at `offset`, durably; return the size after. Bytes that are there must be the same.

        Raises:
            NotFound: when there is no such upload.
            OutOfRange: when the offset is beyond what is there.
            Invalid: when there would be more bytes than the blob has, or they differ from those that are
            there. Exhausted: reason DISK_FULL; what was durable before still is, and nothing more.
        """
        path = self._upload(tenant, blob)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _no_upload() from None
        try:
            size = os.fstat(fd).st_size
            if offset > size:
                raise OutOfRange(
                    f"offset_bytes: {offset} is beyond the {size} bytes that are durable; go on from there",
                    reason="UPLOAD_GAP",
                    metadata={"offset_bytes": str(size)},
                )
            if offset + len(data) > blob.size_bytes:
                raise Invalid(
                    f"data: {len(data)} bytes at {offset} go beyond the blob's {blob.size_bytes} bytes",
                    reason="UPLOAD_TOO_LONG",
                )
            known = min(size - offset, len(data))
            if known and os.pread(fd, known, offset) != data[:known]:
                raise Invalid(
                    f"data: differs from the bytes that are there from offset {offset}; is it another file?",
                    reason="UPLOAD_DIFFERS",
                )
            if len(data) > known:
                self._append(fd, path, size, data[known:])
            return max(size, offset + len(data))
        finally:
            os.close(fd)

    def _append(self, fd: int, path: Path, size: int, data: bytes) -> None:
        try:
            with disk_errors(path):
                view, at = memoryview(data), size
                while view:
                    written = os.pwrite(fd, view, at)
                    view, at = view[written:], at + written
                os.fsync(fd)
        except BaseException:
            os.ftruncate(fd, size)
            raise

    def commit(self, tenant: str, blob: BlobRef) -> bool:
        """Check an upload's size and digest and put it in its place; False when there is no such upload.

        Raises:
            OutOfRange: when bytes are missing.
            Invalid: when the digest differs; the upload is removed, since no more bytes could mend it.
            Exhausted: reason DISK_FULL.
        """
        path, place = self._upload(tenant, blob), self._place(blob.digest)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return False
        if size < blob.size_bytes:
            raise OutOfRange(
                f"upload: has {size} of {blob.size_bytes} bytes; write the rest first",
                reason="UPLOAD_INCOMPLETE",
                metadata={"offset_bytes": str(size)},
            )
        digest = digest_of(path)
        if digest != blob.digest:
            path.unlink()
            raise Invalid(
                f"upload: its {size} bytes have the digest {digest}, not {blob.digest}; the file changed "
                "or was damaged on its way: begin again",
                reason="DIGEST_MISMATCH",
            )
        with disk_errors(place):
            if not place.parent.is_dir():
                place.parent.mkdir(exist_ok=True)
                fsync_dir(self._blobs)
            path.chmod(0o444)
            os.utime(path)
            path.replace(place)
            fsync_dir(place.parent)
            fsync_dir(path.parent)
        return True

    def stored_size(self, digest: str) -> int | None:
        """Return the size of a stored blob, or None."""
        try:
            return self._place(digest).stat().st_size
        except FileNotFoundError:
            return None

    def read(self, digest: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; raise Internal when the file is gone or damaged."""
        try:
            with self._place(digest).open("rb") as file:
                file.seek(offset)
                return file.read(length)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EIO):
                raise Internal(
                    f"{digest}: its bytes can't be read from the deployer's disk; upload it again",
                    reason="BLOB_DAMAGED",
                ) from error
            raise

    def remove(self, digest: str) -> None:
        """Remove a stored blob, if it is there."""
        self._place(digest).unlink(missing_ok=True)

    def stored_before(self, time_s: float) -> Iterator[str]:
        """Yield the digests of blobs that were put in place before `time_s` (Unix seconds)."""
        for path in self._blobs.glob("??/*"):
            if _older(path, time_s):
                yield f"sha256:{path.name}"

    def drop_uploads_before(self, time_s: float) -> int:
        """Remove uploads that nobody began, resumed or wrote since `time_s`; return how many."""
        old = [path for path in self._uploads.glob("*/*") if _older(path, time_s)]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)

    def _upload(self, tenant: str, blob: BlobRef) -> Path:
        return self._uploads / tenant / f"{blob.digest.removeprefix('sha256:')}-{blob.size_bytes}"

    def _place(self, digest: str) -> Path:
        name = digest.removeprefix("sha256:")
        return self._blobs / name[:2] / name


def digest_of(path: Path) -> str:
    """Return `sha256:<hex>` of a file."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            state.update(piece)
    return f"sha256:{state.hexdigest()}"


def _older(path: Path, time_s: float) -> bool:
    try:
        return path.stat().st_mtime < time_s
    except FileNotFoundError:
        return False


def _no_upload() -> NotFound:
    return NotFound("upload_id: no such upload; it may have been collected: begin again", reason="NO_UPLOAD")
