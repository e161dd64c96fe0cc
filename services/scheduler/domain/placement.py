"""Where a gang goes: whole or not at all, on as few and as near nodes as can be.

Domains are tried from the nearest to the widest: one node, then each level of the topology from the
innermost, then anywhere. In a domain the fullest use is made of few nodes, and the last of them is the
one that the rest fits best (best fit, so that large rooms stay large). Of several domains at a level the
one that needs fewest nodes wins, then the one with least room to spare.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.scheduler.domain.gpus import choose, share_out
from services.scheduler.domain.objects import JobSpec, Mode, WorkerPlacement
from services.scheduler.domain.rooms import Room


@dataclass(frozen=True, slots=True)
class Share:
    """Workers of a gang on one node, and the GPUs that they take together."""

    room: Room
    count: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """A gang's place: workers by rank, ranks of one node in a row, and where worker 0 listens.

    `rooms` are the touched nodes as they are afterwards.
    """

    placements: tuple[WorkerPlacement, ...]
    master_host: str
    master_port: int
    rooms: tuple[Room, ...]


def place(spec: JobSpec, rooms: Iterable[Room], salt: str = "") -> Placed | None:
    """Return where a gang goes, or None where it doesn't fit as it asks to.

    Args:
        spec: of the job.
        rooms: of the nodes that may be used.
        salt: varies the port that worker 0 gets.
    """
    usable = [_Usable(room, fit) for room in rooms if (fit := room.fitting(spec))]
    if sum(each.fit for each in usable) < spec.worker_count:
        return None
    for domains in _rounds(spec, usable):
        found = [taken for domain in domains if (taken := _fill(spec, domain)) is not None]
        if found:
            return _placed(spec, min(found, key=_cost), zlib.crc32(salt.encode()))
    return None


@dataclass(frozen=True, slots=True)
class _Usable:
    room: Room
    fit: int


def _rounds(spec: JobSpec, usable: Sequence[_Usable]) -> Iterable[list[list[_Usable]]]:
    """Yield the domains to try, nearest first."""
    nearness = spec.nearness
    if nearness.mode is Mode.UNCONSTRAINED:
        yield [list(usable)]
        return
    levels = max(len(each.room.node.facts.topology) for each in usable)
    yield [[each] for each in usable]
    least = nearness.level if nearness.mode is Mode.REQUIRED else 0
    for level in range(levels - 1, least - 1, -1):
        domains: dict[tuple[str, ...], list[_Usable]] = defaultdict(list)
        for each in usable:
            path = each.room.node.facts.topology[: level + 1]
            if len(path) == level + 1:
                domains[path].append(each)
        yield [domains[path] for path in sorted(domains)]
    if nearness.mode is Mode.PREFERRED:
        yield [list(usable)]


def _fill(spec: JobSpec, domain: Sequence[_Usable]) -> tuple[list[Share], int] | None:
    """Return the shares of a gang in a domain, and how many more workers would fit there."""
    total = sum(each.fit for each in domain)
    left = spec.worker_count
    if total < left:
        return None
    rest = sorted(domain, key=lambda each: (-each.fit, _waste(spec, each.room)))
    shares: list[Share] = []
    while left:
        # The last node is the smallest that takes the rest.
        whole = [each for each in rest if each.fit >= left]
        best = min(whole, key=lambda each: _last(spec, each, left)) if whole else rest[0]
        rest.remove(best)
        count = min(left, best.fit)
        shares.append(Share(best.room, count, _gpus(spec, best.room, count)))
        left -= count
    return shares, total - spec.worker_count


def _gpus(spec: JobSpec, room: Room, count: int) -> tuple[int, ...]:
    return choose(room.free_gpus, room.links, count * spec.resources.gpus) or ()


def _last(spec: JobSpec, usable: _Usable, count: int) -> tuple[object, ...]:
    """Return how dear it is to put a gang's last workers on a node: slow links first, then waste."""
    room = usable.room
    wanted = count * spec.resources.gpus
    slowness = -room.links.bottleneck(_gpus(spec, room, count)) if wanted > 1 else 0.0
    return (slowness, *_waste(spec, room, usable.fit - count))


def _waste(spec: JobSpec, room: Room, spare: int = 0) -> tuple[object, ...]:
    """Return a rank: GPU nodes last for work without GPUs, then the tightest room, then by name."""
    idle_gpus = room.free.gpus if not spec.resources.gpus else 0
    return (
        idle_gpus > 0,
        spare,
        room.free.gpus,
        room.free.cpu_millis,
        room.free.memory_bytes,
        room.name.node,
    )


def _cost(taken: tuple[list[Share], int]) -> tuple[object, ...]:
    shares, spare = taken
    slowest = min((share.room.links.bottleneck(share.gpus) for share in shares), default=0.0)
    wasted = sum(share.room.free.gpus - len(share.gpus) for share in shares if not share.gpus)
    left = tuple(
        (share.room.free.gpus, share.room.free.cpu_millis, share.room.free.memory_bytes) for share in shares
    )
    return len(shares), wasted > 0, -slowest, spare, left, tuple(share.room.name.node for share in shares)


def _placed(spec: JobSpec, taken: tuple[list[Share], int], salt: int) -> Placed:
    shares = sorted(taken[0], key=lambda share: (share.room.node.facts.topology, share.room.name.node))
    placements: list[WorkerPlacement] = []
    rooms: list[Room] = []
    port = shares[0].room.port(salt)
    for i, share in enumerate(shares):
        groups = share_out(share.gpus, share.room.links, share.count)
        for gpus in groups:
            placements.append(WorkerPlacement(len(placements), share.room.name, spec.resources, gpus))
        rooms.append(share.room.without(spec.resources * share.count, share.gpus, port if not i else 0))
    return Placed(tuple(placements), shares[0].room.node.facts.host, port, tuple(rooms))
