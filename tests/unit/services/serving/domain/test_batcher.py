import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from libs.common.errors import Error, Invalid, Unavailable
from libs.common.testing import FakeClock, eventually
from services.serving.domain.batcher import Policy, Work, WorkConservingBatcher
from services.serving.domain.execution import Member
from services.serving.domain.statistics import Statistics
from services.serving.domain.tensors import Array
from services.serving.testing import FakeBackend


class Rig:
    """A batcher over a backend that is told when to answer."""

    def __init__(self, backend: FakeBackend, executor: ThreadPoolExecutor, **policy: float) -> None:
        values = {"max_rows": 8, "max_delay_s": 0.0, "instances": 1, "capacity": 100, "timeout_s": 10.0}
        self.backend = backend
        self.clock = FakeClock()
        self.statistics = Statistics()
        chosen = Policy(**{**values, **policy})  # type: ignore[arg-type]
        self.batcher = WorkConservingBatcher(backend, chosen, executor, self.clock, self.statistics)

    def submit(
        self, rows: int, value: float = 1.0, *, width: int = 2, deadline: float | None = None
    ) -> asyncio.Task[Mapping[str, Array]]:
        x = np.full((rows, width), value, np.float32)
        work = Work(Member({"x": x}, rows), deadline)
        return asyncio.get_running_loop().create_task(self.batcher.submit(work))

    async def busy(self) -> asyncio.Task[Mapping[str, Array]]:
        """Keep the one instance busy until the gate opens."""
        self.backend.gate.clear()
        task = self.submit(1, -1.0)
        await self.entered()
        return task

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for _ in range(5):
            await asyncio.sleep(0)

    async def entered(self) -> None:
        assert await asyncio.to_thread(self.backend.entered.acquire, True, 30)


@pytest.fixture
async def executor() -> AsyncIterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


async def test_an_idle_instance_takes_a_request_at_once(executor: ThreadPoolExecutor) -> None:
    rig = Rig(FakeBackend(), executor)
    assert (await rig.submit(2, 3.0))["y"].tolist() == [[6.0, 6.0]] * 2
    assert rig.backend.runs == [(2, 2)]
    assert rig.clock.sleepers == 0


async def test_what_waits_runs_together_within_the_rows_and_in_order(executor: ThreadPoolExecutor) -> None:
    rig = Rig(FakeBackend(), executor)
    first = await rig.busy()
    tasks = [rig.submit(rows, float(index)) for index, rows in enumerate((3, 3, 2, 1, 8))]
    await eventually(lambda: rig.batcher.waiting == 5)
    rig.backend.gate.set()
    answers = await asyncio.gather(*tasks)
    await first
    assert rig.backend.runs == [(1, 2), (8, 2), (1, 2), (8, 2)]
    for index, (answer, rows) in enumerate(zip(answers, (3, 3, 2, 1, 8), strict=True)):
        assert answer["y"].tolist() == [[index * 2.0] * 2] * rows
    assert {rows: batch.infer.count for rows, batch in rig.statistics.batches.items()} == {1: 2, 8: 2}
    assert (rig.statistics.rows, rig.statistics.executions, rig.statistics.success.count) == (18, 4, 6)


async def test_different_shapes_never_run_together(executor: ThreadPoolExecutor) -> None:
    rig = Rig(FakeBackend(), executor)
    first = await rig.busy()
    tasks = [rig.submit(1, width=width) for width in (2, 3, 2, 3)]
    await eventually(lambda: rig.batcher.waiting == 4)
    rig.backend.gate.set()
    await asyncio.gather(first, *tasks)
    assert rig.backend.runs == [(1, 2), (2, 2), (2, 3)]


async def test_rows_that_cant_be_put_together_run_one_by_one(executor: ThreadPoolExecutor) -> None:
    rig = Rig(FakeBackend(), executor, max_rows=1)
    first = await rig.busy()
    tasks = [rig.submit(rows) for rows in (5, 1, 5)]
    await eventually(lambda: rig.batcher.waiting == 3)
    rig.backend.gate.set()
    await asyncio.gather(first, *tasks)
    assert rig.backend.runs == [(1, 2), (5, 2), (1, 2), (5, 2)]


