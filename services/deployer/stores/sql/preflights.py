"""A version's pre-flight as it is stored: JSON, and its events in columns of their own, to be found by."""

import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any

from services.deployer.domain.model import BlobRef, Preflight, PreflightState
from services.deployer.stores.sql.base import dump, micros, moment

_MICROSECOND = timedelta(microseconds=1)
_TIMES = ("p50_run_time", "p99_run_time")
_PLAIN = tuple(
    each.name for each in fields(Preflight) if each.name not in ("state", "events", "end_time", *_TIMES)
)


def columns(value: Preflight | None) -> Mapping[str, object]:
    """Return the columns of a version's pre-flight."""
    if value is None:
        return {"preflight": None, "events_digest": None, "events_bytes": None}
    kept: dict[str, object] = {name: getattr(value, name) for name in _PLAIN}
    kept["state"] = value.state.name
    kept["end_time"] = micros(value.end_time)
    for name in _TIMES:
        span = getattr(value, name)
        kept[name] = None if span is None else span // _MICROSECOND
    return {
        "preflight": dump(kept),
        "events_digest": value.events.digest if value.events is not None else None,
        "events_bytes": value.events.size_bytes if value.events is not None else None,
    }


def value(text: str | None, events_digest: str | None, events_bytes: int | None) -> Preflight | None:
    """Return what `columns` stored."""
    if text is None:
        return None
    kept = json.loads(text)
    spans: dict[str, Any] = {
        name: None if kept[name] is None else kept[name] * _MICROSECOND for name in _TIMES
    }
    plain: dict[str, Any] = {name: kept[name] for name in _PLAIN}
    return Preflight(
        state=PreflightState[kept["state"]],
        events=BlobRef(events_digest, events_bytes or 0) if events_digest is not None else None,
        end_time=moment(kept["end_time"]),
        **spans,
        **plain,
    )
