"""What every store of the scheduler does."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta

import pytest

from libs.common.errors import Conflict
from libs.common.names import NodeName
from services.scheduler.domain.change import Change
from services.scheduler.domain.decide import MAX_NODES
from services.scheduler.domain.objects import (
    Artefact,
    BlobRef,
    Job,
    JobFile,
    JobStatus,
    KeptArtefact,
    Mode,
    Nearness,
    Node,
    PastRequest,
    Reservation,
    Resources,
    Worker,
    WorkerState,
)
from services.scheduler.store import (
    Alive,
    AliveKey,
    Batch,
    Event,
    HistoryLost,
    Kept,
    Key,
    Leader,
    LeaderKey,
    RequestKey,
    Store,
    Term,
)
from services.scheduler.testing import BEGIN, hold, make_job, make_node, make_queue

WITHIN_S = 30.0
PAST = PastRequest("acme", "ab" * 32, "cd" * 32, "tenants/acme/jobs/j0", BEGIN)


async def everything(store: Store) -> dict[Key, Kept | None]:
    return {event.key: event.value for event in (await store.load()).events}


def full_job() -> Job:
    """A job with every field set."""
    job = make_job(
        "full",
        workers=2,
        gpus=1,
        nearness=Nearness(Mode.REQUIRED, 2, 12.5),
        environment={"A": "é\n"},
        files=(JobFile("a/b", BlobRef("sha256:" + "0" * 64, 3), True),),
        priority=-3,
        deadline=timedelta(seconds=90.5),
        retry_count=2,
        retry_exit_codes=(3, 4),
        grace=timedelta(0),
        artefacts=(Artefact("model", "m.onnx"),),
        retention=timedelta(0),
        cancelled=True,
    )
    status = JobStatus(
        message="why",
        reason="EXIT_CODE",
        attempt=1,
        workers=(Worker(0, NodeName("n0"), WorkerState.EXITED, 3, "R", "m", BEGIN, BEGIN, 7),),
        artefacts=(KeptArtefact("model", BlobRef("sha256:" + "1" * 64, 9)),),
        first_start_time=BEGIN,
        start_time=BEGIN,
        end_time=BEGIN,
        retry_time=BEGIN,
    )
    return replace(job, meta=replace(job.meta, labels={"team": "ads"}), status=status)


async def test_what_is_written_is_read_again_whole(store: Store) -> None:
    node = make_node(gpus=2, bandwidth=[[0, 9.5], [9.5, 0]], topology=("z", "r"), cordoned=True)
    running, reservation, (node,) = hold(make_job(gpus=2), (node, (0, 1)))
    node = replace(node, holdings=tuple(replace(holding, ports=(20_001,)) for holding in node.holdings))
    queue = make_queue(quota=Resources(1, 2, 3), priority=-1, paused=True)
    job = full_job()
    revision = await store.commit(Change(puts=(node, queue, job, running, reservation, PAST)))
    found = await everything(store)
    assert set(found) == {
        node.name,
        queue.name,
        job.name,
        running.name,
        reservation.name,
        RequestKey("acme", PAST.digest),
    }
    for value in (node, queue, job, running, reservation):
        stored = found[value.name]
        assert isinstance(stored, type(value))
        assert stored == replace(value, meta=replace(value.meta, revision=revision))
    assert found[RequestKey("acme", PAST.digest)] == replace(PAST, revision=revision)


async def test_a_change_is_written_whole_or_not_at_all(store: Store) -> None:
    revision = await store.commit(Change(puts=(make_node("n0"),)))
    stale, new = make_node("n0", cordoned=True), make_node("n1")
    with pytest.raises(Conflict):
        await store.commit(Change(puts=(new, stale)))
    assert set(await everything(store)) == {NodeName("n0")}
    fresh = replace(stale, meta=replace(stale.meta, revision=revision))
    await store.commit(Change(puts=(new, fresh)))
    assert set(await everything(store)) == {NodeName("n0"), NodeName("n1")}


@pytest.mark.parametrize("kind", ["puts", "deletes", "checks"])
async def test_every_object_named_must_be_as_it_was_read(store: Store, kind: str) -> None:
    queue = make_queue()
    revision = await store.commit(Change(puts=(queue,)))
    read = replace(queue, meta=replace(queue.meta, revision=revision))
    await store.commit(Change(puts=(replace(read, paused=True),)))
    with pytest.raises(Conflict):
        await store.commit(Change(**{"puts": (make_job(),), kind: (read,)}))  # type: ignore[arg-type]
    assert set(await everything(store)) == {queue.name}


async def test_of_two_that_read_the_same_one_writes(store: Store) -> None:
    node = make_node()
    revision = await store.commit(Change(puts=(node,)))
    read = replace(node, meta=replace(node.meta, revision=revision))

    def gang(name: str) -> Change:
        job, reservation, (held,) = hold(make_job(name), (read, ()))
        return Change(puts=(job, reservation, held))

    done = await asyncio.gather(*(store.commit(gang(f"j{i}")) for i in range(8)), return_exceptions=True)
    assert sum(isinstance(each, int) for each in done) == 1
    assert sum(isinstance(each, Conflict) for each in done) == 7
    found = await everything(store)
    assert sum(isinstance(value, Reservation) for value in found.values()) == 1
    (stored,) = (value for value in found.values() if isinstance(value, Node))
    assert len(stored.holdings) == 1


async def test_a_deleted_object_is_new_when_made_again(store: Store) -> None:
    queue = make_queue()
    revision = await store.commit(Change(puts=(queue,)))
    await store.commit(Change(deletes=(replace(queue, meta=replace(queue.meta, revision=revision)),)))
    assert await everything(store) == {}
    assert await store.commit(Change(puts=(queue,))) > revision


async def test_a_gang_of_the_widest_kind_fits_one_transaction(store: Store) -> None:
    nodes = [make_node(f"n{i}") for i in range(MAX_NODES)]
    for node in nodes:
        await store.commit(Change(puts=(node,)))
    stored = [value for value in (await everything(store)).values() if isinstance(value, Node)]
    async with store.lead("a") as term:
        job, reservation, held = hold(make_job(workers=MAX_NODES, cpus=0.1), *((node, ()) for node in stored))
        await store.commit(Change(puts=(job, reservation, *held)), term)
        found = await everything(store)
        kept = [value for value in found.values() if isinstance(value, Node | Job | Reservation)]
        puts = [value for value in kept if not isinstance(value, Reservation)]
        gone = [value for value in kept if isinstance(value, Reservation)]
        await store.commit(Change(puts=puts, deletes=gone), term)


async def take(batches: AsyncIterator[Batch], count: int) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(WITHIN_S):
        async for batch in batches:
            events.extend(batch.events)
            if len(events) >= count:
                return events
    raise AssertionError("the watch ended")


async def test_a_watch_tells_everything_after_a_revision_in_order(store: Store) -> None:
    first = await store.commit(Change(puts=(make_queue("before"),)))
    queues = [make_queue(f"q{i}") for i in range(5)]
    await store.commit(Change(puts=(queues[0],)))
    async with aclosing(store.watch(first)) as batches:
        taking = asyncio.create_task(take(batches, 7))
        revision = 0
        for queue in queues[1:]:
            revision = await store.commit(Change(puts=(queue,)))
        last = replace(queues[4], meta=replace(queues[4].meta, revision=revision))
        await store.commit(Change(puts=(make_node(),), deletes=(last,)))
        events = await taking
    assert [event.key for event in events[:5]] == [queue.name for queue in queues]
    assert {event.key: event.value is None for event in events[5:]} == {
        NodeName("n0"): False,
        queues[4].name: True,
    }


async def test_one_leads_at_a_time_and_later_terms_are_greater(store: Store) -> None:
    order: list[tuple[str, int]] = []

    async def lead(address: str) -> None:
        async with store.lead(address) as term:
            order.append((address, term.number))
            assert (await everything(store))[LeaderKey()] == Leader(address)
            await asyncio.sleep(0)
            order.append((address, term.number))

    async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
        for address in ("a", "b", "c"):
            group.create_task(lead(address))
    assert [order[i] for i in (0, 2, 4)] == [order[i] for i in (1, 3, 5)]
    numbers = [number for _, number in order]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 3
    assert LeaderKey() not in await everything(store)


async def test_a_term_that_is_over_writes_nothing(store: Store) -> None:
    async with store.lead("a") as old:
        await store.commit(Change(puts=(make_node("n0"),)), old)
    with pytest.raises(Conflict):
        await store.commit(Change(puts=(make_node("n1"),)), old)
    async with store.lead("b") as new:
        with pytest.raises(Conflict):
            await store.commit(Change(puts=(make_node("n1"),)), Term(old.number, asyncio.Event()))
        await store.commit(Change(puts=(make_node("n1"),)), new)
    assert set(await everything(store)) == {NodeName("n0"), NodeName("n1")}


async def test_a_node_is_alive_inside_the_block(store: Store) -> None:
    node = NodeName("n0")
    async with store.keep_alive(node) as lost:
        assert (await everything(store))[AliveKey(node)] == Alive(node)
        assert not lost.is_set()
    async with asyncio.timeout(WITHIN_S):
        while AliveKey(node) in await everything(store):  # noqa: ASYNC110 - until the lease ends
            await asyncio.sleep(0.02)


async def test_more_than_a_page_is_loaded_at_one_revision(store: Store) -> None:
    for start in range(0, 600, 60):
        await store.commit(Change(puts=[make_queue(f"q{i}") for i in range(start, start + 60)]))
    found = await store.load()
    assert len(found.events) == 600
    assert len({event.key for event in found.events}) == 600


async def test_a_watch_from_a_forgotten_revision_says_so(
    store: Store, compact: Callable[[int], Awaitable[None]]
) -> None:
    first = await store.commit(Change(puts=(make_queue("a"),)))
    await store.commit(Change(puts=(make_queue("b"),)))
    last = await store.commit(Change(puts=(make_queue("c"),)))
    await compact(last)
    with pytest.raises(HistoryLost):
        async with asyncio.timeout(WITHIN_S), aclosing(store.watch(first)) as batches:
            await anext(batches)
    loaded = await store.load()
    assert loaded.revision >= last
    async with aclosing(store.watch(loaded.revision)) as batches:
        taking = asyncio.create_task(take(batches, 1))
        await store.commit(Change(puts=(make_queue("d"),)))
        assert [event.key for event in await taking] == [make_queue("d").name]
