"""The engine sees a tenant's blobs alone, of the very size they have."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from libs.common.access import Access
from libs.common.blobs import BlobClient, BlobRef
from libs.common.client import ServiceIdentity
from libs.common.clock import SystemClock
from libs.common.errors import Invalid, NotFound, Unavailable
from libs.common.identity import IdentityIssuer
from libs.common.retry import RetryPolicy
from libs.common.testing import running_server
from libs.common.testing_blobs import MemoryBlobService
from services.engine.tenant_blobs import TenantBlobs

METHODS = ("BeginBlob", "WriteBlob", "CommitBlob", "StatBlob", "ReadBlob")
ACCESS = {
    f"/isthmus.deployer.v1.BlobService/{method}": Access(kinds=frozenset(), callers=frozenset({"engine"}))
    for method in METHODS
}


@pytest.fixture
def store() -> MemoryBlobService:
    return MemoryBlobService()


@pytest.fixture
async def blobs(store: MemoryBlobService) -> AsyncIterator[TenantBlobs]:
    key = Ed25519PrivateKey.generate()
    issuer = IdentityIssuer("engine", key, SystemClock())
    async with running_server(
        store, identity=None, access=ACCESS, audience="deployer", trusted={"engine": key.public_key()}
    ) as channel:
        mine = channel.anonymous().with_metadata(ServiceIdentity(issuer, "deployer"))
        yield TenantBlobs(BlobClient(mine, policy=RetryPolicy(attempts=2)))


async def test_what_a_tenant_has_is_found_and_what_another_has_is_not(
    store: MemoryBlobService, blobs: TenantBlobs, tmp_path: Path
) -> None:
    ref = store.put("acme", b"a model")
    await blobs.check("acme", ref)
    assert await blobs.read("acme", ref, 100) == b"a model"
    await blobs.download("acme", ref, tmp_path / "model")
    with pytest.raises(NotFound):
        await blobs.check("other", ref)
    with pytest.raises(NotFound):
        await blobs.read("other", ref, 100)
    assert await blobs.upload("acme", b"a plan") == BlobRef.of(b"a plan")
    assert ("acme", BlobRef.of(b"a plan").digest) in store.blobs


async def test_a_size_that_is_not_the_blobs_is_refused(store: MemoryBlobService, blobs: TenantBlobs) -> None:
    ref = store.put("acme", b"a model")
    for call in (blobs.check, lambda tenant, wrong: blobs.read(tenant, wrong, 100)):
        with pytest.raises(Invalid, match="has 7 bytes, not 8"):
            await call("acme", replace(ref, size_bytes=8))
    with pytest.raises(Invalid, match="at most 3"):
        await blobs.read("acme", ref, 3)


async def test_a_deployer_that_is_down_for_a_moment_is_asked_again(
    store: MemoryBlobService, blobs: TenantBlobs
) -> None:
    ref = store.put("acme", b"a model")
    store.fail = 1
    await blobs.check("acme", ref)
    store.fail = 9
    with pytest.raises(Unavailable):
        await blobs.check("acme", ref)
