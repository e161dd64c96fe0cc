"""Gangs on nodes that hold so many reservations that one more on all of them can't be written."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from libs.common.errors import Invalid
from libs.common.names import NodeName
from libs.common.testing import FakeClock, FakeRandomness, eventually
from services.scheduler.domain.change import Change
from services.scheduler.domain.controller import Controller
from services.scheduler.domain.decide import decide
from services.scheduler.domain.decisions import Decisions
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import Job, JobState, Node, Object, Reservation
from services.scheduler.domain.reasons import Kind
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.store import Term
from services.scheduler.stores.memory import MemoryStore
from services.scheduler.testing import BEGIN, hold, make_job, make_node, make_queue, snapshot_of
from services.scheduler.testing_world import NoMeter

QUEUE, OTHER = make_queue(), make_queue("other")


def crowd(count: int) -> tuple[list[Node], list[Job], list[Reservation]]:
    """Return two nodes of 4 CPUs on which `count` gangs of two tiny workers run, one on each."""
    nodes = [make_node(name, cpus=4) for name in ("n0", "n1")]
    jobs, reservations = [], []
    for number in range(count):
        job, reservation, nodes = hold(
            make_job(f"tiny{number}", cpus=0.001, memory=1024), *((node, ()) for node in nodes)
        )
        jobs.append(job)
        reservations.append(reservation)
    return nodes, jobs, reservations


def few(change: Change) -> bool:
    return sum(len(value.holdings) for value in change.puts if isinstance(value, Node)) <= 150


def crowded(*waiting: Job) -> Snapshot:
    nodes, jobs, reservations = crowd(100)
    return snapshot_of(nodes=nodes, queues=[QUEUE, OTHER], jobs=[*jobs, *waiting], reservations=reservations)


def names(jobs: Sequence[Job]) -> list[str]:
    return [job.name.job for job in jobs]


def test_a_gang_waits_while_its_nodes_hold_too_much() -> None:
    wide = make_job("wide", cpus=2, workers=2)
    decision = decide(crowded(wide), BEGIN, few)
    (why,) = decision.pending[wide.name]
    assert (why.kind, why.nodes) == (Kind.CROWDED, 2)
    assert "waits for some to end" in why.message
    assert not decision.starts
    assert names([start.job for start in decide(crowded(wide), BEGIN).starts]) == ["wide"]


def test_what_could_never_be_written_is_not_held_back() -> None:
    wide = make_job("wide", cpus=2, workers=2)
    decision = decide(crowded(wide), BEGIN, lambda change: False)
    assert names([start.job for start in decision.starts]) == ["wide"]


def test_a_job_on_one_node_starts_beside_a_gang_that_waits() -> None:
    wide = make_job("wide", cpus=1, workers=5, age_s=10)
    small = make_job("small", cpus=0.5, queue="other")
    decision = decide(crowded(wide, small), BEGIN, few)
    assert names([start.job for start in decision.starts]) == ["small"]
    assert [why.kind for why in decision.pending[wide.name]] == [Kind.CROWDED]


class Narrow(MemoryStore):
    """A store that takes no change whose nodes hold more than 150 things."""

    def fits(self, change: Change) -> bool:
        return few(change)

    async def commit(self, change: Change, term: Term | None = None) -> int:
        if not few(change):
            raise Invalid("too large", reason="TRANSACTION_TOO_LARGE")
        return await super().commit(change, term)


async def test_it_starts_once_enough_of_what_runs_has_ended() -> None:
    store, clock, randomness = Narrow(), FakeClock(), FakeRandomness()
    mirror = Mirror(store, clock, randomness)
    decisions = Decisions(mirror, clock, lambda seconds: None, store.fits)
    controller = Controller(
        store, mirror, decisions, clock, randomness, NoMeter(), address=lambda: "here:1", liveness_s=10.0
    )
    nodes, jobs, reservations = crowd(100)
    wide = make_job("wide", cpus=2, workers=2)
    values: list[Object] = [*nodes, *jobs, *reservations, QUEUE, wide]
    for value in values:
        await store.mend(value)
    tasks = [asyncio.create_task(mirror.run()), asyncio.create_task(controller.run())]
    try:
        async with store.keep_alive(NodeName("n0")), store.keep_alive(NodeName("n1")):
            await mirror.reached(1)
            await eventually(lambda: mirror.snapshot.ready >= {NodeName("n0"), NodeName("n1")})
            assert [why.kind for why in (await decisions.now()).pending[wide.name]] == [Kind.CROWDED]
            assert mirror.snapshot.jobs[wide.name].status.state is JobState.PENDING
            for node in nodes:
                await store.mend(replace(node, holdings=node.holdings[:50]))
            await eventually(lambda: mirror.snapshot.jobs[wide.name].status.state is JobState.STARTING)
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)
