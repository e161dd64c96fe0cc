"""What the scheduler keeps: nodes, queues, jobs and reservations.

Each is shaped as Kubernetes shapes its resources: what it is called (`Meta`), what is wanted (the spec)
and what is (the status). Objects are values: a change makes a new one. `meta.revision` is the store's, 0
for one that isn't stored yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, unique
from typing import TypeAlias

from libs.common.names import JobName, NodeName, QueueName, ReservationName

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORTS = (20_000, 29_999)


@dataclass(frozen=True, slots=True)
class Meta:
    """What every object has.

    Attributes:
        uid: given at creation; another object of the same name has another.
        create_time: when it was made.
        generation: counts changes of the spec, from 1.
        revision: the store's at the last write.
        labels: for people and selectors.
    """

    uid: str
    create_time: datetime
    generation: int = 1
    revision: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts: CPU in thousandths of a core, memory in bytes, whole GPUs."""

    cpu_millis: int = 0
    memory_bytes: int = 0
    gpus: int = 0

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(
            self.cpu_millis + other.cpu_millis, self.memory_bytes + other.memory_bytes, self.gpus + other.gpus
        )

    def __sub__(self, other: "Resources") -> "Resources":
        return Resources(
            self.cpu_millis - other.cpu_millis, self.memory_bytes - other.memory_bytes, self.gpus - other.gpus
        )

    def __mul__(self, count: int) -> "Resources":
        return Resources(self.cpu_millis * count, self.memory_bytes * count, self.gpus * count)

    def within(self, other: "Resources") -> bool:
        """Tell whether none of these amounts is more than the other's."""
        return (
            self.cpu_millis <= other.cpu_millis
            and self.memory_bytes <= other.memory_bytes
            and self.gpus <= other.gpus
        )


NO_RESOURCES = Resources()


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of a node; its memory is in bytes."""

    index: int
    model: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Link:
    """How fast two GPUs of a node talk, in GB/s, both directions together; `first` is the lower index."""

    first: int
    second: int
    bandwidth_gbps: float


@dataclass(frozen=True, slots=True)
class Holding:
    """What a reservation holds on a node: amounts, GPUs by index, TCP ports."""

    reservation: ReservationName
    resources: Resources
    gpus: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()


@unique
class NodeState(Enum):
    """How a node is: whether its runner is there."""

    READY = 1
    LOST = 2


@dataclass(frozen=True, slots=True)
class Facts:
    """What a runner says of its node.

    Attributes:
        capacity: what jobs may take in all.
        gpus: by index.
        links: between GPUs; a pair without one has no bandwidth that counts.
        topology: the network domains it hangs on, outermost first.
        runner_version: for people.
        host: where workers elsewhere reach those here.
        ports: first and last of the TCP ports that gangs may listen on.
    """

    capacity: Resources
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    topology: tuple[str, ...] = ()
    runner_version: str = ""
    host: str = DEFAULT_HOST
    ports: tuple[int, int] = DEFAULT_PORTS


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that runs jobs; whether its runner is there, its liveness key says and not the object."""

    name: NodeName
    meta: Meta
    facts: Facts
    cordoned: bool = False
    holdings: tuple[Holding, ...] = ()

    @property
    def allocated(self) -> Resources:
        """What reservations take now."""
        return sum((holding.resources for holding in self.holdings), NO_RESOURCES)


@dataclass(frozen=True, slots=True)
class Queue:
    """A line that a tenant's jobs wait in. A zero amount of the quota means no bound on it."""

    name: QueueName
    meta: Meta
    quota: Resources = NO_RESOURCES
    priority: int = 0
    paused: bool = False


@unique
class Mode(Enum):
    """How much nearness matters."""

    PREFERRED = 1
    REQUIRED = 2
    UNCONSTRAINED = 3


@dataclass(frozen=True, slots=True)
class Nearness:
    """How near a gang's workers must be: `level` indexes the nodes' topology; their number means one node."""

    mode: Mode = Mode.PREFERRED
    level: int = 0
    min_gpu_bandwidth_gbps: float = 0.0


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Content, by digest and size."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file that is put into the job's folder."""

    path: str
    blob: BlobRef
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Artefact:
    """A file of worker 0 that is kept."""

    id: str
    path: str


