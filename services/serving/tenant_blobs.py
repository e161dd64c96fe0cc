"""The tenants' files, as the deployer keeps them: each call is made on a tenant's behalf."""

from __future__ import annotations

from pathlib import Path

from libs.common.blobs import BlobClient, BlobRef
from libs.common.client import on_behalf_of
from libs.common.errors import Invalid


class TenantBlobs:
    """See `services.serving.domain.repository.Blobs`."""

    def __init__(self, client: BlobClient, *, pinning: bool = True) -> None:
        """Call through `client`, whose channel mints this service's identity; pin nothing if told so."""
        self._client = client
        self._pinning = pinning

    async def check(self, tenant: str, ref: BlobRef) -> None:
        """See `Blobs`."""
        with on_behalf_of(f"tenants/{tenant}"):
            found = await self._client.stat(ref.digest)
        if found != ref:
            raise Invalid(
                f"blob.size_bytes: {ref.digest} has {found.size_bytes} bytes, not {ref.size_bytes}",
                reason="WRONG_SIZE",
                metadata={"field": "blob.size_bytes"},
            )

    async def download(self, tenant: str, ref: BlobRef, path: Path) -> None:
        """See `Blobs`."""
        with on_behalf_of(f"tenants/{tenant}"):
            await self._client.download(ref, path)

    async def pin(self, tenant: str, ref: BlobRef, resource: str) -> None:
        """See `Blobs`."""
        if self._pinning:
            with on_behalf_of(f"tenants/{tenant}"):
                await self._client.pin(ref, resource)

    async def unpin(self, tenant: str, resource: str) -> None:
        """See `Blobs`."""
        if self._pinning:
            with on_behalf_of(f"tenants/{tenant}"):
                await self._client.unpin(resource)
