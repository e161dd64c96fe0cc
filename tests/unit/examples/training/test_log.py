"""Windows of the past hold the past, and nothing else."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from examples.training.click_model.log import (
    RANKER_WINDOW,
    WINDOW,
    WINDOW_S,
    BadLog,
    Shown,
    check_parts,
    read_items,
    read_shown,
)

Files = tuple[Path, Path]


def past(shown: Shown, window: int = WINDOW) -> tuple[np.ndarray, np.ndarray]:
    """Return the windows of all rows."""
    return shown.past(slice(0, len(shown)), window)


def rewrite(path: Path, rows: list[tuple[str, str, float, float, float]], fill: int = 1000) -> None:
    """Write rows, and others of another user far before them so that there are enough."""
    others = [("filler", "1", float(number), float(number), 3.0) for number in range(fill)]
    lines = [",".join(str(cell) for cell in row) for row in [*others, *rows]]
    path.write_text("user,item,shown_s,rated_s,rating\n" + "\n".join(lines) + "\n", "utf-8")


def test_what_was_on_the_screen_together_isnt_in_the_past_of_each_other(files: Files) -> None:
    ratings, items = files
    start = 1e6
    rows = [
        ("u", "7", start, start + 5, 4.0),
        ("u", "8", start, start + 5, 1.0),
        ("u", "9", start + 10, start + 12, 5.0),
    ]
    rewrite(ratings, rows)
    shown = read_shown(ratings, read_items(items))
    history, given = past(shown)
    assert history[-3:, :3].tolist() == [[0, 0, 0], [0, 0, 0], [7, 8, 0]]
    assert given[-1, :3].tolist() == [4.0, 1.0, 0.0]
    assert shown.rating[-3:].tolist() == [4.0, 1.0, 5.0]
    assert shown.past_count(slice(-3, None), WINDOW).tolist() == [0, 0, 2]
    assert shown.clicked[-3:].tolist() == [1.0, 0.0, 1.0]


def test_the_future_changes_nothing_before_it(files: Files) -> None:
    ratings, items = files
    whole = read_shown(ratings, read_items(items))
    lines = ratings.read_text("utf-8").splitlines()
    cut = 1200
    changed = [line.rsplit(",", 1)[0] + ",1" for line in lines[cut + 1 :]]
    ratings.write_text("\n".join([*lines[: cut + 1], *changed]) + "\n", "utf-8")
    again = read_shown(ratings, read_items(items))
    for before, after in zip(past(whole, RANKER_WINDOW), past(again, RANKER_WINDOW), strict=True):
        assert np.array_equal(before[:cut], after[:cut])
    assert not np.array_equal(whole.clicked[cut:], again.clicked[cut:])


def test_the_window_keeps_the_latest_of_the_last_days(files: Files) -> None:
    ratings, items = files
    last = 1e7
    old = ("u", "1", last - WINDOW_S - 30, last - WINDOW_S - 1, 5.0)
    recent = [("u", "2", last - 100 + n, last - 100 + n, 3.0) for n in range(WINDOW - 2)]
    rewrite(ratings, [old, *recent, ("u", "3", last, last + 1, 4.0)])
    shown = read_shown(ratings, read_items(items))
    window = past(shown)[0][-1]
    assert np.count_nonzero(window) == WINDOW - 2
    assert set(window[: WINDOW - 2].tolist()) == {2}
    more = [("u", "4", last - 40 + n * 0.5, last - 40 + n * 0.5, 2.0) for n in range(WINDOW)]
    rewrite(ratings, [old, *recent, *more, ("u", "3", last, last + 1, 4.0)])
    shown = read_shown(ratings, read_items(items))
    latest, whole = (past(shown, size)[0][-1].tolist() for size in (WINDOW, RANKER_WINDOW))
    assert len(latest) == WINDOW
    assert latest[-1] in (2, 4)
    assert 1 not in whole
    # A longer window of the same past: what the short one has comes last, and then nothing.
    count = 2 * WINDOW - 2
    assert whole[count - WINDOW : count] == latest
    assert whole[count:] == [0] * (RANKER_WINDOW - count)
    assert shown.past_count(slice(-1, None), WINDOW).tolist() == [WINDOW]
    assert shown.past_count(slice(-1, None), RANKER_WINDOW).tolist() == [count]


def test_the_parts_are_cut_by_time(files: Files) -> None:
    shown = read_shown(files[0], read_items(files[1]))
    validation, test = shown.parts()
    assert shown.shown_s[:validation].max() < shown.shown_s[validation:test].min()
    assert shown.shown_s[validation:test].max() < shown.shown_s[test:].min()
    assert (validation, test) == (1050, 1200)


def test_an_unknown_film_is_number_0_but_its_rating_counts(files: Files) -> None:
    ratings, items = files
    rewrite(ratings, [("u", "nowhere", 1e6, 1e6, 2.0), ("u", "5", 1e6 + 9, 1e6 + 10, 4.0)])
    shown = read_shown(ratings, read_items(items))
    assert shown.item[-2:].tolist() == [0, 5]
    history, given = past(shown)
    assert history[-1, 0] == 0
    assert given[-1, :2].tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("user,item,shown_s,rating\n", "'rated_s' is missing"),
        ("user,item,shown_s,rated_s,rating\nu,1,x,2,3\n", "line 2: could not convert"),
        ("user,item,shown_s,rated_s,rating\nu,1,1,nan,3\n", "line 2: shown_s <= rated_s"),
        ("user,item,shown_s,rated_s,rating\nu,1,1,2,9\n", "line 2: shown_s <= rated_s"),
        ("user,item,shown_s,rated_s,rating\nu,1,3,2,4\n", "line 2: shown_s <= rated_s"),
        ("user,item,shown_s,rated_s,rating\nu,1\n", "line 2"),
        ("user,item,shown_s,rated_s,rating\nu,1,1,2,3\n", "at least 1,000"),
    ],
)
def test_a_broken_log_is_told_with_its_line(files: Files, text: str, what: str) -> None:
    files[0].write_text(text, "utf-8")
    with pytest.raises(BadLog, match=what):
        read_shown(files[0], read_items(files[1]))


@pytest.mark.parametrize(
    ("text", "what"),
    [("item,year\n", "'genres' is missing"), ("item,year,genres\n1,,A\n1,,B\n", "line 3: item '1'")],
)
def test_broken_films_are_told_with_their_line(files: Files, text: str, what: str) -> None:
    files[1].write_text(text, "utf-8")
    with pytest.raises(BadLog, match=what):
        read_items(files[1])


def test_a_films_number_fits_16_bits(files: Files) -> None:
    lines = ["item,year,genres", *(f"{number},," for number in range(65_536))]
    files[1].write_text("\n".join(lines) + "\n", "utf-8")
    with pytest.raises(BadLog, match="line 65537: more than 65,535 items"):
        read_items(files[1])


def test_windows_are_what_a_scan_of_the_log_gives(files: Files) -> None:
    shown = read_shown(files[0], read_items(files[1]))
    history, ratings = past(shown)
    with files[0].open(newline="") as file:
        rows = [
            (float(row["shown_s"]), row["user"], row["item"], float(row["rated_s"]), float(row["rating"]))
            for row in csv.DictReader(file)
        ]
    for number, (at, user, *_) in enumerate(rows):
        mine = [row for row in rows if row[1] == user and at - WINDOW_S < row[3] < at][-WINDOW:]
        rest = [0] * (WINDOW - len(mine))
        assert history[number].tolist() == [int(row[2]) for row in mine] + rest
        assert ratings[number].tolist() == [row[4] for row in mine] + rest


def test_each_part_has_what_was_clicked_and_what_was_not(files: Files) -> None:
    shown = read_shown(files[0], read_items(files[1]))
    check_parts(shown)
    validation, test = shown.parts()
    ends = {"training": (0, validation), "validation": (validation, test), "test": (test, len(shown))}
    for name, (start, end) in ends.items():
        for same in (0.0, 1.0):
            clicked = shown.clicked.copy()
            clicked[start:end] = same
            with pytest.raises(BadLog, match=f"the {name} part, by time, has {same * (end - start):,.0f} "):
                check_parts(dataclasses.replace(shown, clicked=clicked))
    # All at one moment: nothing is before anything.
    with pytest.raises(BadLog, match=r"the training part, by time, has 0 .* among 0"):
        check_parts(dataclasses.replace(shown, shown_s=np.ones(len(shown))))
