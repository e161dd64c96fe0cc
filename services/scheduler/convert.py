"""Between messages and objects: with `convert_runner`, the only code that knows both.

The store uses it too: what etcd holds is the JSON of these messages.
"""

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.deployer.v1 import manifest_pb2
from isthmus.scheduler.v1 import object_pb2 as pb
from libs.common.errors import Invalid
from libs.common.names import NodeName, QueueName, ReservationName
from libs.common.paging import decode_token, encode_token, page_size
from services.scheduler.domain.objects import (
    DEFAULT_HOST,
    DEFAULT_PORTS,
    BlobRef,
    Facts,
    Gpu,
    Holding,
    Link,
    Meta,
    Node,
    NodeState,
    Queue,
    Resources,
)

_LARGEST_SECONDS = 315_576_000_000

MAX_PAGE_BYTES = 3 * 1024 * 1024
"""Of one answer of a list, so that it stays below the limit of a message."""
_FRAMING_BYTES = 8
E = TypeVar("E", bound=Enum)
V = TypeVar("V")
M = TypeVar("M", bound=Message)


# ---- small things ----
def timestamp(time: datetime | None) -> Timestamp | None:
    """Write a time; None stays None."""
    if time is None:
        return None
    message = Timestamp()
    message.FromDatetime(time)
    return message


def time_of(message: Timestamp, field: str) -> datetime:
    """Read a time; raise Invalid naming `field` for one that isn't."""
    if not 0 <= message.nanos < 10**9 or not -62_135_596_800 <= message.seconds <= 253_402_300_799:
        raise Invalid(f"{field}: is not a valid time", reason="BAD_TIME", metadata={"field": field})
    return message.ToDatetime(UTC)


def span(message: Duration, field: str) -> timedelta:
    """Read a duration; raise Invalid naming `field` for one that isn't."""
    if abs(message.seconds) > _LARGEST_SECONDS or abs(message.nanos) >= 1_000_000_000:
        raise Invalid(f"{field}: is not a valid duration", reason="BAD_DURATION", metadata={"field": field})
    return timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def duration(value: timedelta) -> Duration:
    """Write a duration."""
    message = Duration()
    message.FromTimedelta(value)
    return message


def enum_of(kind: type[E], value: int, field: str) -> E:
    """Read an enum's value; raise Invalid naming `field` for one that isn't known."""
    for member in kind:
        if member.value == value:
            return member
    names = ", ".join(member.name for member in kind)
    raise Invalid(f"{field}: {value} is none of {names}", reason="BAD_ENUM", metadata={"field": field})


def fingerprint(request: Message) -> str:
    """Return what tells one create from another that bears the same request id."""
    return hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()


def page_start(token: str, requested: int, field: str) -> tuple[str, int]:
    """Return after which id a list goes on, and how many to give; raise Invalid for a foreign token."""
    after = decode_token(token).get(field, "") if token else ""
    if not isinstance(after, str) or (token and not after):
        raise Invalid(
            "page_token: is of another list; leave it empty for the first page",
            reason="BAD_PAGE_TOKEN",
            metadata={"field": "page_token"},
        )
    return after, page_size(requested)


def page(
    values: Sequence[V], write: Callable[[V], M], limit: int, field: str, key: Callable[[V], str]
) -> tuple[list[M], str]:
    """Return a page of a list as messages, and the token of the next page; "" when there is none.

    The page ends early where an answer would become too large, but holds at least one.

    Args:
        values: what comes, one more than `limit` when there is more.
        write: makes a message.
        limit: the most to give.
        field: names the list in its token.
        key: what the list is sorted by.
    """
    messages: list[M] = []
    room = MAX_PAGE_BYTES
    for value in values[:limit]:
        message = write(value)
        room -= message.ByteSize() + _FRAMING_BYTES
        if room < 0 and messages:
            break
        messages.append(message)
    more = len(messages) < len(values)
    return messages, encode_token({field: key(values[len(messages) - 1])}) if more else ""


# ---- parts ----
def meta(message: pb.Metadata) -> Meta:
    """Read metadata; the revision comes from elsewhere."""
    made = time_of(message.create_time, "metadata.create_time")
    return Meta(message.uid, made, message.generation, 0, dict(message.labels))


