"""`isthmus queue`: lines that jobs wait in, with quotas."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import click

from isthmus.scheduler.v1 import object_pb2, scheduler_pb2, scheduler_pb2_grpc
from libs.cli.jobs import last_part, moment, resources_text
from libs.cli.main import Group
from libs.cli.session import Session, with_session
from libs.cli.values import CPUS, SIZE


@click.group(cls=Group)
def queue() -> None:
    """Lines that jobs wait in, with quotas."""


_QUOTA = (
    click.option("--cpus", type=CPUS, help="Cores that its running jobs take together; default: no bound."),
    click.option("--memory", type=SIZE, help="Memory that they take together; default: no bound."),
    click.option(
        "--gpus", type=click.IntRange(0, 2**31 - 1), help="GPUs that they take together; default: no bound."
    ),
    click.option(
        "--priority", type=click.IntRange(-1000, 1000), help="Queues with more go first; default 0."
    ),
)


def _stub(session: Session) -> scheduler_pb2_grpc.QueueServiceStub:
    return scheduler_pb2_grpc.QueueServiceStub(session.channel)


def _get(session: Session, queue_id: str) -> object_pb2.Queue:
    request = scheduler_pb2.GetQueueRequest(name=session.name("queues", queue_id))
    return session.call(_stub(session).GetQueue, request).queue


def _change(
    spec: object_pb2.QueueSpec, cpus: int | None, memory: int | None, gpus: int | None, priority: int | None
) -> None:
    if cpus is not None:
        spec.quota.cpu_millis = cpus
    if memory is not None:
        spec.quota.memory_bytes = memory
    if gpus is not None:
        spec.quota.gpu_count = gpus
    if priority is not None:
        spec.priority = priority


def _quota(spec: object_pb2.QueueSpec) -> str:
    found = resources_text(spec.quota)
    return "no bound" if found == "nothing" else found


def _show(session: Session, found: object_pb2.Queue) -> None:
    session.output.message(
        found,
        [
            ("queue", found.metadata.name),
            ("state", "paused" if found.spec.paused else "open"),
            ("quota", _quota(found.spec)),
            ("used", resources_text(found.status.used)),
            ("priority", found.spec.priority),
            ("jobs", f"{found.status.running_count} running, {found.status.pending_count} waiting"),
            ("made", moment(found.metadata.create_time)),
            ("etag", found.metadata.etag),
        ],
    )


def _write(session: Session, changed: object_pb2.Queue) -> None:
    request = scheduler_pb2.UpdateQueueRequest(queue=changed)
    _show(session, session.call(_stub(session).UpdateQueue, request).queue)


@queue.command("list")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@with_session
def list_(session: Session, limit: int | None) -> None:
    """List the tenant's queues by name."""
    request = scheduler_pb2.ListQueuesRequest(parent=str(session.tenant))
    found = [
        each for page in session.pages(_stub(session).ListQueues, request, limit) for each in page.queues
    ]
    session.output.messages(
        found,
        ("QUEUE", "STATE", "PRIORITY", "QUOTA", "USED", "RUNNING", "WAITING"),
        (
            (
                last_part(each.metadata.name),
                "paused" if each.spec.paused else "open",
                each.spec.priority,
                _quota(each.spec),
                resources_text(each.status.used),
                each.status.running_count,
                each.status.pending_count,
            )
            for each in found
        ),
    )


@queue.command()
@click.argument("queue_id", metavar="QUEUE")
@with_session
def get(session: Session, queue_id: str) -> None:
    """Show a queue: its quota, and what its jobs take."""
    _show(session, _get(session, queue_id))


def _with_quota(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_QUOTA):
        command = option(command)
    return command


@queue.command()
@click.argument("queue_id", metavar="QUEUE")
@_with_quota
@with_session
def create(
    session: Session,
    queue_id: str,
    cpus: int | None,
    memory: int | None,
    gpus: int | None,
    priority: int | None,
) -> None:
    """Make a queue."""
    parent, _, made_id = session.name("queues", queue_id).partition("/queues/")
    request = scheduler_pb2.CreateQueueRequest(parent=parent, queue_id=made_id, request_id=str(uuid.uuid4()))
    _change(request.queue.spec, cpus, memory, gpus, priority)
    _show(session, session.call(_stub(session).CreateQueue, request).queue)


@queue.command()
@click.argument("queue_id", metavar="QUEUE")
@_with_quota
@with_session
def update(
    session: Session,
    queue_id: str,
    cpus: int | None,
    memory: int | None,
    gpus: int | None,
    priority: int | None,
) -> None:
    """Change a queue's quota or priority; what isn't named stays. An amount of 0 takes the bound away."""
    found = _get(session, queue_id)
    _change(found.spec, cpus, memory, gpus, priority)
    _write(session, found)


@queue.command()
@click.argument("queue_id", metavar="QUEUE")
@with_session
def pause(session: Session, queue_id: str) -> None:
    """Let no more of a queue's jobs start; those that run go on."""
    found = _get(session, queue_id)
    found.spec.paused = True
    _write(session, found)


@queue.command()
@click.argument("queue_id", metavar="QUEUE")
@with_session
def resume(session: Session, queue_id: str) -> None:
    """Let a paused queue's jobs start again."""
    found = _get(session, queue_id)
    found.spec.paused = False
    _write(session, found)


@queue.command()
@click.argument("queue_id", metavar="QUEUE")
@click.option("--etag", default="", help="Only if nobody wrote since this etag was read.")
@with_session
def delete(session: Session, queue_id: str, etag: str) -> None:
    """Remove a queue without jobs."""
    name = session.name("queues", queue_id)
    session.call(_stub(session).DeleteQueue, scheduler_pb2.DeleteQueueRequest(name=name, etag=etag))
    session.output.values({"deleted": name}, f"{name}: deleted")
