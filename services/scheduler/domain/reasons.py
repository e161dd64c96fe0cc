"""Why a job waits: typed, with figures, and with what would help."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, unique

from libs.common.names import JobName, QueueName
from libs.common.sizes import size_text
from services.scheduler.domain.objects import JobSpec, Resources
from services.scheduler.domain.rooms import Lack, Room


@unique
class Kind(Enum):
    """Why; the numbers are the API's."""

    NOT_CONSIDERED = 1
    QUOTA = 2
    QUOTA_TOO_SMALL = 3
    QUEUE_PAUSED = 4
    CPU = 5
    MEMORY = 6
    GPU = 7
    TOPOLOGY = 8
    CORDONED = 9
    LOST = 10
    NO_NODE_FITS = 11
    BEHIND = 12
    BACKOFF = 13
    GANG_TOO_WIDE = 14
    PORT = 15
    QUEUE_MISSING = 16
    CROWDED = 17


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job, or one of its workers on a node, waits; `nodes` counts the nodes that it holds for."""

    kind: Kind
    message: str
    nodes: int = 0


NOT_CONSIDERED = Reason(Kind.NOT_CONSIDERED, "not looked at yet; it will be at once")


def amounts(resources: Resources) -> str:
    """Return amounts for people, such as "2 CPUs, 512 MiB, 1 GPU"."""
    parts = []
    if resources.cpu_millis:
        parts.append(_cpus(resources.cpu_millis))
    if resources.memory_bytes:
        parts.append(size_text(resources.memory_bytes))
    if resources.gpus:
        parts.append(_count(resources.gpus, "GPU"))
    return ", ".join(parts) or "nothing"


def _cpus(millis: int) -> str:
    return f"{millis / 1000:g} CPU{'' if millis == 1000 else 's'}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def exceeded(total: Resources, quota: Resources) -> str:
    """Return which amount of `total` is beyond `quota`, for people; "" when none is. Zero is no bound."""
    if quota.cpu_millis and total.cpu_millis > quota.cpu_millis:
        return f"{_cpus(total.cpu_millis)} of {_cpus(quota.cpu_millis)}"
    if quota.memory_bytes and total.memory_bytes > quota.memory_bytes:
        return f"{size_text(total.memory_bytes)} of {size_text(quota.memory_bytes)}"
    if quota.gpus and total.gpus > quota.gpus:
        return f"{total.gpus} of {_count(quota.gpus, 'GPU')}"
    return ""


def quota_too_small(queue: QueueName, spec: JobSpec, quota: Resources) -> Reason:
    """Say that the queue never has enough."""
    return Reason(
        Kind.QUOTA_TOO_SMALL,
        f"takes {exceeded(spec.total, quota)} that {queue} may have in all; ask for less, or raise the quota",
    )


def quota_taken(queue: QueueName, spec: JobSpec, used: Resources, quota: Resources) -> Reason:
    """Say that the queue's running jobs leave too little."""
    return Reason(
        Kind.QUOTA,
        f"with what runs it would take {exceeded(used + spec.total, quota)} that {queue} may have; "
        "waits for jobs of the queue to end, or raise the quota",
    )


def paused(queue: QueueName) -> Reason:
    """Say that the queue takes nothing."""
    return Reason(Kind.QUEUE_PAUSED, f"{queue} is paused; resume it with `isthmus queue resume`")


def missing_queue(queue: QueueName) -> Reason:
    """Say that the queue was removed."""
    text = f"{queue} was removed; make it again with `isthmus queue create`, or cancel the job"
    return Reason(Kind.QUEUE_MISSING, text)


def behind(other: JobName, tenant: str) -> Reason:
    """Say to a tenant that another job goes first; only that job's own tenant is told which."""
    who = str(other) if other.tenant == tenant else "another tenant's job"
    return Reason(Kind.BEHIND, f"waits behind {who}, which waits for the same room or quota")


def waiting_to_retry(attempt: int, until: datetime) -> Reason:
    """Say that a failed attempt is repeated later."""
    return Reason(
        Kind.BACKOFF, f"attempt {attempt} failed; the next starts after {until.isoformat(timespec='seconds')}"
    )


def too_wide(nodes: int, most: int) -> Reason:
    """Say that the gang can't be committed in one transaction."""
    return Reason(
        Kind.GANG_TOO_WIDE,
        f"would run on {nodes} nodes, and a gang may touch at most {most}; use fewer or larger workers",
        nodes,
    )


def crowded(nodes: int) -> Reason:
    """Say that the gang can't be committed beside what its nodes hold."""
    return Reason(
        Kind.CROWDED,
        f"{nodes} nodes hold so many reservations that one more on all of them doesn't fit a transaction; "
        "waits for some to end, or use fewer or larger workers",
        nodes,
    )


def verdict(spec: JobSpec, room: Room, *, cordoned: bool, lost: bool) -> tuple[Reason, ...]:
    """Return why a node takes no worker, or no more of them; empty when it takes the whole gang."""
    out = []
    if cordoned:
        out.append(Reason(Kind.CORDONED, "is cordoned; open it with `isthmus node uncordon`", 1))
    if lost:
        out.append(
            Reason(Kind.LOST, "its runner hasn't been heard of; start it again, or delete the node", 1)
        )
    if room.fitting(spec) < spec.worker_count:
        lacks = room.lacks(spec)
        out.extend(_lack(lack, spec, room) for lack in lacks)
        if not lacks:
            out.append(_scarcest(spec, room))
    return tuple(out)