async def test_a_full_queue_refuses_at_once(executor: ThreadPoolExecutor) -> None:
    rig = Rig(FakeBackend(), executor, capacity=2)
    first = await rig.busy()
    tasks = [rig.submit(1), rig.submit(1)]
    await eventually(lambda: rig.batcher.waiting == 2)
    with pytest.raises(Unavailable, match="2 requests wait") as caught:
        await rig.submit(1)
    assert caught.value.reason == "QUEUE_FULL"
    rig.backend.gate.set()
    await asyncio.gather(first, *tasks)
    assert rig.statistics.refused == {"QUEUE_FULL": 1}


async def test_a_wait_ends_on_time_while_the_instance_is_busy(executor: ThreadPoolExecutor) -> None:
    rig = Rig(FakeBackend(), executor, timeout_s=2.0)
    first = await rig.busy()
    late = rig.submit(1)
    await eventually(lambda: rig.clock.sleepers == 1)
    await rig.pass_time(1.9)
    assert not late.done()
    await rig.pass_time(0.2)
    with pytest.raises(Unavailable, match="waited") as caught:
        await late
    assert caught.value.reason == "QUEUE_TIMEOUT"
    rig.backend.gate.set()
    await first
    assert rig.backend.runs == [(1, 2)]


async def test_a_request_past_its_deadline_is_never_computed(executor: ThreadPoolExecutor) -> None:
    rig = Rig(FakeBackend(), executor)
    with pytest.raises(Unavailable, match="after its deadline"):
        await rig.submit(1, deadline=0.0)
    first = await rig.busy()
    late, good = rig.submit(1, deadline=1.0), rig.submit(2, deadline=5.0)
    await eventually(lambda: rig.batcher.waiting == 2)
    await rig.pass_time(1.5)
    with pytest.raises(Unavailable, match="deadline passed"):
        await late
    rig.backend.gate.set()
    await asyncio.gather(first, good)
    assert rig.backend.runs == [(1, 2), (2, 2)]
    assert rig.statistics.refused == {"DEADLINE_EXCEEDED": 2}


async def test_a_cancelled_member_leaves_its_siblings_alone(executor: ThreadPoolExecutor) -> None:
    rig = Rig(FakeBackend(), executor)
    first = await rig.busy()
    waiting = [rig.submit(1, float(index)) for index in range(3)]
    await eventually(lambda: rig.batcher.waiting == 3)
    waiting[1].cancel()
    await eventually(lambda: rig.batcher.waiting == 2)
    rig.backend.gate.set()
    assert (await waiting[0])["y"].tolist() == [[0.0, 0.0]]
    assert (await waiting[2])["y"].tolist() == [[4.0, 4.0]]
    await first
    assert rig.backend.runs == [(1, 2), (2, 2)]
    # And one that is cancelled while it runs.
    rig.backend.gate.clear()
    running = rig.submit(1)
    await rig.entered()
    await rig.entered()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    after = rig.submit(1, 7.0)
    rig.backend.gate.set()
    assert (await after)["y"].tolist() == [[14.0, 14.0]]
    assert rig.statistics.cancelled == 2


async def test_a_failing_member_fails_alone(executor: ThreadPoolExecutor) -> None:
    def picky(x: Array) -> Array:
        if (x == 13).any():
            raise Invalid("13 is unlucky")
        return x

    rig = Rig(FakeBackend(function=picky), executor)
    first = await rig.busy()
    tasks = [rig.submit(1, value) for value in (1.0, 13.0, 2.0)]
    await eventually(lambda: rig.batcher.waiting == 3)
    rig.backend.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await first
    assert isinstance(results[1], Invalid)
    assert [result["y"][0, 0] for result in (results[0], results[2])] == [1.0, 2.0]  # type: ignore[index]
    assert (rig.statistics.success.count, rig.statistics.fail.count) == (3, 1)


