"""`isthmus model inspect`, `explain` and `compare`: what files hold, what becomes of them, how two differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from google.protobuf.json_format import ParseDict

from isthmus.engine.v1 import engine_pb2
from libs.cli.files import check_target, put_at
from libs.cli.local_engine import PLAN_SUFFIX, ask_engine, looks_like_plan
from libs.cli.model_comparison import comparison_values, show_comparison
from libs.cli.model_files import (
    ANSWER_S,
    DIGEST,
    DIMENSIONS,
    SIZES,
    Bounds,
    bounds_message,
    check_bounds,
    check_sizes,
    data_blobs,
    model_blob,
    refusals_of,
    stub,
)
from libs.cli.model_pictures import explanation_svg, inspection_svg
from libs.cli.model_texts import (
    became,
    control_nodes,
    explanation_rows,
    figure_rows,
    group_label,
    is_constant,
)
from libs.cli.output import Output, counted, human_bytes
from libs.cli.session import Session, Settings
from libs.cli.tensors import type_name
from libs.cli.values import Number

Sizes = tuple[tuple[str, int], ...]
_SVG = click.option(
    "--svg", type=click.Path(dir_okay=False), metavar="FILE", help="Draw it to this file as well."
)
_PLAN = click.option(
    "--plan", "is_plan", is_flag=True, help="It is a plan; a file called *.plan is taken for one anyway."
)
_MOST_SHOWN = 40
"""Reasons, and nodes with graphs in them, that people see."""
_MOST_NAMED = 3
"""Nodes that a reason is given for."""


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@_PLAN
@DIMENSIONS
@SIZES
@_SVG
@click.pass_obj
def inspect(
    settings: Settings, file: str, is_plan: bool, bounds: Bounds, sizes: Sizes, svg: str | None
) -> None:
    """Say what is in FILE, an ONNX model or a plan, and all that keeps it from being read.

    Nothing is sent anywhere; the engine must be installed here.
    """
    is_plan = is_plan or looks_like_plan(Path(file))
    _check_plan_flags(is_plan, bounds)
    if svg:
        check_target(Path(svg), "--svg")
    output = settings.output
    found = ask_engine(_job("inspect", file, is_plan, bounds, sizes))
    if is_plan:
        explanation = _explanation(found["explanation"])
        if svg:
            _write_svg(svg, explanation_svg(explanation, Path(file).name))
        _show(output, explanation, svg)
        return
    inspection = found["inspection"]
    if svg:
        _write_svg(svg, inspection_svg(inspection, Path(file).name))
    _show_inspection(output, inspection, svg)


@click.command()
@click.argument("subject", metavar="MODEL|PLAN")
@_PLAN
@click.option("--steps", is_flag=True, help="Show each step.")
@click.option("--nodes", is_flag=True, help="Show what became of each ONNX node.")
@click.option("--local", "is_local", is_flag=True, help="Ask the engine installed here, and no service.")
@DIMENSIONS
@SIZES
@_SVG
@click.pass_obj
def explain(
    settings: Settings,
    subject: str,
    is_plan: bool,
    steps: bool,
    nodes: bool,
    is_local: bool,
    bounds: Bounds,
    sizes: Sizes,
    svg: str | None,
) -> None:
    """Say what a model or a plan, a file or a digest, is made of: operators, steps, memory, work.

    Of a model, what it takes is shown as decomposed and as merged.
    """
    is_plan = is_plan or subject.endswith(PLAN_SUFFIX)
    if is_local:
        if subject.startswith(DIGEST):
            raise click.UsageError("--local explains files; a digest is the service's")
        is_plan = is_plan or looks_like_plan(Path(subject))
    _check_plan_flags(is_plan, bounds)
    if svg:
        check_target(Path(svg), "--svg")
    if is_local:
        found = _explanation(ask_engine(_job("explain", subject, is_plan, bounds, sizes))["explanation"])
    else:
        with settings.session() as session:
            found = _asked(session, subject, is_plan, bounds, sizes)
    if svg:
        _write_svg(svg, explanation_svg(found, Path(subject).name))
    _show(settings.output, found, svg)
    if nodes and not settings.output.as_json:
        settings.output.say("")
        _show_nodes(settings.output, found)
    if steps and not settings.output.as_json:
        settings.output.say("")
        _show_steps(settings.output, found)


@click.command()
@click.argument("left", metavar="A", type=click.Path(dir_okay=False))
@click.argument("right", metavar="B", type=click.Path(dir_okay=False))
@click.option("--run", "is_run", is_flag=True, help="Run both on the same random inputs.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, help="Of the inputs; default 0.")
@click.option(
    "--tolerance",
    type=Number(min=0),
    default=1e-4,
    help="Largest difference of --run, relative to max(1, |b|), that is no fault; default 1e-4.",
)
@DIMENSIONS
@SIZES
@click.pass_obj
def compare(
    settings: Settings,
    left: str,
    right: str,
    is_run: bool,
    seed: int,
    tolerance: float,
    bounds: Bounds,
    sizes: Sizes,
) -> None:
    """Show two files, A and B, side by side: ONNX models, plans, or one of each.

    With --run models run in ONNX Runtime and plans in the runtime; the command exits with 1 when outputs
    differ by more than --tolerance. Nothing is sent anywhere.
    """
    job = {
        "command": "compare",
        "left": {"file": left, "is_plan": looks_like_plan(Path(left))},
        "right": {"file": right, "is_plan": looks_like_plan(Path(right))},
        "dimensions": check_bounds(bounds),
        "sizes": check_sizes(sizes),
        "run": is_run,
        "seed": seed,
    }
    found = ask_engine(job)
    sides = [_explanation(found[side]) for side in ("left", "right")]
    values = comparison_values(sides[0], sides[1], found["outcome"], tolerance)
    if settings.output.as_json:
        settings.output.values(values, "")
    else:
        show_comparison(settings.output, (left, right), sides, values)
    if values["agrees"] is False:
        raise click.exceptions.Exit(1)


# ---- asking ----
def _check_plan_flags(is_plan: bool, bounds: Bounds) -> None:
    if is_plan and bounds:
        raise click.UsageError("a plan has its dimensions' bounds in it; leave out --dim")


def _job(command: str, file: str, is_plan: bool, bounds: Bounds, sizes: Sizes) -> dict[str, Any]:
    return {
        "command": command,
        "file": file,
        "is_plan": is_plan,
        "dimensions": check_bounds(bounds),
        "sizes": check_sizes(sizes),
    }


def _explanation(found: dict[str, Any]) -> engine_pb2.Explanation:
    return ParseDict(found, engine_pb2.Explanation())


def _asked(
    session: Session, subject: str, is_plan: bool, bounds: Bounds, sizes: Sizes
) -> engine_pb2.Explanation:
    request = engine_pb2.ExplainRequest(
        parent=str(session.tenant), dimensions=bounds_message(bounds), sizes=check_sizes(sizes)
    )
    (request.plan if is_plan else request.model).CopyFrom(model_blob(session, subject))
    if not is_plan:
        for path, data in data_blobs(session, subject).items():
            request.external_data[path].CopyFrom(data)
    with refusals_of(subject):
        return session.call(stub(session).Explain, request, timeout_s=ANSWER_S).explanation


# ---- showing ----
def _write_svg(path: str, picture: str) -> None:
    with put_at(Path(path), "--svg", mode=0o644) as file:
        file.write(picture.encode())


def _show(output: Output, found: engine_pb2.Explanation, svg: str | None) -> None:
    rows = [*explanation_rows(found), *([("drawn to", svg)] if svg else [])]
    output.message(found, rows, more={"svg": svg} if svg else None)
    figures = figure_rows(found)
    if output.as_json or not figures or not found.HasField("before"):
        return
    output.say("")
    output.table(
        ("", "DECOMPOSED", "MERGED", "RATIO"),
        ((row.label, row.before_text, row.after_text, _ratio(row.before, row.after)) for row in figures),
    )


def _ratio(before: int | None, after: int) -> str:
    return f"{after / before:.2f}" if before else "-"


def _show_nodes(output: Output, found: engine_pb2.Explanation) -> None:
    control = control_nodes(found.groups)
    shown = [node for node in found.nodes if not is_constant(node)]
    output.table(
        ("NODE", "OPERATOR", "AS DECOMPOSED", "BECAME"),
        (
            (node.name, node.operator, node.written_count or "-", became(node, found.steps, control))
            for node in shown
        ),
    )
    if len(shown) < len(found.nodes):
        hidden = len(found.nodes) - len(shown)
        output.say(f"{counted(hidden, 'constant')} {'isn' if hidden == 1 else 'aren'}'t shown")
    total = sum(each.count for each in found.operators_before)
    if total > len(found.nodes):
        output.say(f"… and {total - len(found.nodes):,} more")


def _show_steps(output: Output, found: engine_pb2.Explanation) -> None:
    if len(found.groups) > 1:
        output.table(
            ("GROUP", "STEPS", "REGIONS", "CALCULATIONS", "MOVES", "MEMORY"),
            (
                (
                    "  " * depth + group_label(group),
                    group.step_count,
                    group.figures.region_count or "-",
                    f"{group.figures.calculations:,}",
                    human_bytes(group.figures.moved_bytes),
                    human_bytes(group.figures.planned_bytes),
                )
                for group, depth in _nested(found.groups)
            ),
        )
        output.say("")
    output.table(
        ("STEP", "OPERATOR", "WRITES", "REGIONS", "CALCULATIONS", "MOVES", "FROM"),
        (
            (
                each.index,
                each.operator,
                f"{type_name(each.output.type)}[{', '.join(each.output.shape)}]",
                each.region_count or "-",
                f"{each.calculations:,}",
                human_bytes(each.moved_bytes),
                each.origin,
            )
            for each in found.steps
        ),
    )


def _nested(groups: Sequence[engine_pb2.GroupSpec]) -> Iterable[tuple[engine_pb2.GroupSpec, int]]:
    """Yield groups with how deep they are."""
    depths: list[int] = []
    for group in groups:
        depths.append(depths[group.parent] + 1 if group.HasField("parent") else 0)
        yield group, depths[-1]


def _show_inspection(output: Output, found: Mapping[str, Any], svg: str | None) -> None:
    values = {key: value for key, value in found.items() if key != "nodes"}
    values |= {"node_count": sum(found["operators"].values())} | ({"svg": svg} if svg else {})
    if output.as_json:
        output.values(values, "")
        return
    output.rows(_inspection_rows(found, svg))
    if found["control"]:
        output.say("")
        output.table(
            ("CONTROL FLOW", "OPERATOR", "GRAPHS"),
            (
                (
                    each["node"] or "-",
                    each["operator"],
                    ", ".join(f"{name} ({counted(count, 'node')})" for name, count in each["bodies"].items()),
                )
                for each in found["control"][:_MOST_SHOWN]
            ),
        )
        _say_more(output, len(found["control"]))
    output.say("")
    if not found["faults"]:
        output.say("nothing keeps the engine from reading it")
        return
    reasons = _by_reason(found["faults"])
    output.table(
        ("CAN'T BE READ", "OPERATOR", "WHY"),
        (
            (
                _nodes(faults),
                _some(list(dict.fromkeys(fault["operator"] or "-" for fault in faults))),
                reason,
            )
            for reason, faults in list(reasons.items())[:_MOST_SHOWN]
        ),
    )
    _say_more(output, len(reasons))
    if not found["complete"]:
        output.say("there may be more behind these")


def _by_reason(faults: Sequence[Mapping[str, str]]) -> Mapping[str, Sequence[Mapping[str, str]]]:
    found: dict[str, list[Mapping[str, str]]] = {}
    for fault in faults:
        found.setdefault(fault["reason"], []).append(fault)
    return found


def _nodes(faults: Sequence[Mapping[str, str]]) -> str:
    names = [fault["node"] or "the model" for fault in faults]
    return names[0] if len(names) == 1 else f"{len(names):,} nodes: {_some(names)}"


def _some(names: Sequence[str]) -> str:
    """Return the first few of many names."""
    return ", ".join([*names[:_MOST_NAMED], *(["…"] if len(names) > _MOST_NAMED else [])])


def _say_more(output: Output, count: int) -> None:
    if count > _MOST_SHOWN:
        output.say(f"… and {count - _MOST_SHOWN:,} more; --json has them")


def _inspection_rows(found: Mapping[str, Any], svg: str | None) -> list[tuple[str, object]]:
    counts = sorted(found["operators"].items(), key=lambda pair: (-pair[1], pair[0]))
    held = ", ".join(f"{count:,} {name}" for name, count in found["parameters"].items())
    functions = found["functions"]
    return [
        ("format", f"ONNX, IR version {found['ir_version']}"),
        *([("made by", found["producer"])] if found["producer"] else []),
        ("opsets", ", ".join(f"{domain} {version}" for domain, version in found["opsets"].items())),
        ("inputs", tuple(map(_declared_text, found["inputs"]))),
        ("outputs", tuple(map(_declared_text, found["outputs"]))),
        ("nodes", f"{sum(found['operators'].values()):,}: " + ", ".join(f"{n} {name}" for name, n in counts)),
        *([("functions", functions)] if functions else []),
        ("parameters", f"{human_bytes(found['parameter_bytes'])}" + (f": {held}" if held else "")),
        *([("data in", tuple(found["external_files"]))] if found["external_files"] else []),
        *([("graphs in graphs", f"{found['deepest']} deep")] if found["deepest"] else []),
        *([("drawn to", svg)] if svg else []),
    ]


def _declared_text(declared: Mapping[str, Any]) -> str:
    shape = "..." if declared["shape"] is None else ", ".join(declared["shape"])
    return f"{declared['name']}: {declared['type']}[{shape}]"
