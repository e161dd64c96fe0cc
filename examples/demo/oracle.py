"""The genre profile computed again from the raw events, by other code than the devices ran."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from libs.task.event import Event

_WINDOW_S = 30 * 86400.0
_WINDOW_EVENTS = 200


def expected_profiles(events: Iterable[Event]) -> dict[str, tuple[int, dict[str, float]]]:
    """Return, by the id of each rating's event, (ratings in the window, shares by genre) as of it."""
    seen: dict[str, list[Event]] = defaultdict(list)
    expected: dict[str, tuple[int, dict[str, float]]] = {}
    for event in events:
        if event.type != "rate":
            continue
        history = seen[event.user]
        history.append(event)
        window = [old for old in history if event.time_s - _WINDOW_S < old.time_s <= event.time_s]
        # The window keeps the latest; equal times are ordered by event id.
        window = sorted(window, key=lambda old: (old.time_s, old.event_id))[-_WINDOW_EVENTS:]
        counts: Counter[str] = Counter()
        sums: defaultdict[str, float] = defaultdict(float)
        for old in window:
            genres = old.fields["genres"]
            assert isinstance(genres, list)
            for genre in genres:
                counts[genre] += 1
                sums[genre] += float(str(old.fields["rating"]))
        weights = {genre: counts[genre] * (sums[genre] / counts[genre]) / 5.0 for genre in counts}
        total = sum(weights.values()) or 1.0
        expected[event.event_id] = (
            len(window),
            {genre: weight / total for genre, weight in weights.items()},
        )
    return expected


def agrees(value: dict[str, object], expected: tuple[int, dict[str, float]]) -> bool:
    """Tell whether a device's result is the expected one, within the rounding that the task does."""
    ratings, shares = expected
    profile = value["profile"]
    return (
        value["ratings"] == ratings
        and isinstance(profile, dict)
        and profile.keys() == shares.keys()
        and all(abs(float(profile[genre]) - share) < 5e-4 for genre, share in shares.items())
    )
