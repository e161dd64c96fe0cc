"""`isthmus model operators`: what can be read, and the kernels that taking it apart saves."""

from __future__ import annotations

from collections.abc import Sequence

import click

from isthmus.engine.v1 import engine_pb2
from libs.cli.model_files import stub
from libs.cli.output import as_dict
from libs.cli.session import Session, with_session
from libs.runtime.workload import HEADINGS, Workload, workload_cells, workload_table
from libs.runtime.workload import workload as count_kernels


@click.command()
@click.option(
    "--backends", type=click.IntRange(1, 1000), default=16, help="Backends to count kernels for; default 16."
)
@click.option(
    "--workload", "is_workload", is_flag=True, help="Show the kernels that decomposing saves, and no list."
)
@with_session
def operators(session: Session, backends: int, is_workload: bool) -> None:
    """List the ONNX operators that can be read, and how many kernels decomposing them saves."""
    found: list[engine_pb2.OperatorSpec] = []
    atomic: list[str] = []
    host: list[str] = []
    for page in session.pages(stub(session).ListOperators, engine_pb2.ListOperatorsRequest(), 100_000):
        found += page.operators
        atomic, host = list(page.atomic_operators), list(page.host_operators)
    if is_workload:
        _show_workload(session, found, len(atomic), len(host))
        return
    work = workload(found, len(atomic), len(host), backends)
    if session.output.as_json:
        session.output.values(
            {
                "operators": [as_dict(each) for each in found],
                "atomic_operators": atomic,
                "host_operators": host,
                "workload": work,
            },
            "",
        )
        return
    session.output.table(
        ("OPERATOR", "KIND", "SINCE OPSET", "FAMILY"),
        ((each.name, _kind(each), each.since_opset, each.family) for each in found),
    )
    session.output.say("")
    session.output.table(
        (f"KERNELS FOR {backends} BACKENDS", "ATOMIC", "TRANSFORM", "COMPOSITE", "CONTROL", "IN ALL"),
        (
            (
                "each operator for each backend",
                f"{work['atomic']} × {backends}",
                f"{work['transform']} × {backends}",
                f"{work['composite']} × {backends}",
                work["control"],
                work["before"],
            ),
            (
                "atomic operators and the raster for each backend",
                f"({work['atomic_operators']} + 1) × {backends}",
                work["transform"],
                work["composite"],
                f"{work['control']} + {work['host_operators']}",
                work["after"],
            ),
        ),
    )
    session.output.say("", f"atomic operators: {', '.join(atomic)}")
    if host:
        session.output.say(f"host operators: {', '.join(host)}")


def _show_workload(
    session: Session, found: Sequence[engine_pb2.OperatorSpec], atomic_count: int, host_count: int
) -> None:
    rows = workload_table([_kind(each) for each in found], atomic_count, host_count)
    if session.output.as_json:
        session.output.values({"workloads": [{"name": name} | _counts(work) for name, work in rows]}, "")
        return
    session.output.table(
        [heading.upper() for heading in HEADINGS], (workload_cells(name, work) for name, work in rows)
    )


def _kind(found: engine_pb2.OperatorSpec) -> str:
    return engine_pb2.OperatorSpec.Kind.Name(found.kind).removeprefix("KIND_").lower()


def workload(
    found: Sequence[engine_pb2.OperatorSpec], atomic_count: int, host_count: int, backends: int
) -> dict[str, int]:
    """Return how many kernels are written with and without decomposition; see `libs.runtime.workload`."""
    kinds = [_kind(each) for each in found]
    counts = _counts(count_kernels(kinds, atomic_count, host_count, backends))
    return counts | {"static": kinds.count("static")}


def _counts(work: Workload) -> dict[str, int]:
    return {
        "atomic": work.atomic,
        "transform": work.transform,
        "composite": work.composite,
        "control": work.control,
        "atomic_operators": work.atoms,
        "host_operators": work.host,
        "backends": work.backends,
        "before": work.before,
        "after": work.after,
    }
