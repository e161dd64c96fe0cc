"""The requests of one connection: taken, put to models side by side, answered as the models answer.

    take ─► checks ─► a task: Models.ask ─► waiting ─► next
                └──────── refusal ────────────┘

A request has a place from when it is taken until its answer is handed over or its time is over. Places are
bounded for each connection, for each tenant beside the others, and for all together; whoever asks beyond
hears so at once. What waits for a device that doesn't read is bounded too: beyond, its messages aren't read
any more.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from libs.common.clock import Clock
from libs.common.errors import Error, Exhausted, Invalid, Unavailable
from libs.common.shares import Shares
from services.gateway.tunnel.domain.checks import Limits, check_answer, check_request, check_request_id
from services.gateway.tunnel.domain.frame import Device
from services.gateway.tunnel.domain.requests import Answer, Fate, Models, Request

_log = logging.getLogger(__name__)

_MESSAGE_CHARACTERS = 500
# Answers and refusals that wait for the device to read them.
_WAITING = 64


class Observer(Protocol):
    """Is told what happens to requests, for metrics."""

    def asked(self, fate: Fate, seconds: float) -> None:
        """Take note that a request ended like this, so long after it was read."""
        ...

    def asking(self, count: int) -> None:
        """Take note of how many requests of all connections have a place now."""
        ...


class Places:
    """Shares the places for requests out among tenants. Belongs to one event loop."""

    def __init__(self, limit: int, observer: Observer) -> None:
        """`limit`: places of all connections together."""
        self._shares = Shares(limit)
        self._observer = observer

    def take(self, tenant: str) -> None:
        """Take a place.

        Raises:
            Exhausted: TOO_MANY_REQUESTS, when the tenant has as many as it may beside the others.
        """
        if not self._shares.take(tenant):
            raise Exhausted(
                f"{self._shares.held_by(tenant)} requests of your tenant's devices are open, as many as may "
                f"be beside those of others, of {self._shares.limit} in all; ask again later",
                reason="TOO_MANY_REQUESTS",
            )
        self._observer.asking(self._shares.held)

    def give_back(self, tenant: str) -> None:
        """Give one back."""
        self._shares.give_back(tenant)
        self._observer.asking(self._shares.held)


@dataclass(eq=False, slots=True)
class _Open:
    """A request that has a place. Times are monotonic."""

    request: Request
    taken: float
    deadline: float
    task: asyncio.Task[None] | None = None


class Asking:
    """See the module. Belongs to one event loop; `wake` is called when `next` has something."""

    def __init__(
        self,
        device: Device,
        models: Models | None,
        places: Places,
        *,
        limits: Limits,
        clock: Clock,
        observer: Observer,
        wake: Callable[[], None],
    ) -> None:
        """Without `models` every request is refused with NO_SERVING."""
        self._device = device
        self._models = models
        self._places = places
        self._limits = limits
        self._clock = clock
        self._observer = observer
        self._wake = wake
        self._open: dict[int, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[tuple[Answer, Fate]] = deque()
        self._room = asyncio.Event()
        self._closed = False

    @property
    def idle(self) -> bool:
        """Whether nothing is asked and nothing waits to be told."""
        return not self._open and not self._waiting

    def take(self, request: Request) -> None:
        """Put a request to its model, or refuse it.

        Raises:
            Invalid: BAD_REQUEST_ID, REQUEST_TWICE: an answer couldn't be told apart from another.
        """
        check_request_id(request)
        if request.id in self._open:
            raise Invalid(
                f"request.id: {request.id} is that of a request which isn't answered yet; count up",
                reason="REQUEST_TWICE",
            )
        if self._closed:
            return
        try:
            models = self._admit(request)
        except Error as refusal:
            self._observer.asked(Fate.REFUSED, 0.0)
            self._tell(_failure(request, refusal), Fate.REFUSED)
            return
        now = self._clock.monotonic()
        asked = self._open[request.id] = _Open(request, now, now + request.timeout_s)
        asked.task = asyncio.create_task(self._ask(models, asked))
        self._tasks.add(asked.task)
        asked.task.add_done_callback(self._tasks.discard)

    async def room(self) -> None:
        """Wait until the device has read enough of what waits for it."""
        while len(self._waiting) >= _WAITING:
            self._room.clear()
            await self._room.wait()

    def next(self) -> Answer | None:
        """Return an answer to send, if there is one; those that have become late meanwhile are dropped."""
        while self._waiting:
            answer, fate = self._waiting.popleft()
            self._room.set()
            if fate is Fate.REFUSED:
                return answer
            asked = self._open[answer.id]
            assert asked.task is not None
            asked.task.cancel()
            late = self._clock.monotonic() >= asked.deadline
            self._end(asked, Fate.LATE if late else fate)
            if not late:
                return answer
        return None

    def cancel(self) -> None:
        """End everything that is open; nothing more is taken."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._waiting.clear()
        self._room.set()
        for asked in list(self._open.values()):
            self._end(asked, Fate.CANCELLED)

    async def close(self) -> None:
        """Cancel, and wait until the models know."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _admit(self, request: Request) -> Models:
        """Return whom to ask, having taken a place; raises Error where the request is refused."""
        check_request(request, self._limits)
        if self._models is None:
            raise Unavailable(
                "no models are served here; have the tunnel's operator set --serving-target",
                reason="NO_SERVING",
            )
        if len(self._open) >= self._limits.requests:
            raise Exhausted(
                f"{len(self._open)} requests of this connection are open, as many as may; ask again when "
                "some are answered",
                reason="TOO_MANY_REQUESTS",
            )
        self._places.take(self._device.tenant)
        return self._models

    async def _ask(self, models: Models, asked: _Open) -> None:
        request = asked.request
        fate = Fate.FAILED
        try:
            prediction = await models.ask(
                self._device, request, max(0.0, asked.deadline - self._clock.monotonic())
            )
            check_answer(prediction, self._limits)
            answer, fate = Answer(request.id, prediction), Fate.ANSWERED
        except (TimeoutError, asyncio.CancelledError) as over:
            late = isinstance(over, TimeoutError)
            self._end(asked, Fate.LATE if late else Fate.CANCELLED)
            self._wake()
            if late:
                return
            raise
        except Error as error:
            answer = _failure(request, error)
        except Exception:
            _log.exception("asking the model %s failed", request.model)
            answer = Answer(
                request.id, None, "INTERNAL", "something went wrong in the tunnel; it has been logged"
            )
        self._tell(answer, fate)
        # A device that doesn't read keeps a place, and an answer's memory, no longer than it would wait.
        await self._clock.sleep(asked.deadline - self._clock.monotonic())
        if self._open.get(request.id) is asked:
            self._waiting.remove((answer, fate))
            self._room.set()
            self._end(asked, Fate.LATE)
            self._wake()

    def _tell(self, answer: Answer, fate: Fate) -> None:
        if not self._closed:
            self._waiting.append((answer, fate))
            self._wake()

    def _end(self, asked: _Open, fate: Fate) -> None:
        """Give the request's place back, once."""
        if self._open.get(asked.request.id) is asked:
            del self._open[asked.request.id]
            self._places.give_back(self._device.tenant)
            self._observer.asked(fate, self._clock.monotonic() - asked.taken)


def _failure(request: Request, error: Error) -> Answer:
    message = error.message
    if len(message) > _MESSAGE_CHARACTERS:
        message = f"{message[:_MESSAGE_CHARACTERS]}…"
    return Answer(request.id, None, error.reason, message)
