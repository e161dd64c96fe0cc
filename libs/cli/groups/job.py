"""`isthmus job`: work on nodes."""

from __future__ import annotations

import codecs
import os
import uuid
from pathlib import Path

import click

from isthmus.scheduler.v1 import object_pb2, scheduler_pb2
from libs.cli.blobs import download, upload
from libs.cli.files import check_target
from libs.cli.following import resuming
from libs.cli.jobs import (
    STATES,
    after,
    await_start,
    follow_job,
    job_name,
    kept_artefact,
    last_part,
    moment,
    reason_text,
    resources_text,
    show_job,
    state_of,
    stub,
    took,
    warn_if_stuck,
    why,
    why_briefly,
)
from libs.cli.main import Group
from libs.cli.objects import Object, read_job
from libs.cli.output import human_bytes
from libs.cli.session import Session, with_session
from libs.cli.values import CPUS, DURATION, SIZE, parse_attributes
from libs.common.errors import Precondition


@click.group(cls=Group)
def job() -> None:
    """Work on nodes: submit it, watch it, fetch what it made."""


@job.command(context_settings={"allow_interspersed_args": False})
@click.option("--id", "job_id", default="", help="Name of the job; default: chosen.")
@click.option("-f", "--file", "file", type=click.Path(dir_okay=False, allow_dash=True), help="A Job as YAML.")
@click.option("--queue", help="Queue to wait in; default: default.")
@click.option("--workers", type=click.IntRange(1, 1024), help="Workers that start together; default 1.")
@click.option("--cpus", type=CPUS, help="Cores of each worker, such as 2 or 0.5; default 0.5.")
@click.option("--memory", type=SIZE, help="Memory of each worker, such as 1GiB; default 512MiB.")
@click.option("--gpus", type=click.IntRange(0, 2**31 - 1), help="GPUs of each worker; default 0.")
@click.option("--priority", type=click.IntRange(-1000, 1000), help="More goes first in the queue; default 0.")
@click.option("--env", "environment", multiple=True, metavar="KEY=VALUE", help="A variable; repeat.")
@click.option(
    "--file-in",
    "files",
    multiple=True,
    metavar="PATH=LOCAL",
    help="Put the file LOCAL at PATH in its folder; repeat.",
)
@click.option(
    "--artefact",
    "artefacts",
    multiple=True,
    metavar="ID=PATH",
    help="Keep its file PATH when it succeeds; repeat.",
)
@click.option(
    "--label", "labels", multiple=True, metavar="KEY=VALUE", help="For people and selectors; repeat."
)
@click.option("--deadline", type=DURATION, help="Longest time over all attempts; default 1h.")
@click.option(
    "--retries", type=click.IntRange(0, 100), help="How often a failed attempt is repeated; default 0."
)
@click.option("--grace", type=DURATION, help="Time between SIGTERM and SIGKILL; default 10s.")
@click.option("--dry-run", is_flag=True, help="Only check it; files are uploaded all the same.")
@click.option(
    "--watch", "follow", is_flag=True, help="Stay and show its progress; exit 1 unless it succeeds."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@with_session
def submit(
    session: Session,
    job_id: str,
    file: str | None,
    dry_run: bool,
    follow: bool,
    command: tuple[str, ...],
    files: tuple[str, ...],
    **options: object,
) -> None:
    """Submit a job: COMMAND with the options, or what --file says.

    Options stand before COMMAND; `--` between them leaves no doubt.
    """
    if file:
        given = [
            parameter.opts[0]
            for parameter in click.get_current_context().command.params
            if options.get(parameter.name or "") not in (None, ())
        ]
        if command or given:
            raise click.UsageError(
                f"--file says all of the job; leave out {'COMMAND' if command else given[0]}"
            )
        wanted = read_job(file, str(session.tenant))
    elif not command:
        raise click.UsageError("give a COMMAND, or a file with --file")
    else:
        wanted = Object("Job", _job(session, command, **options), "")  # type: ignore[arg-type]
    made = create_job(session, wanted, job_id=job_id or wanted.id, files=files, dry_run=dry_run)
    if dry_run:
        show_job(session, made, {"outcome": "checked"})
    elif follow:
        follow_job(session, made.metadata.name)
    else:
        show_job(session, made)
        warn_if_stuck(session, made.metadata.name)


def _job(
    session: Session,
    command: tuple[str, ...],
    queue: str | None,
    workers: int | None,
    cpus: int | None,
    memory: int | None,
    gpus: int | None,
    priority: int | None,
    environment: tuple[str, ...],
    artefacts: tuple[str, ...],
    labels: tuple[str, ...],
    deadline: float | None,
    retries: int | None,
    grace: float | None,
) -> object_pb2.Job:
    made = object_pb2.Job()
    spec = made.spec
    made.metadata.labels.update(parse_attributes(labels))
    spec.command.extend(command)
    spec.environment.update(parse_attributes(environment))
    if queue:
        spec.queue = session.name("queues", queue)
    for artefact_id, path in parse_attributes(artefacts).items():
        spec.artefacts.add(id=artefact_id, path=path)
    for flag, amount in (("--cpus", cpus), ("--memory", memory)):
        if amount == 0:
            raise click.UsageError(f"{flag} 0: a worker needs some; leave the flag out for the default")
    spec.worker_count = workers or 0
    spec.priority = priority or 0
    spec.retry_count = retries or 0
    if (cpus, memory, gpus) != (None, None, None):
        spec.resources.cpu_millis = 500 if cpus is None else cpus
        spec.resources.memory_bytes = 512 * 1024**2 if memory is None else memory
        spec.resources.gpu_count = gpus or 0
    if deadline is not None:
        spec.deadline.FromMicroseconds(round(deadline * 1e6))
    if grace is not None:
        spec.grace_time.FromMicroseconds(round(grace * 1e6))
    return made


def create_job(
    session: Session, wanted: Object, *, job_id: str, files: tuple[str, ...] = (), dry_run: bool = False
) -> object_pb2.Job:
    """Upload a job's local files and submit it; return it as it was stored.

    Raises:
        Error: what is wrong with a file, or what a service answered.
    """
    job: object_pb2.Job = wanted.wanted
    for path, local in parse_attributes(files).items():
        source = Path(local)
        added = job.spec.files.add(path=path, executable=os.access(source, os.X_OK))
        added.blob.CopyFrom(upload(session, source))
    for each in wanted.local:
        each.file.blob.CopyFrom(upload(session, each.path))
    parent = str(session.tenant)
    if "/" in job_id:
        parent, _, job_id = job_name(session, job_id).partition("/jobs/")
    request = scheduler_pb2.CreateJobRequest(
        parent=parent,
        job_id=job_id,
        request_id=str(uuid.uuid4()),
        validate_only=dry_run,
    )
    request.job.metadata.labels.update(job.metadata.labels)
    request.job.spec.CopyFrom(job.spec)
    return session.call(stub(session).CreateJob, request).job


def _get(session: Session, job_id: str) -> object_pb2.Job:
    request = scheduler_pb2.GetJobRequest(name=job_name(session, job_id))
    return session.call(stub(session).GetJob, request).job


@job.command()
@click.argument("job_id", metavar="JOB")
@with_session
def get(session: Session, job_id: str) -> None:
    """Show a job: its state, its workers, what it kept."""
    show_job(session, _get(session, job_id))


@job.command("list")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only jobs in this state; repeat.",
)
@click.option("--queue", help="Only jobs of this queue.")
@with_session
def list_(session: Session, limit: int | None, states: tuple[str, ...], queue: str | None) -> None:
    """List the tenant's jobs by name."""
    request = scheduler_pb2.ListJobsRequest(parent=str(session.tenant))
    filtered = bool(states or queue)
    pages = session.pages(stub(session).ListJobs, request, None if filtered else limit)
    found = [each for page in pages for each in page.jobs]
    if filtered:
        wanted = session.name("queues", queue) if queue else ""
        found = [
            each
            for each in found
            if (not states or state_of(each) in states) and wanted in ("", each.spec.queue)
        ]
        if limit is not None and len(found) > limit:
            session.output.remark(
                f"… and more: {limit} of {len(found)} shown; leave out --limit, or raise it"
            )
            found = found[:limit]
    session.output.messages(
        found,
        ("JOB", "STATE", "QUEUE", "WORKERS", "EACH", "ATTEMPTS", "TOOK", "WHY", "MADE"),
        (
            (
                last_part(each.metadata.name),
                state_of(each),
                last_part(each.spec.queue) if each.spec.queue else "default",
                max(each.spec.worker_count, 1),
                resources_text(each.spec.resources),
                each.status.attempt_count,
                took(each.status.start_time, each.status.end_time),
                why_briefly(each),
                moment(each.metadata.create_time),
            )
            for each in found
        ),
    )


