"""What the store does with its client's watch; what it does with etcd itself is in the contract suite."""

from collections.abc import AsyncGenerator

from libs.common.etcd import EtcdClient, WatchBatch
from libs.common.testing import FakeClock, FakeRandomness
from services.scheduler.stores.etcd import EtcdStore


class Watched(EtcdClient):
    """A client whose watch yields one batch, and then nothing; it connects nowhere."""

    def __init__(self) -> None:
        super().__init__(["127.0.0.1:1"], clock=FakeClock(), randomness=FakeRandomness())
        self.closed = False

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        try:
            yield WatchBatch((), start_revision)
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
