"""Uploads that break off, overlap, lie or meet a full disk."""

import asyncio
import errno
import hashlib
import os
from datetime import timedelta
from pathlib import Path

import pytest

from isthmus.deployer.v1 import blob_pb2, manifest_pb2
from libs.common.errors import Exhausted, Invalid, NotFound, OutOfRange
from libs.common.testing import FakeClock
from libs.task.testing import blob_ref
from services.deployer.testing import Client, Running, refused, running_deployer

MIB = 1024 * 1024
CONTENT = bytes(range(256)) * 4096 * 2  # 2 MiB


async def begin(client: Client, ref: manifest_pb2.BlobRef) -> blob_pb2.BeginBlobResponse:
    return await client.blobs.BeginBlob(blob_pb2.BeginBlobRequest(blob=ref))


async def write(client: Client, upload_id: str, offset: int, data: bytes) -> int:
    request = blob_pb2.WriteBlobRequest(upload_id=upload_id, offset_bytes=offset, data=data)
    return (await client.blobs.WriteBlob(request)).offset_bytes


def stored(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*/*") if path.is_file())


async def commit(client: Client, upload_id: str) -> None:
    await client.blobs.CommitBlob(blob_pb2.CommitBlobRequest(upload_id=upload_id))


async def test_what_was_uploaded_is_read_back_in_any_range(client: Client) -> None:
    ref = await client.upload(CONTENT)
    assert await client.read(ref.digest) == CONTENT
    for offset, length in ((0, 1), (300_000, 700_001), (len(CONTENT) - 3, 0), (len(CONTENT), 0), (5, 10**12)):
        assert await client.read(ref.digest, offset, length) == CONTENT[offset:][: length or None]
    with refused(OutOfRange):
        await client.read(ref.digest, len(CONTENT) + 1)


async def test_chunks_are_small_and_the_first_tells_the_size(client: Client) -> None:
    ref = await client.upload(CONTENT)
    chunks = [c async for c in client.blobs.ReadBlob(blob_pb2.ReadBlobRequest(digest=ref.digest))]
    assert [c.size_bytes for c in chunks] == [len(CONTENT)] + [0] * (len(chunks) - 1)
    assert max(len(c.data) for c in chunks) <= 256 * 1024


async def test_an_empty_file_is_a_blob_too(client: Client) -> None:
    ref = await client.upload(b"")
    assert await client.read(ref.digest) == b""
    assert (await begin(client, ref)).committed


async def test_a_broken_off_upload_goes_on_where_it_is_durable_after_a_restart(tmp_path: Path) -> None:
    ref = blob_ref(CONTENT)
    async with running_deployer(tmp_path) as running:
        client = running.client()
        upload = await begin(client, ref)
        assert upload.offset_bytes == 0
        await write(client, upload.upload_id, 0, CONTENT[:MIB])
    async with running_deployer(tmp_path) as running:
        client = running.client()
        upload = await begin(client, ref)
        assert upload.offset_bytes == MIB
        await write(client, upload.upload_id, MIB, CONTENT[MIB:])
        await commit(client, upload.upload_id)
        await commit(client, upload.upload_id)  # idempotent
        assert await client.read(ref.digest) == CONTENT


async def test_two_clients_may_upload_the_same_file_at_once(client: Client) -> None:
    await asyncio.gather(*(client.upload(CONTENT) for _ in range(4)))
    assert await client.read(blob_ref(CONTENT).digest) == CONTENT


async def test_repeated_and_overlapping_writes_are_accepted_and_others_are_not(client: Client) -> None:
    upload = await begin(client, blob_ref(CONTENT))
    assert await write(client, upload.upload_id, 0, CONTENT[:1000]) == 1000
    assert await write(client, upload.upload_id, 0, CONTENT[:1000]) == 1000
    assert await write(client, upload.upload_id, 500, CONTENT[500:1500]) == 1500
    with refused(OutOfRange) as gap:
        await write(client, upload.upload_id, 2000, CONTENT[2000:3000])
    assert gap[0].metadata["offset_bytes"] == "1500"
    with refused(Invalid, "differs"):
        await write(client, upload.upload_id, 1000, b"x" * 10)
    with refused(Invalid, "at most"):
        await write(client, upload.upload_id, 1500, bytes(MIB + 1))
    with refused(OutOfRange, "1500 of"):
        await commit(client, upload.upload_id)
    assert (await begin(client, blob_ref(CONTENT))).offset_bytes == 1500


async def test_bytes_beyond_the_size_are_refused(client: Client) -> None:
    upload = await begin(client, blob_ref(b"abc"))
    with refused(Invalid, "beyond"):
        await write(client, upload.upload_id, 0, b"abcd")


async def test_a_digest_that_does_not_match_starts_over(client: Client) -> None:
    ref = manifest_pb2.BlobRef(digest="sha256:" + "0" * 64, size_bytes=3)
    upload = await begin(client, ref)
    await write(client, upload.upload_id, 0, b"abc")
    with refused(Invalid) as mismatch:
        await commit(client, upload.upload_id)
    assert mismatch[0].reason == "DIGEST_MISMATCH"
    assert "sha256:" + hashlib.sha256(b"abc").hexdigest() in mismatch[0].message
    with refused(NotFound):
        await client.read(ref.digest)
    assert (await begin(client, ref)).offset_bytes == 0


@pytest.mark.parametrize(
    "digest", ["", "abc", "sha256:xyz", "SHA256:" + "0" * 64, "sha256:" + "0" * 63, "../../etc/passwd"]
)
async def test_a_malformed_digest_is_refused(client: Client, digest: str) -> None:
    with refused(Invalid, "digest"):
        await begin(client, manifest_pb2.BlobRef(digest=digest, size_bytes=1))
    with refused(Invalid, "digest"):
        await client.read(digest)


@pytest.mark.parametrize("upload_id", ["", "x", "../" + "0" * 61 + "-3", "0" * 64 + "-03", "0" * 64 + "-3"])
async def test_an_upload_that_nobody_began_is_not_found(client: Client, upload_id: str) -> None:
    with refused(NotFound):
        await write(client, upload_id, 0, b"abc")
    with refused(NotFound):
        await commit(client, upload_id)


async def test_more_than_four_gib_is_refused(client: Client) -> None:
    ref = manifest_pb2.BlobRef(digest="sha256:" + "0" * 64, size_bytes=4 * 1024**3 + 1)
    with refused(Invalid, "4 GiB"):
        await begin(client, ref)


async def test_a_digest_grants_nothing_to_another_tenant(running: Running, client: Client) -> None:
    ref = await client.upload(CONTENT)
    other = running.client("other")
    with refused(NotFound):
        await other.read(ref.digest)
    with refused(NotFound):
        await other.blobs.StatBlob(blob_pb2.StatBlobRequest(digest=ref.digest))
    begun = await begin(other, ref)
    assert (begun.committed, begun.offset_bytes) == (False, 0)
    await other.upload(CONTENT)
    assert await other.read(ref.digest) == CONTENT
    # The first tenant's upload is none of the other's either.
    mine = await begin(client, blob_ref(b"abc"))
    with refused(NotFound):
        await write(other, mine.upload_id, 0, b"abc")


async def test_a_full_disk_is_told_and_leaves_nothing_half_done(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await begin(client, blob_ref(CONTENT))
    await write(client, upload.upload_id, 0, CONTENT[:1000])
    real, room = os.pwrite, [700]

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(fd, data[: room[0]], offset)
        room[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", pwrite)
    with refused(Exhausted) as full:
        await write(client, upload.upload_id, 1000, CONTENT[1000:5000])
    assert full[0].reason == "DISK_FULL"
    assert (await begin(client, blob_ref(CONTENT))).offset_bytes == 1000
    room[0] = len(CONTENT)
    assert await client.upload(CONTENT) == blob_ref(CONTENT)
    assert await client.read(blob_ref(CONTENT).digest) == CONTENT


async def test_a_write_that_is_given_up_never_meets_the_next_one(client: Client) -> None:
    upload = await begin(client, blob_ref(CONTENT))
    request = blob_pb2.WriteBlobRequest(upload_id=upload.upload_id, offset_bytes=0, data=CONTENT[:MIB])
    calls = [client.blobs.WriteBlob(request) for _ in range(5)]
    await asyncio.sleep(0)
    for call in calls[:4]:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert await client.upload(CONTENT) == blob_ref(CONTENT)
    assert await client.read(blob_ref(CONTENT).digest) == CONTENT


async def test_what_nobody_pins_is_collected_after_its_grace(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running_deployer(tmp_path, clock=clock) as running:
        client = running.client()
        await client.install_root(clock.now())
        await client.create_task()
        await client.publish()
        loose = await client.upload(CONTENT)
        unfinished = await begin(client, blob_ref(b"unfinished"))
        hour = timedelta(hours=1)
        files = stored(tmp_path)
        assert len(files) == 3
        for path in files:  # the files' own times are the machine's
            os.utime(path, (clock.now().timestamp(), clock.now().timestamp()))
        clock.advance(1800)
        await running.deployer.blobs.collect(hour)
        assert await client.read(loose.digest) == CONTENT
        clock.advance(1800 + 1)
        await running.deployer.blobs.collect(hour)
        with refused(NotFound):
            await client.read(loose.digest)
        with refused(NotFound):
            await write(client, unfinished.upload_id, 0, b"unfinished")
        assert len(stored(tmp_path)) == 1
        await client.release()  # what a version pins is there


async def test_asking_for_a_blob_keeps_it_for_another_grace(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running_deployer(tmp_path, clock=clock) as running:
        client = running.client()
        loose = await client.upload(CONTENT)
        clock.advance(3000)
        assert (await begin(client, loose)).committed
        clock.advance(3000)
        await running.deployer.blobs.collect(timedelta(hours=1))
        assert await client.read(loose.digest) == CONTENT


async def test_bytes_without_a_reference_are_collected(tmp_path: Path) -> None:
    """A process killed between putting the bytes in place and writing the reference leaves them."""
    async with running_deployer(tmp_path) as running:
        client = running.client()
        ref = await client.upload(CONTENT)
        name = ref.digest.removeprefix("sha256:")
        place = tmp_path / "blobs" / name[:2] / name
        orphan = tmp_path / "blobs" / "ff" / ("f" * 64)
        orphan.parent.mkdir()
        orphan.write_bytes(b"left")
        os.utime(orphan, (0, 0))
        await running.deployer.blobs.collect(timedelta(hours=1))
        assert not orphan.exists()
        assert place.exists()


async def test_a_stored_blob_whose_bytes_are_gone_can_be_uploaded_again(
    client: Client, tmp_path: Path
) -> None:
    ref = await client.upload(CONTENT)
    name = ref.digest.removeprefix("sha256:")
    (tmp_path / "blobs" / name[:2] / name).unlink()
    assert not (await begin(client, ref)).committed
    await client.upload(CONTENT)
    assert await client.read(ref.digest) == CONTENT
