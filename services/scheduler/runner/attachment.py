"""The runner's connection to the scheduler: dials, says hello, reports and obeys until cancelled."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from isthmus.scheduler.v1 import runner_pb2, runner_pb2_grpc
from libs.common.backoff import backoff
from libs.common.client import Channel
from libs.common.clock import Clock
from libs.common.errors import Error, Unavailable
from libs.common.names import NodeName
from libs.common.rand import Randomness
from libs.common.status import rpc_errors
from libs.common.streams import send
from services.scheduler.domain.objects import Facts, WorkerId
from services.scheduler.runner import convert
from services.scheduler.runner.workers import Started, Workers

_log = logging.getLogger(__name__)

_WELCOME_S = 15.0
_APPEND_S = 15.0
_LONGEST_WAIT_S = 5.0
# Reports that aren't acknowledged are repeated after this time, in seconds.
REPEAT_S = 5.0
# So many failed attempts in a row are nothing to warn of; the loss of a connection that stood is.
_QUIET_FAILURES = 5
_LIVENESS_S = 10.0
_LAST_ANSWER_S = 1.0

Dial = Callable[[str], Channel]


class Attachment:
    """Keeps the node attached to whichever scheduler leads."""

    def __init__(
        self,
        node: NodeName,
        facts: Facts,
        targets: Sequence[str],
        dial: Dial,
        *,
        clock: Clock,
        randomness: Randomness,
        on_change: Callable[[bool], None] = lambda attached: None,
        repeat_s: float = REPEAT_S,
    ) -> None:
        """Attach `node` to one of the `targets`, each reached by `dial`; `on_change` is told of changes."""
        self._node = node
        self._facts = facts
        self._targets = tuple(targets)
        self._dial = dial
        self._clock = clock
        self._randomness = randomness
        self._on_change = on_change
        self._repeat_s = repeat_s
        self._channels: dict[str, Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._stub: runner_pb2_grpc.RunnerServiceAsyncStub | None = None
        self.attached = asyncio.Event()

    async def run(self, workers: Workers) -> None:
        """Stay attached until cancelled."""
        failures, turn, hint = 0, 0, ""
        try:
            while True:
                target = hint or self._targets[turn % len(self._targets)]
                error: Error = Unavailable("the scheduler ended the connection")
                try:
                    await self._stay(target, workers)
                except Error as caught:
                    error = caught
                except Exception:
                    # The workers need somebody who goes on telling of them, whatever happened here.
                    _log.exception("the connection failed by a fault of ours")
                if self.attached.is_set():
                    failures, hint = 0, ""
                    self._detached()
                else:
                    failures, turn = failures + 1, turn + 1
                self._leave(target)
                # A standby says who leads; nobody else is believed about that.
                hint = error.metadata.get("address", "") if error.reason == "NOT_LEADER" else ""
                wait_s = backoff(
                    failures,
                    randomness=self._randomness,
                    cap_s=_LONGEST_WAIT_S,
                    at_least_s=0.0 if hint else min(error.retry_after_s or 0.0, _LONGEST_WAIT_S),
                )
                # At a start all come up together, and a scheduler may still be choosing who leads.
                level = logging.INFO if 0 < failures <= _QUIET_FAILURES else logging.WARNING
                _log.log(level, "not attached to %s: %s; dialling again in %.1f s", target, error, wait_s)
                await self._clock.sleep(wait_s)
        finally:
            self._detached()
            for channel in self._channels.values():
                await channel.close()
            await asyncio.gather(*self._closing, return_exceptions=True)

    async def append_log(self, worker: WorkerId, offset: int, data: bytes, last: bool) -> int:
        """Bring a piece of a log to the scheduler, however long that takes; return what is durable there.

        Raises:
            Error: when the scheduler doesn't want it.
        """
        request = runner_pb2.AppendLogRequest(
            id=convert.worker_id_message(worker), offset_bytes=offset, data=data, last=last
        )
        failures = 0
        while True:
            await self.attached.wait()
            stub = self._stub
            try:
                if stub is not None:
                    with rpc_errors():
                        return int((await stub.AppendLog(request, timeout=_APPEND_S)).offset_bytes)
            except Error as error:
                if not error.retriable:
                    raise
            failures += 1
            await self._clock.sleep(backoff(failures, randomness=self._randomness, cap_s=_LONGEST_WAIT_S))

    async def _stay(self, target: str, workers: Workers) -> None:
        """Attach to one scheduler and obey it until the connection ends; raises Error."""
        if target not in self._channels:
            self._channels[target] = self._dial(target)
        stub: runner_pb2_grpc.RunnerServiceAsyncStub = runner_pb2_grpc.RunnerServiceStub(
            self._channels[target]
        )
        call = stub.Attach()
        try:
            with rpc_errors():
                liveness_s = await self._greet(call, workers)
                self._stub = stub
                self.attached.set()
                self._on_change(True)
                _log.info("attached to %s", target)
                await self._talk(call, workers, liveness_s)
        finally:
            call.cancel()

    async def _greet(self, call: Any, workers: Workers) -> float:
        hello = runner_pb2.Hello(
            node=str(self._node),
            status=convert.node_status(self._facts),
            workers=[
                convert.report_message(report)
                for report in (
                    *workers.reports(),
                    *(convert.starting(worker, self._node) for worker in workers.unreported()),
                )
            ],
        )
        try:
            async with asyncio.timeout(_WELCOME_S):
                # Reading tells how the connection ended, where it has already.
                await send(call, runner_pb2.AttachRequest(hello=hello).SerializeToString())
                answer = await call.read()
        except TimeoutError:
            raise Unavailable(f"no welcome came within {_WELCOME_S:g} s") from None
        if not isinstance(answer, runner_pb2.AttachResponse) or answer.WhichOneof("message") != "welcome":
            raise Unavailable("the scheduler ended the connection before it said welcome")
        liveness = answer.welcome.liveness_time
        return max(1.0, (liveness.seconds + liveness.nanos / 1e9) or _LIVENESS_S)

    async def _talk(self, call: Any, workers: Workers, liveness_s: float) -> None:
        writing = asyncio.create_task(self._write(call, workers, liveness_s / 3))
        reading = asyncio.create_task(self._read(call, workers))
        try:
            done, _ = await asyncio.wait({writing, reading}, return_when=asyncio.FIRST_COMPLETED)
            if reading not in done:
                # What the scheduler ended the call with says more than that writing failed.
                await asyncio.wait({reading}, timeout=_LAST_ANSWER_S)
            await (reading if reading.done() else writing)
        finally:
            writing.cancel()
            reading.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)

    async def _write(self, call: Any, workers: Workers, heartbeat_s: float) -> None:
        """Send reports as they come, unacknowledged ones again, and heartbeats."""
        outbox = workers.outbox
        beat = self._clock.monotonic() + heartbeat_s
        while True:
            outbox.changed.clear()
            now = self._clock.monotonic()
            for report in outbox.take(now, self._repeat_s):
                await _send(call, runner_pb2.AttachRequest(report=convert.report_message(report)))
            if now >= beat:
                beat = now + heartbeat_s
                await _send(call, runner_pb2.AttachRequest(heartbeat=runner_pb2.Heartbeat()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, min(beat - now, self._repeat_s))):
                    await outbox.changed.wait()

    async def _read(self, call: Any, workers: Workers) -> None:
        """Do what the scheduler says, in order, until it ends the call."""
        while isinstance(answer := await call.read(), runner_pb2.AttachResponse):
            try:
                await self._obey(answer, workers)
            except Error as error:
                # One message that makes no sense mustn't cost the node its other work.
                _log.error("can't do what the scheduler says: %s", error)
            except Exception:
                _log.exception("doing what the scheduler says failed")

    async def _obey(self, answer: runner_pb2.AttachResponse, workers: Workers) -> None:
        match answer.WhichOneof("message"):
            case "start":
                started = Started(convert.assignment(answer.start), answer.start.SerializeToString())
                await workers.start(started)
            case "stop":
                await workers.stop(convert.worker_id(answer.stop.id), answer.stop.reason)
            case "acknowledge":
                worker = convert.worker_id(answer.acknowledge.id)
                workers.outbox.acknowledged(worker, answer.acknowledge.sequence)
            case "forget":
                workers.forget(convert.worker_id(answer.forget.id))

    def _leave(self, target: str) -> None:
        """Let go of a scheduler that only a standby named: over time there may be many of them."""
        if target not in self._targets and (channel := self._channels.pop(target, None)) is not None:
            # Pieces of logs may be on their way.
            closing = asyncio.create_task(channel.close(_APPEND_S))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _detached(self) -> None:
        if self.attached.is_set():
            self.attached.clear()
            self._stub = None
            self._on_change(False)


async def _send(call: Any, request: runner_pb2.AttachRequest) -> None:
    if not await send(call, request.SerializeToString()):
        raise Unavailable("the connection ended while something was written to it")
