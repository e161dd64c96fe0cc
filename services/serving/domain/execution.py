"""One execution, on a thread: the inputs of several requests put together, run, and taken apart again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from libs.common.clock import Clock
from libs.common.errors import Error, Exhausted, Internal
from services.serving.domain.backend import Backend
from services.serving.domain.statistics import Timing
from services.serving.domain.tensors import Array

_log = logging.getLogger("isthmus.serving.execution")


@dataclass(frozen=True, slots=True)
class Member:
    """What one request brings: arrays by name, and how many rows they have."""

    inputs: Mapping[str, Array]
    rows: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one request gets: outputs by name, or an error; and the time of the execution it was in."""

    outputs: Mapping[str, Array]
    error: Error | None
    timing: Timing


@dataclass(frozen=True, slots=True)
class Executed:
    """The members' outcomes in order, and every execution that it took: rows and time."""

    outcomes: tuple[Outcome, ...]
    runs: tuple[tuple[int, Timing], ...]


def execute(backend: Backend, members: Sequence[Member], clock: Clock) -> Executed:
    """Run the members together; when that fails, each alone, so that none pays for another. Never raises."""
    if len(members) == 1:
        return _alone(backend, members[0], clock)
    rows = sum(member.rows for member in members)
    started = clock.monotonic()
    try:
        inputs = {
            name: np.concatenate([member.inputs[name] for member in members]) for name in members[0].inputs
        }
        ready = clock.monotonic()
        outputs = backend.run(inputs)
    except (Error, MemoryError) as error:
        _log.info("a batch of %d failed, each runs alone: %s", len(members), error)
        return _each(backend, members, clock)
    except Exception:
        _log.exception("a batch of %d failed, each runs alone", len(members))
        return _each(backend, members, clock)
    done = clock.monotonic()
    if any(array.shape[:1] != (rows,) for array in outputs.values()):
        _log.warning("a model gave another number of rows than it was given; each runs alone")
        return _each(backend, members, clock)
    parts: list[Mapping[str, Array]] = []
    start = 0
    for member in members:
        parts.append({name: array[start : start + member.rows] for name, array in outputs.items()})
        start += member.rows
    timing = _timing(started, ready, done, clock.monotonic())
    return Executed(tuple(Outcome(part, None, timing) for part in parts), ((rows, timing),))


def _each(backend: Backend, members: Sequence[Member], clock: Clock) -> Executed:
    done = [_alone(backend, member, clock) for member in members]
    return Executed(
        tuple(each.outcomes[0] for each in done), tuple(run for each in done for run in each.runs)
    )


def _alone(backend: Backend, member: Member, clock: Clock) -> Executed:
    started = clock.monotonic()
    outputs: Mapping[str, Array] = {}
    error: Error | None = None
    try:
        outputs = backend.run(member.inputs)
    except Error as raised:
        error = raised
    except MemoryError:
        error = Exhausted("the model needs more memory than there is", reason="TOO_MUCH_MEMORY")
    except Exception:
        _log.exception("a model failed")
        error = Internal("the model failed; the service's log says why", reason="MODEL_FAILED")
    done = clock.monotonic()
    timing = _timing(started, started, done, done)
    return Executed((Outcome(outputs, error, timing),), ((member.rows, timing),))


def _timing(started: float, ready: float, done: float, end: float) -> Timing:
    return Timing(round((ready - started) * 1e9), round((done - ready) * 1e9), round((end - done) * 1e9))
