"""Trains the network; the same seed gives the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from .log import WINDOW, Items, Shown  # noqa: TID252 (the folder is also a package of its own, in a job)
from .metrics import auc  # noqa: TID252
from .network import ClickModel, ClickNetwork  # noqa: TID252

_BATCH = 512
_SCORED_AT_ONCE = 2048
_LEARNING_RATE = 2e-3
_DECAY, _VECTOR_DECAY = 3e-4, 3e-2

Say = Callable[[str], None]


def choose_epochs(shown: Shown, items: Items, most: int, seed: int, say: Say) -> tuple[int, np.ndarray]:
    """Find out when a network trained on the training part is best on the validation part.

    Returns:
        After how many epochs, and its probabilities for the validation part, float32.
    """
    validation, test = shown.parts()
    best, chosen, scores = float("-inf"), 1, np.zeros(0, np.float32)
    for epoch, (loss, network) in enumerate(_epochs(shown, items, validation, most, seed), start=1):
        given = score(ClickModel(network), shown, validation, test)
        found = auc(shown.clicked[validation:test], given)
        say(f"epoch {epoch} of {most}: training loss {loss:.4f}, validation AUC {found:.4f}")
        if found > best or epoch == 1:
            best, chosen, scores = found, epoch, given
    return chosen, scores


def fit(shown: Shown, items: Items, end: int, epochs: int, seed: int, say: Say) -> ClickNetwork:
    """Train a network on the first `end` examples, for one epoch or more."""
    training = _epochs(shown, items, end, epochs, seed)
    loss, network = next(training)
    say(f"epoch 1 of {epochs}: training loss {loss:.4f}")
    for epoch, (loss, _) in enumerate(training, start=2):
        say(f"epoch {epoch} of {epochs}: training loss {loss:.4f}")
    return network.eval()


def score(network: nn.Module, shown: Shown, start: int, end: int) -> np.ndarray:
    """Return the network's output for the examples from `start` up to `end`, float32."""
    training = network.training
    network.eval()
    found = []
    with torch.no_grad():
        for at in range(start, end, _SCORED_AT_ONCE):
            rows = slice(at, min(at + _SCORED_AT_ONCE, end))
            found.append(network(*_inputs(shown, rows)).numpy())
    network.train(training)
    return np.concatenate(found)


def _epochs(
    shown: Shown, items: Items, end: int, epochs: int, seed: int
) -> Iterator[tuple[float, ClickNetwork]]:
    """Yield the mean loss and the network, which goes on changing, after each epoch."""
    torch.manual_seed(seed)
    order = torch.Generator().manual_seed(seed)
    network = ClickNetwork(items.features)
    tables = {id(each) for each in (network.vectors.weight, network.biases.weight)}
    optimiser = torch.optim.AdamW(
        [
            {"params": [network.vectors.weight, network.biases.weight], "weight_decay": _VECTOR_DECAY},
            {"params": [each for each in network.parameters() if id(each) not in tables]},
        ],
        lr=_LEARNING_RATE,
        weight_decay=_DECAY,
    )
    clicked = torch.from_numpy(shown.clicked)
    for _ in range(epochs):
        network.train()
        total = 0.0
        for rows in torch.randperm(end, generator=order).split(_BATCH):
            logits = network(*_inputs(shown, rows.numpy()))
            loss = nn.functional.binary_cross_entropy_with_logits(logits, clicked[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item() * len(rows)
        yield total / end, network


def _inputs(shown: Shown, rows: slice | np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    history, ratings = shown.past(rows, WINDOW)
    return torch.from_numpy(shown.item[rows]), torch.from_numpy(history), torch.from_numpy(ratings)
