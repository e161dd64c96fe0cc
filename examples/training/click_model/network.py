"""The model: what the user rated before, weighted by how much it has to do with the film that is shown.

A small deep interest network (G. Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD
2018): attention from the candidate over the history. Each past rating says whether its film was liked.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

_MIDDLE = 3.5
"""A rating that says nothing."""
_NOWHERE = 1e9


class ClickNetwork(nn.Module):
    """From a film and a user's past ratings to the logit of a click.

    Args:
        features: float32 [films, columns]: what is known of each film.
        width: size of a film's vector.
        hidden: size of the hidden layers.
        dropout: share of hidden values that training leaves out.
    """

    features: Tensor

    def __init__(self, features: np.ndarray, width: int = 8, hidden: int = 32, dropout: float = 0.3) -> None:
        super().__init__()
        self.register_buffer("features", torch.from_numpy(features))
        self.vectors = nn.Embedding(len(features), width)
        self.biases = nn.Embedding(len(features), 1)
        nn.init.normal_(self.vectors.weight, 0.0, 0.05)
        nn.init.zeros_(self.biases.weight)
        self.describe = nn.Linear(features.shape[1], width)
        # One layer over [candidate, past, their product, rating], taken apart to repeat nothing.
        self.by_candidate = nn.Linear(width, hidden)
        self.by_past = nn.Linear(width, hidden, bias=False)
        self.by_both = nn.Linear(width, hidden, bias=False)
        self.by_rating = nn.Linear(1, hidden, bias=False)
        self.attend = nn.Linear(hidden, 1)
        self.mix = nn.Linear(4 * width + 4, hidden)
        self.dropout = nn.Dropout(dropout)
        self.decide = nn.Linear(hidden, 1)

    def embed(self, films: Tensor) -> Tensor:
        """Return the vectors of films, int64 of any shape: one axis more."""
        return self.vectors(films) + self.describe(self.features[films])

    def forward(self, item: Tensor, history: Tensor, ratings: Tensor) -> Tensor:
        """Return logits, float32 [batch].

        Args:
            item: int64 [batch]: films shown.
            history: int64 [batch, window]: films rated before.
            ratings: float32 [batch, window]: their ratings; 0 where there is no film.
        """
        there = (ratings > 0).float()
        liking = (ratings - _MIDDLE) * there / 1.5
        candidate, past = self.embed(item), self.embed(history)
        both = candidate.unsqueeze(1) * past
        hidden = self.by_candidate(candidate).unsqueeze(1) + self.by_past(past) + self.by_both(both)
        hidden = torch.relu(hidden + self.by_rating(liking.unsqueeze(2)))
        weights = torch.softmax(self.attend(hidden).squeeze(2) + (there - 1.0) * _NOWHERE, dim=1) * there
        interest = (weights.unsqueeze(2) * past).sum(dim=1)
        taste = ((weights * liking).unsqueeze(2) * past).sum(dim=1)
        count = there.sum(dim=1, keepdim=True)
        likes = ((ratings >= 4).float() * there).sum(dim=1, keepdim=True)
        summary = torch.cat(
            [
                liking.sum(dim=1, keepdim=True) / (count + 1.0),
                (weights * liking).sum(dim=1, keepdim=True),
                torch.log(count + 1.0) / 4.0,
                likes / (count + 1.0),
            ],
            dim=1,
        )
        mixed = torch.cat([candidate, interest, taste, candidate * taste, summary], dim=1)
        hidden = self.dropout(torch.relu(self.mix(mixed)))
        return (self.decide(hidden) + self.biases(item)).squeeze(1)


class ClickModel(nn.Module):
    """What devices run: probabilities instead of logits."""

    def __init__(self, network: ClickNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, item: Tensor, history: Tensor, ratings: Tensor) -> Tensor:
        """Return the probability of a click, float32 [batch]."""
        return torch.sigmoid(self.network(item, history, ratings))
