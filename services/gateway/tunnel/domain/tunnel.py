"""All connections of this process: one for each device, the newest."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from libs.common.clock import Clock
from libs.common.errors import Error, Exhausted, Invalid
from services.gateway.tunnel.domain.asking import Places
from services.gateway.tunnel.domain.checks import Limits, check_hello
from services.gateway.tunnel.domain.frame import Device
from services.gateway.tunnel.domain.requests import Models
from services.gateway.tunnel.domain.session import Hello, Message, Observer, Reply, Session
from services.gateway.tunnel.store.log import Log


class Tunnel:
    """Takes connections. Belongs to one event loop."""

    def __init__(
        self, log: Log, models: Models | None, *, limits: Limits, clock: Clock, observer: Observer
    ) -> None:
        """Without `models` devices' requests are refused with NO_SERVING."""
        self._log = log
        self._models = models
        self._places = Places(limits.requests_in_all, observer)
        self._limits = limits
        self._clock = clock
        self._observer = observer
        self._sessions: dict[Device, Session] = {}
        self._open = 0

    async def connect(self, device: Device, messages: AsyncIterator[Message]) -> AsyncGenerator[Reply, None]:
        """Serve one connection of a device until it ends; see `Session.run`.

        Raises:
            Invalid: NO_HELLO, or a malformed Hello.
            Exhausted: TOO_MANY_CONNECTIONS.
        """
        reason = "closed"
        self._opened(1)
        try:
            if self._open > self._limits.connections:
                raise Exhausted(
                    f"this tunnel has {self._limits.connections} connections, all it takes; connect again "
                    "later",
                    reason="TOO_MANY_CONNECTIONS",
                    retry_after_s=5.0,
                )
            hello = await self._hello(messages)
            async with aclosing(self._run(device, hello, messages)) as replies:
                async for reply in replies:
                    yield reply
        except Error as error:
            reason = error.reason
            raise
        except (asyncio.CancelledError, GeneratorExit):
            reason = "cancelled"
            raise
        finally:
            self._opened(-1)
            self._observer.ended(reason)

    async def _run(
        self, device: Device, hello: Hello, messages: AsyncIterator[Message]
    ) -> AsyncGenerator[Reply, None]:
        session = Session(
            device,
            hello,
            self._log,
            self._models,
            self._places,
            limits=self._limits,
            clock=self._clock,
            observer=self._observer,
        )
        older = self._sessions.get(device)
        if older is not None:
            older.fence()
        self._sessions[device] = session
        try:
            async with aclosing(session.run(messages)) as replies:
                async for reply in replies:
                    yield reply
        finally:
            if self._sessions.get(device) is session:
                del self._sessions[device]

    async def _hello(self, messages: AsyncIterator[Message]) -> Hello:
        try:
            async with asyncio.timeout(self._limits.hello_s):
                hello = await anext(messages, None)
        except TimeoutError:
            hello = None
        if not isinstance(hello, Hello):
            raise Invalid(
                f"hello: must be the first message, within {self._limits.hello_s:g} s", reason="NO_HELLO"
            )
        check_hello(hello.streams, self._limits)
        return hello

    def _opened(self, change: int) -> None:
        self._open += change
        self._observer.connections(self._open)
