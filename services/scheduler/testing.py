"""For tests: a scheduler in this process, users and runners of it, and builders of what it keeps."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry

from isthmus.scheduler.v1 import object_pb2 as pb
from libs.common.client import Channel, ServiceIdentity
from libs.common.clock import Clock, SystemClock
from libs.common.etcd import EtcdClient
from libs.common.identity import GATEWAY, Identity, IdentityIssuer
from libs.common.names import JobName, NodeName, QueueName, ReservationName
from libs.common.rand import Randomness, SystemRandomness
from libs.common.testing import ServerChannel, running_server
from services.scheduler.access import ACCESS, RUNNER
from services.scheduler.app import NAME, Scheduler, build
from services.scheduler.config import SchedulerConfig
from services.scheduler.domain.jobs import Pins
from services.scheduler.domain.objects import (
    NO_RESOURCES,
    Facts,
    Gpu,
    Holding,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    Link,
    Meta,
    Nearness,
    Node,
    Queue,
    Reservation,
    Resources,
    Worker,
    WorkerPlacement,
    WorkerState,
)
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.metrics import Metrics
from services.scheduler.pins import NoPins
from services.scheduler.store import Store
from services.scheduler.stores.etcd import EtcdStore
from services.scheduler.stores.memory import MemoryStore
from services.scheduler.testing_runner import Client, FakeRunner

GIB = 2**30
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


# ---- builders ----
def user(tenant: str = "acme", *scopes: str) -> Identity:
    """Return a user of a tenant, who may do everything unless told otherwise."""
    return Identity(tenant, f"tenants/{tenant}/keys/test", "user", frozenset(scopes or ("*",)), GATEWAY)


def links(rows: Sequence[Sequence[float]]) -> tuple[Link, ...]:
    """Return links out of a matrix of bandwidths; only what is above the diagonal counts."""
    return tuple(
        Link(i, j, rows[i][j]) for i in range(len(rows)) for j in range(i + 1, len(rows)) if rows[i][j]
    )


def make_node(
    name: str = "n0",
    *,
    cpus: float = 8,
    memory: int = 32 * GIB,
    gpus: int = 0,
    bandwidth: Sequence[Sequence[float]] = (),
    topology: Sequence[str] = (),
    ports: tuple[int, int] = (20_000, 29_999),
    cordoned: bool = False,
    holdings: Sequence[Holding] = (),
) -> Node:
    """Return a node."""
    facts = Facts(
        Resources(round(cpus * 1000), memory, gpus),
        tuple(Gpu(i, "simulated", 16 * GIB) for i in range(gpus)),
        links(bandwidth),
        tuple(topology),
        ports=ports,
    )
    return Node(NodeName(name), Meta(f"uid-{name}", BEGIN), facts, cordoned, tuple(holdings))


def make_queue(name: str = "default", tenant: str = "acme", **spec: object) -> Queue:
    """Return a queue; `spec` sets its fields."""
    return replace(Queue(QueueName(tenant, name), Meta(f"uid{name}", BEGIN)), **spec)  # type: ignore[arg-type]


def make_job(
    name: str = "j0",
    *,
    tenant: str = "acme",
    queue: str = "default",
    workers: int = 1,
    cpus: float = 1,
    memory: int = GIB,
    gpus: int = 0,
    nearness: Nearness = Nearness(),  # noqa: B008 - a value
    age_s: float = 0.0,
    status: JobStatus | None = None,
    **spec: object,
) -> Job:
    """Return a job that was submitted `age_s` seconds before the others; `spec` sets further fields."""
    made = JobSpec(
        QueueName(tenant, queue),
        ("python", "train.py"),
        worker_count=workers,
        resources=Resources(round(cpus * 1000), memory, gpus),
        nearness=nearness,
    )
    return Job(
        JobName(tenant, name),
        Meta(f"uid{name}", BEGIN - timedelta(seconds=age_s)),
        replace(made, **spec),  # type: ignore[arg-type]
        status or JobStatus(),
    )


def snapshot_of(
    *,
    nodes: Iterable[Node] = (),
    queues: Iterable[Queue] = (),
    jobs: Iterable[Job] = (),
    reservations: Iterable[Reservation] = (),
    lost: Iterable[NodeName] = (),
    revision: int = 1,
) -> Snapshot:
    """Return a snapshot of these objects; every node is ready but those in `lost`."""
    by_name = {node.name: node for node in nodes}
    return Snapshot(
        revision,
        by_name,
        {queue.name: queue for queue in queues},
        {job.name: job for job in jobs},
        {reservation.name: reservation for reservation in reservations},
        frozenset(by_name) - frozenset(lost),
    )


def hold(job: Job, *where: tuple[Node, Sequence[int]]) -> tuple[Job, Reservation, list[Node]]:
    """Return a running job, its reservation and nodes: a worker and its GPUs for each of `where`."""
    name = ReservationName(job.name.tenant, f"{job.meta.uid}-1")
    nodes = {node.name: node for node, _ in where}
    for node in list(nodes.values()):
        mine = [gpus for other, gpus in where if other.name == node.name]
        resources = sum((job.spec.resources for _ in mine), NO_RESOURCES)
        holding = Holding(name, resources, tuple(gpu for gpus in mine for gpu in gpus))
        nodes[node.name] = replace(node, holdings=(*node.holdings, holding))
    placements = tuple(
        WorkerPlacement(i, node.name, job.spec.resources, tuple(gpus)) for i, (node, gpus) in enumerate(where)
    )
    reservation = Reservation(
        name, Meta(f"uid{name.reservation}", BEGIN), job.name, job.meta.uid, 1, placements, "127.0.0.1", 0, 1
    )
    status = JobStatus(
        state=JobState.RUNNING,
        reservation=name,
        attempt=1,
        workers=tuple(Worker(p.rank, p.node, WorkerState.RUNNING) for p in placements),
        first_start_time=BEGIN,
        start_time=BEGIN,
    )
    return replace(job, status=status), reservation, list(nodes.values())


# ---- a scheduler in this process ----
@dataclass(frozen=True, slots=True)
class Running:
    """A scheduler that serves."""

    scheduler: Scheduler
    channel: ServerChannel
    registry: CollectorRegistry

    def client(self, tenant: str = "acme", *scopes: str) -> Client:
        """Return a client that calls as a user of a tenant."""
        return Client(self.channel.acting_as(user(tenant, *scopes)), tenant)

    def runner(self, node: str = "n0", status: pb.NodeStatus | None = None) -> FakeRunner:
        """Return a runner that isn't attached yet."""
        return FakeRunner(_runner_channel(self.channel), node, status)


