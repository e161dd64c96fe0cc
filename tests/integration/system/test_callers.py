"""Who may call: wrong, missing, expired, revoked, foreign keys; devices and people in each other's place."""

import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from deploy.local.stack import Stack
from isthmus.deployer.v1 import (
    audit_pb2,
    blob_pb2,
    device_pb2,
    pull_pb2,
    release_pb2,
    task_pb2,
    trust_service_pb2,
)
from isthmus.gateway.v1 import gateway_pb2
from isthmus.tunnel.v1 import tunnel_pb2
from tests.integration.system.agents import Agent
from tests.integration.system.wire import Handset, Metadata, Refusal, attempt, bearer, call, refusal, upload
from tests.integration.system.world import Cloud, until

DEPLOYER, GATEWAY, TUNNEL = "/isthmus.deployer.v1.", "/isthmus.gateway.v1.", "/isthmus.tunnel.v1."
LIST = DEPLOYER + "TaskService/ListTasks"
PLAN = DEPLOYER + "PullService/Plan"
UNAUTHENTICATED, FORBIDDEN = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
NOT_FOUND = grpc.StatusCode.NOT_FOUND
OURS = task_pb2.ListTasksRequest(parent="tenants/ours").SerializeToString()

PLAN_REQUEST = pull_pb2.PlanRequest(agent_version="0.1.0", python_version="3.11").SerializeToString()


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ((), "no credentials"),
        ((("authorization", ""),), "authorization must start with"),
        ((("authorization", "Basic YTpi"),), "authorization must start with"),
        (bearer("nonsense"), "malformed API key"),
        (bearer("isk_" + "a" * 16 + "_" + "0" * 64), "unknown or wrong API key"),
        ((*bearer("x"), *bearer("y")), "more than once"),
    ],
    ids=["none", "empty", "other-scheme", "malformed", "unknown", "twice"],
)
def test_strangers_are_refused_with_what_to_do(
    stack: Stack, cloud: Cloud, metadata: Metadata, says: str
) -> None:
    refused = refusal(stack.gateway, LIST, OURS, metadata)
    assert refused.code is UNAUTHENTICATED
    assert says in refused.text


def test_a_key_with_another_secret_is_refused_without_telling_that_the_key_exists(
    stack: Stack, cloud: Cloud
) -> None:
    key = cloud.key
    other = key[:-64] + ("0" * 64)
    unknown = "isk_" + "a" * 16 + "_" + "0" * 64
    texts = {refusal(stack.gateway, LIST, OURS, bearer(made)).text for made in (other, unknown)}
    assert len(texts) == 1
    assert key[-64:] not in texts.pop()


def test_a_key_stops_working_when_it_is_revoked_and_when_it_expires(
    stack: Stack, cloud: Cloud, tmp_path: Path
) -> None:
    def made(name: str, *flags: str) -> tuple[str, str]:
        path = tmp_path / name
        (found,) = cloud.isthmus("key", "create", "--scope", "tasks:read", "--out", str(path), *flags)
        return found["key"]["name"].rpartition("/")[2], path.read_text()

    key_id, revoked = made("revoked")
    _, expiring = made("expiring", "--ttl", "2s")
    call(stack.gateway, LIST, OURS, bearer(revoked))
    cloud.isthmus("key", "revoke", key_id)
    refused = refusal(stack.gateway, LIST, OURS, bearer(revoked))
    assert refused.code is UNAUTHENTICATED
    assert "was revoked" in refused.text

    late = until("the key to expire", lambda: attempt(stack.gateway, LIST, OURS, bearer(expiring)))
    assert late.code is UNAUTHENTICATED
    assert "expired at" in late.text


@pytest.mark.parametrize(
    ("method", "request_", "scope"),
    [
        (
            "TaskService/CreateTask",
            task_pb2.CreateTaskRequest(parent="tenants/ours", task_id="x"),
            "tasks:write",
        ),
        (
            "ReleaseService/ListReleases",
            release_pb2.ListReleasesRequest(parent="tenants/ours"),
            "releases:read",
        ),
        ("DeviceService/ListDevices", device_pb2.ListDevicesRequest(parent="tenants/ours"), "devices:read"),
        (
            "AuditService/ListAuditEntries",
            audit_pb2.ListAuditEntriesRequest(parent="tenants/ours"),
            "audit:read",
        ),
    ],
)
def test_a_key_does_no_more_than_its_scopes(
    stack: Stack, cloud: Cloud, tmp_path: Path, method: str, request_: Message, scope: str
) -> None:
    cloud.isthmus("key", "create", "--scope", "tasks:read", "--out", str(tmp_path / "key"))
    refused = refusal(
        stack.gateway, DEPLOYER + method, request_.SerializeToString(), bearer((tmp_path / "key").read_text())
    )
    assert refused.code is FORBIDDEN
    assert scope in refused.text


