"""What the store does with its client's watch; what it does with etcd itself is in the contract suite."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from libs.common.etcd import EtcdClient, Event, KeyValue, WatchBatch
from libs.common.names import JobName, NodeName
from libs.common.testing import FakeClock, FakeRandomness
from services.scheduler.domain.change import Change
from services.scheduler.store import Unreadable
from services.scheduler.stores.etcd import EtcdStore
from services.scheduler.testing import hold, make_job, make_node


class Watched(EtcdClient):
    """A client whose watch yields one batch, and then nothing; it connects nowhere."""

    def __init__(self) -> None:
        super().__init__(["127.0.0.1:1"], clock=FakeClock(), randomness=FakeRandomness())
        self.closed = False
        self.events: tuple[Event, ...] = ()

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        try:
            yield WatchBatch(self.events, start_revision)
        finally:
            self.closed = True


async def test_a_watch_that_is_left_early_closes_the_clients_too() -> None:
    client = Watched()
    store = EtcdStore(client, leader_ttl_s=1.0, liveness_s=1.0)
    batches = store.watch(6)
    assert (await anext(batches)).revision == 7
    assert not client.closed
    await batches.aclose()
    assert client.closed
    await store.close()


async def test_a_value_that_cannot_be_read_is_told_as_that_and_counted() -> None:
    client = Watched()
    kinds: list[str] = []
    client.events = (
        Event("put", KeyValue("/isthmus/nodes/n0", b"{", 7, 7, 1, 0), None),
        Event("put", KeyValue("/isthmus/tenants/acme/jobs/j", b"\xff", 7, 7, 1, 0), None),
        Event("put", KeyValue("/isthmus/what", b"", 7, 7, 1, 0), None),
    )
    store = EtcdStore(client, leader_ttl_s=1.0, liveness_s=1.0, on_unreadable=kinds.append)
    async with aclosing(store.watch(6)) as batches:
        batch = await anext(batches)
    assert [event.key for event in batch.events] == [NodeName("n0"), JobName("acme", "j")]
    assert all(isinstance(event.value, Unreadable) for event in batch.events)
    assert kinds == ["nodes", "jobs"]
    await store.close()


async def test_a_change_fits_as_long_as_etcd_takes_it() -> None:
    store = EtcdStore(Watched(), leader_ttl_s=1.0, liveness_s=1.0)
    node = make_node()
    _, _, (held,) = hold(make_job("tiny"), (node, ()))
    assert store.fits(Change(puts=(held,)))
    assert not store.fits(Change(puts=(replace(held, holdings=held.holdings * 20_000),)))
    names = [NodeName(f"n{number}") for number in range(128)]
    assert store.fits(Change(puts=tuple(replace(node, name=name) for name in names[:-1])))
    assert not store.fits(Change(puts=tuple(replace(node, name=name) for name in names)))
    await store.close()
