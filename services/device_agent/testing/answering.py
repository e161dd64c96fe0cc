"""What the fake cloud does around each of its methods."""

from collections.abc import Mapping
from typing import Any, Protocol

from libs.common import errors
from libs.common.status import DETAILS_TRAILER, code_of, details_of


class Answers(Protocol):
    """What a cloud must know for it."""

    calls: dict[str, int]
    fail: dict[str, list[errors.Error]]

    def authenticate(self, metadata: Mapping[str, str]) -> str:
        """Return the device that calls; raise Unauthenticated."""
        ...

    def differs(self, device: str, metadata: Mapping[str, str]) -> bool:
        """Tell whether a device's wanted set differs from the profile that it sent."""
        ...

    def now_s(self) -> float:
        """Return the cloud's time."""
        ...

    async def stage(self, name: str) -> None:
        """Note that a call has come to a stage, and stop there if told to."""

    async def notify(self) -> None:
        """Wake whoever waits for something that the cloud knows."""


class Answering:
    """Around a method: who calls, what to fail with, time and hint on every answer."""

    def __init__(self, cloud: Answers, method: str, context: Any) -> None:
        self._cloud = cloud
        self._method = method
        self._context = context
        self._metadata = {key: value for key, value in context.invocation_metadata() or ()}
        self._device = ""

    async def __aenter__(self) -> str:
        try:
            self._cloud.calls[self._method] += 1
            if self._method != "Enrol":
                self._device = self._cloud.authenticate(self._metadata)
            await self._cloud.stage(self._method)
            if self._cloud.fail[self._method]:
                raise self._cloud.fail[self._method].pop(0)
        except errors.Error as error:
            await self._abort(error)
        return self._device

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, errors.Error):
            await self._abort(error)
        elif error is None:
            self._context.set_trailing_metadata(self._trailers())
        await self._cloud.notify()

    async def _abort(self, error: errors.Error) -> None:
        trailers = (*self._trailers(), (DETAILS_TRAILER, details_of(error, "test")))
        await self._context.abort(code_of(error), error.message, trailers)

    def _trailers(self) -> tuple[tuple[str, str], ...]:
        trailers = [("x-isthmus-time", f"{self._cloud.now_s():.3f}")]
        if self._device and self._cloud.differs(self._device, self._metadata):
            trailers.append(("x-isthmus-update", "1"))
        return tuple(trailers)
