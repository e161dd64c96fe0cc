"""Files of task versions on this device: fetched with resume, verified, put in place whole.

    <state>/blobs/<hex>.part      a download, resumed where it stopped
    <state>/blobs/<hex>           a verified blob that waits to be put in place
    <state>/staging/<id>/         a version's folder in the making
    <state>/versions/<task>/<version>/...the manifest's paths
    <state>/quarantine/           what stopped verifying, for people to look at

A version's folder appears by one rename, after all its files are on the disk.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Protocol

from libs.common.errors import Exhausted, Invalid, Unavailable
from libs.common.fsio import disk_errors, fsync_dir
from libs.runtime.loading import load_plan
from libs.task.manifest import Blob, CheckedManifest
from libs.trust.digests import DigestingWriter, check_content, parse_digest, sha256_of
from libs.trust.errors import Untrusted
from services.device_agent.domain.failures import ScriptNames, script_names

_COPY = 1024 * 1024
# A download whose content is wrong is started over this many times before the version is given up.
_FETCH_ATTEMPTS = 2


class ReadsBlobs(Protocol):
    """Where blobs come from."""

    def read_blob(self, digest: str, offset: int, size: int) -> AsyncGenerator[bytes]:
        """Yield a blob's bytes from an offset on."""
        ...


Opener = Callable[[Path, str], BinaryIO]


def open_file(path: Path, mode: str) -> BinaryIO:
    """Open a file without a buffer; tests put a full disk in its place."""
    return open(path, mode, buffering=0)  # type: ignore[return-value]  # noqa: PTH123


