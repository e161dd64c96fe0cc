"""Keys, ranges and transactions against a real etcd."""

import asyncio

import pytest
from etcd_stubs import rpc_pb2

from libs.common.errors import Invalid, NotFound
from libs.common.etcd import (
    MAX_REQUEST_BYTES,
    MAX_TXN_OPERATIONS,
    Compacted,
    Compare,
    Delete,
    EtcdClient,
    Get,
    Put,
)
from libs.common.etcd.testing import EtcdServer, etcd_client


async def test_a_key_is_written_read_and_deleted(client: EtcdClient, prefix: str) -> None:
    key = prefix + "a"
    assert await client.get(key) is None
    first = await client.put(key, b"1")
    second = await client.put(key, b"2")
    kv = await client.get(key)
    assert kv is not None
    assert (kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version) == (
        key,
        b"2",
        first,
        second,
        2,
    )
    assert await client.delete(key) == 1
    assert await client.delete(key) == 0
    assert await client.get(key) is None


async def test_a_prefix_is_deleted_and_nothing_beside_it(client: EtcdClient, prefix: str) -> None:
    for name in ("a/1", "a/2", "a", "b"):
        await client.put(prefix + name, b"")
    assert await client.delete(prefix + "a/", prefix=True) == 2
    assert [kv.key for kv in (await client.range(prefix)).items] == [prefix + "a", prefix + "b"]


async def test_a_list_longer_than_a_page_is_whole_and_of_one_revision(
    client: EtcdClient, prefix: str
) -> None:
    keys = [f"{prefix}{number:04d}" for number in range(1100)]
    for first in range(0, len(keys), 100):
        await client.txn((), [Put(key, b"old") for key in keys[first : first + 100]])
    listed = await client.range(prefix)
    assert [kv.key for kv in listed.items] == keys
    assert not listed.more
    await client.put(keys[-1], b"new")
    before = await client.range(prefix, revision=listed.revision)
    assert before.items == listed.items


async def test_writes_between_two_pages_do_not_show(client: EtcdClient, prefix: str) -> None:
    await client.txn((), [Put(f"{prefix}{number}", b"old") for number in range(6)])
    first = await client.range(prefix, limit=4)
    assert first.more
    await client.put(f"{prefix}5", b"new")
    second = await client.range(prefix, limit=4, start=first.next_start, revision=first.revision)
    assert [kv.value for kv in (*first.items, *second.items)] == [b"old"] * 6
    assert not second.more
    assert second.revision == first.revision
    third = await client.range(prefix, start=second.next_start)
    assert (third.items, third.more) == ((), False)


async def test_a_start_beyond_the_prefix_finds_nothing(client: EtcdClient, prefix: str) -> None:
    revision = await client.put(prefix + "a", b"")
    beyond = await client.range(prefix, start=prefix[:-1] + "0")
    assert (beyond.items, beyond.more) == ((), False)
    assert beyond.revision >= revision


async def test_a_list_larger_than_a_message_comes_in_smaller_pages(client: EtcdClient, prefix: str) -> None:
    value = b"x" * 1_200_000
    for number in range(30):
        await client.put(f"{prefix}{number:02d}", value)
    items = (await client.range(prefix)).items
    assert [kv.key[-2:] for kv in items] == [f"{number:02d}" for number in range(30)]
    assert all(kv.value == value for kv in items)
    await client.delete(prefix, prefix=True)


async def test_a_key_that_is_no_utf8_is_listed_and_can_be_deleted(client: EtcdClient, prefix: str) -> None:
    key = prefix + b"\xff\xfe".decode("utf-8", "surrogateescape")
    await client.put(key, b"")
    assert [kv.key for kv in (await client.range(prefix)).items] == [key]
    assert await client.delete(key) == 1


