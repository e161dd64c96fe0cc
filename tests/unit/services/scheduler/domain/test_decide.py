"""Which jobs start and why others wait. Fixtures are drawn above their tests: [free of all] in CPUs."""

import zlib
from dataclasses import replace
from datetime import timedelta

import pytest

from services.scheduler.domain.decide import MAX_NODES, decide
from services.scheduler.domain.objects import (
    Job,
    JobStatus,
    Mode,
    Nearness,
    Node,
    Queue,
    Reservation,
    Resources,
)
from services.scheduler.domain.reasons import Kind
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.testing import BEGIN, GIB, hold, make_job, make_node, make_queue, snapshot_of

QUEUE = make_queue()


def started(snapshot: Snapshot) -> list[str]:
    return [start.job.name.job for start in decide(snapshot, BEGIN).starts]


def kinds(snapshot: Snapshot) -> dict[str, list[Kind]]:
    found = decide(snapshot, BEGIN).pending
    return {name.job: [reason.kind for reason in why] for name, why in found.items()}


def busy(node: Node, *cpus: float, deadline_s: float = 3600) -> tuple[list[Job], list[Reservation], Node]:
    """Return a node on which jobs of so many CPUs run."""
    jobs, reservations = [], []
    for i, each in enumerate(cpus):
        job = make_job(f"busy{i}", cpus=each, deadline=timedelta(seconds=deadline_s * (i + 1)))
        job, reservation, (node,) = hold(job, (node, ()))
        jobs.append(job)
        reservations.append(reservation)
    return jobs, reservations, node


def test_the_line_goes_by_queue_then_job_priority_then_age() -> None:
    # n0 [8/8]
    jobs = [
        make_job("young"),
        make_job("old", age_s=10),
        make_job("urgent", priority=5),
        make_job("first", queue="vip"),
    ]
    queues = [QUEUE, make_queue("vip", priority=1)]
    assert started(snapshot_of(nodes=[make_node()], queues=queues, jobs=jobs)) == [
        "first",
        "urgent",
        "old",
        "young",
    ]


def test_without_nodes_a_job_says_so() -> None:
    decision = decide(snapshot_of(queues=[QUEUE], jobs=[make_job()]), BEGIN)
    ((reason,),) = decision.pending.values()
    assert (reason.kind, reason.message) == (Kind.NO_NODE_FITS, "there is no node; start a node runner")


@pytest.mark.parametrize(
    ("job", "node", "expected"),
    [
        pytest.param(make_job(cpus=9), make_node(cpus=8), [Kind.NO_NODE_FITS], id="larger than any node"),
        pytest.param(make_job(gpus=1), make_node(), [Kind.NO_NODE_FITS], id="no GPU anywhere"),
        pytest.param(make_job(), make_node(cordoned=True), [Kind.CORDONED], id="cordoned"),
        pytest.param(
            make_job(workers=2, cpus=5), make_node(cpus=8), [Kind.NO_NODE_FITS], id="a gang larger than all"
        ),
    ],
)
def test_reasons_of_an_idle_cluster(job: Job, node: Node, expected: list[Kind]) -> None:
    assert kinds(snapshot_of(nodes=[node], queues=[QUEUE], jobs=[job])) == {"j0": expected}


def test_a_lost_node_takes_nothing_and_is_named() -> None:
    node = make_node()
    snapshot = snapshot_of(nodes=[node], queues=[QUEUE], jobs=[make_job()], lost=[node.name])
    assert started(snapshot) == []
    assert kinds(snapshot) == {"j0": [Kind.LOST]}


def test_a_full_node_says_what_lacks_with_figures() -> None:
    # n0 [2/8]
    jobs, reservations, node = busy(make_node(), 6)
    wide = make_job("wide", cpus=4)
    snapshot = snapshot_of(nodes=[node], queues=[QUEUE], jobs=[*jobs, wide], reservations=reservations)
    (reason,) = decide(snapshot, BEGIN).pending[wide.name]
    assert reason.kind is Kind.CPU
    assert reason.nodes == 1
    assert reason.message == "needs 4 CPUs; 2 of 8 are free on nodes/n0"


def test_memory_and_gpus_are_told_apart() -> None:
    node = make_node(memory=4 * GIB, gpus=2)
    job, reservation, (node,) = hold(make_job("busy", memory=3 * GIB, gpus=2), (node, (0, 1)))
    jobs = [job, make_job("memory", memory=2 * GIB), make_job("gpu", gpus=1)]
    found = kinds(snapshot_of(nodes=[node], queues=[QUEUE], jobs=jobs, reservations=[reservation]))
    assert found["gpu"] == [Kind.BEHIND] or found["gpu"] == [Kind.GPU]
    assert Kind.MEMORY in found["memory"] or Kind.BEHIND in found["memory"]


