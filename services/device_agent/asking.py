"""Requests of running tasks to models in the cloud, and the answers that come back in time.

They share the tunnel's connection with the frames. A request is answered or given up, never stored and never
repeated: a run that is made again asks again. Without a connection, and for a while after several requests in
a row weren't answered in time, there is no answer at once, so that a bad network costs a task nothing.
"""

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from isthmus.tunnel.v1 import tunnel_pb2
from libs.common.clock import Clock
from libs.common.errors import Invalid
from libs.common.rand import Randomness
from libs.task.duration import format_duration
from libs.task.endpoints import find_endpoint
from libs.task.manifest import CheckedManifest
from libs.task.tensor import Tensor
from services.device_agent.convert_requests import from_answer, to_request
from services.device_agent.domain.breaker import Breaker
from services.device_agent.signals import Bell, Problems
from services.device_agent.store.database import Database
from services.device_agent.store.values import count
from services.device_agent.tasks import Tasks
from services.device_agent.tracing import Spans
from services.device_agent.vm import Ask, Reply

_log = logging.getLogger("isthmus.agent")

# What the cloud takes of one connection.
_MAX_OPEN = 16
_MAX_GIVEN_UP = 1024
_SUBJECT = "model "
# What is kept of an input to show it.
_SHOWN_BYTES = 512


@dataclass(slots=True, eq=False)
class _Open:
    """A request that waits for its answer."""

    number: int
    ask: Ask
    traceparent: str
    ends_s: float
    done: "asyncio.Future[tuple[tuple[Tensor, ...] | None, str]]"
    sent: bool = False


class Requests:
    """All requests of this agent.

    Attributes:
        counts: what hasn't been stored yet, by counter.
    """

    def __init__(self, database: Database, clock: Clock, randomness: Randomness, problems: Problems) -> None:
        self.counts: Counter[str] = Counter()
        self._database = database
        self._clock = clock
        self._random = randomness
        self._problems = problems
        self._connected = False
        self._numbers = 0
        self._open: dict[int, _Open] = {}
        self._given_up: OrderedDict[int, None] = OrderedDict()
        self._outbox: deque[_Open] = deque()
        self._bell = Bell()
        self._uncounted = Bell()
        self._breakers: dict[str, Breaker] = {}

    async def ask(self, ask: Ask, traceparent: str = "") -> Reply:
        """Send a request that the manifest allows and wait for its whole answer, no longer than its time."""
        self.counts["request_count"] += 1
        if not self._connected:
            return Reply(why="not connected to the cloud")
        if len(self._open) >= _MAX_OPEN:
            return Reply(why=f"{_MAX_OPEN} requests are open already")
        breaker = self._breakers.setdefault(ask.model, Breaker())
        self._numbers += 1
        if not breaker.lets(self._clock.monotonic(), self._numbers):
            return Reply(why="paused, since requests were not answered in time")
        done: asyncio.Future[tuple[tuple[Tensor, ...] | None, str]] = (
            asyncio.get_running_loop().create_future()
        )
        ends_s = self._clock.monotonic() + ask.timeout_s
        request = _Open(self._numbers, ask, traceparent, ends_s, done)
        self._open[request.number] = request
        self._outbox.append(request)
        self._bell.ring()
        late = asyncio.ensure_future(self._clock.sleep(ask.timeout_s))
        try:
            futures: set[asyncio.Future[object]] = {done, late}  # type: ignore[arg-type]
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            if done.done():
                return Reply(*done.result())
            breaker.missed(self._clock.monotonic(), request.number, self._random.uniform(0.0, 1.0))
            if breaker.pauses:
                self._tell(ask.model, "requests aren't answered in time; it is asked less often meanwhile")
            return Reply(why=f"no answer within {format_duration(ask.timeout_s)}")
        finally:
            breaker.given_up(request.number)
            late.cancel()
            self._forget(request)

    def _tell(self, model: str, text: str) -> None:
        self._problems.set(f"{_SUBJECT}{model}", text, "NOT_ANSWERED")

    def _forget(self, request: _Open) -> None:
        self._open.pop(request.number, None)
        if request in self._outbox:
            self._outbox.remove(request)
        if request.sent and not request.done.done():
            self._given_up[request.number] = None
            while len(self._given_up) > _MAX_GIVEN_UP:
                self._given_up.popitem(last=False)
        request.done.cancel()

    def keep(self, models: Collection[str]) -> None:
        """Forget how it went with other models than these: nothing asks them any more."""
        for model in self._breakers.keys() - set(models):
            del self._breakers[model]
        self._problems.clear_all(_SUBJECT, [f"{_SUBJECT}{model}" for model in models])

    # ---- the tunnel's side ----

    def opened(self) -> None:
        """Say that a connection is there: requests may go, whatever was with the last one."""
        if not self._connected:
            self._connected = True
            self._breakers.clear()
            self._problems.clear_all(_SUBJECT)

    def closed(self) -> None:
        """Say that the connection has ended: what is open has no answer."""
        self._connected = False
        self._given_up.clear()
        for request in list(self._open.values()):
            if not request.done.done():
                request.done.set_result((None, "the connection to the cloud ended"))

    async def next(self) -> tunnel_pb2.ConnectRequest:
        """Wait for a request to send; its time is what is left of it."""
        while True:
            seen = self._bell.rings
            if not self._outbox:
                await self._bell.wait(seen)
                continue
            request = self._outbox.popleft()
            left_s = request.ends_s - self._clock.monotonic()
            if left_s <= 0 or request.done.done():
                continue
            request.sent = True
            self.counts["request_bytes"] += request.ask.size
            ask = request.ask
            return to_request(request.number, ask.model, ask.inputs, left_s, request.traceparent)

    def answered(self, answer: tunnel_pb2.Answer) -> None:
        """Take an answer; one whose request is over is dropped and counted."""
        request = self._open.get(answer.id)
        if request is None or request.done.done():
            if answer.id in self._given_up:
                del self._given_up[answer.id]
                self.counts["late_answer_count"] += 1
                self._uncounted.ring()
            return
        outputs, why = from_answer(answer)
        if breaker := self._breakers.get(request.ask.model):
            breaker.answered()
        if outputs is not None:
            self.counts["answer_count"] += 1
            self.counts["answer_bytes"] += sum(len(output.content) for output in outputs)
            self._problems.clear(f"{_SUBJECT}{request.ask.model}")
        else:
            self._tell(request.ask.model, why)
        request.done.set_result((outputs, why))

    # ---- the counters ----

    async def run(self) -> None:
        """Store what is counted outside of runs, for ever."""
        seen = self._uncounted.rings
        while True:
            seen = await self._uncounted.wait(seen)
            counts = self.take_counts()
            try:
                await self._database.insist(partial(count, amounts=counts), durable=False)
            except BaseException:
                self.counts.update(counts)
                raise

    def take_counts(self) -> Mapping[str, int]:
        """Return what hasn't been stored yet, for the caller to store or to add again."""
        counts, self.counts = dict(self.counts), Counter()
        return counts


