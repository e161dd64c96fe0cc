"""What the node API does.

Nodes belong to the platform: its operators change them, others see what concerns them.
"""

from dataclasses import dataclass, replace

from libs.common.errors import Forbidden, NotFound, Precondition
from libs.common.identity import Identity
from libs.common.names import NodeName
from libs.common.suggest import did_you_mean
from services.scheduler.domain.change import Change
from services.scheduler.domain.creates import Writer, check_etag
from services.scheduler.domain.mirror import Mirror
from services.scheduler.domain.objects import Node, NodeState


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node and its state; `tenant` names whose holdings may be shown, None means everybody's."""

    node: Node
    state: NodeState
    tenant: str | None


class Nodes:
    """See the module."""

    def __init__(self, writer: Writer, mirror: Mirror, operator_tenant: str) -> None:
        """Let keys of `operator_tenant` change nodes and see what every tenant holds."""
        self._writer = writer
        self._mirror = mirror
        self._operator_tenant = operator_tenant

    async def get(self, name: NodeName, caller: Identity) -> NodeView:
        """Read a node; raise NotFound."""
        await self._mirror.reached(1)
        return self._view(self._node(name), caller)

    async def list_nodes(self, after: str, limit: int, caller: Identity) -> list[NodeView]:
        """Return nodes by id, after one, one more than `limit`."""
        await self._mirror.reached(1)
        nodes = [node for name, node in self._mirror.snapshot.nodes.items() if name.node > after]
        return [self._view(node, caller) for node in sorted(nodes, key=lambda n: n.name.node)[: limit + 1]]

    async def update(
        self, name: NodeName, *, cordoned: bool, etag: str, validate_only: bool, caller: Identity
    ) -> NodeView:
        """Replace a node's spec.

        Raises:
            Forbidden: when the caller is no operator.
            NotFound: when it isn't there.
            Conflict: for a stale etag.
        """
        self._require_operator(caller)

        def work() -> tuple[Node, Change | None]:
            old = self._node(name)
            check_etag(name, old.meta.revision, etag)
            if old.cordoned == cordoned:
                return old, None
            meta = replace(old.meta, generation=old.meta.generation + 1)
            new = replace(old, meta=meta, cordoned=cordoned)
            return new, None if validate_only else Change(puts=(new,))

        # With an etag, losing a race is the caller's to know.
        node, revision = await self._writer.write(work)
        if revision:
            node = replace(node, meta=replace(node.meta, revision=revision))
        return self._view(node, caller)

    async def delete(self, name: NodeName, etag: str, caller: Identity) -> None:
        """Remove a node whose runner is gone; the workers that it ran are given up as lost.

        Raises:
            Forbidden: when the caller is no operator.
            NotFound: when it isn't there.
            Conflict: for a stale etag.
            Precondition: when its runner is there.
        """
        self._require_operator(caller)

        def work() -> tuple[Node, Change | None]:
            node = self._node(name)
            check_etag(name, node.meta.revision, etag)
            if self._mirror.snapshot.state_of(name) is NodeState.READY:
                raise Precondition(
                    f"{name}: its runner is there; stop it, and delete the node when it counts as lost",
                    reason="NODE_READY",
                )
            return node, Change(deletes=(node,))

        await self._writer.write(work)

    def _require_operator(self, caller: Identity) -> None:
        if caller.tenant != self._operator_tenant:
            raise Forbidden(
                f"nodes are changed with keys of 'tenants/{self._operator_tenant}' only",
                reason="NOT_AN_OPERATOR",
            )

    def _node(self, name: NodeName) -> Node:
        found = self._mirror.snapshot.nodes.get(name)
        if found is None:
            known = [other.node for other in self._mirror.snapshot.nodes]
            raise NotFound(f"{name}: not found{did_you_mean(name.node, known)}", reason="NODE_NOT_FOUND")
        return found

    def _view(self, node: Node, caller: Identity) -> NodeView:
        tenant = None if caller.tenant == self._operator_tenant else caller.tenant
        return NodeView(node, self._mirror.snapshot.state_of(node.name), tenant)
