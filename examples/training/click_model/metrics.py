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