def models_asked(tasks: Tasks) -> frozenset[str]:
    """Return the models in the cloud that what runs may ask."""
    running = (tasks.installed.get(version.key) for version in tasks.running().values())
    return frozenset(
        model for installed in running if installed is not None for model in installed.manifest.endpoints
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that a run made, for whoever watches the runner."""

    model: str
    inputs: tuple[Tensor, ...]
    """With the beginning of their content only."""
    size: int
    """Bytes of the inputs."""
    answered: bool
    refused: bool
    why: str
    """Why there is no answer, or why it must not be asked."""


class RunAsks:
    """The requests of one run: checked against its signed manifest, whatever its worker says.

    Attributes:
        made: those that were made.
    """

    def __init__(self, requests: Requests, manifest: CheckedManifest, spans: Spans, traceparent: str) -> None:
        self.made: list[Asked] = []
        self._requests = requests
        self._manifest = manifest
        self._spans = spans
        self._traceparent = traceparent

    async def answer(self, ask: Ask) -> Reply:
        """Answer what the run asks; a refusal fails it."""
        try:
            find_endpoint(self._manifest.endpoints, ask.model).check(ask.inputs)
        except Invalid as error:
            reply = Reply(refusal=error.message)
        else:
            with self._spans.span("ask", self._traceparent, model=ask.model) as current:
                reply = await self._requests.ask(ask, current.traceparent)
                if reply.outputs is None:
                    current.fail(reply.why)
            reply = _pick(reply, ask.outputs)
        inputs = tuple(replace(tensor, content=tensor.content[:_SHOWN_BYTES]) for tensor in ask.inputs)
        self.made.append(
            Asked(
                ask.model,
                inputs,
                ask.size,
                reply.outputs is not None,
                bool(reply.refusal),
                reply.refusal or reply.why,
            )
        )
        return reply


def _pick(reply: Reply, wanted: Sequence[str]) -> Reply:
    """Return the outputs that the script wants. Their names stay on the device: a span must not have them."""
    if reply.outputs is None or not wanted:
        return reply
    found = {output.name: output for output in reply.outputs}
    missing = [name for name in wanted if name not in found]
    if missing:
        return Reply(why=f"the model has no output {missing[0][:64]!r}; it has: {', '.join(found)[:200]}")
    return Reply(tuple(found[name] for name in dict.fromkeys(wanted)))
