"""`isthmus model`: from an ONNX file to a plan, and what it is made of."""

from __future__ import annotations

import json
from pathlib import Path

import click

from isthmus.deployer.v1 import manifest_pb2
from isthmus.engine.v1 import engine_pb2, engine_pb2_grpc
from libs.cli.blobs import download, stat, upload
from libs.cli.files import check_target
from libs.cli.main import Group
from libs.cli.onnx_files import external_files
from libs.cli.output import as_dict, human_bytes, human_seconds
from libs.cli.session import Session, with_session
from libs.cli.tensors import read_inputs, tensor_to_json, tensors_from_json, type_name
from libs.cli.values import BOUNDS
from libs.common.errors import Internal, Invalid, NotFound
from libs.runtime.workload import workload as count_kernels

_OPTIMIZE_S = 3600.0
_DIGEST = "sha256:"
_PLAN = ".plan"
_DIMENSIONS = click.option(
    "--dim",
    "bounds",
    multiple=True,
    type=BOUNDS,
    metavar="NAME=LEAST..MOST",
    help="Bounds of a dimension of the model, such as batch=1..64, or its one size; repeat.",
)


@click.group(cls=Group)
def model() -> None:
    """Make plans of ONNX models, explain them, run them."""


def _stub(session: Session) -> engine_pb2_grpc.EngineServiceStub:
    return engine_pb2_grpc.EngineServiceStub(session.channel)


def _dimensions(bounds: tuple[tuple[str, int, int], ...]) -> list[engine_pb2.DimensionBounds]:
    names = [name for name, _, _ in bounds]
    if len(set(names)) != len(names):
        raise click.UsageError("--dim: a dimension is given twice")
    return [
        engine_pb2.DimensionBounds(name=name, minimum=least, maximum=most) for name, least, most in bounds
    ]


def _blob(session: Session, subject: str) -> manifest_pb2.BlobRef:
    """Return the blob of a digest, or that of a file, uploading it.

    Raises:
        NotFound: when there is neither.
    """
    if subject.startswith(_DIGEST):
        return stat(session, subject)
    path = Path(subject)
    if not path.exists():
        raise NotFound(
            f"{subject}: there is no such file, and it is no digest ({_DIGEST}...)", reason="NO_FILE"
        )
    return upload(session, path)


def _data(session: Session, subject: str) -> dict[str, manifest_pb2.BlobRef]:
    """Upload the files that a model keeps its data in; return them by their path in its folder.

    A model that is named by its digest comes alone.

    Raises:
        Invalid: for a path that leads out of the model's folder.
        NotFound: for a file that isn't there.
    """
    if subject.startswith(_DIGEST):
        return {}
    folder = Path(subject).parent
    files = {}
    for name in external_files(Path(subject)):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or Path(name).is_absolute():
            raise Invalid(
                f"{subject}: keeps its data in {name!r}, outside of its own folder; move the file there and "
                "save the model again",
                reason="BAD_PATH",
            )
        if not path.exists():
            raise NotFound(f"{subject}: keeps its data in {name!r}, which isn't beside it", reason="NO_FILE")
        files[name] = upload(session, path)
    return files


def _shape(spec: engine_pb2.TensorSpec) -> str:
    return f"{spec.name}: {type_name(spec.type)}[{', '.join(spec.shape)}]"


def _rows(found: engine_pb2.Explanation) -> list[tuple[str, object]]:
    dimensions = [f"{each.name} from {each.minimum} to {each.maximum}" for each in found.dimensions]
    calculations = sum(step.calculations for step in found.steps)
    moved = sum(step.moved_bytes for step in found.steps)
    return [
        ("model", found.model_digest),
        ("inputs", "\n".join(map(_shape, found.inputs))),
        ("outputs", "\n".join(map(_shape, found.outputs))),
        *([("dimensions", ", ".join(dimensions))] if dimensions else []),
        *([("operators", _counts(found.operators_before))] if found.operators_before else []),
        ("steps", f"{len(found.steps)}: {_counts(found.operators_after)}"),
        ("rasters", _rasters(found)),
        ("constants", human_bytes(found.constant_bytes)),
        ("memory", f"{human_bytes(found.buffer_bytes)} of a call"),
        ("work", f"{calculations:,} calculations, {human_bytes(moved)} moved"),
    ]


def _rasters(found: engine_pb2.Explanation) -> str:
    left = f"{found.raster_count_after} left after merging"
    # A plan doesn't say what was merged when it was made.
    return f"{found.raster_count_before} written, {left}" if found.operators_before else left


def _counts(found: object) -> str:
    counts = sorted(found, key=lambda each: (-each.count, each.operator))  # type: ignore[call-overload]
    return ", ".join(f"{each.count} {each.operator}" for each in counts)


def _checked(result: engine_pb2.OptimizeResult) -> str:
    count, error = result.comparison_count, result.max_error
    text = f"{count} comparisons with ONNX Runtime, differing by {error:.2g} at most"
    return text + (", from the cache" if result.cached else "")


