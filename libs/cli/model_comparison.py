"""Two explanations side by side, and how their outputs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.engine.v1 import engine_pb2
from libs.cli.model_texts import figure_rows, operator_counts, shape_text, sizes_text
from libs.cli.output import Output, as_dict


def comparison_values(
    left: engine_pb2.Explanation,
    right: engine_pb2.Explanation,
    outcome: Mapping[str, Any] | None,
    tolerance: float,
) -> dict[str, Any]:
    """Return what is said of two sides, as JSON has it.

    "agrees" is whether outputs are within the tolerance; None where nothing was run, or numbers are random.
    """
    ratios = {
        row.label: row.after / other.after if other.after else None
        for row, other in zip(figure_rows(right), figure_rows(left), strict=True)
    }
    agrees = None
    if outcome is not None and not outcome["is_random"]:
        agrees = all(_is_within(each["largest"], tolerance) for each in outcome["differences"])
    return {
        "same_inputs": [as_dict(each) for each in left.inputs] == [as_dict(each) for each in right.inputs],
        "same_outputs": [as_dict(each) for each in left.outputs] == [as_dict(each) for each in right.outputs],
        "left": _side(left),
        "right": _side(right),
        "ratios": ratios,
        "outcome": outcome,
        "tolerance": tolerance,
        "agrees": agrees,
    }


def _is_within(largest: float | None, tolerance: float) -> bool:
    return largest is not None and largest <= tolerance


def _side(found: engine_pb2.Explanation) -> dict[str, Any]:
    return {
        "model_digest": found.model_digest,
        "inputs": [as_dict(each) for each in found.inputs],
        "outputs": [as_dict(each) for each in found.outputs],
        "onnx_operators": {each.operator: each.count for each in found.operators_before},
        "figures": as_dict(found.after) | {"constant_bytes": found.constant_bytes},
        "sizes": dict(found.sizes),
    }


def show_comparison(
    output: Output,
    names: tuple[str, str],
    sides: Sequence[engine_pb2.Explanation],
    values: Mapping[str, Any],
) -> None:
    """Print two sides as tables."""
    left, right = sides
    rows: list[tuple[str, object]] = [("A", names[0]), ("B", names[1])]
    for what in ("inputs", "outputs"):
        if values[f"same_{what}"]:
            rows.append((what, "the same: " + ", ".join(map(shape_text, getattr(left, what)))))
        else:
            rows += [
                (f"{what} of {side}", tuple(map(shape_text, getattr(found, what))))
                for side, found in zip("AB", sides, strict=True)
            ]
    for side, found in zip("AB", sides, strict=True):
        rows.append((f"figures of {side} at", sizes_text(found)))
    output.rows(rows)
    output.say("")
    output.table(
        ("", "A", "B", "B / A"),
        (
            (first.label, first.after_text, second.after_text, _ratio(first.after, second.after))
            for first, second in zip(figure_rows(left), figure_rows(right), strict=True)
        ),
    )
    output.say("")
    counts = [operator_counts(found.after) for found in sides]
    output.table(
        ("OPERATOR", "A", "B", "B / A"),
        (
            (name, one, other, _ratio(one, other))
            for name in sorted({*counts[0], *counts[1]})
            for one, other in [(counts[0].get(name, 0), counts[1].get(name, 0))]
        ),
    )
    if values["outcome"] is not None:
        output.say("")
        _show_outcome(output, values)


def _show_outcome(output: Output, values: Mapping[str, Any]) -> None:
    output.table(
        ("OUTPUT", "IS", "LARGEST DIFFERENCE"),
        (
            (each["output"], each["text"], "differs" if each["largest"] is None else f"{each['largest']:.2g}")
            for each in values["outcome"]["differences"]
        ),
    )
    tolerance = values["tolerance"]
    if values["agrees"] is None:
        output.say("one of them draws random numbers: outputs that differ say nothing")
    elif values["agrees"]:
        output.say(f"outputs agree within {tolerance:g}")
    else:
        output.say(f"outputs differ by more than {tolerance:g}")


def _ratio(first: int, second: int) -> str:
    return f"{second / first:.2f}" if first else "-"
