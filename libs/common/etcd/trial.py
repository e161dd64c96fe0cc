"""Does the watch lose anything? Events are written and watched while the server is restarted under both."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from libs.common.errors import Unavailable
from libs.common.etcd.client import EtcdClient
from libs.common.etcd.testing import EtcdServer
from libs.common.etcd.types import Compare, Put

_WRITERS = 8


@dataclass(frozen=True, slots=True)
class WatchTrial:
    """What came of a trial.

    Attributes:
        written: events that etcd has in its history.
        received: different ones among them that the watch yielded.
        repeated: times that one came that had come before.
        disordered: times that one came after a later one.
        restarts: how often the server was restarted meanwhile, every other time by SIGKILL.
    """

    written: int
    received: int
    repeated: int
    disordered: int
    restarts: int

    @property
    def lost(self) -> int:
        """Events that were written and never came."""
        return self.written - self.received


async def watch_trial(
    server: EtcdServer,
    client: EtcdClient,
    *,
    events: int = 1200,
    restarts: int = 3,
    prefix: str = "/trial/",
    wait_s: float = 60.0,
) -> WatchTrial:
    """Write `events` keys, restart the server `restarts` times on the way, and count what a watch yields.

    Writing and watching go on while the server is down. Ends when the last event came, or `wait_s` seconds
    after the last was written.

    Args:
        server: a running member; it runs again afterwards.
        client: a client of it.
        events: how many.
        restarts: how often, evenly spread.
        prefix: under which there must be no keys yet.
        wait_s: how long the watch may take after the last was written.
    """
    start = await client.revision() + 1
    seen: dict[str, int] = {}
    repeated = disordered = 0
    complete = asyncio.Event()

    async def watch() -> None:
        nonlocal repeated, disordered
        latest = 0
        async with aclosing(client.watch(prefix, start)) as batches:
            async for batch in batches:
                for event in batch.events:
                    repeated += event.kv.key in seen
                    disordered += event.kv.mod_revision <= latest
                    latest = max(latest, event.kv.mod_revision)
                    seen[event.kv.key] = event.kv.mod_revision
                if len(seen) >= events:
                    complete.set()

    numbers = iter(range(events))
    stops = {(number + 1) * events // (restarts + 1): number for number in range(restarts)}
    restarted: list[asyncio.Task[None]] = []

    async def restart(number: int) -> None:
        await asyncio.gather(*restarted[:number])  # one after the other
        if number % 2 == 0:
            server.kill()
        else:
            await asyncio.to_thread(server.stop)
        await server.start()

    async def write() -> None:
        for number in numbers:
            if number in stops:
                restarted.append(asyncio.create_task(restart(stops[number])))
            await _write_once(client, f"{prefix}{number:08d}")

    watching = asyncio.create_task(watch())
    try:
        async with asyncio.TaskGroup() as writers:
            for _ in range(_WRITERS):
                writers.create_task(write())
        await asyncio.gather(*restarted)
        written = len((await client.range(prefix)).items)
        done = asyncio.create_task(complete.wait())
        # A watch that failed ends the wait as well.
        await asyncio.wait((watching, done), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        done.cancel()
    finally:
        watching.cancel()
        (outcome,) = await asyncio.gather(watching, return_exceptions=True)
    if isinstance(outcome, Exception):
        raise outcome
    return WatchTrial(written, len(seen), repeated, disordered, len(restarted))


async def _write_once(client: EtcdClient, key: str) -> None:
    """Make the key, and make it once, however often it takes to be answered."""
    while True:
        try:
            await client.txn([Compare.create_revision(key, 0)], [Put(key, b"event")])
        except Unavailable:
            await client.clock.sleep(client.randomness.uniform(0.0, 0.1))
        else:
            return
