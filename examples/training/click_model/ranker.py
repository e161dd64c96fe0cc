"""The larger model, for the cloud: several heads of attention over four times the past; a mean of networks.

Attention from the film that is shown over the user's past, as in `network`, but by scaled dot products and
in several heads (A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017): so all films of a user are
one product of matrices. Besides the click each network learns the rating behind it, as one decision for
each number of stars.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .log import LEAST_RATING  # noqa: TID252 (the folder is also a package of its own, in a job)

STEPS = (2.0, 3.0, 4.0, 5.0)
"""The ratings that are told from those below them."""
CLICK = STEPS.index(LEAST_RATING)
_MIDDLE = 3.5
_NOWHERE = -1e9


class RankerNetwork(nn.Module):
    """From films and a user's past ratings to the logits of a rating of at least 2, 3, 4 and 5 stars.

    Args:
        features: float32 [films, columns]: what is known of each film.
        width: size of a film's vector, and of each head.
        heads: how many.
        hidden: size of the first hidden layer; the second has half of it.
        dropout: share of hidden values that training leaves out.
    """

    features: Tensor

    def __init__(
        self, features: np.ndarray, width: int = 32, heads: int = 4, hidden: int = 96, dropout: float = 0.3
    ) -> None:
        super().__init__()
        self.heads = heads
        self.register_buffer("features", torch.from_numpy(features))
        self.vectors = nn.Embedding(len(features), width)
        self.biases = nn.Embedding(len(features), 1)
        nn.init.normal_(self.vectors.weight, 0.0, 0.05)
        nn.init.zeros_(self.biases.weight)
        self.describe = nn.Linear(features.shape[1], width)
        # By half stars; 0 is no rating.
        self.stars = nn.Embedding(11, width)
        nn.init.normal_(self.stars.weight, 0.0, 0.05)
        self.query, self.key, self.value, self.taste = (nn.Linear(width, heads * width) for _ in range(4))
        # How much less a head cares for what is long ago.
        self.fading = nn.Parameter(torch.linspace(0.0, -1.0, heads))
        self.mix = nn.Sequential(
            nn.Linear(width + 2 * heads * width + 2 * heads + 4, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden // 2),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden // 2, len(STEPS)),
        )

    def embed(self, films: Tensor) -> Tensor:
        """Return the vectors of films, int64 of any shape: one axis more."""
        return self.vectors(films) + self.describe(self.features[films])

    def forward(self, item: Tensor, history: Tensor, halves: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """Return logits, float32 [batch, shown, steps].

        Args:
            item: int64 [batch, shown]: films shown to one user.
            history: int64 [batch, past]: films that the user rated, oldest first.
            halves: int64 [batch, past]: their ratings in half stars.
            start: int64 [batch, shown]: where in `history` the past of each film shown begins.
            end: int64 [batch, shown]: where it ends; at `start` where there is none.
        """
        batch, shown = item.shape
        width = self.vectors.embedding_dim
        place = torch.arange(history.shape[1])
        there = (place >= start.unsqueeze(2)) & (place < end.unsqueeze(2))
        age = (end.unsqueeze(2) - 1 - place).clamp(min=0).float()
        liking = (halves.float() / 2.0 - _MIDDLE) / 1.5
        candidate, past = self.embed(item), self.embed(history)
        rated = past + self.stars(halves)
        value = self.value(rated) + liking.unsqueeze(2) * self.taste(past)
        query, key, value = (
            each.view(batch, -1, self.heads, width).transpose(1, 2)
            for each in (self.query(candidate), self.key(rated), value)
        )
        weights = (query * (4.0 / width**0.5)) @ key.transpose(2, 3)
        weights = weights + self.fading.view(1, -1, 1, 1) * torch.log1p(age).unsqueeze(1)
        weights = weights.masked_fill(~there.unsqueeze(1), _NOWHERE)
        known = (end > start).float().unsqueeze(2)
        most = torch.exp(weights.max(dim=3).values.clamp(-5.0, 5.0)).transpose(1, 2) * (known / 10.0)
        weights = torch.softmax(weights, dim=3) * known.unsqueeze(1)
        seen = (weights @ value).transpose(1, 2)
        liked = (weights @ liking.view(batch, 1, -1, 1)).squeeze(3).transpose(1, 2)
        count = there.sum(dim=2, keepdim=True).float()
        sums = there.float() @ torch.stack([liking, (halves >= 2 * LEAST_RATING).float()], dim=2)
        summary = torch.cat([sums / (count + 1.0), torch.log1p(count) / 4.0, count / (count + 10.0)], dim=2)
        match = (candidate.unsqueeze(2) * seen).reshape(batch, shown, self.heads * width)
        mixed = [candidate, seen.reshape(batch, shown, self.heads * width), match, liked, most, summary]
        logits: Tensor = self.mix(torch.cat(mixed, dim=2)) + self.biases(item)
        return logits


class Ranker(nn.Module):
    """What serving runs: the mean of several networks' probabilities; its inputs are small on the way."""

    def __init__(self, networks: Sequence[RankerNetwork]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, item: Tensor, history: Tensor, ratings: Tensor) -> Tensor:
        """Return the probability of a click, float32 [batch].

        Args:
            item: whole numbers [batch]: films shown.
            history: whole numbers [batch, window]: films rated before, oldest first; 0 after the last.
            ratings: whole numbers [batch, window]: their ratings in half stars; 0 after the last.
        """
        item, history, halves = item.long().unsqueeze(1), history.long(), ratings.long()
        end = (halves > 0).long().sum(dim=1, keepdim=True)
        start = torch.zeros_like(end)
        found = [
            torch.sigmoid(network(item, history, halves, start, end)[:, 0, CLICK])
            for network in self.networks
        ]
        return torch.stack(found).mean(dim=0)


def half_stars(ratings: np.ndarray) -> np.ndarray:
    """Return ratings in half stars, int64 from 1 to 10, and 0 for 0."""
    return np.where(ratings > 0, np.clip(np.rint(2.0 * ratings), 1, 10), 0).astype(np.int64)
