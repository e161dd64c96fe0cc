"""How many events the store keeps.

Two kinds of bounds. Age is soft: an event goes when it is older than the retention *and* than what any
trigger or window in use looks back to. Count and bytes are hard: a device has only so much disk, so they cut
whatever the windows would like, and the cut is reported.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The bounds."""

    max_count: int
    max_bytes: int
    max_age_s: float


@dataclass(frozen=True, slots=True)
class Cut:
    """What to delete: processed events received before a time, and beyond that the oldest few."""

    before_s: float
    excess_count: int
    excess_bytes: int


def decide_cut(
    policy: RetentionPolicy, *, count: int, size_bytes: int, horizon_s: float, now_s: float
) -> Cut:
    """Decide what goes from a store of `count` events and `size_bytes` bytes at `now_s` (Unix seconds)."""
    return Cut(
        before_s=now_s - max(policy.max_age_s, horizon_s),
        excess_count=max(0, count - policy.max_count),
        excess_bytes=max(0, size_bytes - policy.max_bytes),
    )
