"""What the queue API does."""

from dataclasses import dataclass, replace

from libs.common.clock import Clock
from libs.common.errors import AlreadyExists, Exhausted, NotFound, Precondition
from libs.common.names import QueueName
from libs.common.rand import Randomness
from libs.common.suggest import did_you_mean
from services.scheduler.domain.change import Change
from services.scheduler.domain.creates import Writer, check_etag, remembered
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import NO_RESOURCES, JobState, Meta, Queue, Resources
from services.scheduler.domain.validation import check_labels, check_queue_spec

MAX_QUEUES = 1000
"""Of a tenant."""


@dataclass(frozen=True, slots=True)
class QueueWish:
    """A queue as it is to be."""

    name: QueueName
    quota: Resources
    priority: int
    paused: bool
    labels: dict[str, str]
    etag: str = ""
    request_id: str = ""
    fingerprint: str = ""
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue, and how it stands."""

    queue: Queue
    used: Resources
    pending: int
    running: int


class Queues:
    """See the module."""

    def __init__(self, writer: Writer, mirror: Mirror, clock: Clock, randomness: Randomness) -> None:
        self._writer = writer
        self._mirror = mirror
        self._clock = clock
        self._randomness = randomness

    async def create(self, wish: QueueWish) -> QueueView:
        """Make a queue.

        Raises:
            Invalid: for a spec that can't be.
            AlreadyExists: when it is there.
            Exhausted: when the tenant has 1000.
        """
        check_queue_spec(wish.quota, wish.priority)
        check_labels(wish.labels)
        tenant = wish.name.tenant

        def work() -> tuple[Queue, Change | None]:
            earlier = self._writer.earlier(tenant, wish.request_id, wish.fingerprint)
            if earlier is not None:
                return self._queue(QueueName.parse(earlier)), None
            snapshot, now = self._mirror.snapshot, self._clock.now()
            if wish.name in snapshot.queues:
                raise AlreadyExists(f"{wish.name}: exists already; update it", reason="QUEUE_EXISTS")
            if sum(name.tenant == tenant for name in snapshot.queues) >= MAX_QUEUES:
                raise Exhausted(
                    f"tenants/{tenant} has {MAX_QUEUES} queues; delete some", reason="TOO_MANY_QUEUES"
                )
            queue = Queue(
                wish.name,
                Meta(self._randomness.id(), now, labels=wish.labels),
                wish.quota,
                wish.priority,
                wish.paused,
            )
            past = remembered(tenant, wish.request_id, wish.fingerprint, wish.name, now)
            return queue, None if wish.validate_only else Change(puts=(queue, *past))

        return self._view(self._latest(*await self._writer.write(work)))

    async def get(self, name: QueueName) -> QueueView:
        """Read a queue; raise NotFound."""
        await self._mirror.reached(1)
        return self._view(self._queue(name))

    async def list_queues(self, tenant: str, after: str, limit: int) -> list[QueueView]:
        """Return a tenant's queues by id, after one, one more than `limit`."""
        await self._mirror.reached(1)
        queues = [
            queue
            for name, queue in self._mirror.snapshot.queues.items()
            if name.tenant == tenant and name.queue > after
        ]
        return [self._view(queue) for queue in sorted(queues, key=lambda q: q.name.queue)[: limit + 1]]

    async def update(self, wish: QueueWish) -> QueueView:
        """Replace a queue's spec and labels.

        Raises:
            Invalid: for a spec that can't be.
            NotFound: when it isn't there.
            Conflict: for a stale etag.
        """
        check_queue_spec(wish.quota, wish.priority)
        check_labels(wish.labels)

        def work() -> tuple[Queue, Change | None]:
            old = self._queue(wish.name)
            check_etag(wish.name, old.meta.revision, wish.etag)
            new = replace(
                old,
                meta=replace(old.meta, labels=wish.labels),
                quota=wish.quota,
                priority=wish.priority,
                paused=wish.paused,
            )
            if new == old:
                return old, None
            if (old.quota, old.priority, old.paused) != (new.quota, new.priority, new.paused):
                new = replace(new, meta=replace(new.meta, generation=old.meta.generation + 1))
            return new, None if wish.validate_only else Change(puts=(new,))

        return self._view(self._latest(*await self._writer.write(work)))

    async def delete(self, name: QueueName, etag: str) -> None:
        """Remove a queue.

        Raises:
            NotFound: when it isn't there.
            Conflict: for a stale etag.
            Precondition: when it has jobs that haven't ended.
        """

        def work() -> tuple[Queue, Change | None]:
            queue = self._queue(name)
            check_etag(name, queue.meta.revision, etag)
            jobs = [
                job
                for job in self._mirror.snapshot.jobs.values()
                if job.spec.queue == name and not job.status.state.ended
            ]
            if jobs:
                raise Precondition(
                    f"{name}: not all of its jobs have ended ({len(jobs)} to go, such as {jobs[0].name}); "
                    "cancel them first",
                    reason="QUEUE_HAS_JOBS",
                )
            return queue, Change(deletes=(queue,))

        await self._writer.write(work)

    def _latest(self, queue: Queue, revision: int) -> Queue:
        return replace(queue, meta=replace(queue.meta, revision=revision)) if revision else queue

    def _queue(self, name: QueueName) -> Queue:
        found = self._mirror.snapshot.queues.get(name)
        if found is None:
            known = [other.queue for other in self._mirror.snapshot.queues if other.tenant == name.tenant]
            raise NotFound(f"{name}: not found{did_you_mean(name.queue, known)}", reason="QUEUE_NOT_FOUND")
        return found

    def _view(self, queue: Queue) -> QueueView:
        snapshot = self._mirror.snapshot
        mine = [job.status.state for job in snapshot.jobs.values() if job.spec.queue == queue.name]
        return QueueView(
            queue,
            snapshot.used().get(queue.name, NO_RESOURCES),
            sum(state is JobState.PENDING for state in mine),
            sum(state.placed for state in mine),
        )
