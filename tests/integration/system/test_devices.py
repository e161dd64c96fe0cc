"""What goes wrong between devices and the cloud: replayed sets, cloned devices, curious tasks, storms."""

import asyncio
import contextlib
import shutil
import socket
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from deploy.local.stack import Stack
from isthmus.client import connect
from isthmus.deployer.v1 import pull_pb2, pull_pb2_grpc, task_pb2, task_pb2_grpc
from isthmus.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from libs.task.profile import profile_digest
from tests.integration.system.agents import Agent, event
from tests.integration.system.wire import OWN_CONNECTION, Handset, Relay, rss
from tests.integration.system.world import PATIENCE_S, Cloud, Published, publish, until

ECHO = """
def run(context):
    n = context.events[-1].fields["n"]
    context.send("out", {"n": n})
    return {"n": n}
"""
STORM = 300
MIB = 1 << 20

MakeAgent = Callable[..., Agent]


@pytest.fixture
def make_agent(cloud: Cloud) -> Iterator[MakeAgent]:
    """Makes agents of the tenant, started; they have ended after the test."""
    made: list[Agent] = []

    def make(device_id: str, *flags: str, gateway: str = "", folder: str = "", fleet: str = "") -> Agent:
        if fleet:
            flags += ("--attributes", f"fleet={fleet}")
        home = cloud.home / (folder or device_id)
        agent = Agent(device_id, home, gateway or cloud.gateway, cloud.enrolment_token(), *flags)
        made.append(agent)
        agent.start()
        return agent

    yield make
    for agent in made:
        agent.stop()


def release(cloud: Cloud, published: Published, fleet: str) -> None:
    cloud.isthmus("release", "create", published.key, "--attribute", f"fleet={fleet}")


def problem(agent: Agent, text: str) -> bool:
    return any(text in problem for problem in agent.status().problems)


def test_an_old_set_shown_again_changes_nothing(cloud: Cloud, make_agent: MakeAgent) -> None:
    old, new = publish(cloud, "replay", "1", ECHO), publish(cloud, "replay", "2", ECHO)
    relay = Relay(cloud.gateway)
    try:
        agent = make_agent("victim", "--pull-interval-s", "1", gateway=relay.address, fleet="replay")
        release(cloud, old, "replay")
        until("the old version to run", lambda: agent.runs() == {old.key}, agent.status)
        captured = relay.plans[-1]
        answer = pull_pb2.PlanResponse.FromString(captured)
        assert [e.version for e in pull_pb2.DeviceSet.FromString(answer.device_set.payload).entries] == ["1"]
        agent.send(event(1, "e1"), event(2, "e2"))
        until(
            "the old version to be confirmed", lambda: agent.states() == {old.key: "CONFIRMED"}, agent.status
        )
        release(cloud, new, "replay")
        until("the new version to run", lambda: agent.runs() == {new.key}, agent.status)
        relay.replayed = captured
        until("the agent to see through it", lambda: problem(agent, "was accepted before"), agent.status)
        assert agent.runs() == {new.key}
        # Nor does it forget when it starts anew.
        agent.kill()
        agent.start()
        until(
            "the agent to see through it again", lambda: problem(agent, "was accepted before"), agent.status
        )
        assert agent.runs() == {new.key}
        relay.replayed = None
        until("the agent to be well again", lambda: not agent.status().problems, agent.status)
        assert agent.runs() == {new.key}
    finally:
        relay.close()


