"""The trace that a piece of work belongs to, taken from a call's metadata and handed on with the next call.

Where spans are exported, OpenTelemetry's context holds the trace. Where they aren't, no span is made: the
W3C `traceparent` goes on as the text that came, or as a new one, so that logs of all services can be joined
by trace id. That costs a microsecond a call, where OpenTelemetry's objects cost a tenth of the whole call.
"""

import random
import re
from contextvars import ContextVar

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from libs.common.identity import Metadata

_TRACEPARENT, _TRACESTATE = "traceparent", "tracestate"
_PROPAGATOR = TraceContextTextMapPropagator()
# What this version of the standard writes; ids of zeros only are no ids.
_PLAIN = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-0[01]")

Headers = tuple[tuple[str, str], ...]

_carried: ContextVar[Headers] = ContextVar("isthmus_trace", default=())


def extract(metadata: Metadata) -> otel_context.Context:
    """Return the trace context that a call's metadata brings; an empty one when it brings none."""
    for key, _ in metadata:
        if key == _TRACEPARENT:
            carrier = {k: v for k, v in metadata if k in (_TRACEPARENT, _TRACESTATE) and isinstance(v, str)}
            return _PROPAGATOR.extract(carrier, otel_context.Context())
    return otel_context.Context()


def inject() -> list[tuple[str, str]]:
    """Return the metadata that carries the current trace to whom we call; none outside a trace."""
    if otel_context.get_current():
        carried = _written(None)
        if carried:
            return list(carried)
    return list(_carried.get())


def carry(metadata: Metadata) -> None:
    """Make the trace that a call's metadata bring the current one of this task, without a span.

    Metadata without a trace, or with one that isn't well-formed, begin a new one.
    """
    parent: str | bytes = ""
    plain = True
    for key, value in metadata:
        if key == _TRACEPARENT:
            plain = plain and not parent
            parent = value
        elif key == _TRACESTATE:
            plain = False
    if not parent:
        headers = _new()
    elif plain and isinstance(parent, str) and _PLAIN.fullmatch(parent):
        headers = ((_TRACEPARENT, parent),)
    else:
        headers = _written(extract(metadata)) or _new()
    _carried.set(headers)


def current_ids() -> tuple[str, str] | None:
    """Return the ids of the current trace and span in hexadecimal; None outside a trace."""
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)
    for key, value in _carried.get():
        if key == _TRACEPARENT:
            _, trace_id, span_id, _ = value.split("-")
            return trace_id, span_id
    return None


def _new() -> Headers:
    trace_id, span_id = random.getrandbits(128) or 1, random.getrandbits(64) or 1
    return ((_TRACEPARENT, f"00-{trace_id:032x}-{span_id:016x}-00"),)


def _written(context: otel_context.Context | None) -> Headers:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context)
    return tuple(carrier.items())