class VersionFiles:
    """The folders. Methods that aren't `async` do blocking IO: call them on a thread.

    Args:
        state_dir: the agent's folder.
        reserve_bytes: disk space to leave free.
        opener: opens the files that are written.
        free_bytes: tells the free space at a path.
    """

    def __init__(
        self,
        state_dir: Path,
        reserve_bytes: int,
        opener: Opener = open_file,
        free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    ) -> None:
        self._blobs = state_dir / "blobs"
        self._staging = state_dir / "staging"
        self._versions = state_dir / "versions"
        self._quarantine = state_dir / "quarantine"
        self._reserve = reserve_bytes
        self._open = opener
        self._free = free_bytes

    def prepare(self) -> None:
        """Make the folders, and remove what a crash left half done."""
        for folder in (self._blobs, self._staging, self._versions, self._quarantine):
            with disk_errors(folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in self._staging.iterdir():
            shutil.rmtree(left)

    def folder(self, task: str, version: str) -> Path:
        """Return where a version's files are, or will be."""
        return self._versions / task / version

    # ---- fetching ----

    def check_space(self, blobs: Iterable[Blob]) -> None:
        """Raise Exhausted, reason DISK_FULL, unless a version of these blobs fits with the reserve left."""
        # Twice: once as a blob, once in its folder, until the former goes.
        needed = sum(2 * blob.size_bytes - sum(map(_size, self._paths(blob.digest))) for blob in blobs)
        free = self._free(self._blobs)
        if needed > max(0, free - self._reserve):
            raise Exhausted(
                f"installing takes {needed} bytes and {free} are free, {self._reserve} of them reserved; "
                "free some space",
                reason="DISK_FULL",
            )

    async def fetch(self, cloud: ReadsBlobs, blob: Blob) -> None:
        """Get a blob that isn't here yet, from where an earlier download stopped.

        Raises:
            Untrusted: DIGEST_MISMATCH when what comes is something else, repeatedly.
            Exhausted: DISK_FULL; what came so far stays for the next attempt.
            Error: what the call failed with; the same holds.
        """
        done, part = self._paths(blob.digest)
        if await asyncio.to_thread(done.exists):
            return
        for attempt in range(_FETCH_ATTEMPTS):
            try:
                await self._fetch_once(cloud, blob, done, part)
                return
            except Untrusted:
                await asyncio.to_thread(part.unlink, missing_ok=True)
                if attempt == _FETCH_ATTEMPTS - 1:
                    raise

    async def _fetch_once(self, cloud: ReadsBlobs, blob: Blob, done: Path, part: Path) -> None:
        offset = await asyncio.to_thread(_resume, part, blob.size_bytes)
        with disk_errors(part):
            file = await self._open_part(part)
            try:
                if offset < blob.size_bytes:
                    async with aclosing(cloud.read_blob(blob.digest, offset, blob.size_bytes)) as chunks:
                        async for chunk in chunks:
                            if offset + len(chunk) > blob.size_bytes:
                                text = f"{blob.digest}: longer than the {blob.size_bytes} bytes expected"
                                raise Untrusted(text, reason="DIGEST_MISMATCH")
                            await _to_the_end(_write, file, chunk)
                            offset += len(chunk)
                await _to_the_end(os.fsync, file.fileno())
            finally:
                # Here, not in a thread: a second cancellation would leave it open. Nothing is buffered.
                file.close()
        if offset < blob.size_bytes:
            raise Unavailable(f"{blob.digest}: ended after {offset} of {blob.size_bytes} bytes")
        # What counts is what is on the disk, the part of an earlier download included.
        await asyncio.to_thread(check_content, part, blob.digest, blob.digest)
        await asyncio.to_thread(part.rename, done)
        await asyncio.to_thread(fsync_dir, self._blobs)

    async def _open_part(self, part: Path) -> BinaryIO:
        """Open a part to go on with; cancelled meanwhile, it isn't left open."""
        opening = asyncio.create_task(asyncio.to_thread(self._open, part, "ab"))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise

    # ---- putting in place ----

    def assemble(self, manifest: CheckedManifest, scratch_id: str) -> Path:
        """Make a version's folder out of verified blobs; return it. What was there by that name goes.

        Raises:
            Exhausted: DISK_FULL; nothing of it is visible.
            Untrusted: when a blob no longer has its digest.
        """
        draft = self._staging / scratch_id
        folder = self.folder(manifest.task, manifest.version)
        try:
            with disk_errors(draft):
                draft.mkdir(mode=0o700)
            for path, blob in manifest.files.items():
                self._place(blob, draft / path)
            for parent in sorted({p for path in manifest.files for p in (draft / path).parents}):
                if parent.is_relative_to(draft):
                    fsync_dir(parent)
            with disk_errors(folder):
                folder.parent.mkdir(mode=0o700, exist_ok=True)
                if folder.exists():
                    shutil.rmtree(folder)
                draft.rename(folder)
            fsync_dir(folder.parent)
            fsync_dir(self._versions)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return folder

    def _place(self, blob: Blob, target: Path) -> None:
        done, _ = self._paths(blob.digest)
        with disk_errors(target):
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with disk_errors(target), done.open("rb") as source, self._open(target, "xb") as copy:
            writer = DigestingWriter(copy)
            while chunk := source.read(_COPY):
                writer.write(chunk)
            os.fchmod(copy.fileno(), 0o400)
            os.fsync(copy.fileno())
        try:
            writer.check(blob.digest, blob.size_bytes, f"{blob.digest} on the disk")
        except Untrusted:
            done.unlink()
            raise

    def verify(self, manifest: CheckedManifest) -> None:
        """Raise Untrusted, reason DIGEST_MISMATCH, unless every file of a version is there and intact."""
        folder = self.folder(manifest.task, manifest.version)
        for path, blob in manifest.files.items():
            try:
                found = sha256_of(folder / path)
            except OSError as error:
                text = f"{manifest.key}: {path} can't be read ({error.strerror})"
                raise Untrusted(text, reason="DIGEST_MISMATCH") from error
            if found != blob.digest:
                text = f"{manifest.key}: {path} is not what the manifest says (digest {found})"
                raise Untrusted(text, reason="DIGEST_MISMATCH")

    def script_names(self, manifest: CheckedManifest) -> ScriptNames:
        """Return the words of a version's scripts, and what is wrong with its files; none that are gone."""
        folder = self.folder(manifest.task, manifest.version)
        try:
            sources = {
                phase.path: ((folder / phase.path).read_bytes(), phase.entry_point)
                for phase in manifest.phases
            }
        except OSError:
            return ScriptNames({})
        names = script_names(sources)
        if manifest.model is None or names.fault:
            return names
        return replace(names, fault=_plan_fault(folder, manifest.model.path))

    # ---- clearing away ----

    def quarantine(self, task: str, version: str) -> None:
        """Move a version's folder out of the way, for people to look at."""
        target = self._quarantine / f"{task}@{version}"
        folder = self.folder(task, version)
        if target.exists():
            shutil.rmtree(target)
        if folder.exists():
            with disk_errors(target):
                folder.rename(target)
            fsync_dir(folder.parent)

    def collect_folders(self, needed: Mapping[str, frozenset[str]]) -> int:
        """Remove the folders of versions that aren't `needed` (task → versions); return how many."""
        gone = 0
        for task in self._versions.iterdir():
            for version in task.iterdir():
                if version.name not in needed.get(task.name, frozenset()):
                    shutil.rmtree(version)
                    gone += 1
            if task.name not in needed:
                task.rmdir()
        return gone

    def collect_blobs(self) -> None:
        """Remove fetched blobs and parts of them: every version that wanted one is in place."""
        for blob in self._blobs.iterdir():
            blob.unlink()

    def _paths(self, digest: str) -> tuple[Path, Path]:
        name = parse_digest(digest).hex()
        return self._blobs / name, self._blobs / f"{name}.part"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _plan_fault(folder: Path, path: str) -> str:
    """Return what is wrong with a plan in its own words, found by reading it; empty when nothing is."""
    try:
        load_plan((folder / path).read_bytes(), path)
    except Invalid as error:
        return error.message
    except OSError:
        return ""
    return ""


def _resume(part: Path, size_bytes: int) -> int:
    """Return how many bytes an earlier download has left; one that is too long is no use and goes."""
    offset = _size(part)
    if offset <= size_bytes:
        return offset
    part.unlink()
    return 0


def _close_opened(opening: asyncio.Task[BinaryIO]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


async def _to_the_end(function: Callable[..., None], *arguments: object) -> None:
    """Call a function in a thread; cancelled meanwhile, however often, let it end before going on.

    Else the file would be closed, or the next attempt would begin to write it, under the thread's hands.
    """
    work = asyncio.create_task(asyncio.to_thread(function, *arguments))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # nobody is told: it was given up
        raise


def _write(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)  # an unbuffered file may take less than it is given
    while view:
        view = view[file.write(view) :]