def meta_message(name: object, value: Meta) -> pb.Metadata:
    """Write metadata."""
    return pb.Metadata(
        name=str(name),
        uid=value.uid,
        etag=str(value.revision) if value.revision else "",
        generation=value.generation,
        create_time=timestamp(value.create_time),
        labels=value.labels,
    )


def resources(message: pb.Resources) -> Resources:
    """Read amounts."""
    return Resources(message.cpu_millis, message.memory_bytes, message.gpu_count)


def resources_message(value: Resources) -> pb.Resources:
    """Write amounts."""
    return pb.Resources(cpu_millis=value.cpu_millis, memory_bytes=value.memory_bytes, gpu_count=value.gpus)


def blob(message: manifest_pb2.BlobRef) -> BlobRef:
    """Read a reference."""
    return BlobRef(message.digest, message.size_bytes)


def blob_message(value: BlobRef) -> manifest_pb2.BlobRef:
    """Write a reference."""
    return manifest_pb2.BlobRef(digest=value.digest, size_bytes=value.size_bytes)


# ---- nodes ----
def facts(message: pb.NodeStatus) -> Facts:
    """Read what a runner says of its node."""
    ports = (message.first_port or DEFAULT_PORTS[0], message.last_port or DEFAULT_PORTS[1])
    return Facts(
        capacity=resources(message.capacity),
        gpus=tuple(Gpu(gpu.index, gpu.model, gpu.memory_bytes) for gpu in message.gpus),
        links=tuple(Link(link.first, link.second, link.bandwidth_gbps) for link in message.links),
        topology=tuple(message.topology),
        runner_version=message.runner_version,
        host=message.host or DEFAULT_HOST,
        ports=ports,
    )


def node(message: pb.Node) -> Node:
    """Read a stored node."""
    return Node(
        NodeName.parse(message.metadata.name, "metadata.name"),
        meta(message.metadata),
        facts(message.status),
        message.spec.cordoned,
        tuple(
            Holding(
                ReservationName.parse(holding.reservation, "reservation"),
                resources(holding.resources),
                tuple(holding.gpu_indexes),
                tuple(holding.ports),
            )
            for holding in message.status.holdings
        ),
    )


def node_message(value: Node, state: NodeState | None = None, tenant: str | None = None) -> pb.Node:
    """Write a node: with its state where one is given, and only a tenant's holdings where one is named."""
    said = value.facts
    return pb.Node(
        metadata=meta_message(value.name, value.meta),
        spec=pb.NodeSpec(cordoned=value.cordoned),
        status=pb.NodeStatus(
            state=pb.NodeStatus.State.ValueType(state.value if state is not None else 0),
            capacity=resources_message(said.capacity),
            allocated=resources_message(value.allocated),
            gpus=[pb.Gpu(index=g.index, model=g.model, memory_bytes=g.memory_bytes) for g in said.gpus],
            links=[
                pb.GpuLink(first=link.first, second=link.second, bandwidth_gbps=link.bandwidth_gbps)
                for link in said.links
            ],
            holdings=[
                pb.Holding(
                    reservation=str(holding.reservation),
                    resources=resources_message(holding.resources),
                    gpu_indexes=holding.gpus,
                    ports=holding.ports,
                )
                for holding in value.holdings
                if tenant is None or holding.reservation.tenant == tenant
            ],
            topology=said.topology,
            runner_version=said.runner_version,
            host=said.host,
            first_port=said.ports[0],
            last_port=said.ports[1],
        ),
    )


# ---- queues ----
def queue(message: pb.Queue) -> Queue:
    """Read a stored queue."""
    spec = message.spec
    name = QueueName.parse(message.metadata.name, "metadata.name")
    return Queue(name, meta(message.metadata), resources(spec.quota), spec.priority, spec.paused)


def queue_message(value: Queue, status: pb.QueueStatus | None = None) -> pb.Queue:
    """Write a queue."""
    return pb.Queue(
        metadata=meta_message(value.name, value.meta),
        spec=pb.QueueSpec(quota=resources_message(value.quota), priority=value.priority, paused=value.paused),
        status=status,
    )