def test_room_that_is_too_far_apart_is_a_matter_of_topology() -> None:
    # rack-a ─ a1 [4]     rack-b ─ b1 [4]     8 workers within a rack, and each rack could be larger
    near = Nearness(Mode.REQUIRED, 0)
    a, b = make_node("a1", cpus=4, topology=("a",)), make_node("b1", cpus=8, topology=("b",))
    job, reservation, (b,) = hold(make_job("busy", cpus=4), (b, ()))
    snapshot = snapshot_of(
        nodes=[a, b],
        queues=[QUEUE],
        jobs=[job, make_job("gang", workers=8, nearness=near)],
        reservations=[reservation],
    )
    assert kinds(snapshot)["gang"] == [Kind.TOPOLOGY]


def test_a_quota_counts_what_runs() -> None:
    # quota 4 CPUs, 3 taken
    queue = make_queue(quota=Resources(cpu_millis=4000))
    jobs, reservations, node = busy(make_node(), 3)
    pending = [make_job("two", cpus=2, age_s=1), make_job("one", cpus=1)]
    snapshot = snapshot_of(nodes=[node], queues=[queue], jobs=[*jobs, *pending], reservations=reservations)
    assert started(snapshot) == [], "a smaller job mustn't overtake the one that waits for the quota"
    assert kinds(snapshot) == {"two": [Kind.QUOTA], "one": [Kind.BEHIND]}


def test_a_quota_in_another_queue_holds_nobody_up_here() -> None:
    queues = [make_queue(quota=Resources(cpu_millis=1000)), make_queue("other")]
    jobs = [make_job("a", age_s=2), make_job("b", age_s=1), make_job("c", queue="other")]
    assert started(snapshot_of(nodes=[make_node()], queues=queues, jobs=jobs)) == ["a", "c"]


def test_what_never_fits_its_quota_holds_nobody_up() -> None:
    queue = make_queue(quota=Resources(cpu_millis=2000))
    jobs = [make_job("huge", cpus=4, age_s=1), make_job("small")]
    snapshot = snapshot_of(nodes=[make_node()], queues=[queue], jobs=jobs)
    assert started(snapshot) == ["small"]
    assert kinds(snapshot) == {"huge": [Kind.QUOTA_TOO_SMALL]}


def test_what_never_fits_any_node_holds_nobody_up() -> None:
    jobs = [make_job("huge", cpus=64, age_s=1), make_job("small")]
    assert started(snapshot_of(nodes=[make_node()], queues=[QUEUE], jobs=jobs)) == ["small"]


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        pytest.param(make_queue(paused=True), Kind.QUEUE_PAUSED, id="paused"),
        pytest.param(make_queue("other"), Kind.QUEUE_MISSING, id="removed"),
    ],
)
def test_a_queue_that_takes_nothing(queue: Queue, expected: Kind) -> None:
    assert kinds(snapshot_of(nodes=[make_node()], queues=[queue], jobs=[make_job()])) == {"j0": [expected]}


def test_a_failed_attempt_waits_for_its_time() -> None:
    until = BEGIN + timedelta(seconds=5)
    job = make_job(status=JobStatus(attempt=1, retry_time=until))
    snapshot = snapshot_of(nodes=[make_node()], queues=[QUEUE], jobs=[job])
    early = decide(snapshot, BEGIN)
    assert [reason.kind for reason in early.pending[job.name]] == [Kind.BACKOFF]
    assert early.recheck_time == until
    assert [start.job for start in decide(snapshot, until).starts] == [job]


def test_two_gangs_that_each_could_hold_half_run_one_after_the_other() -> None:
    # n0 [4]  n1 [4]; each gang wants 6 of 8
    nodes = [make_node(f"n{i}", cpus=4) for i in range(2)]
    jobs = [make_job("first", workers=6, age_s=1), make_job("second", workers=6)]
    snapshot = snapshot_of(nodes=nodes, queues=[QUEUE], jobs=jobs)
    assert started(snapshot) == ["first"]
    assert Kind.CPU in kinds(snapshot)["second"]


