"""How much of ONNX the engine covers: the onnx package's whole backend suite on the decomposed path.

`python -m benchmarks.engine_conformance [--quick] [--filter REGEX] [--peer NAME] [--failures] [--json
FILE]`. Every case is read, decomposed into the closed set of operators, merged, made a plan, encoded,
decoded and run by the runtime; nothing else computes anything. What comes out is compared as the suite
says: types, shapes, tolerances.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.onnx_suite import KINDS, PEERS, Outcome, cases, run_all
from libs.runtime.atomic import operator_count

MNN_ATOMS = 61
TARGET = 1950
_QUICK_BUDGET_S = 30.0
_QUICK_EVERY = 4
_VERDICTS = ("passed", "wrong", "refused", "crashed", "hung")


def main() -> int:
    """Run the benchmark and return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_conformance", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"every {_QUICK_EVERY}th case: done within 50 s")
    parser.add_argument("--filter", default="", help="only cases whose names match this regular expression")
    parser.add_argument("--peer", choices=tuple(PEERS), default="isthmus", help="who runs the cases")
    parser.add_argument("--failures", action="store_true", help="show each case that doesn't pass, and why")
    parser.add_argument("--json", type=Path, help="write each case's outcome to a file")
    parser.add_argument("--timeout-s", type=float, default=30.0, help="for one case")
    options = parser.parse_args()
    chosen = [case for case in cases() if re.search(options.filter, case.name)]
    total = len(chosen)
    if options.quick:
        chosen = chosen[::_QUICK_EVERY]
    started = time.monotonic()
    budget = _QUICK_BUDGET_S if options.quick else None
    console = Console(width=120, highlight=False, stderr=True)
    outcomes: list[Outcome] = []
    with console.status("starting") as status:
        for outcome in run_all(chosen, options.peer, options.timeout_s, budget):
            outcomes.append(outcome)
            status.update(f"{len(outcomes)}/{len(chosen)} {outcome.name}")
    _show(outcomes, time.monotonic() - started)
    if options.quick:
        sys.stdout.write(f"a sample: {len(outcomes)} of {total} cases\n")
    if options.failures:
        for outcome in outcomes:
            if outcome.verdict != "passed":
                sys.stdout.write(f"{outcome.name} ({outcome.kind}): {outcome.verdict}: {outcome.reason}\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    _targets(outcomes, options.peer, complete=not options.quick and not options.filter)
    return 0


def _show(outcomes: Sequence[Outcome], elapsed_s: float) -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        counts[outcome.kind][outcome.verdict] += 1
        counts["all"][outcome.verdict] += 1
    table = Table("CASES", box=None, header_style="bold")
    for column in ("of", *_VERDICTS, "share"):
        table.add_column(column, justify="right")
    for kind in (*KINDS, "all"):
        row = counts[kind]
        whole = sum(row.values())
        if whole:
            shown = [str(row[verdict] or "-") for verdict in _VERDICTS]
            table.add_row(kind, str(whole), *shown, f"{row['passed'] / whole:.1%}")
    console = Console(width=120, highlight=False)
    console.print(table)
    reasons = Counter(_kind_of_reason(outcome) for outcome in outcomes if outcome.verdict != "passed")
    if reasons:
        listed = Table("WHY NOT", box=None, header_style="bold")
        listed.add_column("cases", justify="right")
        for reason, count in reasons.most_common(12):
            listed.add_row(reason, str(count))
        console.print(listed)
    sys.stdout.write(f"{len(outcomes)} cases in {elapsed_s:.0f} s\n")


def _kind_of_reason(outcome: Outcome) -> str:
    """Return a reason without what is the case's own: names and numbers."""
    plain = re.sub(r"node \S+ (\([^)]*\))", r"node \1", outcome.reason)
    return f"{outcome.verdict}: " + re.sub(r"'[^']*'|\d+(\.\d+)?", "…", plain)[:90]


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