def etcd_store(endpoints: Sequence[str]) -> EtcdStore:
    """Return a store in etcd whose leases end when they are given back, and not because a machine is slow."""
    client = EtcdClient(endpoints, clock=SystemClock(), randomness=SystemRandomness())
    return EtcdStore(client, leader_ttl_s=60.0, liveness_s=60.0)


_RUNNER_KEY = Ed25519PrivateKey.from_private_bytes(b"the runners' key, known to all.."[:32])


def _runner_channel(channel: ServerChannel) -> Channel:
    issuer = IdentityIssuer(RUNNER, _RUNNER_KEY, SystemClock())
    return channel.anonymous().with_metadata(ServiceIdentity(issuer, NAME))


@asynccontextmanager
async def running_scheduler(
    folder: Path,
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
    config: SchedulerConfig | None = None,
    pins: Pins | None = None,
    lead: bool = True,
) -> AsyncIterator[Running]:
    """Serve a scheduler on a free port, loops and all; over a store in memory unless one is given.

    With `lead` it yields once the scheduler leads.
    """
    clock, registry = clock or SystemClock(), CollectorRegistry()
    store = store if store is not None else MemoryStore()
    config = config or SchedulerConfig(
        port=0, metrics_port=-1, data_dir=folder, identity_trust_dir=folder / "trust"
    )
    address = ["?"]
    metrics = Metrics(registry)
    scheduler = build(
        config,
        store,
        pins or NoPins(),
        metrics,
        clock,
        randomness or SystemRandomness(),
        lambda: address[0],
    )
    try:
        async with running_server(
            *scheduler.services,
            access=ACCESS,
            audience=NAME,
            clock=clock,
            config=config,
            trusted={RUNNER: _RUNNER_KEY.public_key()},
        ) as channel:
            address[0] = channel.target
            async with scheduler.running():
                if lead:
                    async with asyncio.timeout(30):
                        while not scheduler.controller.leads:  # noqa: ASYNC110 - there is no event for it
                            await asyncio.sleep(0.005)
                yield Running(scheduler, channel, registry)
    finally:
        await store.close()
