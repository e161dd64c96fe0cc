"""`isthmus apply`: bring the scheduler's objects to what files say."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import click

from isthmus.scheduler.v1 import object_pb2, scheduler_pb2, scheduler_pb2_grpc
from libs.cli.groups.job import create_job
from libs.cli.jobs import last_part, stub
from libs.cli.objects import Object, read_objects
from libs.cli.session import Session, with_session
from libs.common.errors import Error, Invalid, NotFound, Precondition


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of an object: "created", "configured" or "unchanged"."""

    name: str
    outcome: str


@click.command()
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    type=click.Path(dir_okay=False, allow_dash=True),
    help="YAML of Jobs, Queues and Nodes, several in a file; - is the standard input; repeat.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Let the scheduler check it all; files of jobs are uploaded, no object is changed.",
)
@with_session
def apply(session: Session, files: tuple[str, ...], dry_run: bool) -> None:
    """Create what isn't there and change what is, in the order of the files.

    All files are read before the first object is sent. A job's spec never changes: what is there already with
    another spec is refused.
    """
    objects = [each for file in files for each in read_objects(file, str(session.tenant))]
    _check_named(objects)
    done: list[Applied] = []
    for each in objects:
        try:
            if dry_run and each.kind == "Job" and Applied(each.wanted.spec.queue, "created") in done:
                # The queue that these very files make isn't there yet; the rest of the job can be checked.
                each.wanted.spec.queue = ""
            applied = _APPLIERS[each.kind](session, each, dry_run)
        except Error as error:
            error.message = f"{each.where}: {each.shown}: {error.message}" + (
                f"; applied before: {', '.join(one.name for one in done)}" if done and not dry_run else ""
            )
            raise
        done.append(applied)
        session.output.say(f"{applied.name} {applied.outcome}{' (dry run)' if dry_run else ''}")
    if session.output.as_json:
        session.output.values(
            {"objects": [{"name": one.name, "outcome": one.outcome} for one in done], "dry_run": dry_run}, ""
        )


def _check_named(objects: list[Object]) -> None:
    """Raise Invalid where an object has no name, which would be another at each run, or is there twice."""
    seen: dict[str, str] = {}
    for each in objects:
        if not each.id:
            raise Invalid(
                f"{each.where}: metadata.name: is missing; name the {each.kind.lower()}, "
                "so that applying the file again finds it",
                reason="BAD_YAML",
            )
        if each.shown in seen:
            raise Invalid(
                f"{each.where}: {each.shown} is given twice, first at {seen[each.shown]}; leave one out",
                reason="BAD_YAML",
            )
        seen[each.shown] = each.where


def _same(first: object_pb2.Metadata, second: object_pb2.Metadata) -> bool:
    return dict(first.labels) == dict(second.labels)


def _queue(session: Session, wanted: Object, dry_run: bool) -> Applied:
    queues = scheduler_pb2_grpc.QueueServiceStub(session.channel)
    name = f"{session.tenant}/queues/{wanted.id}"
    try:
        found = session.call(queues.GetQueue, scheduler_pb2.GetQueueRequest(name=name)).queue
    except NotFound:
        request = scheduler_pb2.CreateQueueRequest(
            parent=str(session.tenant),
            queue_id=wanted.id,
            queue=wanted.wanted,
            request_id=str(uuid.uuid4()),
            validate_only=dry_run,
        )
        session.call(queues.CreateQueue, request)
        return Applied(name, "created")
    if found.spec == wanted.wanted.spec and _same(found.metadata, wanted.wanted.metadata):
        return Applied(name, "unchanged")
    update = scheduler_pb2.UpdateQueueRequest(validate_only=dry_run)
    update.queue.CopyFrom(wanted.wanted)
    update.queue.metadata.name = name
    # What was compared is what is replaced.
    update.queue.metadata.etag = wanted.wanted.metadata.etag or found.metadata.etag
    after = session.call(queues.UpdateQueue, update).queue
    same = found.spec == after.spec and _same(found.metadata, after.metadata)
    return Applied(name, "unchanged" if same else "configured")


def _node(session: Session, wanted: Object, dry_run: bool) -> Applied:
    nodes = scheduler_pb2_grpc.NodeServiceStub(session.channel)
    name = f"nodes/{wanted.id}"
    try:
        found = session.call(nodes.GetNode, scheduler_pb2.GetNodeRequest(name=name)).node
    except NotFound as error:
        raise NotFound(
            f"{error.message}; a node is made by its runner when that attaches first", reason=error.reason
        ) from error
    if found.spec == wanted.wanted.spec:
        return Applied(name, "unchanged")
    update = scheduler_pb2.UpdateNodeRequest(validate_only=dry_run)
    update.node.metadata.name = name
    # Only the etag that the file has: a node is written at each placement, which is no change of its spec.
    update.node.metadata.etag = wanted.wanted.metadata.etag
    update.node.spec.CopyFrom(wanted.wanted.spec)
    session.call(nodes.UpdateNode, update)
    return Applied(name, "configured")


def _job(session: Session, wanted: Object, dry_run: bool) -> Applied:
    found = None
    if wanted.id:
        request = scheduler_pb2.GetJobRequest(name=f"{session.tenant}/jobs/{wanted.id}")
        try:
            found = session.call(stub(session).GetJob, request).job
        except NotFound:
            found = None
    if found is None:
        made = create_job(session, wanted, job_id=wanted.id, dry_run=dry_run)
        return Applied(made.metadata.name or f"{session.tenant}/jobs/{wanted.id or '(chosen)'}", "created")
    # As the scheduler would store it, with its defaults.
    stored = create_job(session, wanted, job_id="", dry_run=True).spec
    stored.cancelled = found.spec.cancelled
    if stored != found.spec or not _same(found.metadata, wanted.wanted.metadata):
        raise Precondition(
            "is there already with another spec or other labels, and a job's never change; delete it first "
            f"(`isthmus job delete {last_part(found.metadata.name)}`), or choose another name",
            reason="JOB_IS_DIFFERENT",
        )
    return Applied(found.metadata.name, "unchanged")


_APPLIERS: Mapping[str, Callable[[Session, Object, bool], Applied]] = {
    "Job": _job,
    "Node": _node,
    "Queue": _queue,
}
