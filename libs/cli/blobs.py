"""Files to the deployer's blob store, and from there."""

from __future__ import annotations

from pathlib import Path

from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc, manifest_pb2
from libs.cli.files import put_at
from libs.cli.session import Session
from libs.common.errors import Invalid
from libs.trust.digests import DigestingWriter, sha256_of

_CHUNK_BYTES = 512 * 1024


def blob_of(path: Path) -> manifest_pb2.BlobRef:
    """Return digest and size of a file.

    Raises:
        Invalid: when it is no plain file: a pipe has no size, and may never end.
        OSError: when it isn't there or can't be read.
    """
    if path.exists() and not path.is_file():
        raise Invalid(f"{path}: is no plain file", reason="BAD_FILE")
    return manifest_pb2.BlobRef(digest=sha256_of(path), size_bytes=path.stat().st_size)


def upload(session: Session, path: Path) -> manifest_pb2.BlobRef:
    """Upload a file unless the tenant has it; an upload that broke off goes on where it stopped.

    Raises:
        Error: what the deployer answered.
        OSError: when the file can't be read.
    """
    stub = blob_pb2_grpc.BlobServiceStub(session.channel)
    blob = blob_of(path)
    begun = session.call(stub.BeginBlob, blob_pb2.BeginBlobRequest(blob=blob))
    if begun.committed:
        return blob
    offset = begun.offset_bytes
    told = _tenths(offset, blob)
    with path.open("rb") as file:
        file.seek(offset)
        while data := file.read(_CHUNK_BYTES):
            request = blob_pb2.WriteBlobRequest(upload_id=begun.upload_id, offset_bytes=offset, data=data)
            offset = session.call(stub.WriteBlob, request).offset_bytes
            file.seek(offset)
            if blob.size_bytes > 8 * _CHUNK_BYTES and _tenths(offset, blob) > told:
                told = _tenths(offset, blob)
                session.output.note(f"{path.name}: {10 * told} %")
    return session.call(stub.CommitBlob, blob_pb2.CommitBlobRequest(upload_id=begun.upload_id)).blob


def _tenths(offset: int, blob: manifest_pb2.BlobRef) -> int:
    return 10 * offset // max(blob.size_bytes, 1)


def stat(session: Session, digest: str) -> manifest_pb2.BlobRef:
    """Return the blob of a digest; raise Error when the tenant hasn't got it."""
    stub = blob_pb2_grpc.BlobServiceStub(session.channel)
    return session.call(stub.StatBlob, blob_pb2.StatBlobRequest(digest=digest)).blob


def download(session: Session, blob: manifest_pb2.BlobRef, path: Path, flag: str) -> None:
    """Write a blob to a file, which appears only when it is whole and right; `flag` named it.

    Raises:
        Error: what the deployer answered, or what is wrong with the place.
        Untrusted: when other bytes arrive than the digest says.
    """
    stub = blob_pb2_grpc.BlobServiceStub(session.channel)
    request = blob_pb2.ReadBlobRequest(digest=blob.digest)
    with put_at(path, flag, mode=0o644) as file:
        writer = DigestingWriter(file)
        for chunk in session.stream(stub.ReadBlob, request, timeout_s=3600):
            writer.write(chunk.data)
        writer.check(blob.digest, blob.size_bytes, "what arrived")
