"""What every store of tenants and keys must do."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from libs.common.errors import AlreadyExists, NotFound
from services.gateway.domain.keys import Key, Tenant
from services.gateway.sql_store import open_store
from services.gateway.store import MemoryStore
from services.gateway.testing import make_key

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
REQUEST = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def database_url(request, tmp_path):
    """Where the store is; empty for the one in memory."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql_url")
    return f"sqlite:///{tmp_path}/gateway.db" if request.param == "sqlite" else ""


@pytest.fixture
async def store(database_url):
    made = await open_store(database_url) if database_url else MemoryStore()
    yield made
    await made.close()


async def test_a_tenant_reads_as_it_was_written(store):
    tenant = Tenant("acme", "Acme Ltd — π", NOW)
    assert await store.create_tenant(tenant) == tenant
    assert await store.get_tenant("acme") == tenant


async def test_a_tenant_id_is_taken_once(store):
    await store.create_tenant(Tenant("acme", "", NOW))
    with pytest.raises(AlreadyExists, match="tenants/acme"):
        await store.create_tenant(Tenant("acme", "", NOW))
    with pytest.raises(AlreadyExists, match="tenants/acme"):
        await store.create_tenant(Tenant("acme", "", NOW, REQUEST))


async def test_a_repeated_request_gets_its_first_answer(store):
    first = await store.create_tenant(Tenant("acme", "A", NOW, REQUEST))
    later = Tenant("acme", "A", NOW + timedelta(hours=1), REQUEST)
    assert await store.create_tenant(later) == first
    for other in (replace(later, tenant_id="other"), replace(later, display_name="B")):
        with pytest.raises(AlreadyExists, match="request_id"):
            await store.create_tenant(other)
    assert await store.list_tenants("", 10) == [first]


async def test_requests_at_once_make_one_tenant(store):
    wanted = Tenant("acme", "A", NOW, REQUEST)
    assert set(await asyncio.gather(*(store.create_tenant(wanted) for _ in range(8)))) == {wanted}


async def test_a_tenant_that_is_not_there(store):
    with pytest.raises(NotFound, match="tenants/nobody"):
        await store.get_tenant("nobody")
    with pytest.raises(NotFound, match="tenants/nobody"):
        await store.create_key(make_key("nobody")[0])


async def test_tenants_come_in_order_and_in_pages(store):
    for name in ("b", "a", "c-1", "c"):
        await store.create_tenant(Tenant(name, "", NOW))
    assert [tenant.tenant_id for tenant in await store.list_tenants("", 3)] == ["a", "b", "c"]
    assert [tenant.tenant_id for tenant in await store.list_tenants("c", 3)] == ["c-1"]
    assert await store.list_tenants("c-1", 3) == []


@pytest.fixture
async def full(store):
    for tenant in ("acme", "zeta"):
        await store.create_tenant(Tenant(tenant, "", NOW))
    return store


async def test_a_key_reads_as_it_was_written(full):
    key = Key(
        "k" * 16, "acme", "π", frozenset({"tasks:read", "*"}), bytes(range(32)), NOW, NOW + timedelta(1), NOW
    )
    await full.create_key(key)
    assert await full.find_key(key.key_id) == key
    assert await full.find_key("x" * 16) is None


async def test_a_key_id_is_taken_once_by_whatever_tenant(full):
    await full.create_key(make_key("acme", 1)[0])
    with pytest.raises(AlreadyExists):
        await full.create_key(make_key("zeta", 1)[0])
    assert (await full.find_key(make_key("acme", 1)[0].key_id)).tenant == "acme"


async def test_keys_are_listed_by_tenant(full):
    own = [make_key("acme", number)[0] for number in (3, 1, 2)]
    for key in (*own, make_key("zeta", 9)[0]):
        await full.create_key(key)
    listed = await full.list_keys("acme", "", 2)
    assert [key.key_id[-1] for key in listed] == ["1", "2"]
    assert [key.key_id[-1] for key in await full.list_keys("acme", listed[-1].key_id, 2)] == ["3"]
    assert await full.list_keys("nobody", "", 2) == []


async def test_a_revoked_key_stays_revoked(full):
    key = make_key("acme", 1)[0]
    await full.create_key(key)
    revoked = await full.revoke_key("acme", key.key_id, NOW)
    assert revoked == replace(key, revoke_time=NOW)
    assert await full.revoke_key("acme", key.key_id, NOW + timedelta(1)) == revoked
    assert await full.find_key(key.key_id) == revoked


async def test_a_key_of_another_tenant_is_not_there(full):
    key = make_key("acme", 1)[0]
    await full.create_key(key)
    with pytest.raises(NotFound):
        await full.revoke_key("zeta", key.key_id, NOW)
    assert not (await full.find_key(key.key_id)).revoked
