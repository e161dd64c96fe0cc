"""What a caller may call: one `Access` for each method, and a method without one is refused.

Each service lists its own in `services/<s>/access.py` as `ACCESS: dict[str, Access]`, by full method name:

    ACCESS = {"/isthmus.deployer.v1.TaskService/GetTask": Access("tasks:read")}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from libs.common.errors import Forbidden, NotFound, Unauthenticated
from libs.common.identity import Identity

SCOPES = frozenset(
    f"{area}:{verb}"
    for area, verbs in {
        "tasks": ("read", "write"),
        "releases": ("read", "write"),
        "devices": ("read", "write"),
        "blobs": ("read", "write"),
        "trust": ("write",),
        "audit": ("read",),
        "tunnel": ("read",),
        "keys": ("read", "write"),
        "tenants": ("read", "write"),
        "jobs": ("read", "write"),
        "queues": ("read", "write"),
        "nodes": ("read", "write"),
        "models": ("read", "write"),
        "experiments": ("read", "write"),
    }.items()
    for verb in verbs
)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call a method.

    Attributes:
        scope: what a user must hold; "" asks for none.
        kinds: which kinds of caller may at all, out of "user" and "device".
        callers: the services that may, by name; a service needs to be listed.
        public: whether anybody may, known or not.
    """

    scope: str = ""
    kinds: frozenset[str] = frozenset({"user"})
    callers: frozenset[str] = frozenset()
    public: bool = False


PUBLIC = Access(public=True)

# What every server answers to anybody: whether it is well, and what it serves.
PUBLIC_METHODS: Mapping[str, Access] = MappingProxyType(
    dict.fromkeys(
        (
            "/grpc.health.v1.Health/Check",
            "/grpc.health.v1.Health/List",
            "/grpc.health.v1.Health/Watch",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        ),
        PUBLIC,
    )
)


def has_scope(identity: Identity, scope: str) -> bool:
    """Tell whether the identity holds `scope` ("tasks:read"), its area ("tasks:*") or everything ("*")."""
    scopes = identity.scopes
    return not scope or scope in scopes or "*" in scopes or f"{scope.partition(':')[0]}:*" in scopes


def check_access(access: Access | None, method: str, identity: Identity | None) -> None:
    """Let the caller pass or raise.

    Args:
        access: the method's entry; None when it has none.
        method: its full name, for the message.
        identity: who is calling; None when no credential came.

    Raises:
        Unauthenticated: when the caller must be known and isn't.
        Forbidden: when the caller may not, with reason NO_ACCESS_RULE, WRONG_KIND, WRONG_CALLER or
            MISSING_SCOPE.
    """
    if access is None:
        raise Forbidden(f"{method}: nobody may call this method", reason="NO_ACCESS_RULE")
    if access.public:
        return
    if identity is None:
        raise Unauthenticated(
            f"{method}: no credential; call through the gateway with an API key or a device token",
            reason="NO_CREDENTIAL",
        )
    if identity.kind == "service":
        if identity.principal not in access.callers:
            raise Forbidden(
                f"{method}: the service {identity.principal!r} may not call this method",
                reason="WRONG_CALLER",
            )
        return
    if identity.kind not in access.kinds:
        raise Forbidden(
            f"{method}: is not for a {identity.kind}; it is for {_listed(access)}", reason="WRONG_KIND"
        )
    if identity.kind == "user" and not has_scope(identity, access.scope):
        raise Forbidden(
            f"{method}: {_doing(access.scope)} takes the scope {access.scope!r}, and the key "
            f"{identity.principal!r} lacks it; use one that has it",
            reason="MISSING_SCOPE",
            metadata={"scope": access.scope},
        )


def _doing(scope: str) -> str:
    """Say for people what a scope is for: "reading tasks", "changing the root of trust"."""
    area, _, verb = scope.partition(":")
    what = {"trust": "the root of trust", "audit": "the audit log", "tunnel": "the tunnel's log"}.get(
        area, area
    )
    return f"{'reading' if verb == 'read' else 'changing'} {what}"


def require_tenant(identity: Identity, tenant: str) -> None:
    """Let pass whoever belongs to `tenant`, and a service that acts on behalf of something in it.

    Raises:
        NotFound: for everybody else, as if there were nothing.
    """
    if identity.kind == "service":
        owner = f"tenants/{tenant}"
        if identity.on_behalf_of == owner or identity.on_behalf_of.startswith(owner + "/"):
            return
    elif tenant and identity.tenant == tenant:
        return
    raise NotFound(f"tenants/{tenant}: not found", reason="TENANT_NOT_FOUND")


def _listed(access: Access) -> str:
    return " or ".join(sorted(access.kinds | ({"service"} if access.callers else set()))) or "nobody"
