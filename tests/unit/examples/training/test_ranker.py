"""The larger model sees each film's own past, however films are put together to compute it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.training.click_model.fit_ranker import fit_network, score_ranker
from examples.training.click_model.log import RANKER_WINDOW, Items, Shown, read_items, read_shown
from examples.training.click_model.metrics import auc
from examples.training.click_model.ranker import Ranker, RankerNetwork, half_stars

Files = tuple[Path, Path]


@pytest.fixture
def log(files: Files) -> tuple[Items, Shown]:
    items = read_items(files[1])
    return items, read_shown(files[0], items)


def networks(items: Items, count: int = 2) -> list[RankerNetwork]:
    """Return networks with the weights that they begin with."""
    torch.manual_seed(3)
    return [RankerNetwork(items.features).eval() for _ in range(count)]


def one_by_one(ranker: Ranker, shown: Shown, rows: slice) -> np.ndarray:
    """Return what serving would answer."""
    history, ratings = shown.past(rows, RANKER_WINDOW)
    inputs = (shown.item[rows], history, half_stars(ratings))
    with torch.no_grad():
        return np.asarray(ranker.eval()(*(torch.from_numpy(each) for each in inputs)).numpy())


def test_films_together_score_as_each_alone(log: tuple[Items, Shown]) -> None:
    items, shown = log
    # One user has more films than a stretch and than a window holds.
    busy = dataclasses.replace(shown, user=np.where(np.arange(len(shown)) < 700, 0, shown.user))
    order = np.argsort(busy.user, kind="stable")
    first = np.searchsorted(busy.user[order], busy.user)
    rank = np.empty(len(busy), np.int64)
    rank[order] = np.arange(len(busy))
    busy = dataclasses.replace(
        busy,
        past_items=busy.item[order],
        past_ratings=busy.rating[order],
        past_start=first,
        past_end=rank,
    )
    assert busy.past_count(slice(560, 860), RANKER_WINDOW).max() == RANKER_WINDOW
    ranker = networks(items)
    together = score_ranker(ranker, busy, 560, 860)
    assert together.std() > 0
    assert together == pytest.approx(one_by_one(Ranker(ranker), busy, slice(560, 860)), abs=1e-5)
    assert together[3:40] == pytest.approx(score_ranker(ranker, busy, 563, 600), abs=1e-5)


def test_what_is_padded_doesnt_count_and_what_is_rated_does(log: tuple[Items, Shown]) -> None:
    items, _ = log
    ranker = Ranker(networks(items)).eval()
    item = torch.tensor([3])
    history, ratings = torch.tensor([[5, 6, 0, 0]]), torch.tensor([[8, 2, 0, 0]])
    with torch.no_grad():
        given = ranker(item, history, ratings)
        assert torch.allclose(given, ranker(item, history[:, :2], ratings[:, :2]))
        assert torch.allclose(given, ranker(item, torch.tensor([[5, 6, 9, 9]]), ratings))
        assert not torch.allclose(given, ranker(item, history, torch.tensor([[2, 2, 0, 0]])))
        # A film that isn't known has a rating that counts.
        assert not torch.allclose(given, ranker(item, history, torch.tensor([[8, 2, 8, 0]])))
        nothing = ranker(item, torch.zeros_like(history), torch.zeros_like(ratings))
    assert torch.isfinite(nothing).all()


def test_it_learns_who_likes_what(log: tuple[Items, Shown]) -> None:
    items, shown = log
    said: list[str] = []
    network = fit_network(shown, items, 1200, 4, 1, said.append)
    found = score_ranker([network], shown, 1200, 1500)
    # The rule is genre by user, which only the past shows.
    assert auc(shown.clicked[1200:], found) > 0.9
    assert [line.partition(":")[0] for line in said] == [f"ranker, epoch {n} of 4" for n in range(1, 5)]


def test_ratings_become_half_stars_of_a_byte() -> None:
    given = np.array([0.0, 0.1, 0.5, 1.0, 3.4, 4.5, 5.0], np.float32)
    assert half_stars(given).tolist() == [0, 1, 1, 2, 7, 9, 10]
