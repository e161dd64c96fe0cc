"""A device that was revoked stays out, also at a gateway that has just started and can't ask anybody."""

import signal

import grpc
import psutil
import pytest

from deploy.local.stack import Stack
from isthmus.deployer.v1 import pull_pb2
from isthmus.gateway.v1 import gateway_pb2
from tests.integration.system.wire import Handset, Refusal, attempt, bearer
from tests.integration.system.world import Cloud, until

pytestmark = pytest.mark.timeout(300)

PLAN = (
    "/isthmus.deployer.v1.PullService/Plan",
    pull_pb2.PlanRequest(root_version=1, agent_version="0.1.0", python_version="3.11").SerializeToString(),
)
TUNNEL = ("/isthmus.tunnel.v1.TunnelService/Connect", b"")
WATCH = (
    "/isthmus.gateway.v1.PushService/Watch",
    gateway_pb2.WatchRequest(profile_digest=bytes(16)).SerializeToString(),
)
KEYS = "/isthmus.gateway.v1.KeyService/ListKeys"


def test_a_revoked_device_never_comes_in_after_the_gateway_was_killed(stack: Stack, cloud: Cloud) -> None:
    good = Handset(cloud, cloud.enrolment_token(), "good")
    bad = Handset(cloud, cloud.enrolment_token(), "bad")
    requests = gateway_pb2.ListKeysRequest(parent=f"tenants/{cloud.tenant}").SerializeToString()
    answers: list[Refusal | None] = []

    def bad_is_out(method: str = PLAN[0], request: bytes = PLAN[1]) -> bool:
        refused = attempt(cloud.gateway, method, request, bad.metadata)
        answers.append(refused)
        return refused is not None and refused.code is grpc.StatusCode.UNAUTHENTICATED

    assert attempt(cloud.gateway, *PLAN, bad.metadata) is None
    cloud.isthmus("device", "revoke", "bad")
    until("the gateway to hear of it", bad_is_out)

    deployer = psutil.Process(stack.pid("deployer"))
    deployer.send_signal(signal.SIGSTOP)
    try:
        killed = stack.kill("gateway")
        until("another gateway", lambda: stack.pid("gateway") not in (0, killed))
        # People are served at once; no device is, since nobody can tell which are revoked.
        until(
            "the gateway to serve people",
            lambda: attempt(cloud.gateway, KEYS, requests, bearer(cloud.key)) is None,
        )
        for device in (good, bad):
            for method, request in (PLAN, TUNNEL, WATCH):
                refused = attempt(cloud.gateway, method, request, device.metadata)
                assert refused is not None, f"{method} was answered"
                assert refused.code is grpc.StatusCode.UNAVAILABLE, refused
                assert "which devices are revoked" in refused.text
    finally:
        deployer.send_signal(signal.SIGCONT)
    answers.clear()
    until("the revoked device to be told", bad_is_out)
    assert all(found is not None for found in answers), answers
    assert {found.code for found in answers[:-1] if found} <= {grpc.StatusCode.UNAVAILABLE}
    until("the good one to be back", lambda: attempt(cloud.gateway, *PLAN, good.metadata) is None)
    for method, request in (TUNNEL, WATCH):
        assert bad_is_out(method, request)