async def test_each_kind_of_compare_holds_and_fails(client: EtcdClient, prefix: str) -> None:
    key = prefix + "a"
    created = await client.put(key, b"1")
    modified = await client.put(key, b"2")
    for field, right, wrong in (
        (Compare.create_revision, created, modified),
        (Compare.mod_revision, modified, created),
        (Compare.version, 2, 1),
    ):
        assert (await client.txn([field(key, right)], [Get(key)])).succeeded
        assert not (await client.txn([field(key, wrong)], [Get(key)])).succeeded
        assert not (await client.txn([field(key, 0)], [Get(key)])).succeeded
        assert (await client.txn([field(prefix + "none", 0)], ())).succeeded
    assert (await client.txn([Compare.value(key, b"2")], ())).succeeded
    assert not (await client.txn([Compare.value(key, b"1")], ())).succeeded
    assert not (await client.txn([Compare.value(prefix + "none", b"")], ())).succeeded


async def test_a_transaction_is_done_whole_or_not_at_all(client: EtcdClient, prefix: str) -> None:
    a, b = prefix + "a", prefix + "b"
    done = await client.txn([Compare.mod_revision(a, 0)], [Put(a, b"1"), Put(b, b"1"), Get(a)])
    assert done.succeeded
    assert [[kv.value for kv in found] for found in done.results] == [[], [], [b"1"]]
    refused = await client.txn(
        [Compare.mod_revision(a, 0)], [Delete(prefix, prefix=True)], [Get(a), Get(prefix + "none"), Get(b)]
    )
    assert not refused.succeeded
    assert [[kv.mod_revision for kv in found] for found in refused.results] == [
        [done.revision],
        [],
        [done.revision],
    ]


async def test_of_many_who_want_a_key_one_gets_it(client: EtcdClient, prefix: str) -> None:
    key = prefix + "a"
    results = await asyncio.gather(
        *(
            client.txn([Compare.mod_revision(key, 0)], [Put(key, str(number).encode())])
            for number in range(50)
        )
    )
    assert sum(result.succeeded for result in results) == 1


async def test_the_largest_transactions_are_taken(client: EtcdClient, prefix: str) -> None:
    # As many compares and writes as we let through: etcd must not be stricter.
    keys = [f"{prefix}{number}" for number in range(MAX_TXN_OPERATIONS)]
    done = await client.txn([Compare.mod_revision(key, 0) for key in keys], [Put(key, b"") for key in keys])
    assert done.succeeded
    room = MAX_REQUEST_BYTES - 600
    await client.put(prefix + "large", b"x" * room)
    kv = await client.get(prefix + "large")
    assert kv is not None
    assert len(kv.value) == room


async def test_a_put_with_a_lease_that_is_gone_is_not_found(client: EtcdClient, prefix: str) -> None:
    with pytest.raises(NotFound, match="lease"):
        await client.put(prefix + "a", b"", lease=12345)
    assert await client.get(prefix + "a") is None


async def test_an_interval_that_is_written_twice_is_refused_before_it_is_sent(
    client: EtcdClient, prefix: str
) -> None:
    with pytest.raises(Invalid, match="written twice") as caught:
        await client.txn((), [Put(prefix + "a", b""), Delete(prefix, prefix=True)])
    assert caught.value.reason == "DUPLICATE_KEY"


async def test_a_list_whose_history_is_compacted_between_two_pages_is_read_again(
    own_server: EtcdServer,
) -> None:
    async with etcd_client(own_server, timeout_s=30.0) as client:
        keys = [f"/a/{number:04d}" for number in range(600)]
        for first in range(0, len(keys), 120):
            await client.txn((), [Put(key, b"old") for key in keys[first : first + 120]])
        read, pages = client._range, 0

        async def read_and_compact(request: rpc_pb2.RangeRequest) -> rpc_pb2.RangeResponse:
            nonlocal pages
            pages += 1
            response = await read(request)
            if pages == 1:
                await own_server.compact(await client.put(keys[0], b"new"))
            return response

        client._range = read_and_compact  # type: ignore[method-assign]
        items = (await client.range("/a/")).items
        assert pages == 4
        assert [kv.key for kv in items] == keys
        assert items[0].value == b"new"


async def test_a_compacted_revision_is_told(own_server: EtcdServer) -> None:
    async with etcd_client(own_server, timeout_s=30.0) as client:
        old = await client.put("/a", b"1")
        new = await client.put("/a", b"2")
        await own_server.compact(new)
        with pytest.raises(Compacted):
            await client.range("/", revision=old)
        assert [kv.value for kv in (await client.range("/", revision=new)).items] == [b"2"]
