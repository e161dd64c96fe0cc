"""Reads shown films with their ratings, and makes each one's window of the user's past."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WINDOW = 50
"""Past ratings that the model sees."""
WINDOW_S = 30 * 86400.0
LEAST_RATING = 4.0
"""A rating from here on counts as a click."""
TRAINING_SHARE, VALIDATION_SHARE = 0.7, 0.1
"""By time: the part to train on, then the one to choose settings by; the rest is the test."""

_COLUMNS = {"user", "item", "shown_s", "rated_s", "rating"}


class BadLog(Exception):
    """A file isn't what it should be; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Items:
    """Films by index. Index 0 is every film that isn't known."""

    index: dict[str, int]
    groups: list[str]
    """Names of the columns of `features` but the last, which is the year."""
    features: np.ndarray
    """float32 [films + 1, groups + 1]: 1 where a film is of a genre; decades since 1990 last."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Films that were shown, oldest first, each with the user's ratings from strictly before it was shown."""

    names: list[tuple[str, str]]
    """User and film as the file names them."""
    user: np.ndarray
    """int64 [n]: number of the user."""
    item: np.ndarray
    """int64 [n]: index of the film."""
    history: np.ndarray
    """int64 [n, WINDOW]: films rated before, oldest first; 0 after the last."""
    ratings: np.ndarray
    """float32 [n, WINDOW]: their ratings; 0 after the last."""
    clicked: np.ndarray
    """float32 [n]: 1 where the rating is at least LEAST_RATING."""
    shown_s: np.ndarray
    """float64 [n]: when, in Unix seconds."""

    def __len__(self) -> int:
        return len(self.item)

    def parts(self) -> tuple[int, int]:
        """Return where validation and test begin. What is shown at one moment stays in one part."""
        validation = int(len(self) * TRAINING_SHARE)
        test = int(len(self) * (TRAINING_SHARE + VALIDATION_SHARE))
        return self._start(validation), self._start(test)

    def _start(self, position: int) -> int:
        return int(np.searchsorted(self.shown_s, self.shown_s[position], side="left"))


def read_items(path: Path) -> Items:
    """Read a CSV of the columns item, year (may be empty) and genres (joined by "|").

    Raises:
        BadLog: naming the line.
    """
    index: dict[str, int] = {}
    rows: list[tuple[float, list[str]]] = []
    for line, row in _rows(path, {"item", "year", "genres"}):
        if not row["item"] or row["item"] in index:
            raise BadLog(f"{path.name}, line {line}: item {row['item']!r} is empty or there twice")
        index[row["item"]] = len(index) + 1
        year = float(row["year"]) if row["year"].isdecimal() else 1990.0
        rows.append(((year - 1990.0) / 10.0, [genre for genre in row["genres"].split("|") if genre]))
    groups = sorted({genre for _, genres in rows for genre in genres})
    features = np.zeros((len(rows) + 1, len(groups) + 1), np.float32)
    for number, (decades, genres) in enumerate(rows, start=1):
        features[number, [groups.index(genre) for genre in genres]] = 1.0
        features[number, -1] = decades
    return Items(index, groups, features)


def read_shown(path: Path, items: Items) -> Shown:
    """Read a CSV of the columns user, item, shown_s, rated_s and rating.

    A rating is in the past of what is shown after it, never of its own screen.

    Raises:
        BadLog: naming the line.
    """
    rows = []
    for line, row in _rows(path, _COLUMNS):
        try:
            shown, rated, rating = float(row["shown_s"]), float(row["rated_s"]), float(row["rating"])
        except ValueError as error:
            raise BadLog(f"{path.name}, line {line}: {error}") from None
        if not (np.isfinite([shown, rated]).all() and 0 < rating <= 5 and shown <= rated):
            raise BadLog(f"{path.name}, line {line}: shown_s <= rated_s and 0 < rating <= 5 must hold")
        rows.append((shown, row["user"], row["item"], rated, rating))
    if len(rows) < 1000:
        raise BadLog(f"{path.name}: {len(rows)} rows; training takes at least 1,000")
    rows.sort()
    history = np.zeros((len(rows), WINDOW), np.int64)
    ratings = np.zeros((len(rows), WINDOW), np.float32)
    past: defaultdict[str, list[tuple[float, str, float]]] = defaultdict(list)
    waiting: defaultdict[str, list[tuple[float, str, float]]] = defaultdict(list)
    users: dict[str, int] = {}
    for number, (shown, user, item, rated, rating) in enumerate(rows):
        users.setdefault(user, len(users))
        past[user] += sorted(each for each in waiting[user] if each[0] < shown)
        waiting[user] = [each for each in waiting[user] if each[0] >= shown]
        window = [each for each in past[user][-WINDOW:] if each[0] > shown - WINDOW_S]
        history[number, : len(window)] = [items.index.get(name, 0) for _, name, _ in window]
        ratings[number, : len(window)] = [given for _, _, given in window]
        waiting[user].append((rated, item, rating))
    return Shown(
        names=[(row[1], row[2]) for row in rows],
        user=np.array([users[row[1]] for row in rows], np.int64),
        item=np.array([items.index.get(row[2], 0) for row in rows], np.int64),
        history=history,
        ratings=ratings,
        clicked=np.array([row[4] >= LEAST_RATING for row in rows], np.float32),
        shown_s=np.array([row[0] for row in rows]),
    )


def _rows(path: Path, columns: set[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row with the number of its line."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = columns - set(reader.fieldnames or ())
        if missing:
            raise BadLog(f"{path.name}, line 1: the column {sorted(missing)[0]!r} is missing")
        for line, row in enumerate(reader, start=2):
            if None in row or None in row.values():
                raise BadLog(f"{path.name}, line {line}: more or fewer cells than columns")
            yield line, row
