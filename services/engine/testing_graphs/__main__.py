"""Tries many random graphs and mutated models, and shows each that is wrong.

Wrong is a plan that does something else than its peers, an error that isn't a refusal, a crash, or a trial
that takes too long; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence

from services.engine.testing_graphs.real import real_models
from services.engine.testing_graphs.trials import MutatedModels, RandomGraphs, Trial, run_all

TIMEOUT_S = 60.0
_EVERY_S = 10.0
_NAMES = re.compile(r"\([^)]*\)|\[[^]]*\]|'[^']*'|\S*[\d_#]\S*")
"""What differs between refusals of one kind."""


def main(arguments: Sequence[str]) -> int:
    """Try models; return the exit status."""
    parser = argparse.ArgumentParser("python -m services.engine.testing_graphs", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many of each kind (default: 2000)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed (default: 0)")
    parser.add_argument("--kind", choices=("random", "mutated"), help="both by default")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    wrong = 0
    if options.kind != "mutated":
        wrong += _run("random graphs", RandomGraphs(), seeds)
    if options.kind != "random":
        wrong += _run("mutated models", MutatedModels(real_models()), seeds)
    return 1 if wrong else 0


def _run(name: str, trial: Trial, seeds: Sequence[int]) -> int:
    """Return how many are wrong, after telling of all."""
    counts, wrong = Counter[str](), 0
    start = told = time.monotonic()
    for done, outcome in enumerate(run_all(trial, seeds, TIMEOUT_S), 1):
        if outcome.is_good:
            counts[_NAMES.sub("…", outcome.text)] += 1
        else:
            wrong += 1
            print(f"\n{name}, seed {outcome.seed}: {outcome.text}\n{trial.text(outcome.seed)}", flush=True)
        if time.monotonic() - told > _EVERY_S:
            told = time.monotonic()
            print(f"{name}: {done} of {len(seeds)} in {told - start:.0f} s, {wrong} wrong", flush=True)
    print(f"\n{name}, seeds {seeds[0]} to {seeds[-1]}, {time.monotonic() - start:.0f} s")
    for text, count in [*counts.most_common(), ("wrong", wrong)]:
        print(f"{count:7} {text}")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
