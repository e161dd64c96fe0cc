"""The state at one revision: what decisions are made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from libs.common.names import JobName, NodeName, QueueName, ReservationName
from services.scheduler.domain.objects import (
    NO_RESOURCES,
    Job,
    Node,
    NodeState,
    Queue,
    Reservation,
    Resources,
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every object at one revision of the store.

    Attributes:
        revision: the store's.
        ready: the nodes whose runner is there.
        unreadable: the keys whose value can't be read. What was read before is still among the rest; what
            never was, since this process began, isn't: then it is unknown, and by no means gone.
    """

    revision: int = 0
    nodes: Mapping[NodeName, Node] = field(default_factory=dict)
    queues: Mapping[QueueName, Queue] = field(default_factory=dict)
    jobs: Mapping[JobName, Job] = field(default_factory=dict)
    reservations: Mapping[ReservationName, Reservation] = field(default_factory=dict)
    ready: frozenset[NodeName] = frozenset()
    unreadable: frozenset[object] = frozenset()

    def state_of(self, node: NodeName) -> NodeState:
        """Return how a node is."""
        return NodeState.READY if node in self.ready else NodeState.LOST

    def reservation_of(self, job: Job) -> Reservation | None:
        """Return the reservation of a job's present attempt, if it has one."""
        name = job.status.reservation
        found = self.reservations.get(name) if name is not None else None
        return found if found is not None and found.job_uid == job.meta.uid else None

    def used(self) -> dict[QueueName, Resources]:
        """Return what each queue's jobs hold: by the reservations, not by what was ever done."""
        out: dict[QueueName, Resources] = {}
        for reservation in self.reservations.values():
            job = self.jobs.get(reservation.job)
            if job is not None and job.meta.uid == reservation.job_uid:
                queue = job.spec.queue
                out[queue] = out.get(queue, NO_RESOURCES) + reservation.total
        return out
