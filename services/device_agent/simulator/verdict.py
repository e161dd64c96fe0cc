"""From what the runs came to, to a verdict. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from libs.common.names import shown
from services.device_agent.running import Made
from services.device_agent.simulator.recording import Recording
from services.device_agent.trial import Outcome, Tally

NOTHING_TRIGGERED = "NOTHING_TRIGGERED"
TIMEOUT = "SIMULATION_TIMEOUT"
TOO_MUCH_WRITTEN = "SCRATCH_FULL"
MAX_MESSAGE = 1000
"""Characters of a verdict's message."""
_MAX_REASON = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a version did. Times are wall-clock seconds of a run; 0 without runs."""

    passed: bool
    reason: str = ""
    message: str = ""
    event_count: int = 0
    run_count: int = 0
    failure_count: int = 0
    frame_count: int = 0
    frame_bytes: int = 0
    refused_frame_count: int = 0
    asked_count: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Return the JSON object that `verdict_from_json` reads back."""
        return asdict(self)


def verdict_from_json(value: Mapping[str, object]) -> Verdict:
    """Read what a simulation's process said; raise ValueError for anything else."""
    fields = Verdict.__dataclass_fields__
    if set(value) != set(fields):
        raise ValueError(f"other fields than a verdict's: {sorted(value)}")
    for name, each in value.items():
        default = fields[name].default
        wanted = bool if name == "passed" else type(default)
        if type(each) is not wanted and not (wanted is float and type(each) is int):
            raise ValueError(f"{name} is a {type(each).__name__}")
        if isinstance(each, int | float) and not 0 <= each < 1 << 63:
            raise ValueError(f"{name} is {each}")
    return Verdict(**value)  # type: ignore[arg-type]


def failed(reason: str, message: str, event_count: int = 0, tally: Tally | None = None) -> Verdict:
    """Return a verdict against a version, with the figures of what ran."""
    figures = _figures(tally) if tally is not None else {}
    return Verdict(
        passed=False,
        reason=reason[:_MAX_REASON],
        message=_cut(message),
        event_count=event_count,
        **figures,  # type: ignore[arg-type]
    )


def judge(outcome: Outcome, recording: Recording | None) -> Verdict:
    """Return the verdict on a version that was run over its events.

    Args:
        outcome: of the trial.
        recording: what it was run over; None when it was only loaded.
    """
    tally = outcome.tally
    if tally.first_failure is not None:
        made = tally.first_failure
        return failed(
            made.finished.failure_reason,
            f"{_where(made, recording)}: {made.finished.failure_message}",
            outcome.event_count,
            tally,
        )
    if recording is not None and not tally.runs:
        return failed(
            NOTHING_TRIGGERED,
            f"none of {outcome.event_count:,} events completed the trigger; record events that do",
            outcome.event_count,
            tally,
        )
    return Verdict(passed=True, event_count=outcome.event_count, **_figures(tally))  # type: ignore[arg-type]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all don't exceed (nearest rank); 0 for none."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _where(made: Made, recording: Recording | None) -> str:
    event = made.run.events[-1]
    line = recording.line_of(event, made.run.last_seq) if recording is not None else None
    place = f"line {line} of the events" if line is not None else "an event"
    return f"{place} ({shown(event.type)} of user {shown(event.user)} at {event.time_s:.3f})"


def _figures(tally: Tally) -> dict[str, int | float]:
    return {
        "run_count": tally.runs,
        "failure_count": tally.failures,
        "frame_count": tally.frames,
        "frame_bytes": tally.frame_bytes,
        "refused_frame_count": tally.refused,
        "asked_count": tally.asked,
        "p50_s": percentile(tally.walls_s, 0.5),
        "p99_s": percentile(tally.walls_s, 0.99),
    }


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
