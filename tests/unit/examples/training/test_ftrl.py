"""The baseline against the algorithm as it is printed, and what it learns."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from examples.training.click_model.ftrl import Ftrl, Settings, one_hot, score
from examples.training.click_model.log import read_items, read_shown
from examples.training.click_model.metrics import auc, log_loss


def test_a_first_step_is_the_papers() -> None:
    model = Ftrl(3, Settings(alpha=0.5, beta=1.0, l1=0.1, l2=0.2))
    assert model.learn(np.array([0, 2]), 1.0) == 0.5  # no weights yet
    # g = -0.5, sigma = |g| / alpha = 1, z = g - sigma * 0 = -0.5, n = 0.25; w as in algorithm 1.
    expected = -(-0.5 + 0.1) / ((1.0 + 0.5) / 0.5 + 0.2)
    assert model.weights(np.array([0, 1, 2])).tolist() == pytest.approx([expected, 0.0, expected])
    predicted = 1 / (1 + math.exp(-2 * expected))
    assert model.predict(np.array([0, 2])) == pytest.approx(predicted)
    # The second: g = p - 1, sigma = (sqrt(n + g²) - sqrt(n)) / alpha, z += g - sigma * w.
    model.learn(np.array([0, 2]), 1.0)
    sigma = (math.sqrt(0.25 + (predicted - 1) ** 2) - 0.5) / 0.5
    z = -0.5 + predicted - 1 - sigma * expected
    assert abs(z) > 0.1
    wanted = -(z - math.copysign(0.1, z)) / ((1 + math.sqrt(0.25 + (predicted - 1) ** 2)) / 0.5 + 0.2)
    assert model.weights(np.array([0]))[0] == pytest.approx(wanted)


def test_small_weights_are_exactly_zero() -> None:
    model = Ftrl(1, Settings(l1=1.0))
    model.learn(np.array([0]), 1.0)
    assert model.weights(np.array([0]))[0] == 0.0


def test_it_learns_on_when_asked_and_not_when_frozen(files: tuple[Path, Path]) -> None:
    items = read_items(files[1])
    shown = read_shown(files[0], items)
    # Films of even numbers are liked, but nobody knows in the beginning.
    liked = (shown.item % 2 == 0).astype(np.float32)
    shown = dataclasses.replace(shown, clicked=np.where(np.arange(len(shown)) < 300, 1 - liked, liked))
    frozen, prequential = score(shown, items, 300)
    clicked = shown.clicked[300:]
    assert len(frozen) == len(prequential) == len(shown) - 300
    assert frozen[0] == prequential[0]  # nothing of the test is known yet
    assert auc(clicked, prequential) > auc(clicked, frozen)
    assert log_loss(clicked, prequential) < log_loss(clicked, frozen)


def test_features_dont_collide(files: tuple[Path, Path]) -> None:
    items = read_items(files[1])
    shown = read_shown(files[0], items)
    features, count = one_hot(shown, items)
    assert max(example.max() for example in features) == count - 1
    for number in range(50):
        same = [n for n, user in enumerate(shown.user) if user == shown.user[number]]
        assert {features[n][1] for n in same} == {features[number][1]}
    assert len({example[1] for example in features} & {example[2] for example in features}) == 0


def test_auc_is_how_often_a_click_scores_higher() -> None:
    random = np.random.default_rng(3)
    for _ in range(20):
        clicked = random.integers(0, 2, 40).astype(float)
        scores = random.integers(0, 8, 40) / 8.0
        pairs = [
            1.0 if a > b else 0.5 if a == b else 0.0
            for a in scores[clicked == 1]
            for b in scores[clicked == 0]
        ]
        assert auc(clicked, scores) == pytest.approx(np.mean(pairs))
    assert math.isnan(auc(np.ones(3), np.ones(3)))
