"""Queues of tenants, nodes of operators, and what is tidied up, over gRPC."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from isthmus.scheduler.v1 import object_pb2 as pb
from isthmus.scheduler.v1 import scheduler_pb2 as api
from libs.common.client import rpc_errors
from libs.common.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Precondition
from libs.common.names import JobName, NodeName, ReservationName
from libs.common.testing import eventually
from services.scheduler.config import SchedulerConfig
from services.scheduler.domain.change import Change
from services.scheduler.domain.objects import Holding, Resources
from services.scheduler.stores.memory import MemoryStore
from services.scheduler.testing import Running, hold, make_job, make_node, running_scheduler
from services.scheduler.testing_runner import Client, FakeRunner, State, node_status

Kind = pb.PendingReason.Kind


@pytest.fixture
async def runner(running: Running) -> AsyncIterator[FakeRunner]:
    made = running.runner()
    await made.attach()
    yield made
    await made.detach()


async def make_queue(client: Client, queue_id: str, **spec: object) -> pb.Queue:
    queue = pb.Queue(spec=pb.QueueSpec(**spec))  # type: ignore[arg-type]
    request = api.CreateQueueRequest(parent=client.parent, queue_id=queue_id, queue=queue)
    return (await client.queues.CreateQueue(request)).queue


async def test_a_queue_counts_what_its_jobs_take(running: Running, runner: FakeRunner) -> None:
    client = running.client()
    await make_queue(client, "train", quota=pb.Resources(cpu_millis=4000))
    queue = f"{client.parent}/queues/train"
    await client.submit("a", cpus=3, queue=queue)
    await runner.run("a")
    await client.submit("b", cpus=3, queue=queue)
    waiting = await client.job_when("b", lambda job: job.status.pending[0].kind == Kind.KIND_QUOTA)
    assert "6 CPUs of 4 CPUs" in waiting.status.pending[0].message
    status = (await client.queues.GetQueue(api.GetQueueRequest(name=queue))).queue.status
    assert (status.used.cpu_millis, status.pending_count, status.running_count) == (3000, 1, 1)
    with pytest.raises(Precondition, match="cancel them first"), rpc_errors():
        await client.queues.DeleteQueue(api.DeleteQueueRequest(name=queue))
    await runner.exit("a")
    await runner.started("b")


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(
    running: Running, runner: FakeRunner
) -> None:
    client = running.client()
    made = await make_queue(client, "q", paused=True)
    await client.submit("a", queue=made.metadata.name)
    await client.job_when("a", lambda job: job.status.pending[0].kind == Kind.KIND_QUEUE_PAUSED)
    made.spec.paused = False
    answer = await client.queues.UpdateQueue(api.UpdateQueueRequest(queue=made))
    assert answer.queue.metadata.generation == 2
    await runner.started("a")
    with pytest.raises(Conflict, match="read it again"), rpc_errors():
        await client.queues.UpdateQueue(api.UpdateQueueRequest(queue=made))
    again = await client.queues.UpdateQueue(api.UpdateQueueRequest(queue=answer.queue))
    assert again.queue.metadata.etag == answer.queue.metadata.etag, "nothing changed"


async def test_queues_are_made_once_and_listed(running: Running) -> None:
    client = running.client()
    await make_queue(client, "b")
    await make_queue(client, "a")
    with pytest.raises(AlreadyExists), rpc_errors():
        await make_queue(client, "a")
    with pytest.raises(Invalid, match=r"spec\.priority"), rpc_errors():
        await make_queue(client, "c", priority=9999)
    listed = await client.queues.ListQueues(api.ListQueuesRequest(parent=client.parent))
    assert [queue.metadata.name.rpartition("/")[2] for queue in listed.queues] == ["a", "b"]
    with pytest.raises(NotFound, match="did you mean"), rpc_errors():
        await client.queues.GetQueue(api.GetQueueRequest(name=f"{client.parent}/queues/aa"))
    await client.queues.DeleteQueue(api.DeleteQueueRequest(name=f"{client.parent}/queues/a"))


async def test_operators_cordon_nodes(running: Running, runner: FakeRunner) -> None:
    client, operator = running.client(), running.client("default")
    node = await operator.node()
    node.spec.cordoned = True
    with pytest.raises(Forbidden, match="tenants/default"), rpc_errors():
        await client.nodes.UpdateNode(api.UpdateNodeRequest(node=node))
    checked = await operator.nodes.UpdateNode(api.UpdateNodeRequest(node=node, validate_only=True))
    assert checked.node.spec.cordoned
    assert not (await operator.node()).spec.cordoned
    await operator.nodes.UpdateNode(api.UpdateNodeRequest(node=node))
    await client.submit("a")
    await client.job_when("a", lambda job: job.status.pending[0].kind == Kind.KIND_CORDONED)
    opened = pb.Node(metadata=pb.Metadata(name="nodes/n0"))
    await operator.nodes.UpdateNode(api.UpdateNodeRequest(node=opened))
    await runner.started("a")
    with pytest.raises(Precondition, match="its runner is there"), rpc_errors():
        await operator.nodes.DeleteNode(api.DeleteNodeRequest(name="nodes/n0"))


async def test_a_node_says_anew_what_it_has_when_its_runner_returns(running: Running) -> None:
    client = running.client()
    first = running.runner("n0", node_status(cpus=2))
    await first.attach()
    await first.detach()
    second = running.runner("n0", node_status(cpus=16, gpus=2, topology=("z", "r1")))
    await second.attach()
    node = await client.node()
    assert (node.status.capacity.cpu_millis, len(node.status.gpus)) == (16_000, 2)
    assert list(node.status.topology) == ["z", "r1"]
    listed = await client.nodes.ListNodes(api.ListNodesRequest())
    assert [node.metadata.name for node in listed.nodes] == ["nodes/n0"]
    await second.detach()


async def test_a_runner_that_makes_no_sense_is_refused(running: Running) -> None:
    status = node_status(gpus=1)
    status.capacity.gpu_count = 5
    with pytest.raises(Invalid, match="more than the 1 GPUs listed"):
        await running.runner("n0", status).attach()
    with pytest.raises(Invalid, match=r"hello\.node"):
        await running.runner("N0").attach()


async def test_what_was_left_by_hand_is_given_back_at_the_start(tmp_path: Path) -> None:
    store = MemoryStore()
    ghost = Holding(ReservationName("acme", "ghost"), Resources(1000))
    _, reservation, (node,) = hold(make_job("gone"), (make_node(holdings=[ghost]), ()))
    await store.commit(Change(puts=(node, reservation)))
    async with running_scheduler(tmp_path, store=store) as running:
        snapshot = running.scheduler.mirror
        await eventually(lambda: not snapshot.snapshot.nodes[NodeName("n0")].holdings)
        assert not snapshot.snapshot.reservations


class Pins:
    def __init__(self) -> None:
        self.released: list[JobName] = []

    async def release(self, job: JobName) -> None:
        self.released.append(job)


async def test_an_ended_job_goes_after_its_retention_with_its_pins(tmp_path: Path) -> None:
    config = SchedulerConfig(
        port=0,
        metrics_port=-1,
        data_dir=tmp_path,
        identity_trust_dir=tmp_path / "trust",
        sweep_interval_s=1.0,
    )
    pins = Pins()
    async with running_scheduler(tmp_path, config=config, pins=pins) as running:
        client = running.client()
        runner = running.runner()
        await runner.attach()
        await client.submit("short", retention_time=Duration())
        await client.submit("long")
        for name in ("short", "long"):
            await runner.write(await runner.started(name), b"x", last=True)
            await runner.run(name)
            await runner.exit(name)
        assert (await client.ended("long")).status.state == State.STATE_SUCCEEDED
        jobs = running.scheduler.mirror
        await eventually(lambda: [name.job for name in jobs.snapshot.jobs] == ["long"])
        assert pins.released == [JobName("acme", "short")]
        folder = tmp_path / "logs" / "acme"
        await eventually(lambda: len(list(folder.iterdir())) == 1)
        await runner.detach()


async def test_scopes_are_needed(running: Running) -> None:
    reader = running.client("acme", "jobs:read")
    with pytest.raises(Forbidden, match="jobs:write"), rpc_errors():
        await reader.submit("a")
    with pytest.raises(Forbidden, match="queues:read"), rpc_errors():
        await reader.queues.ListQueues(api.ListQueuesRequest(parent=reader.parent))
    with pytest.raises(Forbidden, match="nodes:read"), rpc_errors():
        await reader.node()


async def test_metrics_tell_how_things_stand(running: Running, runner: FakeRunner) -> None:
    client = running.client()
    await client.submit("a")
    await runner.run("a")
    await client.submit("wide", cpus=64)
    value = running.registry.get_sample_value
    await eventually(lambda: value("isthmus_scheduler_jobs", {"state": "running"}) == 1)
    await eventually(lambda: value("isthmus_scheduler_pending", {"reason": "no_node_fits"}) == 1)
    assert value("isthmus_scheduler_leader") == 1
    assert value("isthmus_scheduler_reservations") == 1
    assert value("isthmus_scheduler_allocated_cpus", {}) == 1
    assert value("isthmus_scheduler_nodes", {"state": "ready"}) == 1
    await runner.exit("a")
    await eventually(lambda: value("isthmus_scheduler_jobs_ended_total", {"state": "succeeded"}) == 1)
