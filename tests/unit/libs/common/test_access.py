import re

import pytest

from libs.common.access import PUBLIC_METHODS, SCOPES, Access, check_access, has_scope, require_tenant
from libs.common.errors import Forbidden, NotFound, Unauthenticated
from libs.common.identity import Identity, Kind

METHOD = "/isthmus.x.v1.Y/Z"


def user(*scopes: str, tenant: str = "acme") -> Identity:
    return Identity(tenant, "k1", "user", frozenset(scopes), "gateway")


def service(name: str, on_behalf_of: str = "") -> Identity:
    return Identity("", name, "service", frozenset(), name, on_behalf_of)


DEVICE = Identity("acme", "tenants/acme/devices/d", "device", frozenset(), "gateway")


def test_scopes_hold_exactly_by_area_or_all() -> None:
    assert all(has_scope(user(held), "tasks:read") for held in ("tasks:read", "tasks:*", "*"))
    assert not any(
        has_scope(user(held), "tasks:read") for held in ("tasks:write", "blobs:*", "tasks", "task:*", "")
    )
    assert has_scope(user(), "")


def test_scopes_are_well_formed() -> None:
    assert {"tasks:read", "tunnel:read", "trust:write", "tenants:write"} <= SCOPES
    assert all(re.fullmatch("[a-z]+:(read|write)", scope) for scope in SCOPES)


def refusal(access: Access | None, identity: Identity | None) -> str:
    try:
        check_access(access, METHOD, identity)
    except (Forbidden, Unauthenticated) as error:
        return error.reason
    return "passes"


@pytest.mark.parametrize(
    ("access", "identity", "outcome"),
    [
        (None, user("*"), "NO_ACCESS_RULE"),
        (None, None, "NO_ACCESS_RULE"),
        (Access(public=True), None, "passes"),
        (Access(), None, "NO_CREDENTIAL"),
        (Access("tasks:read"), user("tasks:read"), "passes"),
        (Access("tasks:read"), user("tasks:write"), "MISSING_SCOPE"),
        (Access("tasks:read"), DEVICE, "WRONG_KIND"),
        (Access(kinds=frozenset({"device"})), DEVICE, "passes"),
        (Access("tasks:read", kinds=frozenset({"user", "device"})), DEVICE, "passes"),
        (Access(kinds=frozenset({"device"})), user("*"), "WRONG_KIND"),
        (Access("tasks:read"), service("gateway"), "WRONG_CALLER"),
        (Access("tasks:read", callers=frozenset({"gateway"})), service("gateway"), "passes"),
        (Access("tasks:read", callers=frozenset({"gateway"})), service("tuner"), "WRONG_CALLER"),
        (Access(callers=frozenset({"k1"})), user(), "passes"),
        (Access(kinds=frozenset(), callers=frozenset({"k1"})), user("*"), "WRONG_KIND"),
    ],
)
def test_the_table_of_rules(access: Access | None, identity: Identity | None, outcome: str) -> None:
    assert refusal(access, identity) == outcome


def test_a_refusal_says_what_is_missing() -> None:
    with pytest.raises(Forbidden, match="reading tasks takes the scope 'tasks:read', and the key") as caught:
        check_access(Access("tasks:read"), METHOD, user())
    assert caught.value.metadata == {"scope": "tasks:read"}
    with pytest.raises(Forbidden, match="changing the root of trust takes the scope 'trust:write'"):
        check_access(Access("trust:write"), METHOD, user("trust:read"))
    with pytest.raises(Forbidden, match="it is for service or user"):
        check_access(Access(callers=frozenset({"a"})), METHOD, DEVICE)


@pytest.mark.parametrize("kind", ["user", "device"])
def test_another_tenants_things_are_not_there(kind: Kind) -> None:
    identity = Identity("acme", "p", kind, frozenset({"*"}), "gateway")
    require_tenant(identity, "acme")
    for tenant in ("acm", "acme2", "", "ACME"):
        with pytest.raises(NotFound):
            require_tenant(identity, tenant)


def test_nobody_belongs_to_the_empty_tenant() -> None:
    with pytest.raises(NotFound):
        require_tenant(user("*", tenant=""), "")


def test_a_service_reaches_the_tenant_it_acts_for() -> None:
    for resource in ("tenants/acme", "tenants/acme/releases/r1"):
        require_tenant(service("deployer", resource), "acme")
        with pytest.raises(NotFound):
            require_tenant(service("deployer", resource), "acm")
    with pytest.raises(NotFound):
        require_tenant(service("deployer"), "acme")


def test_only_health_and_reflection_are_public_everywhere() -> None:
    assert all(method.startswith(("/grpc.health.", "/grpc.reflection.")) for method in PUBLIC_METHODS)
