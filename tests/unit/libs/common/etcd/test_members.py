"""Who is called, what is tried again, and what is said when nobody answers."""

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import pytest
import pytest_asyncio

from libs.common.errors import Exhausted, Forbidden, Invalid, Unavailable
from libs.common.etcd.members import Member, Members
from libs.common.etcd.types import OUTCOME_UNKNOWN, Compacted
from libs.common.testing import FakeClock, FakeRandomness

REFUSED = "failed to connect to all addresses; last error: UNKNOWN: connection refused"
ENDPOINTS = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")


def failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details=details)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest_asyncio.fixture
async def members(clock: FakeClock) -> AsyncIterator[Members]:
    made = Members(ENDPOINTS, clock=clock, randomness=FakeRandomness(), timeout_s=5.0, credentials=None)
    yield made
    await made.close()


class Calls:
    """A call that fails as told and then succeeds; notes whom it was made to, and with which timeouts."""

    def __init__(self, *failures: Exception, then: Callable[[], None] = lambda: None) -> None:
        self.failures = list(failures)
        self.then = then
        self.endpoints: list[str] = []
        self.timeouts: list[float] = []

    async def __call__(self, member: Member, timeout_s: float) -> str:
        self.endpoints.append(member.endpoint)
        self.timeouts.append(timeout_s)
        self.then()
        if self.failures:
            raise self.failures.pop(0)
        return "answer"


async def finish(task: asyncio.Task[str], clock: FakeClock) -> None:
    while not task.done():
        if clock.sleepers:
            clock.advance(0.05)
        await asyncio.sleep(0)


async def run(members: Members, clock: FakeClock, calls: Calls, *, once: bool) -> str:
    method = members.once if once else members.repeat
    task = asyncio.create_task(method("do it", calls))
    await finish(task, clock)
    return await task


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        (grpc.StatusCode.UNAVAILABLE, REFUSED),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"),
        (grpc.StatusCode.UNKNOWN, "raft: stopped"),
        (grpc.StatusCode.CANCELLED, "context canceled"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests"),
    ],
)
async def test_what_may_be_repeated_goes_to_the_next_member(
    members: Members, clock: FakeClock, code: grpc.StatusCode, details: str
) -> None:
    calls = Calls(failure(code, details), failure(code, details))
    assert await run(members, clock, calls, once=False) == "answer"
    assert sorted(calls.endpoints) == list(ENDPOINTS)
    assert members.preferred.endpoint == calls.endpoints[-1]


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out"),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"),
        (grpc.StatusCode.UNKNOWN, "raft: stopped"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (2 vs. 1)"),
    ],
)
async def test_a_write_that_may_have_been_done_is_not_repeated(
    members: Members, clock: FakeClock, code: grpc.StatusCode, details: str
) -> None:
    calls = Calls(failure(code, details))
    with pytest.raises(Unavailable, match="may have been done") as caught:
        await run(members, clock, calls, once=True)
    assert caught.value.reason == OUTCOME_UNKNOWN
    assert len(calls.endpoints) == 1
    assert members.preferred.endpoint != calls.endpoints[0]


@pytest.mark.parametrize("details", [REFUSED, "etcdserver: no leader", "etcdserver: too many requests"])
async def test_a_write_that_reached_nobody_is_sent_to_the_next_member(
    members: Members, clock: FakeClock, details: str
) -> None:
    calls = Calls(failure(grpc.StatusCode.UNAVAILABLE, details))
    assert await run(members, clock, calls, once=True) == "answer"
    assert len(set(calls.endpoints)) == 2


@pytest.mark.parametrize("once", [True, False])
async def test_the_deadline_ends_the_tries(members: Members, clock: FakeClock, once: bool) -> None:
    calls = Calls(*[failure(grpc.StatusCode.UNAVAILABLE, REFUSED)] * 10_000)
    with pytest.raises(Unavailable, match="within 5 s") as caught:
        await run(members, clock, calls, once=once)
    assert caught.value.reason == "ETCD_UNAVAILABLE"
    assert all(endpoint in caught.value.message for endpoint in ENDPOINTS)
    assert "connection refused" in caught.value.message
    assert clock.monotonic() <= 5.0
    assert 3 < len(calls.endpoints) < 200


async def test_each_member_has_its_share_of_the_time(members: Members, clock: FakeClock) -> None:
    late = failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    calls = Calls(late, then=lambda: clock.advance(1.5))
    assert await run(members, clock, calls, once=False) == "answer"
    assert calls.timeouts[0] == pytest.approx(5 / 3)
    writes = Calls()
    await run(members, clock, writes, once=True)
    assert writes.timeouts == [5.0]


@pytest.mark.parametrize("once", [True, False])
async def test_what_a_member_answers_is_passed_on_at_once(
    members: Members, clock: FakeClock, once: bool
) -> None:
    answers = [
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: key is not provided", Invalid),
        (grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", Forbidden),
        (grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Compacted),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Exhausted),
    ]
    for code, details, kind in answers:
        calls = Calls(failure(code, details))
        with pytest.raises(kind):
            await run(members, clock, calls, once=once)
        assert len(calls.endpoints) == 1


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "localhost",
        "http://localhost:2379",
        "localhost:0",
        "localhost:70000",
        ":2379",
        "a:b",
        "a:1/x",
        "a:²",
    ],
)
def test_an_endpoint_that_is_none_is_refused(endpoint: str, clock: FakeClock) -> None:
    with pytest.raises(Invalid, match="host:port"):
        Members([endpoint], clock=clock, randomness=FakeRandomness(), timeout_s=5.0, credentials=None)


@pytest.mark.parametrize("endpoints", [[], (), "localhost:2379"])
def test_no_endpoints_at_all_are_refused(endpoints: list[str], clock: FakeClock) -> None:
    with pytest.raises(Invalid, match="at least one"):
        Members(endpoints, clock=clock, randomness=FakeRandomness(), timeout_s=5.0, credentials=None)
