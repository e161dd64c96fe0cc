"""What the conformance benchmark shows: tables for terminals, and for pages."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.onnx_suite import KINDS, Outcome

_VERDICTS = ("passed", "wrong", "refused", "crashed", "hung")


def save(path: Path, peer: str, outcomes: Sequence[Outcome]) -> None:
    """Write each case's outcome to a file, for `load`."""
    content = {"peer": peer, "outcomes": [asdict(outcome) for outcome in outcomes]}
    path.write_text(json.dumps(content, indent=1))


def load(path: Path) -> tuple[str, dict[str, str]]:
    """Return who ran the suite, and each case's verdict by name; raises OSError or ValueError."""
    content = json.loads(path.read_text())
    return content["peer"], {each["name"]: each["verdict"] for each in content["outcomes"]}


def show_kinds(outcomes: Sequence[Outcome]) -> None:
    """Print how many cases of each kind ended how."""
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
    Console(width=120, highlight=False).print(table)


def show_operators(outcomes: Sequence[Outcome]) -> None:
    """Print the operators that have cases that don't pass, those with most of them first."""
    counts: dict[str, Counter[bool]] = defaultdict(Counter)
    for outcome in outcomes:
        for operator in outcome.operators:
            counts[operator][outcome.verdict == "passed"] += 1
    table = Table("OPERATORS", box=None, header_style="bold")
    for column in ("cases", "passed"):
        table.add_column(column, justify="right")
    lacking = {operator: row for operator, row in counts.items() if row[False]}
    for operator, row in sorted(lacking.items(), key=lambda item: (-item[1][False], item[0])):
        table.add_row(operator, str(row.total()), str(row[True]))
    table.add_row(f"{len(counts) - len(lacking)} others", "", "all")
    Console(width=120, highlight=False).print(table)


def show_reasons(outcomes: Sequence[Outcome]) -> None:
    """Print the most frequent reasons for which cases don't pass."""
    reasons = Counter(_kind_of_reason(outcome) for outcome in outcomes if outcome.verdict != "passed")
    if not reasons:
        return
    table = Table("WHY NOT", box=None, header_style="bold")
    table.add_column("cases", justify="right")
    for reason, count in reasons.most_common(12):
        table.add_row(reason, str(count))
    Console(width=120, highlight=False).print(table)


def _kind_of_reason(outcome: Outcome) -> str:
    """Return a reason without what is the case's own: names and numbers."""
    plain = re.sub(r"node \S+ (\([^)]*\))", r"node \1", outcome.reason)
    return f"{outcome.verdict}: " + re.sub(r"'[^']*'|\d+(\.\d+)?", "…", plain)[:90]


def failures(outcomes: Sequence[Outcome], others: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a line for each case that doesn't pass; first those that somebody else passes."""
    lines = []
    for outcome in outcomes:
        if outcome.verdict != "passed":
            passing = [peer for peer, verdicts in others.items() if verdicts.get(outcome.name) == "passed"]
            note = f" [{', '.join(passing)} passes it]" if passing else ""
            text = f"{outcome.name} ({outcome.kind}){note}: {outcome.verdict}: {outcome.reason}"
            lines.append((not passing, text))
    return [text for _, text in sorted(lines, key=lambda line: line[0])]


def markdown(
    peer: str,
    outcomes: Sequence[Outcome],
    others: Mapping[str, Mapping[str, str]],
    known: Mapping[str, str],
) -> str:
    """Return tables for a page: passes by kind, ours beside others', and what doesn't pass, and why."""
    peers = [peer, *others]
    lines = [f"| kind | cases | {' | '.join(peers)} |", f"|---|---{'|---' * len(peers)}|"]
    for kind in (*KINDS, "all"):
        of_kind = [outcome for outcome in outcomes if kind in (outcome.kind, "all")]
        counts = [sum(outcome.verdict == "passed" for outcome in of_kind)] + [
            sum(verdicts.get(outcome.name) == "passed" for outcome in of_kind) for verdicts in others.values()
        ]
        lines.append(f"| {kind} | {len(of_kind):,} | {' | '.join(f'{count:,}' for count in counts)} |")
    lines += ["", f"| not passed | {''.join(f'{other} | ' for other in others)}why |"]
    lines.append(f"|---{'|---' * len(others)}|---|")
    for outcome in outcomes:
        if outcome.verdict != "passed":
            theirs = "".join(f"{verdicts.get(outcome.name, '-')} | " for verdicts in others.values())
            reason = known.get(outcome.name, f"{outcome.verdict}: {outcome.reason}").replace("|", "\\|")
            lines.append(f"| `{outcome.name}` | {theirs}{reason} |")
    return "\n".join(lines) + "\n"
