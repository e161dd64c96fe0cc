"""How much room a node has, and how many workers of a gang it takes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, unique

from libs.common.names import NodeName
from services.scheduler.domain.gpus import Links, choose
from services.scheduler.domain.objects import Holding, JobSpec, Node, Resources


@unique
class Lack(Enum):
    """What a node lacks for one more worker."""

    CPU = 5
    MEMORY = 6
    GPU = 7
    LINKS = 8
    PORT = 15


def usable_gpus(node: Node) -> tuple[int, ...]:
    """Return the indexes of a node's GPUs that jobs may take: as many as its capacity says."""
    return tuple(sorted(gpu.index for gpu in node.facts.gpus))[: node.facts.capacity.gpus]


@dataclass(frozen=True, slots=True)
class Room:
    """What is free on a node.

    Attributes:
        free: amounts; `gpus` is the number of `free_gpus`.
        free_gpus: indexes, ascending.
        taken_ports: ports that gangs listen on.
    """

    node: Node
    free: Resources
    free_gpus: tuple[int, ...]
    links: Links
    taken_ports: frozenset[int] = frozenset()

    @property
    def name(self) -> NodeName:
        """The node's."""
        return self.node.name

    @staticmethod
    def of(
        node: Node,
        holdings: Iterable[Holding] | None = None,
        tables: dict[object, Links] | None = None,
    ) -> "Room":
        """Return a node's room under its holdings, or under those given.

        `tables` keeps links, so that nodes with equal ones share what is worked out about them.
        """
        tables = {} if tables is None else tables
        links = tables.get(node.facts.links)
        if links is None:
            links = tables[node.facts.links] = Links.of(node.facts.links)
        held = tuple(node.holdings if holdings is None else holdings)
        capacity = node.facts.capacity
        taken = {gpu for holding in held for gpu in holding.gpus}
        gpus = tuple(gpu for gpu in usable_gpus(node) if gpu not in taken)
        cpu = capacity.cpu_millis - sum(holding.resources.cpu_millis for holding in held)
        memory = capacity.memory_bytes - sum(holding.resources.memory_bytes for holding in held)
        return Room(
            node,
            Resources(max(0, cpu), max(0, memory), len(gpus)),
            gpus,
            links,
            frozenset(port for holding in held for port in holding.ports),
        )

    def without(self, resources: Resources, gpus: Sequence[int], port: int = 0) -> "Room":
        """Return what is left after something is taken."""
        left = tuple(gpu for gpu in self.free_gpus if gpu not in gpus)
        return replace(
            self,
            free=Resources(
                max(0, self.free.cpu_millis - resources.cpu_millis),
                max(0, self.free.memory_bytes - resources.memory_bytes),
                len(left),
            ),
            free_gpus=left,
            taken_ports=self.taken_ports | {port} if port else self.taken_ports,
        )

    def common(self, other: "Room") -> "Room":
        """Return what is free in both."""
        gpus = tuple(gpu for gpu in self.free_gpus if gpu in other.free_gpus)
        return replace(
            self,
            free=Resources(
                min(self.free.cpu_millis, other.free.cpu_millis),
                min(self.free.memory_bytes, other.free.memory_bytes),
                len(gpus),
            ),
            free_gpus=gpus,
            taken_ports=self.taken_ports | other.taken_ports,
        )

    def port(self, salt: int) -> int:
        """Return a free port, starting the search at a place that `salt` chooses; 0 when there is none.

        Not simply the first: what listened there last may still be on its way out.
        """
        first, last = self.node.facts.ports
        count = last - first + 1
        for i in range(min(count, len(self.taken_ports) + 1)):
            port = first + (salt + i) % count
            if port not in self.taken_ports:
                return port
        return 0

    def fitting(self, spec: JobSpec) -> int:
        """Return how many workers of a gang fit, at most as many as it has."""
        wanted = spec.resources
        count = spec.worker_count
        if count > 1 and not self.port(0):
            return 0
        if wanted.cpu_millis:
            count = min(count, self.free.cpu_millis // wanted.cpu_millis)
        if wanted.memory_bytes:
            count = min(count, self.free.memory_bytes // wanted.memory_bytes)
        if not wanted.gpus:
            return count
        count = min(count, self.free.gpus // wanted.gpus)
        least = spec.nearness.min_gpu_bandwidth_gbps
        while count and least:
            gpus = choose(self.free_gpus, self.links, count * wanted.gpus)
            if gpus is not None and self.links.bottleneck(gpus) >= least:
                break
            count -= 1
        return count

    def lacks(self, spec: JobSpec) -> tuple[Lack, ...]:
        """Return what one worker of a gang, alone, lacks here."""
        wanted, out = spec.resources, []
        if wanted.cpu_millis > self.free.cpu_millis:
            out.append(Lack.CPU)
        if wanted.memory_bytes > self.free.memory_bytes:
            out.append(Lack.MEMORY)
        if wanted.gpus > self.free.gpus:
            out.append(Lack.GPU)
        elif wanted.gpus > 1 and not self.fitting(replace(spec, worker_count=1)) and not out:
            out.append(Lack.LINKS)
        if spec.worker_count > 1 and not self.port(0):
            out.append(Lack.PORT)
        return tuple(out)
