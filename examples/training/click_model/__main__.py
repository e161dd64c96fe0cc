"""`python -m click_model ratings.csv items.csv`: train, compare with the baseline, write the model."""

from __future__ import annotations

import argparse
import csv
import functools
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

from .export import export  # noqa: TID252 (the folder is also a package of its own, in a job)
from .fit import choose_epochs, fit, score  # noqa: TID252
from .ftrl import score as score_ftrl  # noqa: TID252
from .log import LEAST_RATING, WINDOW, BadLog, Shown, read_items, read_shown  # noqa: TID252
from .metrics import auc, log_loss  # noqa: TID252
from .network import ClickModel  # noqa: TID252


def main() -> int:
    """Write model.onnx, items.json, metrics.json, predictions.csv; return 1 when the input can't be used."""
    parser = argparse.ArgumentParser(prog="python -m click_model", description=__doc__)
    parser.add_argument("ratings", type=Path, help="CSV: user, item, shown_s, rated_s, rating")
    parser.add_argument("items", type=Path, help='CSV: item, year, genres (joined by "|")')
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write to (default: here)")
    parser.add_argument("--epochs", type=int, default=5, help="most epochs (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not 1 <= options.epochs <= 100:
        parser.error("--epochs: from 1 to 100")
    torch.set_num_threads(1)
    try:
        _run(options)
    except (BadLog, OSError) as error:
        sys.stderr.write(f"click_model: {error}\n")
        return 1
    return 0


def _run(options: argparse.Namespace) -> None:
    started = time.monotonic()
    say = functools.partial(print, flush=True)
    items = read_items(options.items)
    shown = read_shown(options.ratings, items)
    validation, test = shown.parts()
    say(f"{len(shown):,} films shown; {validation:,} to train on, {len(shown) - test:,} to test with")
    frozen, prequential = score_ftrl(shown, items, test)
    clicked = shown.clicked[test:]
    say(f"FTRL: test AUC {auc(clicked, frozen):.4f} frozen, {auc(clicked, prequential):.4f} prequential")
    epochs = choose_epochs(shown, items, options.epochs, options.seed, say)
    say(f"{epochs} epochs are best; training again on all that came before the test")
    network = fit(shown, items, test, epochs, options.seed, say)
    model = ClickModel(network).eval()
    scores = score(model, shown, test, len(shown))
    say(f"model: test AUC {auc(clicked, scores):.4f} frozen, of {len(clicked):,} events")
    options.out.mkdir(parents=True, exist_ok=True)
    export(network, options.out / "model.onnx")
    _write_predictions(options.out / "predictions.csv", shown, test, (scores, frozen, prequential))
    metrics = {
        "label": f"rating >= {LEAST_RATING:g}",
        "train_events": test,
        "test_events": len(clicked),
        "test_start_s": float(shown.shown_s[test]),
        "test_clicked_share": float(clicked.mean()),
        "epochs": epochs,
        "seed": options.seed,
        "model": {"auc": auc(clicked, scores), "log_loss": log_loss(clicked, scores)},
        "ftrl_frozen": {"auc": auc(clicked, frozen), "log_loss": log_loss(clicked, frozen)},
        "ftrl_prequential": {"auc": auc(clicked, prequential), "log_loss": log_loss(clicked, prequential)},
        "train_s": time.monotonic() - started,
    }
    for name, content in (
        ("items.json", {"window": WINDOW, "index": items.index}),
        ("metrics.json", metrics),
    ):
        (options.out / name).write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")
    say("model.onnx, items.json, metrics.json and predictions.csv are written")


def _write_predictions(path: Path, shown: Shown, test: int, scores: tuple[np.ndarray, ...]) -> None:
    """Write what was predicted for each film of the test part, by the model and both baselines."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["user", "item", "clicked", "model", "ftrl_frozen", "ftrl_prequential"])
        for number, (user, item) in enumerate(shown.names[test:]):
            clicked = int(shown.clicked[test + number])
            rows.writerow([user, item, clicked, *(repr(float(each[number])) for each in scores)])


if __name__ == "__main__":
    sys.exit(main())
