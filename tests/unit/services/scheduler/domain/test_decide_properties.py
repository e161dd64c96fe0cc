"""What holds whatever is submitted: nothing over-allocated, gangs whole, quotas kept, nobody starved."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.domain.objects import Job, Mode, Nearness, Node, Queue, Resources
from services.scheduler.testing import BEGIN, GIB, make_job, make_node, make_queue
from services.scheduler.testing_world import World, world_of

QUEUES = ("default", "vip", "batch")


@st.composite
def nodes_of(draw: st.DrawFn) -> list[Node]:
    out = []
    for i in range(draw(st.integers(1, 4))):
        gpus = draw(st.sampled_from([0, 0, 2, 4]))
        rows = [[0.0] * gpus for _ in range(gpus)]
        for a in range(gpus):
            for b in range(a + 1, gpus):
                rows[a][b] = draw(st.sampled_from([15.0, 50.0, 100.0]))
        topology = ("z", draw(st.sampled_from(["a", "b"]))) if draw(st.booleans()) else ()
        out.append(
            make_node(
                f"n{i}",
                cpus=draw(st.integers(1, 8)),
                gpus=gpus,
                bandwidth=rows,
                topology=topology,
                ports=(1, 40),
            )
        )
    return out


@st.composite
def queues_of(draw: st.DrawFn) -> list[Queue]:
    return [
        make_queue(
            name,
            priority=draw(st.integers(-1, 1)),
            quota=Resources(draw(st.sampled_from([0, 0, 3000, 6000])), 0, draw(st.sampled_from([0, 0, 2]))),
        )
        for name in QUEUES
    ]


@st.composite
def jobs_of(draw: st.DrawFn, most: int = 12) -> list[Job]:
    return [
        make_job(
            f"j{i:02d}",
            queue=draw(st.sampled_from(QUEUES)),
            workers=draw(st.integers(1, 4)),
            cpus=draw(st.sampled_from([0.5, 1, 2, 4])),
            memory=draw(st.sampled_from([GIB, 8 * GIB])),
            gpus=draw(st.sampled_from([0, 0, 0, 1, 2])),
            nearness=draw(
                st.sampled_from(
                    [
                        Nearness(),
                        Nearness(Mode.UNCONSTRAINED),
                        Nearness(Mode.REQUIRED, 1),
                        Nearness(min_gpu_bandwidth_gbps=50),
                    ]
                )
            ),
            priority=draw(st.integers(-1, 1)),
            age_s=draw(st.integers(0, 5)),
            deadline=timedelta(seconds=draw(st.integers(10, 1000))),
            retry_count=draw(st.integers(0, 1)),
        )
        for i in range(draw(st.integers(1, most)))
    ]


@settings(max_examples=60, deadline=None)
@given(nodes_of(), queues_of(), jobs_of(), st.data())
def test_invariants_hold_at_every_step_and_everything_that_fits_runs(
    nodes: list[Node], queues: list[Queue], jobs: list[Job], data: st.DataObject
) -> None:
    world, now = world_of(*nodes, queues=tuple(queues)), BEGIN
    empty = world.snapshot.nodes
    waiting = list(jobs)
    for _ in range(200):
        if data.draw(st.booleans()) and waiting:
            world.submit(waiting.pop())
        world.decide(now)
        world.check()
        running = world.running()
        if running:
            job = data.draw(st.sampled_from(running))
            world.end(job.name, now, data.draw(st.sampled_from([0, 1, 137])))
            world.check()
        elif not waiting:
            if not any(job.status.retry_time for job in world.pending()):
                break
            now += timedelta(seconds=400)
    # What still waits doesn't fit an idle cluster; that it would be started alone is the contrary.
    for job in world.pending():
        alone = world_of(*nodes, queues=tuple(queues), jobs=(job,))
        alone.decide(now)
        assert not alone.running(), f"{job.name} waits though it could run"
    assert not world.running()
    assert not world.snapshot.reservations
    for name, node in world.snapshot.nodes.items():
        assert node.holdings == empty[name].holdings == ()


def _step(world: World, now: datetime, ends: dict[str, datetime]) -> None:
    world.decide(now)
    world.check()
    for job in world.running():
        ends.setdefault(job.name.job, now + job.spec.deadline)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 30)), min_size=30, max_size=60),
    st.integers(4, 16),
)
def test_a_large_job_is_not_starved_by_small_ones(smalls: Sequence[tuple[int, int]], size: int) -> None:
    # n0 [8]  n1 [8]: a large gang comes at t=5; small jobs come every second and use their deadlines up.
    world = world_of(make_node("n0"), make_node("n1"), queues=(make_queue(), make_queue("big")))
    ends: dict[str, datetime] = {}
    bound = None
    for t in range(200):
        now = BEGIN + timedelta(seconds=t)
        for name in [name for name, end in ends.items() if end <= now]:
            del ends[name]
            world.end(make_job(name).name, now)
        if t == 5:
            world.submit(make_job("large", queue="big", workers=size, age_s=-t))
            bound = max([*ends.values(), now])
        if t < len(smalls):
            cpus, seconds = smalls[t]
            world.submit(
                make_job(
                    f"s{t}", cpus=cpus, deadline=timedelta(seconds=seconds), age_s=-t, grace=timedelta(0)
                )
            )
        _step(world, now, ends)
        if "large" in ends:
            assert bound is not None
            # What was in line before it and what ran when it came has to end first, and nothing else.
            before = sum(seconds for _, seconds in smalls[:6])
            assert now <= bound + timedelta(seconds=before)
            return
    raise AssertionError("the large job never started")
