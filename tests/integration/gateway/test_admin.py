"""Managing tenants and keys over gRPC: what operators and tenants may, and what they are told."""

import json
import uuid
from datetime import UTC, datetime

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from isthmus.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from libs.common.logs import JsonFormatter
from libs.common.testing import FakeClock
from services.gateway.sql_store import open_store
from services.gateway.testing import bearer, gateway_config, make_key, running_gateway, store_with

OPERATOR, OPERATOR_TEXT = make_key("default", 1)
TENANT, TENANT_TEXT = make_key("acme", 2, ("keys:*", "tasks:read", "tenants:write"))
READER, READER_TEXT = make_key("acme", 3, ("tasks:read",))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
async def channel(tmp_path, clock):
    store = await store_with(
        OPERATOR, TENANT, READER, store=await open_store(f"sqlite:///{tmp_path}/gateway.db")
    )
    async with running_gateway(gateway_config(tmp_path), store, clock) as (_, made):
        yield made
    await store.close()


@pytest.fixture
def keys(channel):
    return gateway_pb2_grpc.KeyServiceStub(channel)


@pytest.fixture
def tenants(channel):
    return gateway_pb2_grpc.TenantServiceStub(channel)


@pytest.fixture
def audit(caplog):
    """Return what the audit log says, line by line as it is written."""
    caplog.set_level("INFO", "isthmus.gateway.audit")
    formatter = JsonFormatter("gateway")

    def read():
        records = [record for record in caplog.records if getattr(record, "audit", False)]
        return [json.loads(formatter.format(record)) for record in records]

    return read


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details()


def create(parent="tenants/acme", scopes=("tasks:read",), **fields):
    return gateway_pb2.CreateKeyRequest(parent=parent, scopes=scopes, **fields)


async def test_a_made_key_works_until_it_expires(keys, clock):
    made = await keys.CreateKey(create(ttl=Duration(seconds=90)), metadata=bearer(TENANT_TEXT))
    assert made.key.name.startswith("tenants/acme/keys/")
    assert made.key.expire_time.seconds - made.key.create_time.seconds == 90
    assert made.secret.startswith(f"isk_{made.key.name.rpartition('/')[2]}_")
    own = bearer(made.secret)
    code, _ = await refused(keys.ListKeys(gateway_pb2.ListKeysRequest(parent="tenants/acme"), metadata=own))
    assert code == "PERMISSION_DENIED"  # known, but without keys:read
    clock.advance(91)
    code, text = await refused(keys.ListKeys(gateway_pb2.ListKeysRequest(), metadata=own))
    assert code == "UNAUTHENTICATED"
    assert "expired" in text


async def test_no_answer_shows_a_secret_again(keys):
    made = await keys.CreateKey(create(), metadata=bearer(TENANT_TEXT))
    listed = await keys.ListKeys(
        gateway_pb2.ListKeysRequest(parent="tenants/acme"), metadata=bearer(TENANT_TEXT)
    )
    assert made.secret.rpartition("_")[2] not in str(listed)


@pytest.mark.parametrize(
    ("request_", "code", "says"),
    [
        (create("tenants/other"), "NOT_FOUND", "tenants/other"),
        (create("tenants/nobody"), "NOT_FOUND", "tenants/nobody"),
        (create("acme"), "INVALID_ARGUMENT", "parent"),
        (create(scopes=()), "INVALID_ARGUMENT", "scopes"),
        (create(scopes=("taks:read",)), "INVALID_ARGUMENT", "did you mean 'tasks:read'?"),
        (create(scopes=("releases:write",)), "PERMISSION_DENIED", "releases:write"),
        (create(scopes=("tasks:*",)), "PERMISSION_DENIED", "tasks:*"),
        (create(scopes=("*",)), "PERMISSION_DENIED", "*"),
        (create(ttl=Duration(seconds=-1)), "INVALID_ARGUMENT", "ttl"),
        (create(ttl=Duration(seconds=10**11)), "INVALID_ARGUMENT", "ttl"),
        (create(ttl=Duration(seconds=2**62)), "INVALID_ARGUMENT", "ttl"),
        (create(display_name="x" * 300), "INVALID_ARGUMENT", "display_name"),
        (create(display_name="a\nb"), "INVALID_ARGUMENT", "display_name"),
    ],
)
async def test_a_tenants_key_makes_no_more_than_it_may(keys, request_, code, says):
    answered, text = await refused(keys.CreateKey(request_, metadata=bearer(TENANT_TEXT)))
    assert answered == code
    assert says in text


async def test_an_operator_manages_every_tenant(keys, tenants):
    operator = bearer(OPERATOR_TEXT)
    request = gateway_pb2.CreateTenantRequest(
        tenant_id="zeta", display_name="Zeta", request_id=str(uuid.uuid4())
    )
    made = await tenants.CreateTenant(request, metadata=operator)
    assert made.tenant.name == "tenants/zeta"
    assert await tenants.CreateTenant(request, metadata=operator) == made  # a retry
    key = await keys.CreateKey(create("tenants/zeta", ("*",)), metadata=operator)
    # Everything, but of its own tenant alone.
    theirs = bearer(key.secret)
    assert await keys.ListKeys(gateway_pb2.ListKeysRequest(parent="tenants/zeta"), metadata=theirs)
    for parent in ("tenants/acme", "tenants/default"):
        code, _ = await refused(keys.ListKeys(gateway_pb2.ListKeysRequest(parent=parent), metadata=theirs))
        assert code == "NOT_FOUND"
    code, _ = await refused(tenants.ListTenants(gateway_pb2.ListTenantsRequest(), metadata=theirs))
    assert code == "PERMISSION_DENIED"


