"""How good predictions are."""

from __future__ import annotations

import numpy as np


def auc(clicked: np.ndarray, scores: np.ndarray) -> float:
    """Return the area under the ROC curve: how often a clicked example scores above one that wasn't.

    Equal scores count as half. NaN without an example of each kind.
    """
    positives = float(clicked.sum())
    negatives = len(clicked) - positives
    if not positives or not negatives:
        return float("nan")
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    return float((ranks[clicked > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def log_loss(clicked: np.ndarray, scores: np.ndarray) -> float:
    """Return the mean of -log p(what happened)."""
    right = np.where(clicked > 0, scores, 1.0 - scores)
    return float(-np.log(np.clip(right.astype(np.float64), 1e-12, 1.0)).mean())


SLATE = 10
"""Films that are ranked against each other."""


def hit_rate(user: np.ndarray, clicked: np.ndarray, scores: np.ndarray) -> float:
    """Return how often the film that scores best among those shown together was clicked, HR@1.

    What a user was shown is cut, in order, into slates of SLATE films, which are ranked like impressions of a
    log (F. Wu et al., "MIND: A Large-scale Dataset for News Recommendation", ACL 2020). Slates that can't be
    missed or can't be hit, all clicked or none, don't count, nor does a user's last one with fewer films. NaN
    without a slate. Of equal scores the one shown first is taken.
    """
    order = np.argsort(user, kind="stable")
    hits = []
    for mine in np.split(order, np.flatnonzero(np.diff(user[order])) + 1):
        for at in range(0, len(mine) - SLATE + 1, SLATE):
            slate = mine[at : at + SLATE]
            if 0 < clicked[slate].sum() < SLATE:
                hits.append(float(clicked[slate[np.argmax(scores[slate])]]))
    return float(np.mean(hits)) if hits else float("nan")
