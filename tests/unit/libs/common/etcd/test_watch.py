"""The watch over a server that says what the test lets it: cut messages, ends, refusals."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import pytest
from etcd_stubs import kv_pb2, rpc_pb2
from grpc.aio import EOF
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Error, Forbidden
from libs.common.etcd.members import Members
from libs.common.etcd.types import Compacted, WatchBatch
from libs.common.etcd.watch import watch

Answer = rpc_pb2.WatchResponse | grpc.aio.AioRpcError


@dataclass
class ScriptedCall:
    """A stream that answers as written, then ends."""

    script: Callable[[int], list[Answer]]
    requests: list[rpc_pb2.WatchCreateRequest]
    answers: list[Answer] = field(default_factory=list)
    cancelled: bool = False

    async def write(self, request: rpc_pb2.WatchRequest) -> None:
        self.requests.append(request.create_request)
        self.answers = self.script(request.create_request.start_revision)

    async def read(self) -> Any:
        if not self.answers:
            return EOF
        answer = self.answers.pop(0)
        if isinstance(answer, grpc.aio.AioRpcError):
            raise answer
        return answer

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """Doesn't wait."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@dataclass
class ScriptedMembers:
    """Stands for `Members`, and for its only member: `script` answers each stream, or one of `scripts`."""

    scripts: list[list[Answer]]
    script: Callable[[int], list[Answer]] | None = None
    requests: list[rpc_pb2.WatchCreateRequest] = field(default_factory=list)
    calls: list[ScriptedCall] = field(default_factory=list)
    failures: int = 0
    timeout_s: float = 30.0
    clock: Clock = field(default_factory=Clock)

    @property
    def preferred(self) -> "ScriptedMembers":
        return self

    @property
    def watch(self) -> "ScriptedMembers":
        return self

    def Watch(self, metadata: object) -> ScriptedCall:  # noqa: N802 - as the stub names it
        assert ("hasleader", "true") in cast(Sequence[object], metadata)
        self.calls.append(ScriptedCall(self.script or (lambda start: self.scripts.pop(0)), self.requests))
        return self.calls[-1]

    def failed(self, member: object) -> None:
        self.failures += 1

    def wait_s(self, attempt: int) -> float:
        return 0.0


def created(revision: int = 0) -> rpc_pb2.WatchResponse:
    return rpc_pb2.WatchResponse(header=rpc_pb2.ResponseHeader(revision=revision), created=True)


def progress(revision: int) -> rpc_pb2.WatchResponse:
    return rpc_pb2.WatchResponse(header=rpc_pb2.ResponseHeader(revision=revision))


def changes(*revisions: int, more: bool = False) -> rpc_pb2.WatchResponse:
    events = [kv_pb2.Event(kv=kv_pb2.KeyValue(key=b"/a", mod_revision=revision)) for revision in revisions]
    return rpc_pb2.WatchResponse(header=rpc_pb2.ResponseHeader(revision=10_000), events=events, fragment=more)


def refused(reason: str = "", compacted: int = 0) -> rpc_pb2.WatchResponse:
    return rpc_pb2.WatchResponse(canceled=True, cancel_reason=reason, compact_revision=compacted)


OVER = refused(compacted=99_999)


