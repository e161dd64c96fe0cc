"""`python -m examples.demo.files FOLDER`: MovieLens-100K as files, to go through the demo's steps by hand.

Written are `ratings.csv` and `items.csv` to train with, and events as JSON Lines of users whom training
doesn't see: `recorded.jsonl`, the beginnings of some histories, to try versions over; and one device's, in
the order in which it is fed, `before.jsonl`, `morning.jsonl`, `noon.jsonl` and `evening.jsonl`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from deploy.local.layout import cache_folder
from examples.demo.click import recorded
from examples.demo.data import Log, deal
from examples.demo.movielens import MovieLens, movielens
from examples.demo.releases import write_events
from examples.training.click_model.log import read_items, read_shown
from libs.common.errors import Error, Invalid

_PARTS = {"before": 0.64, "morning": 0.76, "noon": 0.88, "evening": 1.0}
"""Where each part of a device's events ends."""
_LEAST_FILMS = 90
_USERS = 3
"""Of the device: active ones, so that their histories are long enough to be asked about."""


def main() -> int:
    """Write the files; return 1 when the data can't be had."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo.files", description=__doc__)
    parser.add_argument("folder", type=Path, help="where to write; made when it isn't there")
    parser.add_argument("--users", type=int, default=0, help="take so many users (default: all)")
    options = parser.parse_args()
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        for line in write(movielens(cache_folder(os.environ)).of(options.users), options.folder):
            sys.stdout.write(line + "\n")
    except (Error, OSError) as error:
        sys.stderr.write(f"files: {error}\n")
        return 1
    return 0


def write(data: MovieLens, folder: Path) -> list[str]:
    """Write the files, and return a line about each.

    Raises:
        Invalid: when too few users came after what is trained on.
    """
    ratings, films = data.write(folder)
    count = sum(len(rated) for rated in data.ratings.values())
    said = [
        f"{ratings}: {count:,} ratings of {len(data.ratings):,} users",
        f"{films}: {len(data.films):,} films",
    ]
    shown = read_shown(ratings, read_items(films))
    _, test = shown.parts()
    late = data.log(float(shown.shown_s[test]))
    # Three events for each film.
    active = {user: events for user, events in late.users.items() if len(events) >= 3 * _LEAST_FILMS}
    if len(active) < _USERS:
        raise Invalid(f"--users: only {len(active)} of them came late and rated much; take more")
    users = list(active)[:_USERS]
    (hand,) = deal(Log(late.title, {user: active[user] for user in users}), 1, 10**9)
    parts, start = {"recorded": recorded(late)}, 0
    for name, share in _PARTS.items():
        end = round(share * len(hand))
        parts[name] = hand[start:end]
        start = end
    for name, events in parts.items():
        path = folder / f"{name}.jsonl"
        write_events(path, events)
        entered = sum(event.type == "page_enter" for event in events)
        said.append(f"{path}: {len(events):,} events, {entered:,} films on the screen")
    return said


if __name__ == "__main__":
    sys.exit(main())
