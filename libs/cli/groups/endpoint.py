"""`isthmus endpoint`: models behind endpoints of serving."""

from __future__ import annotations

import json

import click

from inference import open_inference_pb2
from isthmus.serving.v1 import model_pb2
from libs.cli import deploying
from libs.cli.endpoints import (
    check_version_name,
    find_source,
    get_model,
    inference,
    list_versions,
    metadata,
    model_name,
    model_rows,
    models,
    naming,
    platform_text,
    seconds_of,
    short_digest,
    signature,
    state_text,
    tensors_json,
    tensors_rows,
    version_rows,
)
from libs.cli.following import Patience
from libs.cli.inference import infer_request, outputs_of
from libs.cli.jobs import last_part, moment
from libs.cli.main import Group
from libs.cli.output import human_bytes, human_seconds
from libs.cli.session import Session, with_session
from libs.cli.tensors import INPUTS_HELP, read_inputs
from libs.cli.values import Duration
from libs.common.errors import Error, NotFound

_PUT_S = 900.0
_DELAY = Duration(zero=True, most="10s")
_QUEUE_TIMEOUT = Duration(most="60m")


@click.group(cls=Group)
def endpoint() -> None:
    """Models behind endpoints: deploy versions, switch between them, infer."""


@endpoint.command()
@click.argument("endpoint_id", metavar="ENDPOINT")
@click.option(
    "--max-batch-rows", type=click.IntRange(1, 4096), help="Most rows run together; 1: no batching."
)
@click.option("--max-batch-delay", type=_DELAY, help="How long a request is held back for others.")
@click.option("--instances", type=click.IntRange(1, 64), help="Instances that run side by side.")
@click.option("--threads", type=click.IntRange(1, 64), help="Threads of an instance.")
@click.option("--queue", type=click.IntRange(1, 65536), help="Requests that may wait.")
@click.option("--queue-timeout", type=_QUEUE_TIMEOUT, help="How long one may wait.")
@click.option("--keep", type=click.IntRange(1, 16), help="Versions before the live one that stay loaded.")
@click.option("--live", metavar="VERSION", default="", help="The version that takes the traffic.")
@click.option("--etag", default="", help="Only if nobody wrote since this etag was read.")
@click.option("--dry-run", is_flag=True, help="Only check it.")
@with_session
def put(
    session: Session,
    endpoint_id: str,
    max_batch_rows: int | None,
    max_batch_delay: float | None,
    instances: int | None,
    threads: int | None,
    queue: int | None,
    queue_timeout: float | None,
    keep: int | None,
    live: str,
    etag: str,
    dry_run: bool,
) -> None:
    """Make ENDPOINT, or change how it is served; what isn't given stays. No request is dropped."""
    name = model_name(session, endpoint_id)
    try:
        model = get_model(session, name)
    except NotFound:
        model = model_pb2.Model(name=name)
    config = model.config
    for field, value in (
        ("max_batch_rows", max_batch_rows),
        ("instance_count", instances),
        ("intra_op_thread_count", threads),
        ("queue_capacity", queue),
        ("kept_version_count", keep),
    ):
        if value is not None:
            setattr(config, field, value)
    if max_batch_delay is not None:
        config.max_batch_delay.FromNanoseconds(round(max_batch_delay * 1e9))
    if queue_timeout is not None:
        config.queue_timeout.FromNanoseconds(round(queue_timeout * 1e9))
    wanted = model_pb2.Model(
        name=name,
        config=config,
        live_version=check_version_name(live, "--live"),
        etag=etag or model.etag,
    )
    request = model_pb2.PutModelRequest(model=wanted, validate_only=dry_run)
    found = session.call(models(session).PutModel, request, timeout_s=_PUT_S).model
    outcome = "checked" if dry_run else "configured" if model.create_time.ToNanoseconds() else "created"
    session.output.message(found, model_rows(found), more={"outcome": outcome})