def _scarcest(spec: JobSpec, room: Room) -> Reason:
    """Return what ends first on a node that takes some workers, but not all."""
    wanted, free = spec.resources, room.free
    fits = {Lack.CPU: spec.worker_count, Lack.MEMORY: spec.worker_count, Lack.GPU: spec.worker_count}
    if wanted.cpu_millis:
        fits[Lack.CPU] = free.cpu_millis // wanted.cpu_millis
    if wanted.memory_bytes:
        fits[Lack.MEMORY] = free.memory_bytes // wanted.memory_bytes
    if wanted.gpus:
        fits[Lack.GPU] = free.gpus // wanted.gpus
    least = min(fits, key=lambda lack: fits[lack])
    return _lack(least if fits[least] < spec.worker_count else Lack.LINKS, spec, room)


def _lack(lack: Lack, spec: JobSpec, room: Room) -> Reason:
    wanted, free, all_ = spec.resources, room.free, room.node.facts.capacity
    each = "" if spec.worker_count == 1 else " a worker"
    texts = {
        Lack.CPU: f"needs {_cpus(wanted.cpu_millis)}{each}; {free.cpu_millis / 1000:g} of "
        f"{all_.cpu_millis / 1000:g} are free",
        Lack.MEMORY: f"needs {size_text(wanted.memory_bytes)}{each}; {size_text(free.memory_bytes)} of "
        f"{size_text(all_.memory_bytes)} are free",
        Lack.GPU: f"needs {_count(wanted.gpus, 'GPU')}{each}; {free.gpus} of {all_.gpus} are free",
        Lack.LINKS: f"no free GPUs are linked by {spec.nearness.min_gpu_bandwidth_gbps:g} GB/s throughout",
        Lack.PORT: "every port that gangs may use is taken; widen the runner's range",
    }
    kind = Kind.TOPOLOGY if lack is Lack.LINKS else Kind(lack.value)
    return Reason(kind, texts[lack], 1)


def why_not(
    spec: JobSpec,
    rooms: Sequence[Room],
    cordoned: int,
    lost: int,
    *,
    fits_empty: bool,
    fits_apart: bool,
) -> tuple[Reason, ...]:
    """Return why a gang can't be placed now.

    Args:
        spec: the job's.
        rooms: of the nodes that take work now.
        cordoned: how many nodes would be there but for that.
        lost: likewise.
        fits_empty: whether all nodes together, idle, open and there, would take it.
        fits_apart: whether they would if it didn't matter how near and how well linked they are.
    """
    total = len(rooms) + cordoned + lost
    if not fits_empty:
        return (_never(spec, total, fits_apart=fits_apart),)
    lacking: Counter[Lack] = Counter(lack for room in rooms for lack in room.lacks(spec))
    fitting = sum(room.fitting(spec) for room in rooms)
    out: list[Reason] = []
    if fitting >= spec.worker_count:
        out.append(_too_far(spec, fitting, len(rooms)))
    else:
        out.extend(_summed(lack, count, spec, rooms) for lack, count in sorted(lacking.items(), key=_number))
        if not lacking and rooms:
            scarce = Counter(_scarcest(spec, room).kind for room in rooms)
            out.extend(
                Reason(kind, f"room for {fitting} of {spec.worker_count} workers is free; waits for more", n)
                for kind, n in sorted(scarce.items(), key=lambda item: item[0].value)
            )
    if cordoned:
        out.append(
            Reason(
                Kind.CORDONED,
                f"{_count(cordoned, 'node')} cordoned; open with `isthmus node uncordon`",
                cordoned,
            )
        )
    if lost:
        out.append(
            Reason(
                Kind.LOST, f"{_count(lost, 'node')} lost; start the runner again, or delete the node", lost
            )
        )
    return tuple(out)


def _number(item: tuple[Lack, int]) -> int:
    return item[0].value


def _never(spec: JobSpec, total: int, *, fits_apart: bool) -> Reason:
    if not total:
        return Reason(Kind.NO_NODE_FITS, "there is no node; start a node runner", 0)
    if fits_apart:
        least = spec.nearness.min_gpu_bandwidth_gbps
        near = f"as near as the job asks{f', with GPUs linked by {least:g} GB/s' if least else ''}"
        text = f"even when all are idle, {_count(total, 'node')} can't hold it {near}; relax placement"
        return Reason(Kind.NO_NODE_FITS, text, total)
    one = spec.worker_count == 1
    what = amounts(spec.resources) if one else f"{spec.worker_count} workers of {amounts(spec.resources)}"
    where = "the only node" if total == 1 else f"any of {total} nodes" if one else f"{total} nodes together"
    return Reason(
        Kind.NO_NODE_FITS,
        f"{what}: more than {where} can hold even when idle; ask for less, or add a larger node",
        total,
    )


def _too_far(spec: JobSpec, fitting: int, nodes: int) -> Reason:
    return Reason(
        Kind.TOPOLOGY,
        f"room for {fitting} workers is free on {_count(nodes, 'node')}, but not for "
        f"{spec.worker_count} as near as the job asks; waits, or relax placement",
        nodes,
    )


def _summed(lack: Lack, count: int, spec: JobSpec, rooms: Iterable[Room]) -> Reason:
    lacking = [room for room in rooms if lack in room.lacks(spec)]
    # Nodes that are too small for it say nothing about what it waits for, unless all are.
    able = [room for room in lacking if spec.resources.within(room.node.facts.capacity)] or lacking
    freest: Mapping[Lack, Room] = {
        Lack.CPU: max(able, key=lambda room: room.free.cpu_millis),
        Lack.MEMORY: max(able, key=lambda room: room.free.memory_bytes),
        Lack.GPU: max(able, key=lambda room: room.free.gpus),
    }
    room = freest.get(lack, able[0])
    one = _lack(lack, spec, room)
    others = f", and too few on {_count(count - 1, 'other node')}" if count > 1 else ""
    return Reason(one.kind, f"{one.message} on {room.name}{others}", count)
