"""Repeated creates get their first answer; how many are remembered is bounded."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from libs.common.errors import AlreadyExists, Exhausted, Invalid
from libs.common.testing import FakeClock, FakeRandomness
from services.scheduler.domain.change import Change
from services.scheduler.domain.creates import Writer, remembered
from services.scheduler.domain.mirror import Mirror
from services.scheduler.stores.memory import MemoryStore
from services.scheduler.testing import BEGIN


class Creates:
    def __init__(self, most: int) -> None:
        self.store = MemoryStore()
        self.mirror = Mirror(self.store, FakeClock(), FakeRandomness())
        self.writer = Writer(self.store, self.mirror, most_remembered=most)

    async def create(self, tenant: str, request_id: str, fingerprint: str = "f") -> str:
        """Make something, or return what a request of this id made before."""
        name = f"tenants/{tenant}/jobs/{request_id}"

        def work() -> tuple[str, Change | None]:
            earlier = self.writer.earlier(tenant, request_id, fingerprint)
            if earlier is not None:
                return f"again {earlier}", None
            return name, Change(puts=remembered(tenant, request_id, fingerprint, name, BEGIN))

        return (await self.writer.write(work))[0]


@pytest.fixture
async def creates() -> AsyncIterator[Creates]:
    made = Creates(most=2)
    following = asyncio.create_task(made.mirror.run())
    yield made
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_repeated_create_gets_the_first_answer(creates: Creates) -> None:
    assert await creates.create("acme", "one") == "tenants/acme/jobs/one"
    assert await creates.create("acme", "one") == "again tenants/acme/jobs/one"
    assert await creates.create("rival", "one") == "tenants/rival/jobs/one"
    with pytest.raises(AlreadyExists, match="was used for another request"):
        await creates.create("acme", "one", "another")
    with pytest.raises(Invalid, match="longer than 64 bytes"):
        await creates.create("acme", "x" * 65)


async def test_each_tenant_has_its_own_bound_of_request_ids(creates: Creates) -> None:
    for request_id in ("one", "two"):
        await creates.create("acme", request_id)
    with pytest.raises(Exhausted, match="request_id: tenants/acme has 2 ids"):
        await creates.create("acme", "three")
    assert await creates.create("acme", "two") == "again tenants/acme/jobs/two"
    assert await creates.create("rival", "three") == "tenants/rival/jobs/three"
    # What is forgotten makes room.
    oldest = next(request for request in creates.mirror.requests if request.tenant == "acme")
    await creates.mirror.reached(await creates.store.commit(Change(deletes=(oldest,))))
    assert await creates.create("acme", "three") == "tenants/acme/jobs/three"
    assert creates.mirror.request_count("acme") == 2
    # Loading anew counts none twice.
    await creates.mirror._take(await creates.store.load(), fresh=True)
    assert creates.mirror.request_count("acme") == 2
