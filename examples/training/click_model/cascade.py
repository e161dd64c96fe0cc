"""When a device asks the ranker, and what that gains.

A device asks where it is uncertain *and* the ranker may know more: where its probability lies in a band
around one half, and the user's past fills the window of the device's model. The band alone would gain less
with the same share sent up. It is as wide as a given share of all films shown in the validation part needs
it; nothing of the test part is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .log import RANKER_WINDOW, WINDOW  # noqa: TID252 (the folder is also a package of its own, in a job)
from .metrics import auc  # noqa: TID252

MODEL = "ranker"
TIMEOUT_MS = 250
SHARE = 0.4
"""Of all films shown, those that are sent up."""
_DRAWS = 400

Metric = Callable[[np.ndarray], float]


@dataclass(frozen=True, slots=True)
class Policy:
    """When to ask."""

    low: float
    high: float
    """The band of the device's probabilities, both ends in it; none where `low` is above `high`."""
    least_past: int
    """Ratings in the user's past from which on the ranker is asked."""

    def asks(self, scores: np.ndarray, past_count: np.ndarray) -> np.ndarray:
        """Return where a device with these probabilities and pasts asks, bool of the same shape."""
        # As devices compare: an end that is no float32 must not be rounded to one.
        exact = scores.astype(np.float64)
        return (exact >= self.low) & (exact <= self.high) & (past_count >= self.least_past)

    def to_json(self) -> dict[str, object]:
        """Return what a task has to know."""
        return {
            "model": MODEL,
            "low": self.low,
            "high": self.high,
            "least_past": self.least_past,
            "window": RANKER_WINDOW,
            "timeout_ms": TIMEOUT_MS,
        }


def choose_policy(scores: np.ndarray, past_count: np.ndarray, share: float = SHARE) -> Policy:
    """Return the policy by which `share` of the examples are asked about, or all with past enough if fewer.

    Args:
        scores: the device's probabilities in the validation part.
        past_count: how many ratings each of them has in its past.
        share: of all examples.
    """
    # A full window is the least from which there can be more before it.
    known = np.sort(np.abs(scores[past_count >= WINDOW].astype(np.float64) - 0.5))
    wanted = round(share * len(scores))
    if not len(known) or not wanted:
        return Policy(1.0, 0.0, WINDOW)
    width = float(known[min(wanted, len(known)) - 1])
    return Policy(0.5 - width, 0.5 + width, WINDOW)


def gain(
    user: np.ndarray, clicked: np.ndarray, scores: np.ndarray, baseline: np.ndarray, seed: int
) -> dict[str, float]:
    """Return how much larger the AUC of `scores` is than that of `baseline`, and the 95 % interval of it.

    The interval is the percentiles' over draws of users with replacement (B. Efron and R. J. Tibshirani, "An
    Introduction to the Bootstrap", 1993): what one user rates isn't independent, so users are drawn whole.
    """
    random = np.random.default_rng(seed)
    order = np.argsort(user, kind="stable")
    mine = np.split(order, np.flatnonzero(np.diff(user[order])) + 1)
    drawn = []
    for _ in range(_DRAWS):
        rows = np.concatenate([mine[number] for number in random.integers(0, len(mine), len(mine))])
        drawn.append(auc(clicked[rows], scores[rows]) - auc(clicked[rows], baseline[rows]))
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return {
        "auc": auc(clicked, scores) - auc(clicked, baseline),
        "auc_low": float(low),
        "auc_high": float(high),
        "users": len(mine),
    }