def test_small_jobs_start_beside_the_claim_of_a_large_one() -> None:
    # n0 [2/8] until t1      n1 [8/8]
    # "large" wants 8 on one node... n1 has them: it starts. So: n1 [4/8] until t2.
    jobs0, reservations0, n0 = busy(make_node("n0"), 6, deadline_s=100)
    job1, reservation1, (n1,) = hold(
        make_job("late", cpus=4, deadline=timedelta(seconds=900)), (make_node("n1"), ())
    )
    pending = [make_job("large", cpus=8, age_s=2), make_job("small", cpus=4), make_job("tiny", cpus=2)]
    snapshot = snapshot_of(
        nodes=[n0, n1],
        queues=[QUEUE],
        jobs=[*jobs0, job1, *pending],
        reservations=[*reservations0, reservation1],
    )
    decision = decide(snapshot, BEGIN)
    # "large" claims n0, which is free first; "small" fits n1 beside it; "tiny" would only fit on n0.
    assert [(s.job.name.job, s.placed.placements[0].node.node) for s in decision.starts] == [("small", "n1")]
    assert [reason.kind for reason in decision.pending[pending[0].name]] == [Kind.CPU]
    assert [reason.kind for reason in decision.pending[pending[2].name]] == [Kind.BEHIND]


def test_a_claim_keeps_its_quota_too() -> None:
    # quota 8: "large" (6) waits for room; a job of 4 would leave it only 4 of the quota.
    queue = make_queue(quota=Resources(cpu_millis=8000))
    job, reservation, (n0,) = hold(make_job("busy", queue="other", cpus=4), (make_node("n0"), ()))
    n1 = make_node("n1", cpus=4)
    pending = [make_job("large", cpus=6, age_s=2), make_job("four", cpus=4), make_job("two", cpus=2)]
    snapshot = snapshot_of(
        nodes=[n0, n1],
        queues=[queue, make_queue("other")],
        jobs=[job, *pending],
        reservations=[reservation],
    )
    assert started(snapshot) == ["two"]
    assert kinds(snapshot)["four"] == [Kind.BEHIND]


def test_work_on_a_lost_node_is_not_waited_for() -> None:
    # n0 (lost) [0/8]     n1 [8/8]; "large" fits only n0's or n1's whole
    jobs0, reservations0, n0 = busy(make_node("n0"), 8)
    large, small = make_job("large", cpus=16, age_s=1), make_job("small")
    big = make_node("n1", cpus=8)
    snapshot = snapshot_of(
        nodes=[n0, big],
        queues=[QUEUE],
        jobs=[*jobs0, large, small],
        reservations=reservations0,
        lost=[n0.name],
    )
    assert started(snapshot) == ["small"]


def test_a_gang_on_too_many_nodes_is_refused_with_its_number() -> None:
    nodes = [make_node(f"n{i}", cpus=1) for i in range(MAX_NODES + 1)]
    wide, fits = make_job("wide", workers=MAX_NODES + 1, age_s=1), make_job("fits", workers=MAX_NODES)
    snapshot = snapshot_of(nodes=nodes, queues=[QUEUE], jobs=[wide, fits])
    decision = decide(snapshot, BEGIN)
    assert [start.job.name.job for start in decision.starts] == ["fits"]
    (reason,) = decision.pending[wide.name]
    assert (reason.kind, reason.nodes) == (Kind.GANG_TOO_WIDE, MAX_NODES + 1)


@pytest.mark.parametrize("cpus", [2, 8], ids=["another shape", "the shape of the job that claims"])
def test_a_job_that_waits_behind_another_tenants_is_not_told_whose(cpus: float) -> None:
    """[2 of 8]; `secret` claims all 8."""
    queues = [make_queue(name, tenant) for name, tenant in (("a", "acme"), ("b", "acme"), ("a", "rival"))]
    runs, reservation, nodes = hold(make_job("runs", queue="a", cpus=6), (make_node(cpus=8), ()))
    secret = make_job("secret", queue="a", cpus=8, age_s=9)
    days = timedelta(days=1)
    own = make_job("own", queue="b", cpus=cpus, deadline=days)
    foreign = make_job("foreign", tenant="rival", queue="a", cpus=cpus, deadline=days)
    jobs = [runs, secret, own, foreign]
    pending = decide(
        snapshot_of(nodes=nodes, queues=queues, jobs=jobs, reservations=[reservation]), BEGIN
    ).pending
    told = {job.name.job: [(why.kind, why.message) for why in pending[job.name]] for job in (own, foreign)}
    text = "waits behind {}, which waits for the same room or quota"
    assert told == {
        "own": [(Kind.BEHIND, text.format("tenants/acme/jobs/secret"))],
        "foreign": [(Kind.BEHIND, text.format("another tenant's job"))],
    }


