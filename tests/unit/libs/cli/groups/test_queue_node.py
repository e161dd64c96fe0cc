"""`isthmus queue` and `isthmus node`."""

import pytest

from isthmus.scheduler.v1 import object_pb2, scheduler_pb2
from libs.cli.testing import FakeCloud
from tests.unit.libs.cli.groups.conftest import Isthmus


def test_a_queue_is_made_changed_paused_and_removed(cloud: FakeCloud, isthmus: Isthmus) -> None:
    made = isthmus("queue", "create", "ads", "--cpus", "4", "--memory", "2GiB", "--priority", "5")
    assert made.code == 0, made.err
    assert "quota 4 cores, 2.0 GiB" in made.lines
    assert isthmus("queue", "update", "ads", "--memory", "0", "--gpus", "1").code == 0
    quota = cloud.queues["ads"].spec.quota
    assert (quota.cpu_millis, quota.memory_bytes, quota.gpu_count) == (4000, 0, 1)
    assert cloud.queues["ads"].spec.priority == 5
    assert "state paused" in isthmus("queue", "pause", "ads").lines
    assert "ads paused 5 4 cores, 1 GPU nothing 0 0" in isthmus("queue", "list").lines
    assert "state open" in isthmus("queue", "resume", "ads").lines
    # What was read is what is replaced.
    assert all(each.queue.metadata.etag for each in cloud.asked(scheduler_pb2.UpdateQueueRequest))
    assert isthmus("queue", "delete", "ads", "--json").json == {"deleted": "tenants/acme/queues/ads"}
    assert isthmus("queue", "get", "ads").code == 4


def test_a_queue_without_a_quota_has_no_bound(isthmus: Isthmus) -> None:
    isthmus("queue", "create", "free")
    assert "quota no bound" in isthmus("queue", "get", "free").lines


@pytest.fixture
def node(cloud: FakeCloud) -> object_pb2.Node:
    made = cloud.nodes["gpu-1"] = object_pb2.Node()
    made.metadata.name, made.metadata.etag = "nodes/gpu-1", "9"
    status = made.status
    status.state = object_pb2.NodeStatus.STATE_READY
    status.capacity.MergeFrom(object_pb2.Resources(cpu_millis=8000, memory_bytes=1024**3, gpu_count=2))
    status.allocated.cpu_millis = 500
    for index in range(2):
        status.gpus.add(index=index, model="simulated", memory_bytes=16 * 1024**3)
    status.links.add(first=0, second=1, bandwidth_gbps=600)
    held = status.holdings.add(reservation="tenants/acme/reservations/r1", gpu_indexes=[1])
    held.resources.cpu_millis = 500
    status.topology.extend(["zone-a", "rack-3"])
    return made


def test_a_node_is_shown_with_its_gpus_and_what_is_placed_on_it(
    isthmus: Isthmus, node: object_pb2.Node
) -> None:
    lines = isthmus("node", "get", "gpu-1").lines
    assert "state READY" in lines
    assert "has 8 cores, 1.0 GiB, 2 GPUs" in lines
    assert "place zone-a / rack-3" in lines
    assert "GPU 1 simulated, 16.0 GiB" in lines
    assert "0 ↔ 1 600 GB/s" in lines
    assert "r1 0.5 cores, GPUs 1" in lines
    assert "gpu-1 READY 8 cores, 1.0 GiB, 2 GPUs 0.5 cores 1 zone-a / rack-3" in isthmus("node", "list").lines
    assert isthmus("node", "get", "gpu-2").code == 4


def test_a_node_is_cordoned_whatever_is_placed_on_it_meanwhile(
    cloud: FakeCloud, isthmus: Isthmus, node: object_pb2.Node
) -> None:
    assert "state READY, cordoned" in isthmus("node", "cordon", "gpu-1").lines
    assert node.spec.cordoned
    assert "state READY" in isthmus("node", "uncordon", "gpu-1").lines
    assert not node.spec.cordoned
    assert [each.node.metadata.etag for each in cloud.asked(scheduler_pb2.UpdateNodeRequest)] == ["", ""]


def test_a_node_is_removed(cloud: FakeCloud, isthmus: Isthmus, node: object_pb2.Node) -> None:
    assert isthmus("node", "delete", "gpu-1", "--etag", "9").code == 0
    assert cloud.nodes == {}
    assert cloud.asked(scheduler_pb2.DeleteNodeRequest)[0].etag == "9"
