"""Connections of runners around the ends of a leader's term."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from libs.common.errors import Exhausted, Invalid, Unavailable
from libs.common.names import JobName, NodeName
from libs.common.testing import FakeClock, FakeRandomness, eventually
from services.scheduler.domain.controller import Controller
from services.scheduler.domain.decisions import Decisions
from services.scheduler.domain.lifecycle import Report
from services.scheduler.domain.messages import (
    Acknowledge,
    FromRunner,
    Heartbeat,
    Hello,
    StopWorker,
    ToRunner,
    Welcome,
)
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import BlobRef, KeptArtefact, Worker, WorkerId, WorkerState
from services.scheduler.domain.sessions import Session
from services.scheduler.store import Term
from services.scheduler.stores.memory import MemoryStore
from services.scheduler.testing import make_node
from services.scheduler.testing_world import NoMeter

HELLO = Hello(NodeName("n0"), make_node().facts)


class OneTerm(MemoryStore):
    """A store that lets somebody lead once."""

    def __init__(self) -> None:
        super().__init__()
        self.term: Term | None = None

    @asynccontextmanager
    async def lead(self, address: str) -> AsyncIterator[Term]:
        if self.term is not None:
            await asyncio.Event().wait()
        async with super().lead(address) as term:
            self.term = term
            yield term


@asynccontextmanager
async def leading(
    store: OneTerm, on_stray: Callable[[JobName], None] = lambda job: None
) -> AsyncIterator[Controller]:
    clock, randomness = FakeClock(), FakeRandomness()
    mirror = Mirror(store, clock, randomness)
    decisions = Decisions(mirror, clock, lambda seconds: None)
    controller = Controller(
        store,
        mirror,
        decisions,
        clock,
        randomness,
        NoMeter(),
        address=lambda: "here:1",
        liveness_s=10.0,
        on_stray=on_stray,
    )
    tasks = [asyncio.create_task(mirror.run()), asyncio.create_task(controller.run())]
    await eventually(lambda: controller.leads)
    try:
        yield controller
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def talk(*messages: FromRunner, before: asyncio.Event | None = None) -> AsyncIterator[FromRunner]:
    """Say these once `before` is set, then nothing more."""
    if before is not None:
        await before.wait()
    for message in messages:
        yield message
    await asyncio.Event().wait()


async def first(controller: Controller, said: AsyncIterator[FromRunner]) -> ToRunner:
    answers = controller.attach(said)
    try:
        return await anext(answers)
    finally:
        with suppress(Unavailable):
            await answers.aclose()


async def told_until(controller: Controller, hello: Hello, kind: type[ToRunner]) -> list[ToRunner]:
    """Attach, and return what the runner is told up to the first message of a kind."""
    told: list[ToRunner] = []
    async with asyncio.timeout(60), aclosing(controller.attach(talk(hello))) as answers:
        async for answer in answers:
            told.append(answer)
            if isinstance(answer, kind):
                break
    return told


async def test_a_runner_is_welcomed_with_the_liveness_time() -> None:
    async with leading(OneTerm()) as controller:
        assert await first(controller, talk(HELLO)) == Welcome(timedelta(seconds=10))


async def test_a_runner_is_welcomed_before_it_is_told_anything_else() -> None:
    stray = WorkerId(JobName("acme", "gone"), "u", 1, 0)
    said = Report(stray, Worker(0, HELLO.node, WorkerState.RUNNING), sequence=1)
    async with leading(OneTerm()) as controller:
        told = await told_until(controller, replace(HELLO, workers=(said,)), StopWorker)
    assert told == [
        Welcome(timedelta(seconds=10)),
        Acknowledge(stray, 1),
        StopWorker(stray, "CANCELLED"),
    ]


async def test_what_a_runner_kept_for_a_job_that_is_gone_is_told_of() -> None:
    strays: list[JobName] = []
    kept = (KeptArtefact("m", BlobRef("sha256:" + "0" * 64, 1)),)
    said = [
        Report(WorkerId(JobName("acme", name), "u", 1, 0), Worker(0, HELLO.node, WorkerState.EXITED), made, 2)
        for name, made in (("gone", kept), ("empty", ()))
    ]
    async with leading(OneTerm(), strays.append) as controller:
        await told_until(controller, replace(HELLO, workers=tuple(said)), Acknowledge)
    assert strays == [JobName("acme", "gone")]


async def test_a_hello_that_comes_when_the_term_is_over_is_refused() -> None:
    store, late = OneTerm(), asyncio.Event()
    async with leading(store) as controller:
        attaching = asyncio.create_task(first(controller, talk(HELLO, before=late)))
        await asyncio.sleep(0)
        assert store.term is not None
        store.term.lost.set()
        await eventually(lambda: not controller.leads)
        late.set()
        with pytest.raises(Unavailable) as refused:
            await attaching
        assert refused.value.reason == "NOT_LEADER"


async def test_an_attached_runner_is_told_when_the_term_is_over() -> None:
    store = OneTerm()
    async with leading(store) as controller:
        answers = controller.attach(talk(HELLO))
        await anext(answers)
        assert store.term is not None
        store.term.lost.set()
        with pytest.raises(Unavailable) as refused:
            await anext(answers)
        assert refused.value.reason == "NOT_LEADER"


@pytest.mark.parametrize(
    ("messages", "text"),
    [((Heartbeat(),), "a hello must come first"), ((HELLO, HELLO), "a hello comes once")],
)
async def test_messages_out_of_order_are_refused(messages: tuple[FromRunner, ...], text: str) -> None:
    async with leading(OneTerm()) as controller:
        with pytest.raises(Invalid, match=text):
            async for _ in controller.attach(talk(*messages)):
                pass


async def test_a_runner_that_says_more_than_is_taken_in_is_cut_off() -> None:
    session = Session(HELLO)
    worker = Worker(0, HELLO.node)
    for i in range(10_001):
        session.report(Report(WorkerId(JobName("acme", f"j{i}"), "u", 1, 0), worker))
    with pytest.raises(Exhausted, match="10000 reports wait"):
        await session.next()
