"""The baseline: logistic regression with FTRL-Proximal.

H. B. McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013, algorithm 1; with the
settings that Alink takes by default, and one example a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .log import Items, Shown  # noqa: TID252 (the folder is also a package of its own, in a job)


@dataclass(frozen=True, slots=True)
class Settings:
    """How fast it learns, and how small it keeps its weights."""

    alpha: float = 0.1
    beta: float = 1.0
    l1: float = 0.1
    l2: float = 0.1


class Ftrl:
    """Weights of features that are there or aren't."""

    def __init__(self, feature_count: int, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._z = np.zeros(feature_count)
        self._n = np.zeros(feature_count)

    def weights(self, features: np.ndarray) -> np.ndarray:
        """Return the weights of features, given by index."""
        own, z = self._settings, self._z[features]
        rate = (own.beta + np.sqrt(self._n[features])) / own.alpha + own.l2
        return np.where(np.abs(z) <= own.l1, 0.0, (np.sign(z) * own.l1 - z) / rate)

    def predict(self, features: np.ndarray) -> float:
        """Return the probability of a click."""
        return float(1.0 / (1.0 + np.exp(-self.weights(features).sum())))

    def learn(self, features: np.ndarray, clicked: float) -> float:
        """Take a step on one example, and return what was predicted before it."""
        weights = self.weights(features)
        predicted = float(1.0 / (1.0 + np.exp(-weights.sum())))
        gradient = predicted - clicked
        squares = self._n[features] + gradient * gradient
        sigma = (np.sqrt(squares) - np.sqrt(self._n[features])) / self._settings.alpha
        self._z[features] += gradient - sigma * weights
        self._n[features] = squares
        return predicted


def one_hot(shown: Shown, items: Items) -> tuple[list[np.ndarray], int]:
    """Return each example's features: bias, user, film and genres; and how many there are in all."""
    users, films = int(shown.user.max()) + 1, len(items.features)
    genres = [1 + users + films + np.flatnonzero(row[:-1]) for row in items.features]
    features = [
        np.concatenate(([0, 1 + user, 1 + users + item], genres[item]))
        for user, item in zip(shown.user.tolist(), shown.item.tolist(), strict=True)
    ]
    return features, 1 + users + films + len(items.groups)


def score(shown: Shown, items: Items, test: int) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions from `test` on: frozen there, and learning on after each example."""
    features, count = one_hot(shown, items)
    model = Ftrl(count)
    for example, clicked in zip(features[:test], shown.clicked[:test].tolist(), strict=True):
        model.learn(example, clicked)
    frozen = np.array([model.predict(example) for example in features[test:]])
    # Frozen first: from here on the model changes.
    rest = zip(features[test:], shown.clicked[test:].tolist(), strict=True)
    return frozen, np.array([model.learn(example, clicked) for example, clicked in rest])
