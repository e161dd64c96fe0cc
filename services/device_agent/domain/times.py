"""Moments that a message can carry."""

from libs.task.event import MAX_TIME_S

# An event at the edge of what a time may be can lie beyond it by the gateway's clock.
_LAST_S = MAX_TIME_S - 1.0


def bounded_time(time_s: float) -> float:
    """Return the moment nearest to `time_s` (Unix seconds) from 1970 to the end of 9999; 0 for no number."""
    if time_s != time_s:
        return 0.0
    return min(max(time_s, 0.0), _LAST_S)
