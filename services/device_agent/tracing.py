"""Spans of the agent: from an app's call over the durable queue to a run and what it asks.

A trace context travels as its W3C `traceparent`: in the app's metadata, in the store beside the event and the
waiting run, in the request that goes up the tunnel. Without an OTLP endpoint there are no spans, and nothing
is kept.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace

from libs.common.telemetry import Telemetry, extract, inject


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work that is traced, or isn't."""

    traceparent: str = ""
    """For whoever goes on with it; empty where nothing is traced."""
    span: trace.Span = trace.INVALID_SPAN

    def fail(self, why: str) -> None:
        """Say that it came to nothing; `why` leaves the device, so it says nothing of an event."""
        self.span.set_status(trace.StatusCode.ERROR, why)


_NONE = Span()


class Spans:
    """Makes them."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def current(self) -> str:
        """Return the trace context that we are in; "" where nothing is traced."""
        return _traceparent() if self._telemetry.tracer is not None else ""

    @contextmanager
    def span(self, name: str, parent: str, **attributes: str) -> Iterator[Span]:
        """Wrap work in a span that goes on with the trace `parent`, or begins one where that is empty."""
        tracer = self._telemetry.tracer
        if tracer is None:
            yield _NONE
            return
        context = extract([("traceparent", parent)] if parent else [])
        # What an exception says may quote an event, so only its kind is told.
        with tracer.start_as_current_span(
            name, context, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            current = Span(_traceparent(), span)
            try:
                yield current
            except Exception as error:
                current.fail(type(error).__name__)
                raise


def _traceparent() -> str:
    return next((value for key, value in inject() if key == "traceparent"), "")