def test_a_tenant_sees_nothing_of_another(
    stack: Stack, cloud: Cloud, theirs: Cloud, handset: Handset
) -> None:
    blob = upload(cloud, b"a secret of ours")
    requests = {
        "TaskService/ListTasks": task_pb2.ListTasksRequest(parent="tenants/ours"),
        "TaskService/CreateTask": task_pb2.CreateTaskRequest(parent="tenants/ours", task_id="theirs"),
        "TaskService/GetTask": task_pb2.GetTaskRequest(name="tenants/ours/tasks/job"),
        "TaskService/PublishVersion": task_pb2.PublishVersionRequest(parent="tenants/ours/tasks/job"),
        "TaskService/GetVersion": task_pb2.GetVersionRequest(name="tenants/ours/tasks/job/versions/1"),
        "ReleaseService/ListReleases": release_pb2.ListReleasesRequest(parent="tenants/ours"),
        "ReleaseService/CreateRelease": release_pb2.CreateReleaseRequest(
            parent="tenants/ours", version="tenants/ours/tasks/job/versions/1"
        ),
        "ReleaseService/RollBackRelease": release_pb2.RollBackReleaseRequest(name="tenants/ours/releases/r"),
        "ReleaseService/WatchRelease": release_pb2.WatchReleaseRequest(name="tenants/ours/releases/r"),
        "DeviceService/ListDevices": device_pb2.ListDevicesRequest(parent="tenants/ours"),
        "DeviceService/GetDevice": device_pb2.GetDeviceRequest(name=handset.name),
        "DeviceService/RevokeDevice": device_pb2.RevokeDeviceRequest(name=handset.name),
        "DeviceService/CreateEnrolmentToken": device_pb2.CreateEnrolmentTokenRequest(parent="tenants/ours"),
        "TrustService/ListRoots": trust_service_pb2.ListRootsRequest(parent="tenants/ours"),
        "AuditService/ListAuditEntries": audit_pb2.ListAuditEntriesRequest(parent="tenants/ours"),
        "BlobService/StatBlob": blob_pb2.StatBlobRequest(digest=blob.digest),
        "BlobService/ReadBlob": blob_pb2.ReadBlobRequest(digest=blob.digest),
    }
    paths = {DEPLOYER + name: request for name, request in requests.items()} | {
        GATEWAY + "KeyService/ListKeys": gateway_pb2.ListKeysRequest(parent="tenants/ours"),
        GATEWAY + "KeyService/CreateKey": gateway_pb2.CreateKeyRequest(parent="tenants/ours", scopes=["*"]),
        TUNNEL + "ExportService/Export": tunnel_pb2.ExportRequest(parent="tenants/ours"),
    }
    theirs_key = bearer(theirs.key)
    found = {
        path: refusal(stack.gateway, path, request.SerializeToString(), theirs_key).code
        for path, request in paths.items()
    }
    assert found == dict.fromkeys(paths, NOT_FOUND)


def test_a_device_does_nothing_that_is_for_people(stack: Stack, handset: Handset) -> None:
    requests = {
        LIST: OURS,
        DEPLOYER + "ReleaseService/ListReleases": release_pb2.ListReleasesRequest(
            parent="tenants/ours"
        ).SerializeToString(),
        DEPLOYER + "DeviceService/GetDevice": device_pb2.GetDeviceRequest(
            name=handset.name
        ).SerializeToString(),
        DEPLOYER + "BlobService/BeginBlob": b"",
        GATEWAY + "KeyService/ListKeys": gateway_pb2.ListKeysRequest(
            parent="tenants/ours"
        ).SerializeToString(),
        GATEWAY + "TenantService/ListTenants": b"",
        TUNNEL + "ExportService/Export": tunnel_pb2.ExportRequest(parent="tenants/ours").SerializeToString(),
    }
    assert call(stack.gateway, PLAN, PLAN_REQUEST, handset.metadata)
    found = {
        path: refusal(stack.gateway, path, request, handset.metadata).code
        for path, request in requests.items()
    }
    assert found == dict.fromkeys(requests, FORBIDDEN)