async def test_a_tenant_with_the_scope_but_not_the_operators_makes_no_tenants(tenants):
    code, text = await refused(
        tenants.CreateTenant(gateway_pb2.CreateTenantRequest(tenant_id="mine"), metadata=bearer(TENANT_TEXT))
    )
    assert code == "PERMISSION_DENIED"
    assert "tenants/default" in text


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"tenant_id": "acme"}, "ALREADY_EXISTS", "tenants/acme"),
        ({"tenant_id": "Not An Id"}, "INVALID_ARGUMENT", "tenant_id"),
        ({"tenant_id": "ok", "request_id": "1"}, "INVALID_ARGUMENT", "UUID"),
    ],
)
async def test_wrong_tenants_are_refused(tenants, fields, code, says):
    answered, text = await refused(
        tenants.CreateTenant(gateway_pb2.CreateTenantRequest(**fields), metadata=bearer(OPERATOR_TEXT))
    )
    assert answered == code
    assert says in text


async def test_lists_come_in_pages(keys, tenants):
    operator = bearer(OPERATOR_TEXT)
    for _ in range(5):
        await keys.CreateKey(create(), metadata=bearer(TENANT_TEXT))
    names, token = [], ""
    for size in (2, 2, 2, 2):
        page = await keys.ListKeys(
            gateway_pb2.ListKeysRequest(parent="tenants/acme", page_size=size, page_token=token),
            metadata=bearer(TENANT_TEXT),
        )
        names += [key.name for key in page.keys]
        token = page.next_page_token
    assert token == ""
    assert names == sorted(names)
    assert len(names) == 7
    page = await tenants.ListTenants(gateway_pb2.ListTenantsRequest(page_size=1), metadata=operator)
    assert [tenant.name for tenant in page.tenants] == ["tenants/acme"]
    page = await tenants.ListTenants(
        gateway_pb2.ListTenantsRequest(page_token=page.next_page_token), metadata=operator
    )
    assert [tenant.name for tenant in page.tenants] == ["tenants/default"]
    code, text = await refused(
        tenants.ListTenants(gateway_pb2.ListTenantsRequest(page_token="rubbish"), metadata=operator)
    )
    assert code == "INVALID_ARGUMENT"
    assert "page_token" in text


async def test_revoking_is_for_the_own_tenant_and_may_be_repeated(keys):
    request = gateway_pb2.RevokeKeyRequest(name=READER.name)
    code, _ = await refused(keys.RevokeKey(request, metadata=bearer(READER_TEXT)))
    assert code == "PERMISSION_DENIED"
    other = gateway_pb2.RevokeKeyRequest(name=OPERATOR.name)
    code, _ = await refused(keys.RevokeKey(other, metadata=bearer(TENANT_TEXT)))
    assert code == "NOT_FOUND"
    for _ in range(2):
        assert (await keys.RevokeKey(request, metadata=bearer(TENANT_TEXT))).key.revoked
    code, text = await refused(keys.ListKeys(gateway_pb2.ListKeysRequest(), metadata=bearer(READER_TEXT)))
    assert code == "UNAUTHENTICATED"
    assert "revoked" in text


async def test_making_and_revoking_keys_is_told_in_the_audit_log(keys, clock, audit, caplog):
    ttl = Duration(seconds=90)
    request = create(scopes=("tasks:read", "keys:read"), display_name="ci", ttl=ttl)
    made = await keys.CreateKey(request, metadata=bearer(TENANT_TEXT))
    revoke = gateway_pb2.RevokeKeyRequest(name=made.key.name)
    await refused(keys.RevokeKey(revoke, metadata=bearer(READER_TEXT)))
    for _ in range(2):
        clock.advance(1)
        await keys.RevokeKey(revoke, metadata=bearer(TENANT_TEXT))
    await refused(keys.CreateKey(create(scopes=("releases:write",)), metadata=bearer(TENANT_TEXT)))
    created, revoked = audit()  # what was refused or repeated isn't told
    for line, action in ((created, "key.create"), (revoked, "key.revoke")):
        assert line["audit"] is True
        assert (line["level"], line["logger"]) == ("INFO", "isthmus.gateway.audit")
        assert (line["action"], line["actor"], line["resource"]) == (action, TENANT.name, made.key.name)
        assert line["scopes"] == ["keys:read", "tasks:read"]
    assert created["display_name"] == "ci"
    assert datetime.fromisoformat(created["expire_time"]) == made.key.expire_time.ToDatetime(UTC)
    secret = made.secret.rpartition("_")[2]
    assert all(secret not in str(vars(record)) for record in caplog.records)


async def test_making_a_tenant_is_told_in_the_audit_log_once(tenants, clock, audit):
    request = gateway_pb2.CreateTenantRequest(
        tenant_id="fresh", display_name="new here", request_id=str(uuid.uuid4())
    )
    for _ in range(2):
        await tenants.CreateTenant(request, metadata=bearer(OPERATOR_TEXT))
        clock.advance(1)
    await refused(tenants.CreateTenant(request, metadata=bearer(TENANT_TEXT)))
    (line,) = audit()
    assert (line["action"], line["actor"], line["resource"], line["display_name"]) == (
        "tenant.create",
        OPERATOR.name,
        "tenants/fresh",
        "new here",
    )