def test_two_agents_with_one_identity_fence_each_other_and_both_say_so(
    cloud: Cloud, make_agent: MakeAgent
) -> None:
    echo = publish(cloud, "twins", "1", ECHO)
    flags = ("--fenced-wait-s", "1")
    first = make_agent("twin", *flags, fleet="twins")
    release(cloud, echo, "twins")
    until("the first to be connected", lambda: first.status().tunnel_connected, first.status)
    first.send(event(1, "e1"), event(2, "e2"))
    until("its frames to be there", lambda: first.status().counters.acked_frame_count == 2, first.status)
    first.stop()
    shutil.copytree(first.home / "state", cloud.home / "twin2" / "state")
    first.start()
    until("the first to be connected again", lambda: first.status().tunnel_connected, first.status)
    second = make_agent("twin", *flags, folder="twin2")
    # The newer fences the older, which comes again after a while and then is the newer.
    said = {"first": False, "second": False}

    def both() -> bool:
        said["first"] |= problem(first, "another agent uses this device's identity")
        said["second"] |= problem(second, "another agent uses this device's identity")
        return all(said.values())

    until("both to say so", both, lambda: f"{first.status()}\n{second.status()}")
    # With one of them gone the other works again, and takes back what it said.
    second.stop()
    until("the first to have the tunnel", lambda: first.status().tunnel_connected, first.status)
    until("the first to be well", lambda: not first.status().problems, first.status)
    first.send(event(3, "e3"))
    until(
        "its next frame to be there",
        lambda: [r["payload"]["n"] for r in cloud.exported() if r["device"] == "twin"] == [1, 2, 3],
        first.status,
    )


def test_a_state_folder_is_used_by_one_agent_at_a_time(cloud: Cloud, make_agent: MakeAgent) -> None:
    first = make_agent("single")
    until("it to enrol", lambda: first.status().device)
    second = Agent("single", first.home, cloud.gateway, "")
    second.start()
    until("the second to give up", lambda: second.exit_status() is not None)
    assert second.exit_status() == 2
    assert "another agent uses" in second.log
    assert first.exit_status() is None
    assert first.status().device


def test_a_field_that_the_manifest_does_not_declare_never_leaves_the_device(
    stack: Stack, cloud: Cloud, make_agent: MakeAgent
) -> None:
    secret = "what-ann-told-her-diary"
    curious = publish(
        cloud,
        "curious",
        "1",
        """
def run(context):
    fields = context.events[-1].fields
    told = {"n": fields["n"]}
    if fields["n"] % 2 == 0:
        told["diary"] = fields["diary"]
    context.send("out", told)
    return {"n": fields["n"]}
""",
    )
    agent = make_agent("diary", fleet="curious")
    release(cloud, curious, "curious")
    until("the task to run", lambda: agent.runs() == {curious.key}, agent.status)
    agent.send(*(event(n, f"e{n}", diary=secret) for n in range(1, 7)))

    def arrived() -> list[dict[str, Any]]:
        return [record for record in cloud.exported() if record["device"] == "diary"]

    until("a frame or a tombstone of each run", lambda: len(arrived()) == 6, agent.status)
    records, status = arrived(), agent.status()
    counters = status.counters
    assert (counters.success_count, counters.frame_count, counters.refused_frame_count) == (6, 3, 3)
    assert problem(agent, "field 'diary' is not declared by the manifest"), status
    assert [record["payload"] for record in records if "payload" in record] == [{"n": 1}, {"n": 3}, {"n": 5}]
    assert [record["sequence"] for record in records] == list(range(1, 7))
    # Of the others it says that they were refused, and why; of what was in them, nothing.
    assert len({record["tombstone"] for record in records if "tombstone" in record}) == 1
    kept = [path for path in stack.layout.home.rglob("*") if path.is_file()]
    assert kept
    assert [str(path) for path in kept if secret.encode() in path.read_bytes()] == []


def test_a_file_damaged_in_the_clouds_store_is_not_installed_and_the_release_rolls_back(
    stack: Stack, cloud: Cloud, make_agent: MakeAgent
) -> None:
    content = bytes(range(256)) * 1024
    damaged = publish(cloud, "damaged", "1", ECHO, resource=content)
    hexadecimal = damaged.digests["data.bin"].removeprefix("sha256:")
    (stored,) = (
        path for path in stack.layout.data_dir("deployer").rglob(f"*{hexadecimal}*") if path.is_file()
    )
    stored.chmod(0o600)
    stored.write_bytes(content[:-1] + b"x")
    agent = make_agent("careful", fleet="damaged")
    release(cloud, damaged, "damaged")

    def ended() -> dict[str, Any] | None:
        found: Any = cloud.isthmus("release", "list")[0]
        mine = next(each for each in found if each["version"].endswith("/damaged/versions/1"))
        return mine if mine["state"] != "STATE_RUNNING" else None

    found = until("the release to end", ended, agent.status)
    assert found is not None
    assert (found["state"], found["counts"]["failed_count"]) == ("STATE_ROLLED_BACK", 1)
    assert agent.runs() == set()
    assert not (agent.home / "state" / "versions" / "damaged" / "1").exists()
    assert any(reason["reason"] == "DIGEST_MISMATCH" for reason in found["failures"]), found