@dataclass(frozen=True, slots=True)
class KeptArtefact:
    """An artefact that was kept."""

    id: str
    blob: BlobRef


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job runs; never changes but for `cancelled`."""

    queue: QueueName
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: tuple[JobFile, ...] = ()
    worker_count: int = 1
    resources: Resources = Resources(500, 512 * 2**20)
    priority: int = 0
    nearness: Nearness = Nearness()
    deadline: timedelta = timedelta(hours=1)
    retry_count: int = 0
    retry_exit_codes: tuple[int, ...] = ()
    grace: timedelta = timedelta(seconds=10)
    artefacts: tuple[Artefact, ...] = ()
    retention: timedelta = timedelta(days=7)
    cancelled: bool = False

    @property
    def total(self) -> Resources:
        """What all its workers take together."""
        return self.resources * self.worker_count


@unique
class JobState(Enum):
    """Where a job is."""

    PENDING = 1
    STARTING = 2
    RUNNING = 3
    STOPPING = 4
    SUCCEEDED = 5
    FAILED = 6
    CANCELLED = 7

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.value >= JobState.SUCCEEDED.value

    @property
    def placed(self) -> bool:
        """Whether it has a reservation."""
        return JobState.STARTING.value <= self.value <= JobState.STOPPING.value

    @property
    def told(self) -> str:
        """What a message says of a job in it, behind the job's name."""
        verb = {JobState.SUCCEEDED: "has", JobState.FAILED: "has", JobState.CANCELLED: "was"}.get(self, "is")
        return f"{verb} {self.name.lower()}"


@unique
class WorkerState(Enum):
    """How a worker is."""

    STARTING = 1
    RUNNING = 2
    EXITED = 3
    FAILED = 4

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self in (WorkerState.EXITED, WorkerState.FAILED)


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker of an attempt, as its runner says."""

    rank: int
    node: NodeName
    state: WorkerState = WorkerState.STARTING
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    end_time: datetime | None = None
    peak_memory_bytes: int = 0

    @property
    def succeeded(self) -> bool:
        """Whether it came to its end by itself, and well."""
        return self.state is WorkerState.EXITED and not self.exit_code and not self.reason


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How a job stands; why it waits is decided anew from the store each time, never kept."""

    state: JobState = JobState.PENDING
    message: str = ""
    reason: str = ""
    reservation: ReservationName | None = None
    attempt: int = 0
    workers: tuple[Worker, ...] = ()
    artefacts: tuple[KeptArtefact, ...] = ()
    first_start_time: datetime | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    retry_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """Work: one or several workers that start together or not at all."""

    name: JobName
    meta: Meta
    spec: JobSpec
    status: JobStatus = field(default_factory=JobStatus)

    @property
    def deadline_time(self) -> datetime | None:
        """When it must have ended; None before its first start."""
        start = self.status.first_start_time
        return None if start is None else start + self.spec.deadline


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """Where a worker runs, and what it holds there."""

    rank: int
    node: NodeName
    resources: Resources
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that a gang holds; written in one transaction with the nodes it touches, and never changed."""

    name: ReservationName
    meta: Meta
    job: JobName
    job_uid: str
    attempt: int
    placements: tuple[WorkerPlacement, ...]
    master_host: str
    master_port: int
    leader_term: int

    @property
    def total(self) -> Resources:
        """What it holds in all."""
        return sum((placement.resources for placement in self.placements), NO_RESOURCES)


@dataclass(frozen=True, slots=True)
class PastRequest:
    """What the create with a request id made; `digest` is the id's SHA-256, in hexadecimal."""

    tenant: str
    digest: str
    fingerprint: str
    resource: str
    create_time: datetime
    revision: int = 0


@dataclass(frozen=True, slots=True)
class WorkerId:
    """Which worker of which attempt of which job."""

    job: JobName
    job_uid: str
    attempt: int
    rank: int


Object: TypeAlias = Node | Queue | Job | Reservation
