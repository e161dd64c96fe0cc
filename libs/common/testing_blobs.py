"""A blob service in memory that breaks off, forgets and lies on demand; for tests of whatever moves blobs."""

# ruff: noqa: N802 - gRPC names the methods

from collections.abc import AsyncIterator
from typing import Any

import grpc

from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc
from libs.common.blobs import BlobRef
from libs.common.errors import NotFound, OutOfRange, Unavailable
from libs.common.identity import current_identity


def _tenant() -> str:
    identity = current_identity()
    return identity.tenant or identity.on_behalf_of.split("/")[1]


class MemoryBlobService(blob_pb2_grpc.BlobServiceServicer):
    """Blobs of each tenant, in memory. Whatever it is told to do, it does to the next calls that it fits.

    Attributes:
        blobs: content by (tenant, digest).
        pins: (tenant, resource, digest).
        calls: names of the methods called, in order.
        chunk_bytes: how much a chunk of a download holds.
        fail: how many of the next calls are refused as UNAVAILABLE.
        break_after: after how many chunks the next download breaks off, once; None never.
        forget_uploads: how many of the next writes find their upload gone.
        corrupt: whether downloads bring other bytes.
        extra: what downloads bring behind the content.
    """

    def __init__(self) -> None:
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.pins: set[tuple[str, str, str]] = set()
        self.calls: list[str] = []
        self.chunk_bytes = 256 * 1024
        self.fail = 0
        self.break_after: int | None = None
        self.forget_uploads = 0
        self.corrupt = False
        self.extra = b""
        self._uploads: dict[tuple[str, str], bytearray] = {}

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        blob_pb2_grpc.add_BlobServiceServicer_to_server(self, server)

    def put(self, tenant: str, content: bytes) -> BlobRef:
        """Give a tenant a blob; return what names it."""
        ref = BlobRef.of(content)
        self.blobs[tenant, ref.digest] = content
        return ref

    def _called(self, method: str) -> str:
        self.calls.append(method)
        if self.fail:
            self.fail -= 1
            raise Unavailable("down for a moment")
        return _tenant()

    async def BeginBlob(self, request: blob_pb2.BeginBlobRequest, context: Any) -> blob_pb2.BeginBlobResponse:
        """See the proto."""
        tenant, ref = self._called("BeginBlob"), request.blob
        if (tenant, ref.digest) in self.blobs:
            return blob_pb2.BeginBlobResponse(offset_bytes=ref.size_bytes, committed=True)
        durable = self._uploads.setdefault((tenant, ref.digest), bytearray())
        return blob_pb2.BeginBlobResponse(upload_id=ref.digest, offset_bytes=len(durable))

    async def WriteBlob(self, request: blob_pb2.WriteBlobRequest, context: Any) -> blob_pb2.WriteBlobResponse:
        """See the proto."""
        upload = self._uploads.get((self._called("WriteBlob"), request.upload_id))
        if upload is None or self.forget_uploads:
            self.forget_uploads -= 1
            raise NotFound("upload_id: no such upload; begin again", reason="NO_UPLOAD")
        if request.offset_bytes > len(upload):
            raise OutOfRange("offset_bytes: is beyond what is there")
        upload[request.offset_bytes :] = request.data
        return blob_pb2.WriteBlobResponse(offset_bytes=len(upload))

    async def CommitBlob(
        self, request: blob_pb2.CommitBlobRequest, context: Any
    ) -> blob_pb2.CommitBlobResponse:
        """See the proto."""
        tenant = self._called("CommitBlob")
        content = bytes(self._uploads.pop((tenant, request.upload_id)))
        ref = self.put(tenant, content)
        assert ref.digest == request.upload_id, "other bytes were written than begun"
        return blob_pb2.CommitBlobResponse(blob=ref.to_proto())

    async def ReadBlob(
        self, request: blob_pb2.ReadBlobRequest, context: Any
    ) -> AsyncIterator[blob_pb2.ReadBlobResponse]:
        """See the proto."""
        content = self.blobs.get((self._called("ReadBlob"), request.digest))
        if content is None:
            raise NotFound(f"digest: {request.digest} isn't a blob of this tenant", reason="NO_BLOB")
        sent = (bytes(len(content)) if self.corrupt else content) + self.extra
        chunks = range(request.offset_bytes, max(len(sent), request.offset_bytes + 1), self.chunk_bytes)
        for index, start in enumerate(chunks):
            if index == self.break_after:
                self.break_after = None
                raise Unavailable("going down")
            yield blob_pb2.ReadBlobResponse(
                data=sent[start : start + self.chunk_bytes], size_bytes=0 if index else len(content)
            )

    async def StatBlob(self, request: blob_pb2.StatBlobRequest, context: Any) -> blob_pb2.StatBlobResponse:
        """See the proto."""
        content = self.blobs.get((self._called("StatBlob"), request.digest))
        if content is None:
            raise NotFound(f"digest: {request.digest} isn't a blob of this tenant", reason="NO_BLOB")
        return blob_pb2.StatBlobResponse(blob=BlobRef.of(content).to_proto())

    async def PinBlob(self, request: blob_pb2.PinBlobRequest, context: Any) -> blob_pb2.PinBlobResponse:
        """See the proto."""
        tenant = self._called("PinBlob")
        if (tenant, request.digest) not in self.blobs:
            raise NotFound(f"digest: {request.digest} isn't a blob of this tenant", reason="NO_BLOB")
        self.pins.add((tenant, request.resource, request.digest))
        count = sum(1 for t, _, digest in self.pins if (t, digest) == (tenant, request.digest))
        return blob_pb2.PinBlobResponse(pin_count=count)

    async def UnpinBlobs(
        self, request: blob_pb2.UnpinBlobsRequest, context: Any
    ) -> blob_pb2.UnpinBlobsResponse:
        """See the proto."""
        tenant = self._called("UnpinBlobs")
        ended = {pin for pin in self.pins if pin[:2] == (tenant, request.resource)}
        self.pins -= ended
        return blob_pb2.UnpinBlobsResponse(pin_count=len(ended))
