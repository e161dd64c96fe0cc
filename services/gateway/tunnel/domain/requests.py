"""Requests to models in the cloud, and what is said to them."""

import enum
from dataclasses import dataclass
from typing import Protocol

from services.gateway.tunnel.domain.frame import Device


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in the raw form of the Open Inference Protocol."""

    name: str
    datatype: str
    """"FP32" and the like."""
    shape: tuple[int, ...]
    content: bytes
    """Elements in C order, little-endian."""


@dataclass(frozen=True, slots=True)
class Request:
    """A device asks a model of its tenant."""

    id: int
    """Chosen by the device; its answer bears it."""
    model: str
    timeout_s: float
    """Seconds that the device waits, from when it sent this; 0 where it gave none, or no possible one."""
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...] = ()
    """Names of those wanted; empty means all."""
    traceparent: str = ""
    """Trace context of W3C; empty means none."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model said."""

    version: str
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a device hears of its request: a prediction, or why there is none."""

    id: int
    prediction: Prediction | None = None
    failure_reason: str = ""
    """UPPER_SNAKE."""
    failure_message: str = ""


class Fate(enum.Enum):
    """How a request ended. The values are metric labels."""

    ANSWERED = "answered"
    LATE = "late"
    """Its time was over before there was an answer; the device hears nothing."""
    REFUSED = "refused"
    """Malformed, or one too many; no model was asked."""
    FAILED = "failed"
    """The model couldn't answer, or couldn't be reached."""
    CANCELLED = "cancelled"
    """Its connection ended first."""


class Models(Protocol):
    """The models of all tenants."""

    async def ask(self, device: Device, request: Request, timeout_s: float) -> Prediction:
        """Ask a model of the device's tenant, on the device's behalf; may be cancelled at any moment.

        Raises:
            TimeoutError: when there is no answer after `timeout_s` seconds.
            Error: why the model can't answer; reason and message are meant for the device.
        """
        ...
