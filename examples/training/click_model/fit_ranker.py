"""Trains the ranker on whole stretches of a user's films at once; the same seed gives the same weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .fit import Say  # noqa: TID252 (the folder is also a package of its own, in a job)
from .log import RANKER_WINDOW, Items, Shown  # noqa: TID252
from .ranker import CLICK, STEPS, RankerNetwork, half_stars  # noqa: TID252

_STRETCH = 64
"""Most films of one user that are learnt from together."""
_BATCH = 768
"""Films of a step, about."""
_LEARNING_RATE = 2e-3
_DECAY, _VECTOR_DECAY = 3e-4, 3e-2
_RATINGS_WEIGHT = 0.5
"""Of the loss of the other steps of a rating, beside the click's."""

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
    stretches = _stretches(shown, 0, end)
    weights = torch.full((len(STEPS),), _RATINGS_WEIGHT / (len(STEPS) - 1))
    weights[CLICK] = 1.0
    for epoch in range(epochs):
        network.train()
        total = 0.0
        batches = _shuffled(stretches, random)
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


def score_ranker(networks: Sequence[RankerNetwork], shown: Shown, start: int, end: int) -> np.ndarray:
    """Return what `Ranker` says of the examples from `start` up to `end`, float32; many times as fast."""
    found = np.zeros(end - start, np.float32)
    with torch.no_grad():
        for batch in _batches(_stretches(shown, start, end)):
            inputs, _, there = _inputs(shown, batch)
            each = [torch.sigmoid(network.eval()(*inputs)[there][:, CLICK]) for network in networks]
            found[np.concatenate(batch) - start] = torch.stack(each).mean(dim=0).numpy()
    return found


def _stretches(shown: Shown, start: int, end: int) -> Stretches:
    """Return the rows from `start` up to `end` by user, in order of time, cut into stretches."""
    rows = start + np.argsort(shown.user[start:end], kind="stable")
    cuts = np.flatnonzero(np.diff(shown.user[rows])) + 1
    return [mine[at : at + _STRETCH] for mine in np.split(rows, cuts) for at in range(0, len(mine), _STRETCH)]


def _batches(stretches: Stretches) -> list[Stretches]:
    """Return the stretches in batches, each of stretches that follow one another."""
    batches: list[Stretches] = [[]]
    longest = 0
    for stretch in stretches:
        longest = max(longest, len(stretch))
        if batches[-1] and (len(batches[-1]) + 1) * longest > _BATCH:
            batches.append([])
            longest = len(stretch)
        batches[-1].append(stretch)
    return batches


def _shuffled(stretches: Stretches, random: np.random.Generator) -> list[Stretches]:
    """Return the stretches in batches in random order, those of a batch about as long as each other."""
    length = np.array([len(each) for each in stretches]) * random.uniform(1.0, 1.3, len(stretches))
    batches = _batches([stretches[number] for number in np.argsort(length, kind="stable").tolist()])
    return [batches[number] for number in random.permutation(len(batches)).tolist()]


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
