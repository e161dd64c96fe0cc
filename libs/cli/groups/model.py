"""`isthmus model`: from an ONNX file to a plan, and what it is made of."""

from __future__ import annotations

import json
from pathlib import Path

import click

from isthmus.engine.v1 import engine_pb2
from libs.cli.blobs import download
from libs.cli.files import check_target
from libs.cli.local_engine import looks_like_plan
from libs.cli.main import Group
from libs.cli.model_files import (
    ANSWER_S,
    DIGEST,
    DIMENSIONS,
    bounds_message,
    data_blobs,
    model_blob,
    refusals_of,
    stub,
)
from libs.cli.model_looks import compare, explain, inspect
from libs.cli.model_operators import operators
from libs.cli.model_texts import explanation_rows
from libs.cli.output import counted, human_bytes, human_seconds
from libs.cli.session import Session, with_session
from libs.cli.tensors import INPUTS_HELP, read_inputs, tensor_to_json, tensors_from_json
from libs.common.errors import Internal, Invalid


@click.group(cls=Group)
def model() -> None:
    """Make plans of ONNX models, look at them, run them."""


for command in (inspect, explain, compare, operators):
    model.add_command(command)


def _checked(result: engine_pb2.OptimizeResult) -> str:
    count, error = result.comparison_count, result.max_error
    text = f"{counted(count, 'comparison')} with ONNX Runtime, differing by {error:.2g} at most"
    return text + (", from the cache" if result.cached else "")


@model.command()
@click.argument("file", metavar="MODEL")
@DIMENSIONS
@click.option("--out", type=click.Path(dir_okay=False), help="Write the plan to this file as well.")
@click.option("--dry-run", is_flag=True, help="Make and check it, and keep no plan.")
@with_session
def optimize(
    session: Session, file: str, bounds: tuple[tuple[str, int, int], ...], out: str | None, dry_run: bool
) -> None:
    """Make a plan of MODEL, an ONNX file or the digest of one; it is checked against ONNX Runtime.

    Files that it keeps its data in are sent along; they must lie in its folder, and links aren't followed.

    A model with an operator that can't be read, or whose plan computes something else, is refused.
    """
    if out and dry_run:
        raise click.UsageError("--dry-run keeps no plan; leave out --out")
    if out:
        check_target(Path(out), "--out")
    if not file.startswith(DIGEST) and looks_like_plan(Path(file)) and Path(file).exists():
        raise Invalid(
            f"{file}: is a plan, not an ONNX file; `isthmus model explain` and `isthmus model infer` take it "
            "as it is",
            reason="IS_PLAN",
        )
    request = engine_pb2.OptimizeRequest(
        parent=str(session.tenant),
        model=model_blob(session, file),
        dimensions=bounds_message(bounds),
        external_data=data_blobs(session, file),
        validate_only=dry_run,
    )
    result = None
    with refusals_of(file):
        for answer in session.stream(stub(session).Optimize, request, timeout_s=ANSWER_S):
            if answer.HasField("stage"):
                spent_s = answer.stage.elapsed_time.ToMicroseconds() / 1e6
                session.output.note(f"{answer.stage.name}: {answer.stage.summary} ({human_seconds(spent_s)})")
            elif answer.HasField("result"):
                result = answer.result
    if result is None:
        raise Internal("the engine ended without a result; see its log", reason="NO_RESULT")
    if out:
        download(session, result.plan, Path(out), "--out")
    size = f" ({human_bytes(result.plan.size_bytes)})" if result.plan.size_bytes else ""
    session.output.message(
        result,
        [
            ("plan", f"{result.plan.digest}{size}" + (", not kept: --dry-run" if dry_run else "")),
            *([("file", out)] if out else []),
            *explanation_rows(result.explanation),
            ("checked", _checked(result)),
        ],
        more={"file": out} if out else None,
    )


@model.command()
@click.argument("plan", metavar="PLAN")
@click.option("--inputs", required=True, help=INPUTS_HELP)
@with_session
def infer(session: Session, plan: str, inputs: str) -> None:
    """Run PLAN, a file or a digest, and print its outputs as nested lists."""
    values = read_inputs(inputs)
    blob = model_blob(session, plan)
    parent = str(session.tenant)
    with refusals_of(plan):
        described = session.call(stub(session).Explain, engine_pb2.ExplainRequest(parent=parent, plan=blob))
    request = engine_pb2.InferRequest(
        parent=parent, plan=blob, inputs=tensors_from_json(described.explanation.inputs, values)
    )
    outputs = session.call(stub(session).Infer, request).outputs
    found = {each.name: tensor_to_json(each) for each in outputs}
    session.output.values(found, *(f"{name} = {json.dumps(value)}" for name, value in found.items()))