def test_cancelled_jobs_are_not_in_the_line() -> None:
    job = make_job()
    job = replace(job, spec=replace(job.spec, cancelled=True))
    decision = decide(snapshot_of(nodes=[make_node()], queues=[QUEUE], jobs=[job]), BEGIN)
    assert (decision.starts, decision.line) == ((), ())


def test_single_gpu_jobs_leave_a_pair_whole_for_the_next() -> None:
    # 0 ═ 1   2
    matrix = [[0, 200, 10], [200, 0, 10], [10, 10, 0]]
    node = make_node(gpus=3, bandwidth=matrix)
    jobs = [make_job("single", gpus=1, age_s=1), make_job("pair", gpus=2)]
    decision = decide(snapshot_of(nodes=[node], queues=[QUEUE], jobs=jobs), BEGIN)
    assert [start.placed.placements[0].gpus for start in decision.starts] == [(2,), (0, 1)]


@pytest.mark.parametrize("count", [1, 3])
def test_equal_jobs_share_one_answer(count: int) -> None:
    jobs, reservations, node = busy(make_node(), 8)
    pending = [make_job(f"p{i}", cpus=2) for i in range(count)]
    snapshot = snapshot_of(nodes=[node], queues=[QUEUE], jobs=[*jobs, *pending], reservations=reservations)
    assert set(kinds(snapshot)) == {f"p{i}" for i in range(count)}


@pytest.mark.parametrize(
    ("job", "nodes", "text"),
    [
        pytest.param(
            make_job(cpus=9, memory=GIB),
            [make_node()],
            "9 CPUs, 1 GiB: more than the only node can hold even when idle; "
            "ask for less, or add a larger node",
            id="one worker",
        ),
        pytest.param(
            make_job(workers=2, cpus=6),
            [make_node("n0"), make_node("n1", cpus=4)],
            "2 workers of 6 CPUs, 1 GiB: more than 2 nodes together can hold even when idle; "
            "ask for less, or add a larger node",
            id="a gang",
        ),
        pytest.param(
            make_job(gpus=2, nearness=Nearness(min_gpu_bandwidth_gbps=100)),
            [make_node(gpus=2, bandwidth=[[0, 20], [20, 0]])],
            "even when all are idle, 1 node can't hold it as near as the job asks, with GPUs linked by "
            "100 GB/s; relax placement",
            id="links",
        ),
    ],
)
def test_what_never_fits_says_what_would_help(job: Job, nodes: list[Node], text: str) -> None:
    decision = decide(snapshot_of(nodes=nodes, queues=[QUEUE], jobs=[job]), BEGIN)
    assert [reason.message for reason in decision.pending[job.name]] == [text]


def test_nodes_that_are_too_small_anyway_are_not_named_as_the_freest() -> None:
    # n0 [2/8]   n1 [4/4]: 6 CPUs could only ever be n0's
    jobs, reservations, node = busy(make_node(), 6)
    wide = make_job("wide", cpus=6)
    snapshot = snapshot_of(
        nodes=[node, make_node("n1", cpus=4)], queues=[QUEUE], jobs=[*jobs, wide], reservations=reservations
    )
    (reason,) = decide(snapshot, BEGIN).pending[wide.name]
    assert reason.message == "needs 6 CPUs; 2 of 8 are free on nodes/n0, and too few on 1 other node"


ALIKE = [f"j{i}" for i in range(100) if zlib.crc32(f"uidj{i}/0".encode()) % 4 == 0][:4]
"""Jobs for which the search for a port begins at the same one of four."""


def test_jobs_that_start_together_listen_on_ports_of_their_own() -> None:
    jobs = [make_job(name) for name in ALIKE]
    node = make_node(ports=(20_000, 20_003))
    starts = decide(snapshot_of(nodes=[node], queues=[QUEUE], jobs=jobs), BEGIN).starts
    assert {start.placed.master_port for start in starts} == {20_000, 20_001, 20_002, 20_003}


def test_jobs_that_start_beside_a_claim_listen_on_ports_of_their_own() -> None:
    running, reservations, node = busy(make_node(cpus=12, ports=(20_000, 20_003)), 4)
    taken = {port for holding in node.holdings for port in holding.ports}
    large = make_job("large", cpus=10, queue="vip")
    small = [make_job(name) for name in ALIKE[:2]]
    decision = decide(
        snapshot_of(
            nodes=[node],
            queues=[QUEUE, make_queue("vip", priority=1)],
            jobs=[*running, large, *small],
            reservations=reservations,
        ),
        BEGIN,
    )
    ports = [start.placed.master_port for start in decision.starts]
    assert len(ports) == 2
    assert len({*ports, *taken}) == 2 + len(taken)
