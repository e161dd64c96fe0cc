"""Who may call what.

For the upstreams' methods the door only asks that somebody is known; the rest is theirs.
"""

from collections.abc import Iterable, Iterator, Mapping

from libs.common.access import PUBLIC, Access
from services.gateway.domain.routes import Method

_ANYBODY_KNOWN = Access(kinds=frozenset({"user", "device"}))
_OWN = "/isthmus.gateway.v1."

ACCESS: dict[str, Access] = {
    _OWN + "TenantService/CreateTenant": Access("tenants:write"),
    _OWN + "TenantService/ListTenants": Access("tenants:read"),
    _OWN + "KeyService/CreateKey": Access("keys:write"),
    _OWN + "KeyService/ListKeys": Access("keys:read"),
    _OWN + "KeyService/RevokeKey": Access("keys:write"),
    _OWN + "PushService/Watch": Access(kinds=frozenset({"device"})),
    # The servicer itself lets strangers see the overall health only.
    "/grpc.health.v1.Health/Check": PUBLIC,
    "/grpc.health.v1.Health/List": _ANYBODY_KNOWN,
    "/grpc.health.v1.Health/Watch": PUBLIC,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _ANYBODY_KNOWN,
}

#: Methods of upstreams that need no credentials: what proves the caller is in the request.
ANONYMOUS = frozenset({"/isthmus.deployer.v1.EnrolmentService/Enrol"})


class DoorAccess(Mapping[str, Access]):
    """The gateway's own rules, and those for the methods that it routes."""

    def __init__(self, routed: Iterable[Method]) -> None:
        self._rules = dict(ACCESS)
        for method in routed:
            self._rules[method.path] = PUBLIC if method.path in ANONYMOUS else _ANYBODY_KNOWN

    def __getitem__(self, path: str) -> Access:
        return self._rules[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)
