"""How much of ONNX the engine covers: the onnx package's whole backend suite on the decomposed path.

`python -m benchmarks.engine_conformance [--quick] [--filter REGEX] [--peer NAME] [--failures] [--json
FILE]`. Every case is read, decomposed into the closed set of operators, merged, made a plan, encoded,
decoded and run by the runtime; nothing else computes anything. What comes out is compared as the suite
says: types, shapes, tolerances. `--against` takes files that `--json` wrote of other peers.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.conformance_report import (
    failures,
    load,
    markdown,
    save,
    show_kinds,
    show_operators,
    show_reasons,
)
from benchmarks.onnx_peers import PEERS
from benchmarks.onnx_suite import Outcome, cases, expected_failures, run_all, run_inline
from libs.runtime.atomic import operator_count

MNN_ATOMS = 61
TARGET = 1950
_QUICK_BUDGET_S = 30.0
_QUICK_EVERY = 4


def main() -> int:
    """Run the benchmark and return 0."""
    options = _options()
    others = dict(load(path) for path in options.against)
    chosen = [case for case in cases() if re.search(options.filter, case.name)]
    total = len(chosen)
    if options.quick:
        chosen = chosen[::_QUICK_EVERY]
    started = time.monotonic()
    budget = _QUICK_BUDGET_S if options.quick else None
    results = (
        run_inline(chosen, options.peer)
        if options.inline
        else run_all(chosen, options.peer, options.timeout_s, budget)
    )
    outcomes: list[Outcome] = []
    with Console(width=120, highlight=False, stderr=True).status("starting") as status:
        for outcome in results:
            outcomes.append(outcome)
            status.update(f"{len(outcomes)}/{len(chosen)} {outcome.name}")
    if options.json:
        save(options.json, options.peer, outcomes)
    if options.markdown:
        sys.stdout.write(markdown(options.peer, outcomes, others, expected_failures()))
        return 0
    show_kinds(outcomes)
    show_operators(outcomes)
    show_reasons(outcomes)
    sys.stdout.write(f"{len(outcomes)} cases in {time.monotonic() - started:.0f} s\n")
    if options.quick:
        sys.stdout.write(f"a sample: {len(outcomes)} of {total} cases\n")
    if options.failures:
        sys.stdout.write("".join(line + "\n" for line in failures(outcomes, others)))
    _targets(outcomes, options.peer, complete=not options.quick and not options.filter)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_conformance", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"every {_QUICK_EVERY}th case: done within 50 s")
    parser.add_argument("--filter", default="", help="only cases whose names match this regular expression")
    parser.add_argument("--peer", choices=tuple(PEERS), default="isthmus", help="who runs the cases")
    parser.add_argument("--inline", action="store_true", help="in this process: no limits, for debugging")
    parser.add_argument("--failures", action="store_true", help="show each case that doesn't pass, and why")
    parser.add_argument("--json", type=Path, help="write each case's outcome to a file")
    parser.add_argument(
        "--against", type=Path, action="append", default=[], help="another peer's outcomes, of --json"
    )
    parser.add_argument("--markdown", action="store_true", help="print tables for a page instead")
    parser.add_argument("--timeout-s", type=float, default=30.0, help="for one case")
    return parser.parse_args()


def _targets(outcomes: Sequence[Outcome], peer: str, *, complete: bool) -> None:
    passed = sum(outcome.verdict == "passed" for outcome in outcomes)
    values = {"passed": passed, "total": len(outcomes), "atoms": operator_count()}
    if peer == "isthmus":
        table = Table("FIGURE", "MEASURED", "TARGET", "", box=None, header_style="bold")
        verdict = "met" if passed >= TARGET else "MISSED"
        table.add_row("passed", str(passed), f"≥ {TARGET}", verdict if complete else "a part of the suite")
        few = operator_count() < MNN_ATOMS
        table.add_row("operators", str(operator_count()), f"< {MNN_ATOMS}", "met" if few else "MISSED")
        Console(width=100, highlight=False).print(table)
    sys.stdout.write("RESULT " + json.dumps({"values": values}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