@job.command()
@click.argument("job_id", metavar="JOB")
@with_session
def watch(session: Session, job_id: str) -> None:
    """Show a job's progress until it has ended; exit 1 unless it succeeds."""
    follow_job(session, job_name(session, job_id))


@job.command()
@click.argument("job_id", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Go on until the worker has ended.")
@click.option("--rank", type=click.IntRange(0, 2**31 - 1), default=0, help="Which worker; default 0.")
@click.option("--attempt", type=click.IntRange(1, 2**31 - 1), help="Which attempt; default: the last.")
@with_session
def logs(session: Session, job_id: str, follow: bool, rank: int, attempt: int | None) -> None:
    """Print what a worker wrote, byte for byte."""
    request = scheduler_pb2.ReadLogsRequest(
        name=job_name(session, job_id), rank=rank, attempt=attempt or 0, follow=follow
    )
    if follow:
        await_start(session, request.name)
    timeout_s = None if follow else 3600
    # A character may lie across two pieces.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in resuming(
        session, lambda: session.stream(stub(session).ReadLogs, request, timeout_s=timeout_s)
    ):
        if piece.dropped_bytes:
            session.output.note(f"({human_bytes(piece.dropped_bytes)} were dropped here: more than is kept)")
        if session.output.as_json:
            line = {"offset_bytes": piece.offset_bytes, "text": decoder.decode(piece.data)}
            session.output.line(line | {"dropped_bytes": piece.dropped_bytes})
        else:
            session.output.raw(piece.data)
        # Where another stream goes on from, should this one break off.
        request.offset_bytes = piece.offset_bytes + len(piece.data)
    if session.output.as_json and (rest := decoder.decode(b"", final=True)):
        session.output.line({"offset_bytes": request.offset_bytes, "text": rest, "dropped_bytes": 0})