@endpoint.command()
@click.argument("endpoint_id", metavar="ENDPOINT")
@click.argument("subject", metavar="FILE|DIGEST|JOB/ARTEFACT")
@click.option("--version", default="", help="Name of the version; default: v1, v2 and so on.")
@click.option(
    "--plan", "is_plan", is_flag=True, help="It is a plan; a file called *.plan is taken for one anyway."
)
@click.option(
    "--allow-other-signature",
    is_flag=True,
    help="Also when it takes or gives other tensors than the live version, so that callers may fail.",
)
@click.option("--dry-run", is_flag=True, help="Load it once and forget it; a file is uploaded all the same.")
@with_session
def deploy(
    session: Session,
    endpoint_id: str,
    subject: str,
    version: str,
    is_plan: bool,
    allow_other_signature: bool,
    dry_run: bool,
) -> None:
    """Serve an ONNX file or a plan as ENDPOINT's next version, and wait until it has the traffic.

    The endpoint is made when it isn't there. The version before answers until the new one is loaded; one
    that can't be loaded changes nothing. A file that is served already isn't loaded again.
    """
    name = model_name(session, endpoint_id)
    version = check_version_name(version, "--version")
    patience = Patience(session)
    source = patience(lambda: find_source(session, subject, is_plan=is_plan))
    with naming(subject):
        done = deploying.deploy(
            session,
            patience,
            name,
            source,
            version,
            dry_run=dry_run,
            any_signature=allow_other_signature,
        )
    more: dict[str, object] = {"outcome": done.outcome, "previous_version": done.before}
    rows: list[tuple[str, object]] = version_rows(done.version)
    if done.outcome == "checked":
        rows.append(("checked", "it can be loaded; nothing was changed: --dry-run"))
    else:
        rows.append(("traffic", _traffic(done)))
        if not done.model.unloaded:
            tensors = patience(lambda: metadata(session, name, last_part(done.version.name)))
            rows += tensors_rows(tensors)
            more |= tensors_json(tensors)
    session.output.message(done.version, rows, more=more)


def _traffic(done: deploying.Deployed) -> str:
    if done.model.unloaded:
        return "none: the endpoint is unloaded"
    if done.outcome == "unchanged":
        return "had it before: this file was live already"
    return f"has it now; {done.before} had it before" if done.before else "has it now"


@endpoint.command("list")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@with_session
def list_(session: Session, limit: int | None) -> None:
    """List the tenant's endpoints by name."""
    request = model_pb2.ListModelsRequest(parent=str(session.tenant))
    found = [
        each for page in session.pages(models(session).ListModels, request, limit) for each in page.models
    ]
    states: dict[tuple[str, str], str] = {}
    if found and not session.output.as_json:
        asked = open_inference_pb2.RepositoryIndexRequest()
        index = session.call(inference(session).RepositoryIndex, asked).models
        states = {(each.name, each.version): each.state for each in index}
    session.output.messages(
        found,
        ("ENDPOINT", "LIVE", "STATE", "BATCH", "DELAY", "INSTANCES", "THREADS", "MADE"),
        (
            (
                last_part(each.name),
                each.live_version or "-",
                states.get((last_part(each.name), each.live_version), "-"),
                each.config.max_batch_rows,
                human_seconds(seconds_of(each.config.max_batch_delay)),
                each.config.instance_count,
                each.config.intra_op_thread_count,
                moment(each.create_time),
            )
            for each in found
        ),
    )


@endpoint.command()
@click.argument("endpoint_id", metavar="ENDPOINT")
@with_session
def get(session: Session, endpoint_id: str) -> None:
    """Show ENDPOINT: how it is served, what it takes and gives."""
    name = model_name(session, endpoint_id)
    model = get_model(session, name)
    rows, more = model_rows(model), {}
    if model.live_version and not model.unloaded:
        try:
            tensors = metadata(session, name)
        except Error as error:
            rows.append(("not loaded", error.message))
        else:
            rows += tensors_rows(tensors)
            more = tensors_json(tensors)
    session.output.message(model, rows, more=more)


@endpoint.command()
@click.argument("endpoint_id", metavar="ENDPOINT")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@with_session
def versions(session: Session, endpoint_id: str, limit: int | None) -> None:
    """List ENDPOINT's versions, newest first."""
    name = model_name(session, endpoint_id)
    live = get_model(session, name).live_version
    found = list_versions(session, name, limit)
    told = any(each.message for each in found)
    session.output.messages(
        found,
        ("VERSION", "LIVE", "STATE", "FILE", "SIZE", "DIGEST", "MADE", *(("WHY",) if told else ())),
        (
            (
                last_part(each.name),
                "live" if last_part(each.name) == live else "-",
                state_text(each),
                platform_text(each),
                human_bytes(each.blob.size_bytes),
                short_digest(each.blob.digest),
                moment(each.create_time),
                *((each.message or "-",) if told else ()),
            )
            for each in found
        ),
    )