async def test_an_unknown_fault_is_internal_and_tells_nothing(
    executor: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(x: Array) -> Array:
        raise ZeroDivisionError("secret")

    rig = Rig(FakeBackend(function=broken), executor)
    with pytest.raises(Error, match="the service's log says why") as caught:
        await rig.submit(1)
    assert "secret" not in caught.value.message
    assert "secret" in caplog.text


async def test_a_model_that_gives_other_rows_is_run_for_each(executor: ThreadPoolExecutor) -> None:
    rig = Rig(FakeBackend(function=lambda x: x[:1]), executor)
    first = await rig.busy()
    tasks = [rig.submit(2, 1.0), rig.submit(2, 2.0)]
    await eventually(lambda: rig.batcher.waiting == 2)
    rig.backend.gate.set()
    answers = await asyncio.gather(*tasks)
    await first
    assert [answer["y"].tolist() for answer in answers] == [[[1.0, 1.0]], [[2.0, 2.0]]]


async def test_a_delay_holds_back_until_it_is_over_or_the_batch_is_full(executor: ThreadPoolExecutor) -> None:
    rig = Rig(FakeBackend(), executor, max_rows=4, max_delay_s=1.0)
    tasks = [rig.submit(1), rig.submit(1)]
    await eventually(lambda: rig.clock.sleepers == 1)
    await rig.pass_time(0.5)
    assert rig.backend.runs == []
    await rig.pass_time(0.6)
    await asyncio.gather(*tasks)
    assert rig.backend.runs == [(2, 2)]
    await asyncio.gather(*(rig.submit(2) for _ in range(2)))
    assert rig.backend.runs == [(2, 2), (4, 2)]


async def test_instances_run_side_by_side(executor: ThreadPoolExecutor) -> None:
    rig = Rig(FakeBackend(), executor, instances=2)
    first = await rig.busy()
    second = rig.submit(1)
    await rig.entered()
    assert (rig.backend.runs, rig.batcher.waiting) == ([(1, 2), (1, 2)], 0)
    rig.backend.gate.set()
    await asyncio.gather(first, second)


async def test_draining_answers_all_that_came_before(executor: ThreadPoolExecutor) -> None:
    rig = Rig(FakeBackend(), executor, max_delay_s=100.0)
    rig.backend.gate.clear()
    tasks = [rig.submit(1), rig.submit(1)]
    await eventually(lambda: rig.batcher.waiting == 2)
    draining = asyncio.get_running_loop().create_task(rig.batcher.drain())
    await rig.entered()
    assert not draining.done()
    rig.backend.gate.set()
    await draining
    assert all(task.done() for task in tasks) or await asyncio.gather(*tasks)
    assert rig.backend.runs == [(2, 2)]
    await rig.batcher.drain()


async def test_what_has_left_the_queue_isnt_held_until_it_would_have_been_due(
    executor: ThreadPoolExecutor,
) -> None:
    rig = Rig(FakeBackend(), executor, capacity=1000)
    first = await rig.busy()
    # It waits all the time, and is due before all others.
    urgent = rig.submit(1, deadline=1.0)
    await eventually(lambda: rig.batcher.waiting == 1)

    async def given_up() -> weakref.ref[Array]:
        x = np.zeros((1, 2), np.float32)
        task = asyncio.get_running_loop().create_task(rig.batcher.submit(Work(Member({"x": x}, 1))))
        await eventually(lambda: rig.batcher.waiting == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return weakref.ref(x)

    arrays = [await given_up() for _ in range(300)]
    gc.collect()
    alive, dues = sum(array() is not None for array in arrays), len(rig.batcher._dues)
    rig.backend.gate.set()
    await asyncio.gather(first, urgent)
    # The last one may still be named by a frame of this test.
    assert alive <= 1
    assert dues < 100