def watches(stack: Stack) -> float:
    """Return how many streams idle devices hold at the gateway, by its metrics."""
    (gateway,) = (process for process in stack.processes() if process.name == "gateway")
    address = gateway.endpoints[-1].address
    with urllib.request.urlopen(f"{address}/metrics", timeout=PATIENCE_S) as page:
        lines = page.read().decode().splitlines()
    values = [float(line.split()[1]) for line in lines if line.startswith("isthmus_gateway_held_watches ")]
    assert len(values) == 1, "the gateway doesn't count its watches"
    return values[0]


async def test_hundreds_of_devices_that_reconnect_at_once_all_get_through(stack: Stack, cloud: Cloud) -> None:
    token = cloud.enrolment_token(STORM)
    handsets = [Handset(cloud, token, f"storm{n}") for n in range(STORM)]
    request = pull_pb2.PlanRequest(agent_version="0.1.0", python_version="3.11")
    watch = gateway_pb2.WatchRequest(profile_digest=profile_digest(()))
    refusals: Counter[grpc.StatusCode] = Counter()
    answered = 0
    killed = asyncio.Event()

    async def device(handset: Handset) -> None:
        nonlocal answered
        async with grpc.aio.insecure_channel(stack.gateway, OWN_CONNECTION) as channel:
            pull = pull_pb2_grpc.PullServiceStub(channel)
            push = gateway_pb2_grpc.PushServiceStub(channel)
            while True:
                after_the_kill = killed.is_set()
                try:
                    await pull.Plan(request, metadata=handset.metadata, timeout=PATIENCE_S)
                    answered += 1
                    if after_the_kill:
                        return
                    async for _ in push.Watch(watch, metadata=handset.metadata):
                        pass
                except grpc.aio.AioRpcError as error:
                    refusals[error.code()] += 1
                    await asyncio.sleep(0.1)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for handset in handsets:
            group.create_task(device(handset))
        await asyncio.to_thread(until, "all to wait for hints", lambda: watches(stack) == STORM)
        assert answered == STORM
        assert not refusals
        before = rss(stack.pid("gateway"))
        killed.set()
        stack.kill("gateway")
    assert answered == 2 * STORM
    assert set(refusals) <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
    await asyncio.to_thread(stack.wait_healthy)
    assert rss(stack.pid("gateway")) < before + 64 * MIB


def test_connections_that_say_nothing_or_never_end_keep_nobody_out(stack: Stack, cloud: Cloud) -> None:
    http = int(stack.endpoints["gateway-http"].rpartition(":")[2])
    ports = {
        int(stack.gateway.rpartition(":")[2]): b"PRI * HTTP/2.0\r\n\r\nSM",
        http: b"GET /v1/blobs/x HTTP/1.1\r\nA:",
    }
    before = rss(stack.pid("gateway"))
    with contextlib.ExitStack() as sockets:
        for port, beginning in ports.items():
            for number in range(150):
                made = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
                sockets.enter_context(made)
                if number % 2:
                    made.sendall(beginning)
        key = (cloud.home / "api.key").read_text()
        with connect(stack.gateway, key, plaintext=True) as channel:
            stub = task_pb2_grpc.TaskServiceStub(channel)
            for _ in range(20):
                stub.ListTasks(task_pb2.ListTasksRequest(parent="tenants/ours"), timeout=PATIENCE_S)
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/healthz", timeout=PATIENCE_S) as page:
            assert page.status == 200
        assert rss(stack.pid("gateway")) < before + 64 * MIB
