"""Where gangs go: fixtures are drawn above their tests."""

from collections import Counter
from dataclasses import replace

import pytest

from services.scheduler.domain.objects import Job, Mode, Nearness, Node, Resources
from services.scheduler.domain.placement import Placed, place
from services.scheduler.domain.rooms import Room
from services.scheduler.testing import GIB, hold, make_job, make_node

FAST, SLOW = 200.0, 20.0


def placed(job: Job, *nodes: Node) -> Placed | None:
    return place(job.spec, [Room.of(node) for node in nodes])


def where(found: Placed | None) -> dict[str, int]:
    assert found is not None
    return dict(Counter(worker.node.node for worker in found.placements))


def racks(free: dict[str, float]) -> list[Node]:
    """Nodes named a1, a2, b1, …: the letter is their rack."""
    return [make_node(name, cpus=cpus, topology=("zone", f"rack-{name[0]}")) for name, cpus in free.items()]


#   zone ┬ rack-a ┬ a1 [4]   a2 [4]
#        └ rack-b ┬ b1 [2]   b2 [8]
RACKS = racks({"a1": 4, "a2": 4, "b1": 2, "b2": 8})


@pytest.mark.parametrize(
    ("workers", "nearness", "expected"),
    [
        pytest.param(4, Nearness(), {"a1": 4}, id="the tightest single node that takes all"),
        pytest.param(8, Nearness(), {"b2": 8}, id="one node before a rack"),
        pytest.param(10, Nearness(), {"b1": 2, "b2": 8}, id="one rack, on as few nodes as can be"),
        pytest.param(12, Nearness(), {"b2": 8, "a1": 4}, id="across racks when none takes all"),
        pytest.param(18, Nearness(), {"a1": 4, "a2": 4, "b1": 2, "b2": 8}, id="everything"),
        pytest.param(8, Nearness(Mode.REQUIRED, 2), {"b2": 8}, id="one node as required"),
        pytest.param(10, Nearness(Mode.REQUIRED, 1), {"b1": 2, "b2": 8}, id="one rack as required"),
        pytest.param(12, Nearness(Mode.REQUIRED, 0), {"b2": 8, "a1": 4}, id="one zone as required"),
    ],
)
def test_gangs_go_as_near_as_can_be(workers: int, nearness: Nearness, expected: dict[str, int]) -> None:
    assert where(placed(make_job(workers=workers, nearness=nearness), *RACKS)) == expected


@pytest.mark.parametrize(
    ("workers", "nearness"),
    [
        pytest.param(19, Nearness(), id="more than there is"),
        pytest.param(11, Nearness(Mode.REQUIRED, 1), id="more than any rack has"),
        pytest.param(9, Nearness(Mode.REQUIRED, 2), id="more than any node has"),
    ],
)
def test_what_does_not_fit_is_not_placed_at_all(workers: int, nearness: Nearness) -> None:
    assert placed(make_job(workers=workers, nearness=nearness), *RACKS) is None


def test_eight_free_gpus_over_four_nodes_are_not_one_node_of_eight() -> None:
    # n0 [2 GPUs]  n1 [2]  n2 [2]  n3 [2]      one worker wants 8
    nodes = [make_node(f"n{i}", gpus=2) for i in range(4)]
    assert placed(make_job(gpus=8), *nodes) is None
    assert where(placed(make_job(workers=4, gpus=2), *nodes)) == {f"n{i}": 1 for i in range(4)}


def test_work_without_gpus_keeps_off_gpu_nodes() -> None:
    # gpu [8 CPUs, 4 GPUs]   cpu [16 CPUs]
    nodes = (make_node("gpu", cpus=8, gpus=4), make_node("cpu", cpus=16))
    assert where(placed(make_job(cpus=2), *nodes)) == {"cpu": 1}


def test_gpu_gangs_prefer_the_node_with_fast_links() -> None:
    # slow: 0 - 1   fast: 0 ═ 1
    slow = make_node("slow", gpus=2, bandwidth=[[0, SLOW], [SLOW, 0]])
    fast = make_node("fast", gpus=2, bandwidth=[[0, FAST], [FAST, 0]])
    assert where(placed(make_job(gpus=2), slow, fast)) == {"fast": 1}
    assert where(placed(make_job(gpus=2), slow)) == {"slow": 1}


def test_a_least_bandwidth_is_kept() -> None:
    slow = make_node("slow", gpus=2, bandwidth=[[0, SLOW], [SLOW, 0]])
    fast = make_node("fast", gpus=2, bandwidth=[[0, FAST], [FAST, 0]])
    job = make_job(gpus=2, nearness=Nearness(min_gpu_bandwidth_gbps=100))
    assert placed(job, slow) is None
    assert where(placed(job, slow, fast)) == {"fast": 1}


def test_ranks_of_a_node_are_in_a_row_and_gpus_are_divided() -> None:
    nodes = [make_node(f"n{i}", gpus=4) for i in range(2)]
    found = placed(make_job(workers=4, gpus=2), *nodes)
    assert found is not None
    assert [worker.rank for worker in found.placements] == [0, 1, 2, 3]
    assert [worker.node.node for worker in found.placements] == ["n0", "n0", "n1", "n1"]
    for node in ("n0", "n1"):
        gpus = [gpu for worker in found.placements if worker.node.node == node for gpu in worker.gpus]
        assert sorted(gpus) == [0, 1, 2, 3]


def test_a_gang_meets_on_a_port_of_its_first_node() -> None:
    node = make_node(ports=(5000, 5001))
    first = placed(make_job(workers=2), node)
    assert first is not None
    assert first.master_port in (5000, 5001)
    second = place(make_job(workers=2).spec, first.rooms)
    assert second is not None
    assert {first.master_port, second.master_port} == {5000, 5001}
    assert place(make_job(workers=2).spec, second.rooms) is None
    alone = place(make_job().spec, second.rooms)
    assert alone is not None, "a single worker needs no port"


def test_memory_counts_as_well() -> None:
    node = make_node(cpus=8, memory=4 * GIB)
    assert placed(make_job(workers=5, memory=GIB), node) is None
    assert where(placed(make_job(workers=4, memory=GIB), node)) == {"n0": 4}


def test_nodes_without_a_level_are_in_no_domain_of_it() -> None:
    nodes = (make_node("flat", cpus=4), make_node("deep", cpus=4, topology=("zone", "rack")))
    job = make_job(workers=8, nearness=Nearness(Mode.REQUIRED, 1))
    assert placed(job, *nodes) is None
    assert where(placed(make_job(workers=8), *nodes)) == {"flat": 4, "deep": 4}


def test_no_more_gpus_are_taken_than_the_capacity_says() -> None:
    # Two GPUs, of which jobs may take one; 0 is taken.
    node = make_node(gpus=2)
    node = replace(node, facts=replace(node.facts, capacity=Resources(8000, 32 * GIB, 1)))
    first = placed(make_job(gpus=1), node)
    assert first is not None
    assert place(make_job(gpus=1).spec, first.rooms) is None
    _, _, (held,) = hold(make_job(gpus=1), (node, first.placements[0].gpus))
    assert placed(make_job(gpus=1), held) is None
