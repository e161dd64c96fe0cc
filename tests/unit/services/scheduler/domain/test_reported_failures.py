"""What users of other schedulers report, each as a test of what happens here instead."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from libs.common.names import JobName, NodeName, ReservationName
from services.scheduler.domain import lifecycle
from services.scheduler.domain.decide import decide
from services.scheduler.domain.messages import Hello, StartWorker, StopWorker, ToRunner
from services.scheduler.domain.objects import (
    NO_RESOURCES,
    Holding,
    Job,
    JobState,
    Nearness,
    Node,
    Resources,
    WorkerState,
)
from services.scheduler.domain.reasons import Kind
from services.scheduler.domain.sessions import Session
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.testing import BEGIN, make_job, make_node, make_queue
from services.scheduler.testing_world import World, world_of

QUEUE = make_queue()
LATER = BEGIN + timedelta(hours=2)


def world(*nodes: Node, jobs: Sequence[Job] = ()) -> World:
    return world_of(*nodes, queues=(QUEUE,), jobs=tuple(jobs))


def states(made: World) -> dict[str, JobState]:
    return {name.job: job.status.state for name, job in made.snapshot.jobs.items()}


def nodes_of(made: World, job: str) -> set[str]:
    return {worker.node.node for worker in made.snapshot.jobs[JobName("acme", job)].status.workers}


def without(snapshot: Snapshot, node: str) -> Snapshot:
    """The snapshot after a node was deleted."""
    kept = {name: value for name, value in snapshot.nodes.items() if name.node != node}
    return replace(snapshot, nodes=kept, ready=snapshot.ready - {NodeName(node)})


async def orders(session: Session, snapshot: Snapshot) -> list[ToRunner]:
    session.direct(snapshot, BEGIN)
    out = []
    while session._outbox.qsize():
        out.append(await session.next())
    return out


def test_two_gangs_that_each_hold_half_do_not_wait_for_each_other() -> None:
    # n0 [4]  n1 [4]: two gangs of 6
    made = world(
        make_node("n0", cpus=4),
        make_node("n1", cpus=4),
        jobs=[make_job("a", workers=6), make_job("b", workers=6)],
    )
    made.decide(BEGIN)
    assert states(made) == {"a": JobState.STARTING, "b": JobState.PENDING}
    made.end(JobName("acme", "a"), BEGIN)
    made.decide(BEGIN)
    assert states(made) == {"a": JobState.SUCCEEDED, "b": JobState.STARTING}


def test_a_gang_whose_node_was_removed_heals_as_a_whole() -> None:
    # n0 [4]  n1 [4]  n2 [8]
    job = make_job("gang", workers=8, retry_count=1)
    made = world(make_node("n0", cpus=4), make_node("n1", cpus=4), jobs=[job])
    made.decide(BEGIN)
    assert nodes_of(made, "gang") == {"n0", "n1"}
    made.snapshot = without(made.snapshot, "n1")
    made.say(job.name, BEGIN)
    held = made.snapshot.jobs[job.name]
    assert held.status.state is JobState.STOPPING, "the rest of the gang is ended first"
    lost = [worker for worker in held.status.workers if worker.reason == "LOST"]
    assert {worker.node.node for worker in lost} == {"n1"}
    made.end(job.name, BEGIN, 143)
    assert states(made) == {"gang": JobState.PENDING}
    assert not made.snapshot.nodes[NodeName("n0")].holdings
    big = make_node("n2")
    made.snapshot = replace(
        made.snapshot,
        nodes={**made.snapshot.nodes, big.name: big},
        ready=made.snapshot.ready | {big.name},
    )
    made.decide(LATER - timedelta(hours=1, minutes=30))
    assert nodes_of(made, "gang") == {"n2"}


def test_a_stale_view_binds_nothing_of_a_gang() -> None:
    made = world(
        make_node("n0", cpus=4),
        make_node("n1", cpus=4),
        jobs=[make_job("a", workers=6), make_job("b", workers=6)],
    )
    stale = made.snapshot
    (start,) = decide(stale, BEGIN).starts
    other = decide(
        replace(stale, jobs={name: job for name, job in stale.jobs.items() if name.job == "b"}), BEGIN
    )
    made.apply(lifecycle.start(start.job, start.placed, stale.nodes, 1, "u", BEGIN))
    before = made.snapshot
    (late,) = other.starts
    with pytest.raises(AssertionError):
        made.apply(lifecycle.start(late.job, late.placed, stale.nodes, 1, "v", BEGIN))
    assert made.snapshot is before
    made.check()


def test_eight_free_gpus_on_four_nodes_wait_for_topology_not_for_gpus() -> None:
    nodes = [make_node(f"n{i}", gpus=2) for i in range(4)]
    made = world(*nodes, jobs=[make_job("whole", gpus=8)])
    decision = made.decide(BEGIN)
    (reason,) = decision.pending[JobName("acme", "whole")]
    assert reason.kind is Kind.NO_NODE_FITS, "it can't ever run here, and holds nothing while it waits"
    made.check()


def test_a_large_job_blocks_no_small_one_and_is_not_starved_by_them() -> None:
    # n0 [8], 4 taken until 1 h: "large" wants 8
    made = world(make_node(), jobs=[make_job("busy", cpus=4)])
    made.decide(BEGIN)
    made.submit(make_job("large", cpus=8, age_s=-1))
    made.submit(make_job("small", cpus=1, age_s=-2))
    made.decide(BEGIN)
    assert states(made)["small"] is JobState.PENDING, "it would delay the claim on the only node"
    other = make_node("n1", cpus=2)
    made.snapshot = replace(
        made.snapshot,
        nodes={**made.snapshot.nodes, other.name: other},
        ready=made.snapshot.ready | {other.name},
    )
    made.decide(BEGIN)
    assert nodes_of(made, "small") == {"n1"}
    made.end(JobName("acme", "busy"), BEGIN)
    made.decide(BEGIN)
    assert states(made)["large"] is JobState.STARTING


def test_ended_work_gives_quota_and_room_back_in_one_step() -> None:
    queue = make_queue(quota=Resources(cpu_millis=2000))
    made = world_of(make_node(), queues=(queue,), jobs=(make_job("a", cpus=2), make_job("b", cpus=2)))
    made.decide(BEGIN)
    assert states(made) == {"a": JobState.STARTING, "b": JobState.PENDING}
    revision = made.snapshot.revision
    made.end(JobName("acme", "a"), BEGIN, 1)
    assert made.snapshot.revision == revision + 1, "one transaction"
    assert made.snapshot.used() == {}
    assert made.snapshot.nodes[NodeName("n0")].allocated == NO_RESOURCES


async def test_a_restart_does_not_start_what_is_being_ended_again() -> None:
    made = world(make_node(), jobs=[make_job("a")])
    made.decide(BEGIN)
    job = made.snapshot.jobs[JobName("acme", "a")]
    cancelled = replace(job, spec=replace(job.spec, cancelled=True))
    snapshot = replace(made.snapshot, jobs={job.name: cancelled})
    # A new scheduler, a new connection, and a runner that hasn't heard of the worker yet.
    session = Session(Hello(NodeName("n0"), make_node().facts))
    first = await orders(session, snapshot)
    assert [type(order) for order in first] == [StopWorker]
    assert await orders(session, snapshot) == []


async def test_a_restart_starts_what_was_not_started_and_nothing_twice() -> None:
    made = world(make_node(), jobs=[make_job("a", workers=2)])
    made.decide(BEGIN)
    session = Session(Hello(NodeName("n0"), make_node().facts))
    assert [type(order) for order in await orders(session, made.snapshot)] == [StartWorker, StartWorker]
    assert await orders(session, made.snapshot) == []


def test_a_lost_node_is_not_booked_again() -> None:
    # n0 [8], all taken, lost: its runner isn't heard of, but its work may still run
    made = world(make_node(), jobs=[make_job("a", cpus=8)])
    made.decide(BEGIN)
    made.snapshot = replace(made.snapshot, ready=frozenset())
    made.submit(make_job("b"))
    decision = made.decide(BEGIN)
    assert [reason.kind for reason in decision.pending[JobName("acme", "b")]] == [Kind.LOST]
    assert states(made)["a"] is JobState.STARTING
    assert made.snapshot.nodes[NodeName("n0")].holdings
    made.check()


def test_no_device_is_assigned_twice() -> None:
    made = world(make_node(cpus=64, gpus=4), jobs=[make_job(f"j{i}", gpus=1) for i in range(6)])
    made.decide(BEGIN)
    made.check()
    assert sum(state is JobState.STARTING for state in states(made).values()) == 4


def test_a_reservation_without_its_job_is_given_back() -> None:
    made = world(make_node(), jobs=[make_job("a")])
    made.decide(BEGIN)
    made.snapshot = replace(made.snapshot, jobs={})  # somebody deleted it in the store
    (change,) = lifecycle.orphans(made.snapshot)
    made.apply(change)
    assert not made.snapshot.reservations
    assert not made.snapshot.nodes[NodeName("n0")].holdings
    assert lifecycle.orphans(made.snapshot) == []


def test_a_holding_without_its_reservation_is_given_back() -> None:
    ghost = Holding(ReservationName("acme", "gone"), Resources(1000))
    made = world(make_node(holdings=[ghost]))
    (change,) = lifecycle.orphans(made.snapshot)
    made.apply(change)
    assert not made.snapshot.nodes[NodeName("n0")].holdings


def test_a_job_without_its_reservation_is_given_up_and_tried_again() -> None:
    made = world(make_node(), jobs=[make_job("a", retry_count=1)])
    made.decide(BEGIN)
    made.snapshot = replace(made.snapshot, reservations={})
    made.say(JobName("acme", "a"), BEGIN)
    job = made.snapshot.jobs[JobName("acme", "a")]
    assert (job.status.state, job.status.reason) == (JobState.PENDING, "LOST")
    assert job.status.workers[0].state is WorkerState.FAILED


def test_single_gpus_leave_fast_pairs_whole() -> None:
    # 0 ═ 1   2 ═ 3
    fast = [[0, 200, 10, 10], [200, 0, 10, 10], [10, 10, 0, 200], [10, 10, 200, 0]]
    made = world(
        make_node(gpus=4, bandwidth=fast),
        jobs=[make_job("a", gpus=1, age_s=3), make_job("b", gpus=1, age_s=2), make_job("c", gpus=2, age_s=1)],
    )
    made.decide(BEGIN)
    gpus = {r.job.job: r.placements[0].gpus for r in made.snapshot.reservations.values()}
    assert {*gpus["a"], *gpus["b"]} in ({0, 1}, {2, 3})
    assert set(gpus["c"]) in ({0, 1}, {2, 3})


def test_a_preferred_place_is_looked_for_anew_at_each_attempt() -> None:
    # zone ┬ rack-a ─ a1 [2]      first attempt across racks; then a2 joins rack-a
    #      └ rack-b ─ b1 [2]
    job = make_job("gang", workers=4, retry_count=1, nearness=Nearness())
    a1, b1 = make_node("a1", cpus=2, topology=("z", "a")), make_node("b1", cpus=2, topology=("z", "b"))
    made = world(a1, b1, jobs=[job])
    made.decide(BEGIN)
    assert nodes_of(made, "gang") == {"a1", "b1"}
    made.end(job.name, BEGIN, 137)
    a2 = make_node("a2", cpus=2, topology=("z", "a"))
    made.snapshot = replace(
        made.snapshot, nodes={**made.snapshot.nodes, a2.name: a2}, ready=made.snapshot.ready | {a2.name}
    )
    made.decide(BEGIN + timedelta(minutes=10))
    assert nodes_of(made, "gang") == {"a1", "a2"}
