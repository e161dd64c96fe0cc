"""Gives trials the file of the model that they try, and nothing else.

A trial's instance has no credential for the deployer: it takes the tuner for one, which has the file. So an
instance can neither read nor pin anything of a tenant, and trials don't load the deployer.
"""

# ruff: noqa: N802 - gRPC names the methods

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc
from libs.common.access import Access
from libs.common.blobs import BlobRef
from libs.common.errors import Forbidden, NotFound, OutOfRange

_CHUNK = 1024 * 1024
_TRIAL = Access(kinds=frozenset(), callers=frozenset({"serving"}))
ACCESS = {f"/isthmus.deployer.v1.BlobService/{method}": _TRIAL for method in ("StatBlob", "ReadBlob")}


class Relay(blob_pb2_grpc.BlobServiceServicer):
    """The part of `isthmus.deployer.v1.BlobService` that an instance of serving needs."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[BlobRef, Path]] = {}
        self._uses: dict[str, int] = {}

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        blob_pb2_grpc.add_BlobServiceServicer_to_server(self, server)

    @contextmanager
    def offering(self, ref: BlobRef, path: Path) -> Iterator[None]:
        """Give a file to whoever asks for its digest inside the block."""
        self._files[ref.digest] = (ref, path)
        self._uses[ref.digest] = self._uses.get(ref.digest, 0) + 1
        try:
            yield
        finally:
            self._uses[ref.digest] -= 1
            if not self._uses[ref.digest]:
                del self._uses[ref.digest], self._files[ref.digest]

    def offers(self, path: Path) -> bool:
        """Tell whether a file is given to anybody now."""
        return any(offered == path for _, offered in self._files.values())

    def _file(self, digest: str) -> tuple[BlobRef, Path]:
        found = self._files.get(digest)
        if found is None:
            raise NotFound(f"digest: {digest[:80]!r} isn't tried here", reason="NO_BLOB")
        return found

    async def StatBlob(self, request: blob_pb2.StatBlobRequest, context: Any) -> blob_pb2.StatBlobResponse:
        """See the proto."""
        return blob_pb2.StatBlobResponse(blob=self._file(request.digest)[0].to_proto())

    async def BeginBlob(self, request: blob_pb2.BeginBlobRequest, context: Any) -> blob_pb2.BeginBlobResponse:
        """Refuse: instances keep nothing, and `ACCESS` lets nobody come here."""
        raise Forbidden("trials keep nothing")

    async def WriteBlob(self, request: blob_pb2.WriteBlobRequest, context: Any) -> blob_pb2.WriteBlobResponse:
        """Refuse, as for `BeginBlob`."""
        raise Forbidden("trials keep nothing")

    async def CommitBlob(
        self, request: blob_pb2.CommitBlobRequest, context: Any
    ) -> blob_pb2.CommitBlobResponse:
        """Refuse, as for `BeginBlob`."""
        raise Forbidden("trials keep nothing")

    async def PinBlob(self, request: blob_pb2.PinBlobRequest, context: Any) -> blob_pb2.PinBlobResponse:
        """Refuse, as for `BeginBlob`."""
        raise Forbidden("trials keep nothing")

    async def UnpinBlobs(
        self, request: blob_pb2.UnpinBlobsRequest, context: Any
    ) -> blob_pb2.UnpinBlobsResponse:
        """Refuse, as for `BeginBlob`."""
        raise Forbidden("trials keep nothing")

    async def ReadBlob(
        self, request: blob_pb2.ReadBlobRequest, context: Any
    ) -> AsyncIterator[blob_pb2.ReadBlobResponse]:
        """See the proto."""
        ref, path = self._file(request.digest)
        if request.offset_bytes > ref.size_bytes:
            raise OutOfRange(f"offset_bytes: {request.offset_bytes} is beyond its {ref.size_bytes} bytes")
        left = ref.size_bytes - request.offset_bytes
        left = min(left, request.length_bytes) if request.length_bytes else left
        first = True
        with path.open("rb") as file:
            file.seek(request.offset_bytes)
            while first or left:
                data = await asyncio.to_thread(file.read, min(_CHUNK, left))
                left -= len(data)
                yield blob_pb2.ReadBlobResponse(data=data, size_bytes=ref.size_bytes if first else 0)
                first = False
                if not data:
                    return