@job.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.option("--watch", "follow", is_flag=True, help="Stay until it has ended; for one job.")
@with_session
def cancel(session: Session, job_ids: tuple[str, ...], follow: bool) -> None:
    """Ask for the end of jobs: workers get SIGTERM, and SIGKILL after their grace time."""
    if follow and len(job_ids) > 1:
        raise click.UsageError("--watch is for one job")
    done: list[object_pb2.Job] = []
    for name in [job_name(session, job_id) for job_id in job_ids]:
        with after([each.metadata.name for each in done]):
            request = scheduler_pb2.CancelJobRequest(name=name)
            done.append(session.call(stub(session).CancelJob, request).job)
    if follow:
        _wait_for_end(session, done[0])
    elif len(done) == 1:
        show_job(session, done[0])
    else:
        rows = ((last_part(each.metadata.name), state_of(each), why_briefly(each)) for each in done)
        session.output.messages(done, ("JOB", "STATE", "WHY"), rows)


def _wait_for_end(session: Session, job: object_pb2.Job) -> None:
    try:
        follow_job(session, job.metadata.name)
    except Precondition as error:
        # Asked for, this time.
        if error.reason != "JOB_NOT_SUCCEEDED":
            raise


@job.command()
@click.argument("job_id", metavar="JOB")
@with_session
def explain(session: Session, job_id: str) -> None:
    """Say why a job is where it is: each node, each rule."""
    request = scheduler_pb2.ExplainJobRequest(name=job_name(session, job_id))
    found = session.call(stub(session).ExplainJob, request)
    if session.output.as_json:
        session.output.message(found, [])
        return
    session.output.message(
        found,
        [
            ("job", found.job.metadata.name),
            ("state", state_of(found.job)),
            ("why", why(found.job)),
            *([("ahead", ", ".join(last_part(name) for name in found.ahead))] if found.ahead else []),
        ],
    )
    if found.nodes:
        session.output.table(
            ("NODE", "WORKERS THAT FIT", "WHY NOT MORE"),
            (
                (
                    last_part(each.node),
                    each.fitting_worker_count,
                    "; ".join(reason_text(reason) for reason in each.reasons) or "-",
                )
                for each in found.nodes
            ),
        )
    session.output.say(found.summary)


@job.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.option("--etag", default="", help="Only if nobody wrote since this etag was read; for one job.")
@with_session
def delete(session: Session, job_ids: tuple[str, ...], etag: str) -> None:
    """Remove jobs that have ended, with their logs; their artefacts are no longer kept for them."""
    if etag and len(job_ids) > 1:
        raise click.UsageError("--etag is that of one job")
    done: list[str] = []
    for name in [job_name(session, job_id) for job_id in job_ids]:
        with after(done):
            session.call(stub(session).DeleteJob, scheduler_pb2.DeleteJobRequest(name=name, etag=etag))
        done.append(name)
        session.output.say(f"{name}: deleted")
    if session.output.as_json:
        session.output.values({"deleted": done[0] if len(done) == 1 else done}, "")


@job.group(cls=Group)
def artefact() -> None:
    """Files that jobs made."""


@artefact.command("get")
@click.argument("job_id", metavar="JOB")
@click.argument("artefact_id", metavar="ARTEFACT")
@click.option("--out", type=click.Path(dir_okay=False), required=True, help="File to write.")
@with_session
def get_artefact(session: Session, job_id: str, artefact_id: str, out: str) -> None:
    """Download an ARTEFACT of a job and check it; the file appears only when it is whole."""
    check_target(Path(out), "--out")
    blob = kept_artefact(_get(session, job_id), artefact_id).blob
    download(session, blob, Path(out), "--out")
    session.output.values(
        {"digest": blob.digest, "size_bytes": blob.size_bytes, "file": out},
        f"{out}: {human_bytes(blob.size_bytes)}, {blob.digest}",
    )
