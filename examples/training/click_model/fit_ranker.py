"""Trains the ranker on whole stretches of a user's films at once; the same seed gives the same weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from .fit import Say  # noqa: TID252 (the folder is also a package of its own, in a job)
from .log import RANKER_WINDOW, Items, Shown  # noqa: TID252
from .ranker import CLICK, STEPS, Ranker, RankerNetwork, half_stars  # noqa: TID252

_STRETCH = 64
"""Most films of one user that are learnt from together."""
_BATCH = 768
"""Films of a step, about."""
_LEARNING_RATE = 2e-3
_DECAY, _VECTOR_DECAY = 3e-4, 3e-2
_RATINGS_WEIGHT = 0.5
"""Of the loss of the other steps of a rating, beside the click's."""
_SCORED_AT_ONCE = 256

Stretches = list[np.ndarray]


def fit_network(shown: Shown, items: Items, end: int, epochs: int, seed: int, say: Say) -> RankerNetwork:
    """Train a network on the first `end` examples. The rate of learning falls to 0 over the last half."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    network = RankerNetwork(items.features)
    tables = {id(each) for each in (network.vectors.weight, network.biases.weight)}
    optimiser = torch.optim.AdamW(
        [
            {"params": [network.vectors.weight, network.biases.weight], "weight_decay": _VECTOR_DECAY},
            {"params": [each for each in network.parameters() if id(each) not in tables]},
        ],
        weight_decay=_DECAY,
    )
    stretches = _stretches(shown, end)
    weights = torch.full((len(STEPS),), _RATINGS_WEIGHT / (len(STEPS) - 1))
    weights[CLICK] = 1.0
    for epoch in range(epochs):
        network.train()
        total = 0.0
        batches = list(_batches(stretches, random))
        for number, batch in enumerate(batches):
            gone = (epoch + number / len(batches)) / epochs
            for group in optimiser.param_groups:
                group["lr"] = _LEARNING_RATE * min(1.0, 2.0 * (1.0 - gone))
            inputs, ratings, there = _inputs(shown, batch)
            wanted = (ratings.unsqueeze(1) >= torch.tensor(STEPS)).float()
            losses = nn.functional.binary_cross_entropy_with_logits(
                network(*inputs)[there], wanted, reduction="none"
            )
            loss = (losses.mean(dim=0) * weights).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(losses[:, CLICK].detach().sum())
        say(f"ranker, epoch {epoch + 1} of {epochs}: training loss {total / end:.4f}")
    return network.eval()


def score_ranker(ranker: Ranker, shown: Shown, start: int, end: int) -> np.ndarray:
    """Return the probability of a click for the examples from `start` up to `end`, float32."""
    found = []
    with torch.no_grad():
        for at in range(start, end, _SCORED_AT_ONCE):
            rows = slice(at, min(at + _SCORED_AT_ONCE, end))
            history, ratings = shown.past(rows, RANKER_WINDOW)
            inputs = (shown.item[rows], history, half_stars(ratings))
            found.append(ranker(*(torch.from_numpy(each) for each in inputs)).numpy())
    return np.concatenate(found)


def _stretches(shown: Shown, end: int) -> Stretches:
    """Return the first `end` rows by user, in order of time, cut into stretches."""
    rows = np.argsort(shown.user[:end], kind="stable")
    cuts = np.flatnonzero(np.diff(shown.user[rows])) + 1
    return [mine[at : at + _STRETCH] for mine in np.split(rows, cuts) for at in range(0, len(mine), _STRETCH)]


def _batches(stretches: Stretches, random: np.random.Generator) -> Iterator[Stretches]:
    """Yield all stretches in batches, in random order; those of a batch are about as long as each other."""
    length = np.array([len(each) for each in stretches]) * random.uniform(1.0, 1.3, len(stretches))
    order = np.argsort(length, kind="stable")
    batches: list[Stretches] = [[]]
    for number in order.tolist():
        if batches[-1] and (len(batches[-1]) + 1) * len(stretches[number]) > _BATCH:
            batches.append([])
        batches[-1].append(stretches[number])
    for number in random.permutation(len(batches)).tolist():
        yield batches[number]


def _inputs(shown: Shown, batch: Stretches) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Return the network's inputs, the ratings of what was shown, and where in the inputs that is."""
    starts = [np.maximum(shown.past_start[rows], shown.past_end[rows] - RANKER_WINDOW) for rows in batch]
    firsts = [int(each.min()) for each in starts]
    lasts = [int(shown.past_end[rows].max()) for rows in batch]
    size = (len(batch), max(len(rows) for rows in batch))
    past = (len(batch), max(1, *(last - first for first, last in zip(firsts, lasts, strict=True))))
    item, start, end = (np.zeros(size, np.int64) for _ in range(3))
    history, halves = np.zeros(past, np.int64), np.zeros(past, np.int64)
    there = np.zeros(size, bool)
    for number, rows in enumerate(batch):
        mine, all_past = slice(len(rows)), slice(firsts[number], lasts[number])
        item[number, mine] = shown.item[rows]
        start[number, mine] = starts[number] - firsts[number]
        end[number, mine] = shown.past_end[rows] - firsts[number]
        there[number, mine] = True
        history[number, : lasts[number] - firsts[number]] = shown.past_items[all_past]
        halves[number, : lasts[number] - firsts[number]] = half_stars(shown.past_ratings[all_past])
    ratings = torch.from_numpy(np.concatenate([shown.rating[rows] for rows in batch]))
    inputs = tuple(torch.from_numpy(each) for each in (item, history, halves, start, end))
    return inputs, ratings, torch.from_numpy(there)
