"""The store in etcd: one key for each object, its resource name under `/isthmus/`, its value CRD-shaped JSON.

A value is the protobuf JSON of the API's message with `apiVersion` and `kind` beside it, so that `etcdctl
get` shows what `isthmus apply` takes, and the same objects may be custom resources on Kubernetes. An
object's revision is its key's `mod_revision`. Besides them there are
`/isthmus/tenants/{t}/requests/{hash}` for repeated creates, and under leases `/isthmus/scheduler/leader`
and `/isthmus/scheduler/alive/{n}`.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from isthmus.scheduler.v1 import object_pb2 as pb
from libs.common import etcd
from libs.common.errors import Conflict, Invalid
from libs.common.etcd import Compacted, Compare, Delete, EtcdClient, KeyValue, Leadership, Put
from libs.common.names import JobName, NodeName, QueueName, ReservationName
from services.scheduler import convert, convert_job
from services.scheduler.domain.change import Change, revision_of
from services.scheduler.domain.objects import Job, Node, Object, PastRequest, Queue
from services.scheduler.store import (
    Alive,
    AliveKey,
    Batch,
    Event,
    HistoryLost,
    Kept,
    Key,
    Leader,
    LeaderKey,
    RequestKey,
    Term,
    Unreadable,
)
from services.scheduler.stores.memory import at_revision, key_of

PREFIX = "/isthmus/"
LEADER = PREFIX + "scheduler/leader"
ALIVE = PREFIX + "scheduler/alive/"
API_VERSION = "scheduler.isthmus/v1"
_PAGE = 500
M = TypeVar("M", bound=Message)

_log = logging.getLogger("isthmus.scheduler.etcd")


class EtcdStore:
    """See `services.scheduler.store`."""

    def __init__(
        self,
        client: EtcdClient,
        *,
        leader_ttl_s: float,
        liveness_s: float,
        on_unreadable: Callable[[str], None] = lambda kind: None,
    ) -> None:
        """Use a client, which the store closes.

        Args:
            client: of the cluster.
            leader_ttl_s: how long a dead leader's lease lasts.
            liveness_s: how long a node without its scheduler counts as there.
            on_unreadable: told the kind of each value that is read and can't be, such as "nodes".
        """
        self._client = client
        self._leader_ttl_s = leader_ttl_s
        self._liveness_s = liveness_s
        self._on_unreadable = on_unreadable
        self._terms: dict[int, Compare] = {}

    async def load(self) -> Batch:
        """See `Store`."""
        events: list[Event] = []
        revision, start = 0, ""
        while True:
            found = await self._client.range(PREFIX, limit=_PAGE, start=start, revision=revision)
            revision = found.revision
            events.extend(event for kv in found.items if (event := self._event(kv)) is not None)
            if not found.more:
                return Batch(events, revision)
            start = found.next_start

    async def watch(self, after: int) -> AsyncGenerator[Batch, None]:
        """See `Store`."""
        try:
            async with aclosing(self._client.watch(PREFIX, after + 1)) as batches:
                async for batch in batches:
                    events = [
                        event for change in batch.events if (event := self._changed(change)) is not None
                    ]
                    yield Batch(events, batch.revision)
        except Compacted:
            raise HistoryLost from None

    async def commit(self, change: Change, term: Term | None = None) -> int:
        """See `Store`."""
        compares, operations = _transaction(change)
        if term is not None:
            fence = self._terms.get(term.number)
            if fence is None or term.lost.is_set():
                raise Conflict("another scheduler leads now", reason="NOT_LEADER")
            compares.append(fence)
        result = await self._client.txn(compares, operations)
        if not result.succeeded:
            raise Conflict("what was read has changed meanwhile; try again", reason="STALE")
        return result.revision

    def fits(self, change: Change) -> bool:
        """See `Store`."""
        compares, operations = _transaction(change)
        # A term is one more.
        return etcd.fits([*compares, Compare.mod_revision(LEADER, 0)], operations)

    def _changed(self, change: etcd.Event) -> Event | None:
        if change.kind == "put":
            return self._event(change.kv)
        key = parse_key(change.kv.key)
        return None if key is None else Event(key, None)

    def _event(self, kv: KeyValue) -> Event | None:
        key = parse_key(kv.key)
        if key is None:
            return None
        try:
            return Event(key, decode(key, kv.value, kv.mod_revision))
        except Invalid as error:
            # Somebody wrote there by hand. One bad value mustn't stop the rest, nor end what it speaks of.
            _log.error("%s: %s; mend or delete it", kv.key, error.message)
            self._on_unreadable(kv.key.split("/")[-2])
            return Event(key, Unreadable())

    @asynccontextmanager
    async def lead(self, address: str) -> AsyncIterator[Term]:
        """See `Store`."""
        leadership = Leadership(self._client, LEADER, ttl_s=self._leader_ttl_s, identity=address)
        async with leadership.hold() as held:
            number = held.create_revision
            self._terms[number] = held.compare
            try:
                yield Term(number, held.lost)
            finally:
                del self._terms[number]

    @asynccontextmanager
    async def keep_alive(self, node: NodeName) -> AsyncIterator[asyncio.Event]:
        """See `Store`."""
        async with self._client.lease(self._liveness_s) as lease:
            await self._client.put(ALIVE + node.node, b"{}", lease=lease.id)
            yield lease.lost

    async def close(self) -> None:
        """See `Store`."""
        await self._client.close()


def spell(key: Key) -> str:
    """Return an object's key in etcd."""
    if isinstance(key, LeaderKey):
        return LEADER
    if isinstance(key, AliveKey):
        return ALIVE + key.node.node
    if isinstance(key, RequestKey):
        return f"{PREFIX}tenants/{key.tenant}/requests/{key.digest}"
    return PREFIX + str(key)


