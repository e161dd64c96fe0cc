"""Runs plans for callers: programs are kept while memory allows, and work is bounded."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from libs.common.blobs import BlobRef
from libs.common.clock import Clock
from libs.common.errors import Exhausted, Invalid
from libs.common.sizes import size_text
from libs.runtime.codec import decode
from libs.runtime.program import Program
from services.engine.domain.budget import Budget
from services.engine.domain.limits import MAX_PLAN_BYTES
from services.engine.domain.optimiser import Blobs
from services.engine.domain.turns import Turns

Array = npt.NDArray[Any]
T = TypeVar("T")
_TRUST_S = 60.0
"""Seconds that a tenant's right to a plan is believed before the deployer is asked again."""
_MOST_RIGHTS = 4096
_RETRY_S = 0.5


class Desk:
    """Hands work to an executor, a bounded amount at a time; work outlives a caller that has gone."""

    def __init__(self, executor: Executor, room: int) -> None:
        """`room`: how much may run or wait; more is refused."""
        self._executor = executor
        self._room = room
        self._busy = 0

    @property
    def busy(self) -> int:
        """How much runs or waits."""
        return self._busy

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns; raises Exhausted when there is no room."""
        if self._busy >= self._room:
            raise Exhausted(
                f"{self._busy} inferences run or wait; try again later",
                reason="ENGINE_BUSY",
                retry_after_s=_RETRY_S,
            )
        loop = asyncio.get_running_loop()
        self._busy += 1
        future = self._executor.submit(work)

        def done(_: Future[T]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._release)

        future.add_done_callback(done)
        return await asyncio.wrap_future(future)

    def _release(self) -> None:
        self._busy -= 1


class Inference:
    """Plans by digest, the least used forgotten first; a plan is loaded once however many ask."""

    def __init__(
        self,
        blobs: Blobs,
        desk: Desk,
        clock: Clock,
        budget: Budget,
        *,
        max_bytes: int,
        max_call_bytes: int,
        max_call_work: int,
    ) -> None:
        """Keep programs of at most `max_bytes` with the memory of their calls, `max_call_bytes` each.

        `budget` bounds what is being loaded; `max_call_work` a call, as `libs.runtime.work` counts: a plan is
        anybody's, and a thread can't be stopped.
        """
        self._blobs = blobs
        self._desk = desk
        self._clock = clock
        self._budget = budget
        self._max_call_work = max_call_work
        self._max_bytes = max_bytes
        self._max_call_bytes = max_call_bytes
        self._programs: OrderedDict[str, tuple[Program, int]] = OrderedDict()
        self._turns = Turns()
        self._rights: OrderedDict[tuple[str, BlobRef], float] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """Memory of what is kept."""
        return sum(size + program.held_bytes for program, size in self._programs.values())

    async def infer(
        self, tenant: str, plan: BlobRef, inputs: Mapping[str, Array], max_answer_bytes: int
    ) -> Sequence[tuple[str, Array]]:
        """Return a plan's outputs, in its order.

        Raises:
            NotFound: when the tenant has no such plan.
            Invalid: when it is no sound plan, the inputs don't fit it, or the outputs are too large.
            Exhausted: over the bounds on memory and work, or when too much is being run.
        """
        await self._check_right(tenant, plan)
        program = await self._program(tenant, plan)
        _check_ports(program)
        outputs = await self._desk.run(lambda: program.run(inputs))
        self._shrink()
        total = sum(array.nbytes for array in outputs.values())
        if total > max_answer_bytes:
            raise Invalid(
                f"the outputs take {size_text(total)}, and an answer holds {size_text(max_answer_bytes)}; "
                "ask for fewer",
                reason="ANSWER_TOO_LARGE",
            )
        # They are dense; numpy's own way to make sure of it would give a scalar an axis.
        return [(spec.name, outputs[spec.name]) for spec in program.outputs]

    async def _check_right(self, tenant: str, plan: BlobRef) -> None:
        now = self._clock.monotonic()
        if self._rights.get((tenant, plan), 0.0) > now:
            return
        await self._blobs.check(tenant, plan)
        self._rights[tenant, plan] = now + _TRUST_S
        while len(self._rights) > _MOST_RIGHTS:
            self._rights.popitem(last=False)

    async def _program(self, tenant: str, plan: BlobRef) -> Program:
        async with self._turns.alone(plan.digest):
            found = self._programs.get(plan.digest)
            if found is None:
                # While it is loaded it is there twice: as bytes, and as what is read of them.
                with self._budget.hold(2 * plan.size_bytes):
                    content = await self._blobs.read(tenant, plan, min(MAX_PLAN_BYTES, self._max_bytes))
                    program = await self._desk.run(lambda: self._load(content))
                    found = self._programs[plan.digest] = program, len(content)
                    del content
            self._programs.move_to_end(plan.digest)
            self._shrink()
            return found[0]

    def _load(self, content: bytes) -> Program:
        return Program(decode(content), max_buffer_bytes=self._max_call_bytes, max_work=self._max_call_work)

    def _shrink(self) -> None:
        while len(self._programs) > 1 and self.held_bytes > self._max_bytes:
            self._programs.popitem(last=False)


def _check_ports(program: Program) -> None:
    """Raise Invalid for a plan that brings or gives what a call can't carry."""
    for spec in (*program.inputs, *program.outputs):
        if spec.containers or spec.dtype == np.object_:
            raise Invalid(
                f"{spec}: sequences, optionals and strings can't be sent; run the plan where they are",
                reason="UNSUPPORTED_TYPE",
            )