@model.command()
@click.argument("file", metavar="MODEL")
@_DIMENSIONS
@click.option("--out", type=click.Path(dir_okay=False), help="Write the plan to this file as well.")
@click.option("--dry-run", is_flag=True, help="Make and check it, and keep no plan.")
@with_session
def optimize(
    session: Session, file: str, bounds: tuple[tuple[str, int, int], ...], out: str | None, dry_run: bool
) -> None:
    """Make a plan of MODEL, an ONNX file or the digest of one; it is checked against ONNX Runtime.

    Files that it keeps its data in are sent along; they must lie in its folder.

    A model with an operator that can't be read, or whose plan computes something else, is refused.
    """
    if out and dry_run:
        raise click.UsageError("--dry-run keeps no plan; leave out --out")
    if out:
        check_target(Path(out), "--out")
    request = engine_pb2.OptimizeRequest(
        parent=str(session.tenant),
        model=_blob(session, file),
        dimensions=_dimensions(bounds),
        external_data=_data(session, file),
        validate_only=dry_run,
    )
    result = None
    for answer in session.stream(_stub(session).Optimize, request, timeout_s=_OPTIMIZE_S):
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
            *_rows(result.explanation),
            ("checked", _checked(result)),
        ],
        more={"file": out} if out else None,
    )


@model.command()
@click.argument("subject", metavar="MODEL|PLAN")
@click.option(
    "--plan", "is_plan", is_flag=True, help="It is a plan; a file called *.plan is taken for one anyway."
)
@click.option("--steps", is_flag=True, help="Show each step.")
@_DIMENSIONS
@with_session
def explain(
    session: Session, subject: str, is_plan: bool, steps: bool, bounds: tuple[tuple[str, int, int], ...]
) -> None:
    """Say what a model or a plan, a file or a digest, is made of: operators, steps, memory, work."""
    is_plan = is_plan or subject.endswith(_PLAN)
    if is_plan and bounds:
        raise click.UsageError("a plan has its dimensions' bounds in it; leave out --dim")
    blob = _blob(session, subject)
    request = engine_pb2.ExplainRequest(parent=str(session.tenant), dimensions=_dimensions(bounds))
    (request.plan if is_plan else request.model).CopyFrom(blob)
    if not is_plan:
        for path, data in _data(session, subject).items():
            request.external_data[path].CopyFrom(data)
    found = session.call(_stub(session).Explain, request, timeout_s=_OPTIMIZE_S).explanation
    session.output.message(found, _rows(found))
    if steps and not session.output.as_json:
        session.output.table(
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


@model.command()
@click.argument("plan", metavar="PLAN")
@click.option(
    "--inputs",
    required=True,
    help="JSON object of nested lists by input, such as '{\"x\": [[1, 2]]}', or @FILE that holds it.",
)
@with_session
def infer(session: Session, plan: str, inputs: str) -> None:
    """Run PLAN, a file or a digest, and print its outputs as nested lists."""
    values = read_inputs(inputs)
    blob = _blob(session, plan)
    parent = str(session.tenant)
    described = session.call(_stub(session).Explain, engine_pb2.ExplainRequest(parent=parent, plan=blob))
    request = engine_pb2.InferRequest(
        parent=parent, plan=blob, inputs=tensors_from_json(described.explanation.inputs, values)
    )
    outputs = session.call(_stub(session).Infer, request).outputs
    found = {each.name: tensor_to_json(each) for each in outputs}
    text = "\n".join(f"{name} = {json.dumps(value)}" for name, value in found.items())
    session.output.values(found, text)


@model.command()
@click.option(
    "--backends", type=click.IntRange(1, 1000), default=16, help="Backends to count kernels for; default 16."
)
@with_session
def operators(session: Session, backends: int) -> None:
    """List the ONNX operators that can be read, and how many kernels decomposing them saves."""
    found: list[engine_pb2.OperatorSpec] = []
    atomic: list[str] = []
    for page in session.pages(_stub(session).ListOperators, engine_pb2.ListOperatorsRequest(), 100_000):
        found += page.operators
        atomic = list(page.atomic_operators)
    work = workload(found, len(atomic), backends)
    if session.output.as_json:
        session.output.values(
            {
                "operators": [as_dict(each) for each in found],
                "atomic_operators": atomic,
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
        (f"KERNELS FOR {backends} BACKENDS", "ATOMIC", "TRANSFORM", "COMPOSITE", "IN ALL"),
        (
            (
                "each operator for each backend",
                f"{work['atomic']} × {backends}",
                f"{work['transform']} × {backends}",
                f"{work['composite']} × {backends}",
                work["before"],
            ),
            (
                "atomic operators and the raster for each backend",
                f"({work['atomic_operators']} + 1) × {backends}",
                work["transform"],
                work["composite"],
                work["after"],
            ),
        ),
    )
    session.output.say(f"\natomic operators: {', '.join(atomic)}")


def _kind(found: engine_pb2.OperatorSpec) -> str:
    return engine_pb2.OperatorSpec.Kind.Name(found.kind).removeprefix("KIND_").lower()


def workload(found: list[engine_pb2.OperatorSpec], atomic_count: int, backends: int) -> dict[str, int]:
    """Return how many kernels are written with and without decomposition.

    Without, each ONNX operator needs one for each backend. With it, only the atomic operators and the raster
    do; transform and composite operators are rewritten once for all. Static ones leave nothing behind, and
    need none. After Lv et al., "Walle: An End-to-End, General-Purpose, and Large-Scale Production System for
    Device-Cloud Collaborative Machine Learning", OSDI 2022.
    """
    kinds = [_kind(each) for each in found]
    work = count_kernels(kinds, atomic_count, backends)
    return {
        "atomic": work.atomic,
        "transform": work.transform,
        "composite": work.composite,
        "static": kinds.count("static"),
        "atomic_operators": work.atoms,
        "backends": work.backends,
        "before": work.before,
        "after": work.after,
    }
