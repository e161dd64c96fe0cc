"""The watch that goes on where it stopped, whatever happens to the connection and the servers behind it.

etcd keeps a history of every change, by revision, until it is compacted. A watch that is broken off is made
again, at the next member, from the revision after the last one that came whole; so nothing is lost, and
nothing comes twice.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import grpc
from etcd_stubs import rpc_pb2

from libs.common.errors import Error, Forbidden, Unavailable
from libs.common.etcd import wire
from libs.common.etcd.members import NEED_LEADER, Member, Members, translated, unanswered
from libs.common.etcd.types import Compacted, Event, WatchBatch


async def watch(
    members: Members,
    first: bytes,
    end: bytes,
    start_revision: int,
    revision: Callable[[], Awaitable[int]],
) -> AsyncGenerator[WatchBatch, None]:
    """Yield what `EtcdClient.watch` promises.

    Args:
        members: whom to ask.
        first: the first key of the range.
        end: the key after the range's last.
        start_revision: the first revision to tell of.
        revision: reads the store's current revision from the cluster as a whole.
    """
    following = start_revision
    attempt = 0
    while True:
        member = members.preferred
        request = rpc_pb2.WatchCreateRequest(
            key=first,
            range_end=end,
            start_revision=following,
            progress_notify=True,
            prev_kv=True,
            # Without it, one message may hold a thousand revisions of 1.5 MiB each.
            fragment=True,
        )
        try:
            async with aclosing(_stream(members, member, request, revision)) as batches:
                async for batch in batches:
                    attempt = 0
                    following = batch.revision + 1
                    yield batch
        except grpc.aio.AioRpcError as error:
            if not unanswered(error):
                raise translated(error) from error
        except (TimeoutError, Unavailable):
            pass
        members.failed(member)
        await members.clock.sleep(members.wait_s(attempt))
        attempt += 1


async def _stream(
    members: Members,
    member: Member,
    request: rpc_pb2.WatchCreateRequest,
    revision: Callable[[], Awaitable[int]],
) -> AsyncGenerator[WatchBatch, None]:
    following = request.start_revision
    call = member.watch.Watch(metadata=NEED_LEADER)
    try:
        async with asyncio.timeout(members.timeout_s):
            await call.write(rpc_pb2.WatchRequest(create_request=request))
            created = await call.read()
        pending: list[Event] = []
        response = created
        while isinstance(response, rpc_pb2.WatchResponse):
            if response.canceled:
                raise _refusal(response)
            if response.created:
                if response.header.revision + 1 < following:
                    await _check_history(following, revision)
            elif response.events or response.fragment:
                pending += [event for event in map(wire.event, response.events)]
                whole, pending = _whole_revisions(pending, response.fragment)
                whole = [event for event in whole if event.kv.mod_revision >= following]
                if whole:
                    following = whole[-1].kv.mod_revision + 1
                    yield WatchBatch(tuple(whole), following - 1)
            elif response.header.revision >= following:
                following = response.header.revision + 1
                yield WatchBatch((), following - 1)
            response = await call.read()
    finally:
        call.cancel()


def _whole_revisions(events: list[Event], more: bool) -> tuple[list[Event], list[Event]]:
    """Split off the events of the last revision, of which the next fragment may hold the rest."""
    if not more or not events:
        return events, []
    last = events[-1].kv.mod_revision
    whole = [event for event in events if event.kv.mod_revision != last]
    return whole, events[len(whole) :]


def _refusal(response: rpc_pb2.WatchResponse) -> Error:
    if response.compact_revision:
        return Compacted(response.compact_revision)
    reason = response.cancel_reason
    if "permission denied" in reason:
        return Forbidden(f"etcd: {reason}", reason="ETCD_FORBIDDEN")
    return Unavailable(f"etcd ended the watch: {reason or 'no reason given'}", reason="WATCH_CANCELLED")


async def _check_history(following: int, revision: Callable[[], Awaitable[int]]) -> None:
    # A member may be behind the others, and catches up. But a store that was restored from a backup, or made
    # anew, would be silent until its revisions reached ours, and then go on in the middle.
    current = await revision()
    if current + 1 < following:
        raise Compacted()
