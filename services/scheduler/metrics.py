"""What the operator sees in Prometheus. Labels are bounded: states, reasons; never ids."""

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.scheduler.domain.decide import Decision
from services.scheduler.domain.objects import Job, JobState, NodeState
from services.scheduler.domain.reasons import Kind

_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
_ENDED = tuple(state for state in JobState if state.ended)


class Metrics:
    """See `services.scheduler.domain.controller.Meter`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register with `registry`."""
        self._jobs = Gauge("isthmus_scheduler_jobs", "Jobs, by state.", ("state",), registry=registry)
        self._pending = Gauge(
            "isthmus_scheduler_pending", "Pending jobs, by first reason.", ("reason",), registry=registry
        )
        self._oldest = Gauge(
            "isthmus_scheduler_oldest_pending_create_seconds",
            "When the job that waits longest was submitted, in seconds since 1970; 0 when none waits.",
            registry=registry,
        )
        self._nodes = Gauge("isthmus_scheduler_nodes", "Nodes, by state.", ("state",), registry=registry)
        self._reservations = Gauge("isthmus_scheduler_reservations", "Reservations.", registry=registry)
        self._runners = Gauge("isthmus_scheduler_runners", "Runners attached here.", registry=registry)
        self._leads = Gauge("isthmus_scheduler_leader", "1 while this replica leads.", registry=registry)
        self._ended = Counter(
            "isthmus_scheduler_jobs_ended_total", "Jobs that ended, by state.", ("state",), registry=registry
        )
        self._conflicts = Counter(
            "isthmus_scheduler_conflicts_total", "Transactions that lost a race.", registry=registry
        )
        self._seconds = Histogram(
            "isthmus_scheduler_decision_seconds", "Time of a decision.", buckets=_BUCKETS, registry=registry
        )
        self._capacity = _amounts("capacity", "the nodes have", registry)
        self._allocated = _amounts("allocated", "reservations take", registry)
        self._unreadable = Counter(
            "isthmus_scheduler_unreadable_values_total",
            "Times that a value in the store couldn't be read, by kind; what was read before stays in force.",
            ("kind",),
            registry=registry,
        )
        for state in _ENDED:
            self._ended.labels(state.name.lower())
        self.leading(False)

    def ended(self, job: Job) -> None:
        """See `Meter`."""
        self._ended.labels(job.status.state.name.lower()).inc()

    def leading(self, leads: bool) -> None:
        """See `Meter`."""
        self._leads.set(leads)

    def conflicted(self) -> None:
        """See `Meter`."""
        self._conflicts.inc()

    def decided(self, seconds: float) -> None:
        """Count a decision."""
        self._seconds.observe(seconds)

    def state(self, decision: Decision, runners: int) -> None:
        """See `Meter`."""
        snapshot = decision.snapshot
        states = Tally(job.status.state for job in snapshot.jobs.values())
        for state in JobState:
            self._jobs.labels(state.name.lower()).set(states[state])
        waiting = [job for job in snapshot.jobs.values() if job.status.state is JobState.PENDING]
        kinds = Tally(why[0].kind for why in decision.pending.values() if why)
        for kind in Kind:
            self._pending.labels(kind.name.lower()).set(kinds[kind])
        self._oldest.set(min((job.meta.create_time.timestamp() for job in waiting), default=0.0))
        nodes = Tally(snapshot.state_of(name) for name in snapshot.nodes)
        for node_state in NodeState:
            self._nodes.labels(node_state.name.lower()).set(nodes[node_state])
        self._reservations.set(len(snapshot.reservations))
        self._runners.set(runners)
        for gauges, amounts in (
            (self._capacity, [node.facts.capacity for node in snapshot.nodes.values()]),
            (self._allocated, [node.allocated for node in snapshot.nodes.values()]),
        ):
            cpus, memory, gpus = gauges
            cpus.set(sum(amount.cpu_millis for amount in amounts) / 1000)
            memory.set(sum(amount.memory_bytes for amount in amounts))
            gpus.set(sum(amount.gpus for amount in amounts))

    def unreadable(self, kind: str) -> None:
        """Count a value in the store that can't be read."""
        self._unreadable.labels(kind).inc()


def _amounts(name: str, what: str, registry: CollectorRegistry) -> tuple[Gauge, Gauge, Gauge]:
    """Return gauges of CPUs, memory and GPUs, each with its unit in its name."""
    prefix = f"isthmus_scheduler_{name}"
    return (
        Gauge(f"{prefix}_cpus", f"CPU cores that {what}.", registry=registry),
        Gauge(f"{prefix}_memory_bytes", f"Memory that {what}, in bytes.", registry=registry),
        Gauge(f"{prefix}_gpus", f"GPUs that {what}.", registry=registry),
    )