@endpoint.command()
@click.argument("endpoint_id", metavar="[ENDPOINT]", default="")
@click.option("--version", default="", help="Of this version alone; default: all.")
@with_session
def stats(session: Session, endpoint_id: str, version: str) -> None:
    """Show what ENDPOINT, or each of them, has answered since serving started."""
    if version and not endpoint_id:
        raise click.UsageError("--version is that of an ENDPOINT")
    name = last_part(model_name(session, endpoint_id)) if endpoint_id else ""
    request = open_inference_pb2.ModelStatisticsRequest(
        name=name, version=check_version_name(version, "--version")
    )
    found = session.call(inference(session).ModelStatistics, request).model_stats
    session.output.messages(
        list(found),
        (
            "ENDPOINT",
            "VERSION",
            "ANSWERED",
            "FAILED",
            "ROWS",
            "RUNS",
            "ROWS/RUN",
            "MEAN",
            "WAITING",
        ),
        (
            (
                each.name,
                each.version,
                each.inference_stats.success.count,
                each.inference_stats.fail.count,
                each.inference_count,
                each.execution_count,
                f"{each.inference_count / each.execution_count:.1f}" if each.execution_count else "-",
                _mean(each.inference_stats.success),
                _mean(each.inference_stats.queue),
            )
            for each in found
        ),
    )


def _mean(found: open_inference_pb2.StatisticDuration) -> str:
    return human_seconds(found.ns / found.count / 1e9) if found.count else "-"


@endpoint.command()
@click.argument("endpoint_id", metavar="ENDPOINT")
@click.argument("version")
@with_session
def switch(session: Session, endpoint_id: str, version: str) -> None:
    """Give ENDPOINT's traffic to VERSION, an older one too; it is loaded before it takes it."""
    name, patience = model_name(session, endpoint_id), Patience(session)
    model = patience(lambda: get_model(session, name))
    before = signature(session, name)
    found = deploying.switch(session, patience, name, check_version_name(version, "VERSION"))
    after = signature(session, name)
    if before and after and before != after:
        session.output.remark(
            f"callers may fail, other tensors are taken or given: {after}; before: {before}"
        )
    more = {"previous_version": model.live_version}
    session.output.message(found, model_rows(found), more=more)


@endpoint.command()
@click.argument("endpoint_id", metavar="ENDPOINT")
@click.option("--version", default="", help="Remove this version alone; not the live one.")
@click.option("--etag", default="", help="Only if nobody wrote since this etag was read.")
@with_session
def delete(session: Session, endpoint_id: str, version: str, etag: str) -> None:
    """Remove ENDPOINT with its versions, once the requests in hand are answered."""
    name = model_name(session, endpoint_id)
    if version:
        if etag:
            raise click.UsageError("--etag is that of an endpoint; leave out --version")
        name = f"{name}/versions/{check_version_name(version, '--version')}"
        session.call(models(session).DeleteModelVersion, model_pb2.DeleteModelVersionRequest(name=name))
    else:
        session.call(models(session).DeleteModel, model_pb2.DeleteModelRequest(name=name, etag=etag))
    session.output.values({"deleted": name}, f"{name}: deleted")


@endpoint.command()
@click.argument("endpoint_id", metavar="ENDPOINT")
@click.option("--inputs", required=True, help=INPUTS_HELP)
@click.option("--version", default="", help="Which version answers; default: the live one.")
@with_session
def infer(session: Session, endpoint_id: str, inputs: str, version: str) -> None:
    """Ask ENDPOINT, and print its outputs as nested lists."""
    values = read_inputs(inputs)
    name = model_name(session, endpoint_id)
    version = check_version_name(version, "--version")
    described = metadata(session, name, version)
    request = infer_request(last_part(name), version, described.inputs, values)
    found = outputs_of(session.call(inference(session).ModelInfer, request))
    lines = [f"{output} = {json.dumps(value, ensure_ascii=False)}" for output, value in found.items()]
    session.output.values(found, *lines)
