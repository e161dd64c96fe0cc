"""The tenants' files, as the deployer keeps them: each call is made on a tenant's behalf."""

from __future__ import annotations

from pathlib import Path

from libs.common.blobs import BlobClient, BlobRef
from libs.common.client import on_behalf_of
from libs.common.errors import Invalid


class TenantBlobs:
    """See `services.engine.domain.optimiser.Blobs`."""

    def __init__(self, client: BlobClient) -> None:
        """Call through `client`, whose channel mints this service's identity."""
        self._client = client

    async def check(self, tenant: str, ref: BlobRef) -> None:
        """See `Blobs`; raises Invalid for a size that isn't the blob's."""
        with on_behalf_of(f"tenants/{tenant}"):
            found = await self._client.stat(ref.digest)
        if found != ref:
            raise Invalid(
                f"size_bytes: {ref.digest} has {found.size_bytes} bytes, not {ref.size_bytes}",
                reason="WRONG_SIZE",
                metadata={"field": "size_bytes"},
            )

    async def read(self, tenant: str, ref: BlobRef, max_bytes: int) -> bytes:
        """See `Blobs`."""
        await self.check(tenant, ref)
        with on_behalf_of(f"tenants/{tenant}"):
            return await self._client.read(ref, max_bytes)

    async def download(self, tenant: str, ref: BlobRef, path: Path) -> None:
        """See `Blobs`."""
        with on_behalf_of(f"tenants/{tenant}"):
            await self._client.download(ref, path)

    async def upload(self, tenant: str, content: bytes) -> BlobRef:
        """See `Blobs`."""
        with on_behalf_of(f"tenants/{tenant}"):
            return await self._client.upload(content)