def encode(value: Object | PastRequest) -> bytes:
    """Return what etcd holds for an object."""
    if isinstance(value, PastRequest):
        body: dict[str, object] = {
            "fingerprint": value.fingerprint,
            "resource": value.resource,
            "createTime": value.create_time.isoformat(),
        }
        kind = "Request"
    else:
        message = _message(value)
        kind = type(message).__name__
        # The revision is the key's own.
        message.metadata.ClearField("etag")
        body = json_format.MessageToDict(message)
    whole = {"apiVersion": API_VERSION, "kind": kind, **body}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode()


def decode(key: Key, data: bytes, revision: int) -> Kept:
    """Return the object that a key holds.

    Raises:
        Invalid: when it can't be read, or bears another name than its key.
    """
    if isinstance(key, LeaderKey):
        return Leader(data.decode("utf-8", "replace"))
    if isinstance(key, AliveKey):
        return Alive(key.node)
    try:
        body = json.loads(data)
        if not isinstance(body, dict):
            raise Invalid("the value is not an object")
        body.pop("apiVersion", None)
        body.pop("kind", None)
        value = _read(key, body)
    except (ValueError, KeyError, TypeError, RecursionError, json_format.ParseError) as error:
        raise Invalid(f"the value can't be read: {error}") from error
    if spell(key_of(value)) != spell(key):
        raise Invalid(f"the value is of {key_of(value)}")
    return at_revision(value, revision)


def _read(key: Key, body: dict[str, object]) -> Object | PastRequest:
    if isinstance(key, RequestKey):
        made = datetime.fromisoformat(str(body["createTime"]))
        return PastRequest(key.tenant, key.digest, str(body["fingerprint"]), str(body["resource"]), made)
    if isinstance(key, NodeName):
        return convert.node(_parsed(body, pb.Node()))
    if isinstance(key, QueueName):
        return convert.queue(_parsed(body, pb.Queue()))
    if isinstance(key, JobName):
        return convert_job.job(_parsed(body, pb.Job()))
    return convert_job.reservation(_parsed(body, pb.Reservation()))


def _parsed(body: dict[str, object], message: M) -> M:
    # A newer replica may have written fields that this one doesn't know.
    json_format.ParseDict(body, message, ignore_unknown_fields=True)
    return message


def _message(value: Object) -> pb.Node | pb.Queue | pb.Job | pb.Reservation:
    if isinstance(value, Node):
        return convert.node_message(value)
    if isinstance(value, Queue):
        return convert.queue_message(value)
    if isinstance(value, Job):
        return convert_job.job_message(value)
    return convert_job.reservation_message(value)


def _transaction(change: Change) -> tuple[list[Compare], list[Put | Delete]]:
    compares = [
        Compare.mod_revision(spell(key_of(value)), revision_of(value))
        for value in (*change.puts, *change.deletes, *change.checks)
    ]
    operations: list[Put | Delete] = [Put(spell(key_of(value)), encode(value)) for value in change.puts]
    operations.extend(Delete(spell(key_of(value))) for value in change.deletes)
    return compares, operations


def parse_key(text: str) -> Key | None:
    """Return what a key in etcd names; None for one that isn't ours."""
    if text == LEADER:
        return LeaderKey()
    try:
        if text.startswith(ALIVE):
            return AliveKey(NodeName(text.removeprefix(ALIVE)))
        name = text.removeprefix(PREFIX)
        words = name.split("/")
        if len(words) == 4 and words[0] == "tenants" and words[2] == "requests":
            return RequestKey(words[1], words[3])
        kinds: dict[str, type[NodeName | QueueName | JobName | ReservationName]] = {
            "nodes": NodeName,
            "queues": QueueName,
            "jobs": JobName,
            "reservations": ReservationName,
        }
        kind = kinds.get(words[-2]) if len(words) > 1 else None
        return kind.parse(name) if kind is not None else None
    except Invalid:
        return None