def broken(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


def opened(members: ScriptedMembers, start: int, revision: int = 10_000) -> AsyncGenerator[WatchBatch, None]:
    async def current() -> int:
        return revision

    return watch(cast(Members, members), b"/", b"0", start, current)


async def told(members: ScriptedMembers, start: int = 1) -> list[tuple[list[int], int]]:
    """Return (revisions, revision) of each batch until the scripts are over."""
    found: list[tuple[list[int], int]] = []
    members.scripts.append([OVER])
    with suppress(Compacted):
        async for batch in opened(members, start):
            found.append(([event.kv.mod_revision for event in batch.events], batch.revision))
    assert all(call.cancelled for call in members.calls)
    return found


async def test_what_is_asked_for() -> None:
    members = ScriptedMembers([])
    await told(members, 7)
    (request,) = members.requests
    assert (request.key, request.range_end, request.start_revision) == (b"/", b"0", 7)
    assert request.fragment
    assert request.progress_notify
    assert request.prev_kv


async def test_it_goes_on_after_the_last_whole_revision() -> None:
    members = ScriptedMembers(
        [
            [created(), changes(3, 4, 4)],
            [created(), changes(5, 6, more=True)],
            [broken(grpc.StatusCode.UNAVAILABLE, "Socket closed")],
            [created(), changes(6, 6, 7)],
        ]
    )
    assert await told(members, 3) == [([3, 4, 4], 4), ([5], 5), ([6, 6, 7], 7)]
    assert [request.start_revision for request in members.requests] == [3, 5, 6, 6, 8]
    assert members.failures == 4


async def test_a_message_that_only_tells_how_far_it_got_moves_the_start() -> None:
    members = ScriptedMembers(
        [[created(50), changes(3), progress(9), progress(9), progress(4)], [created(9)]]
    )
    assert await told(members, 3) == [([3], 3), ([], 9)]
    assert [request.start_revision for request in members.requests] == [3, 10, 10]


async def test_the_revision_at_which_it_was_made_moves_nothing() -> None:
    # Changes before it are still to come.
    members = ScriptedMembers([[created(50)], [created(50), changes(3)]])
    assert await told(members, 3) == [([3], 3)]


async def test_what_came_already_is_dropped() -> None:
    members = ScriptedMembers([[created(), changes(3, 4)], [created(), changes(3, 4, 5), changes(5)]])
    assert await told(members, 3) == [([3, 4], 4), ([5], 5)]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30).map(sorted), st.integers())
def test_however_a_history_is_cut_it_comes_whole_and_in_order(history: list[int], seed: int) -> None:
    cuts = random.Random(seed)

    def script(start: int) -> list[Answer]:
        """Answer as etcd does: from `start` on, cut anywhere, with fragments marked; and break off."""
        rest = [revision for revision in history if revision >= start]
        if not rest:
            return [created(), OVER]
        answers: list[Answer] = [created()]
        for _ in range(cuts.randint(0, 4)):
            size = cuts.randint(1, 12)
            part, rest = rest[:size], rest[size:]
            if part:
                # A fragment may end with a revision as well as within it.
                answers.append(changes(*part, more=rest[:1] == part[-1:] or cuts.random() < 0.5))
        return answers

    batches = asyncio.run(told(ScriptedMembers([], script)))
    assert [revision for revisions, _ in batches for revision in revisions] == history
    assert all(revisions[-1] == revision for revisions, revision in batches)
    assert sum(len(set(revisions)) for revisions, _ in batches) == len(set(history))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refused("rpc error: code = PermissionDenied desc = etcdserver: permission denied"), Forbidden),
        (refused(compacted=5), Compacted),
        (broken(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied"), Forbidden),
    ],
)
async def test_what_will_not_change_ends_it(answer: Answer, kind: type[Error]) -> None:
    members = ScriptedMembers([[created(), answer]])
    with pytest.raises(kind):
        await anext(opened(members, 1))
    assert members.calls[0].cancelled


@pytest.mark.parametrize(
    "answer",
    [
        refused("etcdserver: no leader"),
        refused(),
        broken(grpc.StatusCode.UNAVAILABLE, "GOAWAY received"),
        broken(grpc.StatusCode.UNKNOWN, "raft: stopped"),
    ],
)
async def test_what_may_change_does_not_end_it(answer: Answer) -> None:
    members = ScriptedMembers([[created(), answer], [answer], [created(), changes(2)]])
    assert await told(members) == [([2], 2)]


@pytest.mark.parametrize(("current", "gone"), [(8, True), (9, False), (10_000, False)])
async def test_a_store_that_never_got_so_far_is_another_one(current: int, gone: bool) -> None:
    # The member behind says 5 in either case; only the cluster knows.
    members = ScriptedMembers([[created(5), changes(10)]])
    batches = opened(members, 10, current)
    if gone:
        with pytest.raises(Compacted):
            await anext(batches)
    else:
        assert (await anext(batches)).revision == 10
    await batches.aclose()


def test_leaving_it_closes_the_stream() -> None:
    members = ScriptedMembers([[created(), changes(1)]])

    async def leave(condition: Callable[[], bool]) -> None:
        batches = opened(members, 1)
        await anext(batches)
        assert not condition()
        await batches.aclose()
        assert condition()

    asyncio.run(leave(lambda: members.calls[0].cancelled))
