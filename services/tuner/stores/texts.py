"""Structured values as texts: what the tables hold, read back as the same values."""

import base64
import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, overload

from libs.common.names import ModelName, ModelVersionName
from services.tuner.domain.model import (
    Application,
    ApplicationState,
    Constraint,
    Load,
    Metric,
    Objective,
    Parameter,
    Point,
    SamplerKind,
    Served,
    Spec,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@overload
def micros(time: datetime) -> int: ...
@overload
def micros(time: datetime | None) -> int | None: ...
def micros(time: datetime | None) -> int | None:
    """Return a time as it is stored: whole microseconds since 1970."""
    return None if time is None else (time - _EPOCH) // timedelta(microseconds=1)


@overload
def moment(value: int) -> datetime: ...
@overload
def moment(value: int | None) -> datetime | None: ...
def moment(value: int | None) -> datetime | None:
    """Return the time that `micros` stored."""
    return None if value is None else _EPOCH + value * timedelta(microseconds=1)


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def dump_spec(spec: Spec) -> str:
    """Return a specification's text."""
    return _dump({**asdict(spec), "model": str(spec.model), "sampler": spec.sampler.value})


def load_spec(text: str) -> Spec:
    """Return the specification of a text."""
    found: dict[str, Any] = json.loads(text)
    found["model"] = ModelName.parse(found["model"])
    found["sampler"] = SamplerKind(found["sampler"])
    found["parameters"] = tuple(Parameter(p["name"], tuple(p["values"])) for p in found["parameters"])
    found["objective"] = Objective(**found["objective"])
    found["constraints"] = tuple(Constraint(**constraint) for constraint in found["constraints"])
    found["load"] = Load(**found["load"])
    return Spec(**found)


def dump_served(served: Served) -> str:
    """Return the text of what is tried."""
    config = base64.b64encode(served.config).decode()
    return _dump({**asdict(served), "version": str(served.version), "config": config})


def load_served(text: str) -> Served:
    """Return what a text says is tried."""
    found: dict[str, Any] = json.loads(text)
    found["version"] = ModelVersionName.parse(found["version"])
    found["config"] = base64.b64decode(found["config"])
    return Served(**found)


def dump_point(point: Point) -> str:
    """Return a point's text."""
    return _dump(dict(point))


def load_point(text: str) -> Point:
    """Return the point of a text."""
    found: dict[str, float] = json.loads(text)
    return found


def dump_metrics(metrics: tuple[Metric, ...]) -> str:
    """Return the text of metrics."""
    return _dump([[m.name, m.value, m.low, m.high] for m in metrics])


def load_metrics(text: str) -> tuple[Metric, ...]:
    """Return the metrics of a text."""
    return tuple(Metric(*metric) for metric in json.loads(text))


def dump_application(application: Application | None) -> str:
    """Return an application's text; "" for none."""
    if application is None:
        return ""
    return _dump(
        {
            "trial": application.trial,
            "state": application.state.value,
            "start_time": micros(application.start_time),
            "message": application.message,
            "previous": base64.b64encode(application.previous).decode(),
            "previous_known": application.previous_known,
            "before": dump_metrics(application.before),
            "after": dump_metrics(application.after),
            "end_time": micros(application.end_time),
        }
    )


def load_application(text: str) -> Application | None:
    """Return the application of a text, or None."""
    if not text:
        return None
    found: dict[str, Any] = json.loads(text)
    return Application(
        found["trial"],
        ApplicationState(found["state"]),
        moment(found["start_time"]),
        found["message"],
        base64.b64decode(found["previous"]),
        found["previous_known"],
        load_metrics(found["before"]),
        load_metrics(found["after"]),
        moment(found["end_time"]),
    )
