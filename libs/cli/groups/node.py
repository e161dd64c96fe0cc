"""`isthmus node`: machines that run jobs."""

from __future__ import annotations

import click

from isthmus.scheduler.v1 import object_pb2, scheduler_pb2, scheduler_pb2_grpc
from libs.cli.jobs import last_part, moment, resources_text
from libs.cli.main import Group
from libs.cli.output import human_bytes
from libs.cli.session import Session, with_session


@click.group(cls=Group)
def node() -> None:
    """Machines that run jobs."""


def _stub(session: Session) -> scheduler_pb2_grpc.NodeServiceStub:
    return scheduler_pb2_grpc.NodeServiceStub(session.channel)


def _get(session: Session, node_id: str) -> object_pb2.Node:
    request = scheduler_pb2.GetNodeRequest(name=session.name("nodes", node_id))
    return session.call(_stub(session).GetNode, request).node


def _state(found: object_pb2.Node) -> str:
    state = object_pb2.NodeStatus.State.Name(found.status.state).removeprefix("STATE_")
    return f"{state}, cordoned" if found.spec.cordoned else state


def _show(session: Session, found: object_pb2.Node) -> None:
    status = found.status
    session.output.message(
        found,
        [
            ("node", found.metadata.name),
            ("state", _state(found)),
            ("has", resources_text(status.capacity)),
            ("taken", resources_text(status.allocated)),
            *([("place", " / ".join(status.topology))] if status.topology else []),
            *((f"  GPU {gpu.index}", f"{gpu.model}, {human_bytes(gpu.memory_bytes)}") for gpu in status.gpus),
            *((f"  {link.first} ↔ {link.second}", f"{link.bandwidth_gbps:g} GB/s") for link in status.links),
            *(
                (
                    f"  {last_part(each.reservation)}",
                    resources_text(each.resources)
                    + (f", GPUs {', '.join(map(str, each.gpu_indexes))}" if each.gpu_indexes else ""),
                )
                for each in status.holdings
            ),
            ("runner", status.runner_version or "-"),
            ("made", moment(found.metadata.create_time)),
            ("etag", found.metadata.etag),
        ],
    )


@node.command("list")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@with_session
def list_(session: Session, limit: int | None) -> None:
    """List nodes by name."""
    request = scheduler_pb2.ListNodesRequest()
    found = [each for page in session.pages(_stub(session).ListNodes, request, limit) for each in page.nodes]
    session.output.messages(
        found,
        ("NODE", "STATE", "HAS", "TAKEN", "HOLDINGS", "PLACE"),
        (
            (
                last_part(each.metadata.name),
                _state(each),
                resources_text(each.status.capacity),
                resources_text(each.status.allocated),
                len(each.status.holdings),
                " / ".join(each.status.topology) or "-",
            )
            for each in found
        ),
    )


@node.command()
@click.argument("node_id", metavar="NODE")
@with_session
def get(session: Session, node_id: str) -> None:
    """Show a node: what it has, its GPUs and their links, what is placed on it."""
    _show(session, _get(session, node_id))


def _cordon(session: Session, node_id: str, cordoned: bool) -> None:
    found = _get(session, node_id)
    request = scheduler_pb2.UpdateNodeRequest()
    # Without the etag: a node is written at each placement, and this is no decision about what else it says.
    request.node.metadata.name = found.metadata.name
    request.node.spec.CopyFrom(found.spec)
    request.node.spec.cordoned = cordoned
    _show(session, session.call(_stub(session).UpdateNode, request).node)


@node.command()
@click.argument("node_id", metavar="NODE")
@with_session
def cordon(session: Session, node_id: str) -> None:
    """Let a node take no new work; what runs on it goes on."""
    _cordon(session, node_id, True)


@node.command()
@click.argument("node_id", metavar="NODE")
@with_session
def uncordon(session: Session, node_id: str) -> None:
    """Let a node take work again."""
    _cordon(session, node_id, False)


@node.command()
@click.argument("node_id", metavar="NODE")
@click.option("--etag", default="", help="Only if nobody wrote since this etag was read.")
@with_session
def delete(session: Session, node_id: str, etag: str) -> None:
    """Remove a node whose runner is gone; the workers it ran are given up as LOST."""
    name = session.name("nodes", node_id)
    session.call(_stub(session).DeleteNode, scheduler_pb2.DeleteNodeRequest(name=name, etag=etag))
    session.output.values({"deleted": name}, f"{name}: deleted")
