"""The blob client against a service that breaks off, forgets and lies."""

import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.deployer.v1 import blob_pb2
from libs.common.blobs import BlobClient, BlobRef
from libs.common.client import on_behalf_of
from libs.common.errors import Exhausted, Internal, Invalid, NotFound, Unavailable
from libs.common.retry import RetryPolicy
from libs.common.testing import running_server
from libs.common.testing_blobs import MemoryBlobService

CONTENT = bytes(range(256)) * 8192  # 2 MiB
POLICY = RetryPolicy(attempts=3, base_s=0.001, cap_s=0.002)


@pytest.fixture
def service() -> MemoryBlobService:
    return MemoryBlobService()


@pytest.fixture
async def blobs(service: MemoryBlobService) -> AsyncIterator[BlobClient]:
    async with running_server(service) as channel:
        yield BlobClient(channel, policy=POLICY)


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def held(service: MemoryBlobService) -> list[bytes]:
    return list(service.blobs.values())


async def test_bytes_and_files_go_up_once(
    blobs: BlobClient, service: MemoryBlobService, tmp_path: Path
) -> None:
    ref = await blobs.upload(CONTENT)
    assert ref == BlobRef.of(CONTENT)
    assert held(service) == [CONTENT]
    assert service.calls == ["BeginBlob", *["WriteBlob"] * 4, "CommitBlob"]
    path = tmp_path / "model"
    path.write_bytes(CONTENT)
    service.calls.clear()
    assert await blobs.upload(path) == ref
    assert service.calls == ["BeginBlob"]


async def test_an_empty_file_goes_up_and_comes_down(blobs: BlobClient, tmp_path: Path) -> None:
    ref = await blobs.upload(b"")
    await blobs.download(ref, tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b""
    assert await blobs.read(ref, 0) == b""


async def test_an_upload_goes_on_where_it_stopped(
    blobs: BlobClient, service: MemoryBlobService, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    path.write_bytes(CONTENT)
    service.forget_uploads = 1
    service.fail = 2
    assert await blobs.upload(path) == BlobRef.of(CONTENT)
    assert held(service) == [CONTENT]
    assert service.calls.count("BeginBlob") == 4


async def test_a_service_that_takes_nothing_is_given_up() -> None:
    class Stuck(MemoryBlobService):
        async def WriteBlob(  # noqa: N802 - gRPC names the methods
            self, request: blob_pb2.WriteBlobRequest, context: Any
        ) -> blob_pb2.WriteBlobResponse:
            return blob_pb2.WriteBlobResponse(offset_bytes=request.offset_bytes)

    async with running_server(Stuck()) as channel:
        with pytest.raises(Unavailable, match="stays at byte 0"):
            await BlobClient(channel, policy=POLICY).upload(CONTENT)


async def test_a_download_asks_only_for_the_rest(
    blobs: BlobClient, service: MemoryBlobService, tmp_path: Path
) -> None:
    ref = service.put("acme", CONTENT)
    service.break_after = 3
    await blobs.download(ref, tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == CONTENT
    assert service.calls == ["ReadBlob", "ReadBlob"]


@pytest.mark.parametrize(("corrupt", "extra"), [(True, b""), (False, b"x")])
async def test_what_isnt_what_the_digest_names_never_gets_a_name(
    blobs: BlobClient, service: MemoryBlobService, tmp_path: Path, corrupt: bool, extra: bytes
) -> None:
    ref = service.put("acme", CONTENT)
    service.corrupt, service.extra = corrupt, extra
    with pytest.raises(Internal) as caught:
        await blobs.download(ref, tmp_path / "model")
    assert caught.value.reason == "DIGEST_MISMATCH"
    assert files(tmp_path) == []
    with pytest.raises(Internal):
        await blobs.read(ref, len(CONTENT))


async def test_too_short_a_blob_is_no_blob(
    blobs: BlobClient, service: MemoryBlobService, tmp_path: Path
) -> None:
    ref = service.put("acme", CONTENT)
    service.blobs["acme", ref.digest] = CONTENT[:-1]
    with pytest.raises(Internal, match="bytes came"):
        await blobs.download(ref, tmp_path / "model")


async def test_a_service_that_stays_away_is_given_up(
    blobs: BlobClient, service: MemoryBlobService, tmp_path: Path
) -> None:
    ref = service.put("acme", CONTENT)
    service.fail = 1000
    with pytest.raises(Unavailable):
        await blobs.download(ref, tmp_path / "model")
    with pytest.raises(Unavailable):
        await blobs.upload(b"other")
    assert service.calls == ["ReadBlob"] * 3 + ["BeginBlob"] * 3
    assert files(tmp_path) == []


async def test_what_isnt_there_and_what_is_too_large(
    blobs: BlobClient, service: MemoryBlobService, tmp_path: Path
) -> None:
    with pytest.raises(NotFound):
        await blobs.download(BlobRef.of(b"nowhere"), tmp_path / "model")
    ref = service.put("acme", CONTENT)
    with pytest.raises(Invalid) as caught:
        await blobs.read(ref, len(CONTENT) - 1)
    assert caught.value.reason == "TOO_LARGE"
    assert await blobs.read(ref, len(CONTENT)) == CONTENT


async def test_what_is_no_plain_file_is_refused(blobs: BlobClient, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no plain file"):
        await blobs.upload(tmp_path)
    with pytest.raises(Invalid, match="no plain file"):
        await blobs.upload(tmp_path / "missing")


async def test_a_full_disk_is_told_and_leaves_nothing(
    blobs: BlobClient, service: MemoryBlobService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    ref = service.put("acme", CONTENT)
    with monkeypatch.context() as patched:
        patched.setattr("libs.common.blobs.os.replace", full)
        with pytest.raises(Exhausted) as caught:
            await blobs.download(ref, tmp_path / "model")
    assert caught.value.reason == "DISK_FULL"
    assert files(tmp_path) == []


async def test_pins_are_the_resources(blobs: BlobClient, service: MemoryBlobService) -> None:
    ref = service.put("acme", b"model")
    with on_behalf_of("tenants/acme"):
        await blobs.pin(ref, "tenants/acme/jobs/train")
        await blobs.pin(ref, "tenants/acme/jobs/train")
        assert service.pins == {("acme", "tenants/acme/jobs/train", ref.digest)}
        assert await blobs.unpin("tenants/acme/jobs/other") == 0
        assert await blobs.unpin("tenants/acme/jobs/train") == 1
    with pytest.raises(NotFound):
        await blobs.pin(BlobRef.of(b"nowhere"), "tenants/acme/jobs/train")


@pytest.mark.parametrize(
    ("digest", "size"),
    [("sha256:" + "A" * 64, 1), ("sha256:", 1), ("", 0), ("sha256:" + "a" * 64 + "\n", 1)]
    + [("sha256:" + "a" * 64, size) for size in (-1, 4 * 1024**3 + 1)],
)
def test_a_malformed_reference_is_refused(digest: str, size: int) -> None:
    with pytest.raises(Invalid):
        BlobRef(digest, size)


def test_a_reference_survives_the_wire() -> None:
    ref = BlobRef.of(b"model")
    assert BlobRef.from_proto(ref.to_proto()) == ref
