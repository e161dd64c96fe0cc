"""When a device asks, and how what that gains is told."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.training.click_model.cascade import Policy, choose_policy, gain
from examples.training.click_model.log import WINDOW
from examples.training.click_model.metrics import SLATE, auc, hit_rate


@given(
    st.lists(st.tuples(st.floats(0, 1, width=32), st.integers(0, 200)), min_size=1, max_size=60),
    st.floats(0.0, 1.0),
)
def test_the_band_holds_the_most_uncertain_of_those_with_past_enough(
    examples: list[tuple[float, int]], share: float
) -> None:
    scores = np.array([score for score, _ in examples], np.float32)
    past_count = np.array([count for _, count in examples])
    asked = choose_policy(scores, past_count, share).asks(scores, past_count)
    able = past_count >= WINDOW
    assert not (asked & ~able).any()
    distance = np.abs(scores.astype(np.float64) - 0.5)
    if asked.any() and (able & ~asked).any():
        assert distance[asked].max() <= distance[able & ~asked].min()
    wanted = min(round(share * len(examples)), int(able.sum()))
    ties = int((distance[asked] == distance[asked].max()).sum()) if asked.any() else 0
    assert wanted <= int(asked.sum()) <= wanted + max(ties - 1, 0)


def test_nobody_asks_where_nobody_has_past_enough() -> None:
    scores, past_count = np.full(9, 0.5), np.full(9, WINDOW - 1)
    policy = choose_policy(scores, past_count)
    assert not policy.asks(scores, np.full(9, 200)).any()


def test_the_ends_of_the_band_belong_to_it() -> None:
    policy = Policy(0.25, 0.75, 3)
    scores = np.array([0.25, 0.75, 0.2499, 0.7501, 0.5, 0.5])
    asked = policy.asks(scores, np.array([3, 3, 3, 3, 2, 3]))
    assert asked.tolist() == [True, True, False, False, False, True]
    told = policy.to_json()
    assert (told["low"], told["high"], told["least_past"], told["model"]) == (0.25, 0.75, 3, "ranker")


def test_a_gain_that_every_user_has_is_told_from_one_that_is_chance() -> None:
    random = np.random.default_rng(5)
    user = np.repeat(np.arange(40), 30)
    clicked = random.integers(0, 2, len(user)).astype(float)
    weak = clicked + random.normal(0, 2.0, len(user))
    better, other = clicked + random.normal(0, 0.5, len(user)), clicked + random.normal(0, 2.0, len(user))
    found = gain(user, clicked, better, weak, seed=1)
    assert found["auc"] == pytest.approx(auc(clicked, better) - auc(clicked, weak))
    assert 0 < found["auc_low"] < found["auc"] < found["auc_high"]
    assert found["users"] == 40
    chance = gain(user, clicked, other, weak, seed=1)
    assert chance["auc_low"] < 0 < chance["auc_high"]
    assert gain(user, clicked, weak, weak, seed=1)["auc_high"] == 0.0
    assert gain(user, clicked, better, weak, seed=1) == found


def test_an_interval_takes_users_whole() -> None:
    random = np.random.default_rng(6)
    # All of a user's films are alike: there are ten facts, however many rows.
    user = np.repeat(np.arange(10), 50)
    liked = np.repeat(np.arange(10) % 2, 50).astype(float)
    scores, baseline = np.repeat(random.normal(size=10), 50), np.repeat(random.normal(size=10), 50)
    whole = gain(user, liked, scores, baseline, seed=1)
    apart = gain(np.arange(len(user)), liked, scores, baseline, seed=1)
    assert whole["auc_high"] - whole["auc_low"] > 3 * (apart["auc_high"] - apart["auc_low"])


def test_the_hit_rate_is_of_whole_slates_that_can_be_hit_and_missed() -> None:
    user = np.array([7] * SLATE + [3] * SLATE + [7] * (2 * SLATE) + [5] * (SLATE - 1))
    clicked, scores = np.zeros(len(user)), np.linspace(0.1, 0.2, len(user))
    clicked[2], scores[2] = 1.0, 0.9  # a hit
    clicked[SLATE], scores[SLATE + 1] = 1.0, 0.9  # a miss
    clicked[2 * SLATE : 3 * SLATE] = 1.0  # can't be missed; the slate after it can't be hit
    clicked[-2], scores[-2] = 1.0, 0.9  # too short
    assert hit_rate(user, clicked, scores) == 0.5
    assert math.isnan(hit_rate(user[-9:], clicked[-9:], scores[-9:]))
    assert hit_rate(user, clicked, np.zeros(len(user))) == 0.5  # of equals the first: a miss, then a hit
