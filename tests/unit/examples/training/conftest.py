"""A small log for the click model's tests."""

import random
from pathlib import Path

import pytest

FILMS, USERS, ROWS = 40, 12, 1500


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The files of ratings and films."""
    return write_log(tmp_path)


def write_log(folder: Path) -> tuple[Path, Path]:
    """Write ratings that follow genre and user; return their file and the films'."""
    random_ = random.Random(7)
    ratings, items = folder / "ratings.csv", folder / "items.csv"
    genre = {film: ("Drama", "War")[film % 2] for film in range(1, FILMS + 1)}
    items.write_text(
        "item,year,genres\n" + "".join(f"{film},19{50 + film},{genre[film]}\n" for film in genre), "utf-8"
    )
    lines = ["user,item,shown_s,rated_s,rating"]
    for number in range(ROWS):
        user, film = random_.randrange(USERS), random_.randint(1, FILMS)
        liked = genre[film] == ("Drama", "War")[user % 2]
        shown = 1000.0 * number
        lines.append(f"u{user},{film},{shown},{shown + 20},{random_.choice((4, 5) if liked else (1, 2, 3))}")
    ratings.write_text("\n".join(lines) + "\n", "utf-8")
    return ratings, items
