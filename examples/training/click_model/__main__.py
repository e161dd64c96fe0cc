"""`python -m click_model ratings.csv items.csv`: train both models and compare them with the baseline."""

from __future__ import annotations

import argparse
import csv
import functools
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from .cascade import Policy, choose_policy, gain  # noqa: TID252 (the folder is also a package of its own, in a job)
from .export import export, export_ranker  # noqa: TID252
from .fit import Say, choose_epochs, fit, score  # noqa: TID252
from .fit_ranker import fit_network, score_ranker  # noqa: TID252
from .ftrl import score as score_ftrl  # noqa: TID252
from .log import (  # noqa: TID252
    LEAST_RATING,
    RANKER_WINDOW,
    WINDOW,
    BadLog,
    Items,
    Shown,
    check_parts,
    read_items,
    read_shown,
)
from .metrics import auc, hit_rate, log_loss  # noqa: TID252
from .network import ClickModel  # noqa: TID252
from .ranker import Ranker  # noqa: TID252

_REQUEST_BYTES = 2 + 3 * RANKER_WINDOW
"""Tensors of a request: 16 bits for each film, 8 for each rating."""


def main() -> int:
    """Write the models, their metrics and the policy; return 1 when the input can't be used."""
    parser = argparse.ArgumentParser(prog="python -m click_model", description=__doc__)
    parser.add_argument("ratings", type=Path, help="CSV: user, item, shown_s, rated_s, rating")
    parser.add_argument("items", type=Path, help='CSV: item, year, genres (joined by "|")')
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write to (default: here)")
    parser.add_argument("--epochs", type=int, default=5, help="most epochs (default %(default)s)")
    parser.add_argument(
        "--ranker-epochs", type=int, default=5, help="epochs of the ranker's networks (default %(default)s)"
    )
    parser.add_argument(
        "--ranker-networks", type=int, default=2, help="how many the ranker averages (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name, most in (("epochs", 100), ("ranker_epochs", 100), ("ranker_networks", 16)):
        if not 1 <= getattr(options, name) <= most:
            parser.error(f"--{name.replace('_', '-')}: from 1 to {most}")
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
    check_parts(shown)
    validation, test = shown.parts()
    say(f"{len(shown):,} films shown; {validation:,} to train on, {len(shown) - test:,} to test with")
    frozen, prequential = score_ftrl(shown, items, test)
    clicked = shown.clicked[test:]
    say(f"FTRL: test AUC {auc(clicked, frozen):.4f} frozen, {auc(clicked, prequential):.4f} learning on")
    epochs, device_scores = choose_epochs(shown, items, options.epochs, options.seed, say)
    policy = _policy(shown, items, device_scores, options, say)
    best = "1 epoch is" if epochs == 1 else f"{epochs} epochs are"
    say(f"{best} best; training again on all that came before the test")
    network = fit(shown, items, test, epochs, options.seed, say)
    networks = [
        fit_network(shown, items, test, options.ranker_epochs, options.seed + number, say)
        for number in range(options.ranker_networks)
    ]
    device = score(ClickModel(network), shown, test, len(shown))
    cloud = score_ranker(networks, shown, test, len(shown))
    asked = policy.asks(device, shown.past_count(slice(test, None), RANKER_WINDOW))
    scores = {
        "model": device,
        "ranker": cloud,
        "cascade": np.where(asked, cloud, device),
        "ftrl_frozen": frozen,
        "ftrl_prequential": prequential,
    }
    user = shown.user[test:]
    gained = gain(user, clicked, scores["cascade"], device, options.seed)
    say(
        f"test AUC {auc(clicked, device):.4f} on the device, {auc(clicked, cloud):.4f} in the cloud, "
        f"{auc(clicked, scores['cascade']):.4f} together with {asked.mean():.0%} sent up"
    )
    say(
        f"together: {gained['auc']:+.4f} of AUC, "
        f"95 % from {gained['auc_low']:+.4f} to {gained['auc_high']:+.4f}"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    export(network, options.out / "model.onnx")
    export_ranker(Ranker(networks), options.out / "ranker.onnx")
    _write_predictions(options.out / "predictions.csv", shown, test, {**scores, "asked": asked.astype(float)})
    metrics = {
        "label": f"rating >= {LEAST_RATING:g}",
        "train_events": test,
        "test_events": len(clicked),
        "test_start_s": float(shown.shown_s[test]),
        "test_clicked_share": float(clicked.mean()),
        "epochs": epochs,
        "ranker_epochs": options.ranker_epochs,
        "ranker_networks": options.ranker_networks,
        "seed": options.seed,
        **{
            name: {
                "auc": auc(clicked, each),
                "log_loss": log_loss(clicked, each),
                "hit_rate": _number(hit_rate(user, clicked, each)),
            }
            for name, each in scores.items()
        },
        "cascade_sent_share": float(asked.mean()),
        "cascade_request_bytes": _REQUEST_BYTES,
        "cascade_gain": gained,
        "ranker_gain": gain(user, clicked, cloud, device, options.seed),
        "train_s": time.monotonic() - started,
    }
    for name, content in (
        ("items.json", {"window": WINDOW, "index": items.index}),
        ("cascade.json", policy.to_json()),
        ("metrics.json", metrics),
    ):
        (options.out / name).write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")
    say("model.onnx, ranker.onnx, items.json, cascade.json, metrics.json and predictions.csv are written")


def _policy(
    shown: Shown, items: Items, device_scores: np.ndarray, options: argparse.Namespace, say: Say
) -> Policy:
    """Choose the policy by the validation part, and say what it would have gained there.

    One network stands in for the ranker, so what is said is rather too little.
    """
    validation, test = shown.parts()
    past_count = shown.past_count(slice(validation, test), RANKER_WINDOW)
    policy = choose_policy(device_scores, past_count)
    network = fit_network(shown, items, validation, options.ranker_epochs, options.seed, say)
    cloud = score_ranker([network], shown, validation, test)
    asked = policy.asks(device_scores, past_count)
    both = np.where(asked, cloud, device_scores)
    device_auc, cloud_auc, both_auc = (
        auc(shown.clicked[validation:test], each) for each in (device_scores, cloud, both)
    )
    say(
        f"asks between {policy.low:.3f} and {policy.high:.3f} from {policy.least_past} ratings on: "
        f"{asked.mean():.0%} of the validation part; AUC {device_auc:.4f} on the device, "
        f"{cloud_auc:.4f} in the cloud, {both_auc:.4f} together"
    )
    return policy


def _number(value: float) -> float | None:
    """Return a value for JSON, which has no NaN."""
    return value if np.isfinite(value) else None


def _write_predictions(path: Path, shown: Shown, test: int, scores: Mapping[str, np.ndarray]) -> None:
    """Write what was predicted for each film of the test part, and whether the cascade would have asked."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["user", "item", "clicked", *scores])
        for number, (user, item) in enumerate(shown.names[test:]):
            clicked = int(shown.clicked[test + number])
            rows.writerow([user, item, clicked, *(repr(float(each[number])) for each in scores.values())])


if __name__ == "__main__":
    sys.exit(main())
