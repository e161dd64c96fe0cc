"""Reads shown films with their ratings, and gives each one's window of the user's past."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WINDOW = 50
"""Past ratings that the device's model sees."""
RANKER_WINDOW = 200
"""Past ratings that the ranker in the cloud sees."""
WINDOW_S = 30 * 86400.0
LEAST_RATING = 4.0
"""A rating from here on counts as a click."""
TRAINING_SHARE, VALIDATION_SHARE = 0.7, 0.1
"""By time: the part to train on, then the one to choose settings by; the rest is the test."""
MAX_ITEMS = 65_535
"""So that a film's index fits 16 bits on its way to the cloud."""

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
    """Films that were shown, oldest first, each with the user's ratings from strictly before it was shown.

    A user's past is a slice of `past_items` and `past_ratings`, where each user's ratings lie together in the
    order they were given.
    """

    names: list[tuple[str, str]]
    """User and film as the file names them."""
    user: np.ndarray
    """int64 [n]: number of the user."""
    item: np.ndarray
    """int64 [n]: index of the film."""
    rating: np.ndarray
    """float32 [n]: what it was rated."""
    clicked: np.ndarray
    """float32 [n]: 1 where the rating is at least LEAST_RATING."""
    shown_s: np.ndarray
    """float64 [n]: when, in Unix seconds."""
    past_items: np.ndarray
    """int64 [n]: films by user and time of rating."""
    past_ratings: np.ndarray
    """float32 [n]: their ratings."""
    past_start: np.ndarray
    """int64 [n]: where the past of what was shown begins, WINDOW_S before it, in the two above."""
    past_end: np.ndarray
    """int64 [n]: where it ends."""

    def __len__(self) -> int:
        return len(self.item)

    def parts(self) -> tuple[int, int]:
        """Return where validation and test begin. What is shown at one moment stays in one part."""
        validation = int(len(self) * TRAINING_SHARE)
        test = int(len(self) * (TRAINING_SHARE + VALIDATION_SHARE))
        return self._start(validation), self._start(test)

    def past(self, rows: slice | np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the latest `window` films rated before each of the rows, and their ratings.

        Both are [rows, window], int64 and float32, oldest first, with 0 after the last.
        """
        end = self.past_end[rows, None]
        at = np.maximum(self.past_start[rows, None], end - window) + np.arange(window)
        there = at < end
        at = np.where(there, at, 0)
        return np.where(there, self.past_items[at], 0), np.where(there, self.past_ratings[at], np.float32(0))

    def past_count(self, rows: slice | np.ndarray, window: int) -> np.ndarray:
        """Return how many films each of the rows has in its window, int64 [rows]."""
        return np.minimum(self.past_end[rows] - self.past_start[rows], window)

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
        if len(index) == MAX_ITEMS:
            raise BadLog(f"{path.name}, line {line}: more than {MAX_ITEMS:,} items")
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
            shown, when, rating = float(row["shown_s"]), float(row["rated_s"]), float(row["rating"])
        except ValueError as error:
            raise BadLog(f"{path.name}, line {line}: {error}") from None
        if not (np.isfinite([shown, when]).all() and 0 < rating <= 5 and shown <= when):
            raise BadLog(f"{path.name}, line {line}: shown_s <= rated_s and 0 < rating <= 5 must hold")
        rows.append((shown, row["user"], row["item"], when, rating))
    if len(rows) < 1000:
        raise BadLog(f"{path.name}: {len(rows)} rows; training takes at least 1,000")
    rows.sort()
    users: dict[str, int] = {}
    user = np.array([users.setdefault(row[1], len(users)) for row in rows], np.int64)
    item = np.array([items.index.get(row[2], 0) for row in rows], np.int64)
    shown_s, rated_s = (np.array([row[column] for row in rows]) for column in (0, 3))
    rated = np.array([row[4] for row in rows], np.float32)
    # Films that were rated at one moment come in the order of their names, as on a device.
    by_name = np.array(sorted(range(len(rows)), key=lambda n: rows[n][2]))
    order = by_name[np.lexsort((rated_s[by_name], user[by_name]))]
    start, end = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    first = 0
    # Both sorts bring the same user's rows together: once by when they were rated, once by when shown.
    for mine in np.split(np.argsort(user, kind="stable"), np.cumsum(np.bincount(user))[:-1]):
        times = rated_s[order[first : first + len(mine)]]
        start[mine] = first + np.searchsorted(times, shown_s[mine] - WINDOW_S, side="right")
        end[mine] = first + np.searchsorted(times, shown_s[mine], side="left")
        first += len(mine)
    return Shown(
        names=[(row[1], row[2]) for row in rows],
        user=user,
        item=item,
        rating=rated,
        clicked=(rated >= LEAST_RATING).astype(np.float32),
        shown_s=shown_s,
        past_items=item[order],
        past_ratings=rated[order],
        past_start=np.minimum(start, end),
        past_end=end,
    )


def check_parts(shown: Shown) -> None:
    """Make sure that there is something to learn, to choose by and to test with.

    Raises:
        BadLog: when one of the parts hasn't both films that were clicked and films that weren't.
    """
    validation, test = shown.parts()
    parts = {"training": (0, validation), "validation": (validation, test), "test": (test, len(shown))}
    for name, (start, end) in parts.items():
        clicks = int(shown.clicked[start:end].sum())
        if not 0 < clicks < end - start:
            raise BadLog(
                f"the {name} part, by time, has {clicks:,} ratings of {LEAST_RATING:g} and more among "
                f"{end - start:,}: it takes both these and lower ones; give a log that is longer"
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