@pytest.mark.parametrize(
    "path",
    [
        PLAN,
        DEPLOYER + "PullService/Report",
        DEPLOYER + "EnrolmentService/RenewCredential",
        GATEWAY + "PushService/Watch",
        TUNNEL + "TunnelService/Connect",
        DEPLOYER + "PushIndexService/Watch",
    ],
)
def test_a_key_that_may_do_all_is_no_device_and_no_service(stack: Stack, cloud: Cloud, path: str) -> None:
    assert refusal(stack.gateway, path, b"", bearer(cloud.key)).code is FORBIDDEN


def test_a_device_needs_its_own_credential_and_its_own_key(
    stack: Stack, cloud: Cloud, handset: Handset
) -> None:
    other = Handset(cloud, cloud.enrolment_token(), "other")
    token = ("authorization", f"Device {handset.token}")
    # What the other's key says of our device: its holder knows our credential, but not our key.
    forged = ("authorization", f"Device {other.key.token(handset.name, time.time())}")
    cases: list[Metadata] = [
        (token,),
        (("x-isthmus-credential", handset.credential),),
        (token, ("x-isthmus-credential", other.credential)),
        (forged, ("x-isthmus-credential", handset.credential)),
        (token, ("x-isthmus-credential", handset.credential[:-4] + "AAAA")),
        (("authorization", f"Device {handset.credential}"), ("x-isthmus-credential", handset.credential)),
        (("authorization", f"Bearer {handset.token}"), ("x-isthmus-credential", handset.credential)),
    ]
    assert [refusal(stack.gateway, PLAN, b"", case).code for case in cases] == [UNAUTHENTICATED] * len(cases)


def test_nobody_brings_an_identity_of_his_own(stack: Stack, cloud: Cloud) -> None:
    forged = (("x-isthmus-identity", "eyJhbGciOiJub25lIn0.e30."),)
    assert refusal(stack.gateway, LIST, OURS, forged).code is UNAUTHENTICATED
    # Beside a good key it changes nothing.
    call(stack.gateway, LIST, OURS, (*bearer(cloud.key), *forged))
    # The services behind the door believe no forged one, and no key.
    for service in ("deployer", "tunnel"):
        for metadata in (forged, bearer(cloud.key), ()):
            assert refusal(stack.endpoints[service], LIST, OURS, metadata).code in (
                UNAUTHENTICATED,
                grpc.StatusCode.UNIMPLEMENTED,
            )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda token: token[:-3] + "abc", "token"),
        (lambda token: "", "token"),
    ],
    ids=["wrong", "none"],
)
def test_a_wrong_enrolment_token_ends_the_agent_with_its_own_status(
    cloud: Cloud, change: Callable[[str], str], says: str
) -> None:
    agent = Agent("stranger", cloud.home / "stranger", cloud.gateway, change(cloud.enrolment_token()))
    agent.start()
    try:
        until("the agent to give up", lambda: agent.exit_status() is not None, lambda: agent.log)
        assert agent.exit_status() == 3
        assert says in agent.log
    finally:
        agent.stop()


def test_an_enrolment_token_is_good_once_and_its_device_may_come_again(cloud: Cloud) -> None:
    token = cloud.enrolment_token()
    first = Handset(cloud, token, "once")
    again = Handset(cloud, token, "once")
    assert first.key.public == again.key.public
    with pytest.raises(grpc.RpcError) as caught:
        Handset(cloud, token, "twice")
    assert caught.value.code() in (UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION)


def test_a_revoked_device_is_out_at_once(stack: Stack, cloud: Cloud) -> None:
    lost = Handset(cloud, cloud.enrolment_token(), "lost")
    call(stack.gateway, PLAN, PLAN_REQUEST, lost.metadata)
    cloud.isthmus("device", "revoke", "lost")

    def refused() -> Refusal | None:
        # The deployer refuses at once; the gateway itself as soon as it has heard of it.
        found = attempt(stack.gateway, PLAN, PLAN_REQUEST, lost.metadata)
        return found if found is not None and found.code is UNAUTHENTICATED else None

    assert "revoked" in until("the gateway to hear of it", refused).text
