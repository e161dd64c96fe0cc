"""Inference: plans are loaded once and kept within memory; work is bounded; rights are asked for."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from libs.common.blobs import BlobRef
from libs.common.errors import Exhausted, Invalid, NotFound
from libs.common.testing import FakeClock, eventually
from libs.runtime.codec import encode
from libs.runtime.plan import (
    Block,
    Composition,
    DataType,
    NamedRegister,
    Plan,
    Register,
    RegisterType,
    SequenceType,
    TensorType,
)
from libs.runtime.testing import DIGEST, PlanBuilder
from services.engine.domain.budget import Budget
from services.engine.domain.inference import Desk, Inference
from services.engine.domain.lower import lower
from services.engine.domain.merge import merge
from services.engine.testing_programs import Sketch

LARGE = 1 << 30


def plan(scale: float, width: int = 4) -> bytes:
    """Return a plan of y = scale · x over x [n, width]."""
    s = Sketch(n=(1, 64))
    x, c = s.input("x", "n", width), s.constant(np.full(width, scale, np.float32))
    program = merge(s.program(y=s.compute("mul", x, s.broadcast(c, *s.shape(x)))))
    return encode(lower(program, model_digest="sha256:" + "0" * 64, producer="the test"))


class MemoryBlobs:
    """Blobs by tenant; counts what is asked."""

    def __init__(self) -> None:
        self.blobs: dict[tuple[str, BlobRef], bytes] = {}
        self.reads = self.checks = 0

    def put(self, tenant: str, content: bytes) -> BlobRef:
        ref = BlobRef.of(content)
        self.blobs[tenant, ref] = content
        return ref

    async def check(self, tenant: str, ref: BlobRef) -> None:
        self.checks += 1
        if (tenant, ref) not in self.blobs:
            raise NotFound("no such blob")

    async def read(self, tenant: str, ref: BlobRef, max_bytes: int) -> bytes:
        self.reads += 1
        await asyncio.sleep(0)
        return self.blobs[tenant, ref]

    async def download(self, tenant: str, ref: BlobRef, path: Path) -> None:
        raise NotImplementedError

    async def upload(self, tenant: str, content: bytes) -> BlobRef:
        raise NotImplementedError


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


X = {"x": np.ones((2, 4), np.float32)}


def inference_over(
    blobs: MemoryBlobs,
    executor: ThreadPoolExecutor,
    clock: FakeClock | None = None,
    *,
    budget: int = LARGE,
    max_bytes: int = LARGE,
    max_call_bytes: int = LARGE,
    max_call_work: int = LARGE,
) -> Inference:
    """Return an inference with bounds that only matter where they are given."""
    return Inference(
        blobs,
        Desk(executor, 99),
        clock or FakeClock(),
        Budget(budget),
        max_bytes=max_bytes,
        max_call_bytes=max_call_bytes,
        max_call_work=max_call_work,
    )


async def test_a_plan_is_loaded_once_however_many_ask(executor: ThreadPoolExecutor) -> None:
    blobs = MemoryBlobs()
    ref = blobs.put("acme", plan(3))
    inference = inference_over(blobs, executor)
    answers = await asyncio.gather(*(inference.infer("acme", ref, X, LARGE) for _ in range(9)))
    for ((name, y),) in answers:
        assert name == "y"
        np.testing.assert_array_equal(y, np.full((2, 4), 3, np.float32))
    assert blobs.reads == 1


async def test_a_right_is_asked_for_again_after_a_minute(executor: ThreadPoolExecutor) -> None:
    blobs, clock = MemoryBlobs(), FakeClock()
    ref = blobs.put("acme", plan(3))
    inference = inference_over(blobs, executor, clock)
    await inference.infer("acme", ref, X, LARGE)
    await inference.infer("acme", ref, X, LARGE)
    assert blobs.checks == 1
    # It is loaded, but not the other's.
    with pytest.raises(NotFound):
        await inference.infer("other", ref, X, LARGE)
    blobs.blobs.clear()
    await inference.infer("acme", ref, X, LARGE)
    clock.advance(61)
    with pytest.raises(NotFound):
        await inference.infer("acme", ref, X, LARGE)


async def test_the_least_used_plan_goes_when_memory_is_full(executor: ThreadPoolExecutor) -> None:
    blobs = MemoryBlobs()
    refs = [blobs.put("acme", plan(scale, width=2000)) for scale in (1, 2, 3)]
    inference = inference_over(blobs, executor, max_bytes=100_000)
    x = {"x": np.ones((2, 2000), np.float32)}
    for index in (0, 1, 0, 2, 0):
        await inference.infer("acme", refs[index], x, LARGE)
        assert inference.held_bytes <= 100_000
    assert blobs.reads == 3
    await inference.infer("acme", refs[1], x, LARGE)
    assert blobs.reads == 4


async def test_outputs_have_their_shapes_and_are_dense(executor: ThreadPoolExecutor) -> None:
    builder = PlanBuilder()
    x = builder.input("x", [2, 4])
    builder.output("total", builder.compute("reduce_sum", [x], [], axes=[0, 1]))
    builder.output("same", x)
    blobs = MemoryBlobs()
    inference = inference_over(blobs, executor)
    answer = dict(await inference.infer("acme", blobs.put("acme", encode(builder.build())), X, LARGE))
    assert answer["total"].shape == ()
    assert answer["same"].flags.c_contiguous


@pytest.mark.parametrize("type_", [SequenceType(TensorType(DataType.FLOAT32)), TensorType(DataType.STRING)])
async def test_what_a_call_cant_carry_is_told(executor: ThreadPoolExecutor, type_: RegisterType) -> None:
    held = Composition(
        (), (Register(type_),), (NamedRegister("x", 0),), (NamedRegister("y", 0),), (Block((), (), ()),)
    )
    blobs = MemoryBlobs()
    ref = blobs.put("acme", encode(Plan(DIGEST, "the test", composition=held)))
    with pytest.raises(Invalid, match="strings can't be sent") as caught:
        await inference_over(blobs, executor).infer("acme", ref, X, LARGE)
    assert caught.value.reason == "UNSUPPORTED_TYPE"


async def test_answers_and_calls_that_are_too_large(executor: ThreadPoolExecutor) -> None:
    blobs = MemoryBlobs()
    ref = blobs.put("acme", plan(3))
    inference = inference_over(blobs, executor, max_call_bytes=512)
    with pytest.raises(Invalid, match="the outputs take 32 bytes"):
        await inference.infer("acme", ref, X, 31)
    with pytest.raises(Exhausted):
        await inference.infer("acme", ref, {"x": np.ones((64, 4), np.float32)}, LARGE)


async def test_a_plan_that_would_compute_for_hours_is_refused(executor: ThreadPoolExecutor) -> None:
    """Plans are anybody's: 2 KiB of one may repeat an element 2^34 times, and again."""
    hostile = PlanBuilder()
    x = hostile.input("x", [1])
    for _ in range(9):
        x = hostile.compute("reduce_sum", [hostile.view(x, [2**34], [0])], [], axes=[0])
    hostile.output("y", x)
    blobs = MemoryBlobs()
    ref = blobs.put("acme", encode(hostile.build()))
    inference = inference_over(blobs, executor, max_call_work=10**9)
    with pytest.raises(Exhausted, match="takes 154618822656 calculations") as refused:
        await inference.infer("acme", ref, {"x": np.ones(1, np.float32)}, LARGE)
    assert refused.value.reason == "TOO_MUCH_WORK"


async def test_plans_that_are_loaded_at_once_are_bounded(executor: ThreadPoolExecutor) -> None:
    blobs = MemoryBlobs()
    refs = [blobs.put("acme", plan(scale)) for scale in (1, 2)]
    inference = inference_over(blobs, executor, budget=1)
    answers = await asyncio.gather(
        *(inference.infer("acme", ref, X, LARGE) for ref in refs), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [list, Exhausted]
    # Once the first is loaded there is room.
    await inference.infer("acme", refs[1], X, LARGE)


async def test_more_work_than_there_is_room_for_is_refused() -> None:
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        desk = Desk(executor, 2)
        waiting = [asyncio.create_task(desk.run(go_on.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Exhausted) as refused:
            await desk.run(lambda: None)
        assert refused.value.retry_after_s
        # Work whose caller has gone still takes its room until it has ended.
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        with pytest.raises(Exhausted):
            await desk.run(lambda: None)
        go_on.set()
        await waiting[1]
        await eventually(lambda: desk.busy == 0)
        assert await desk.run(lambda: 7) == 7
