"""Publishing waits for a simulator: a deployer here, a real simulator in a process of its own."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from isthmus.deployer.v1 import audit_pb2, manifest_pb2, preflight_pb2, task_pb2
from libs.common.client import ServiceIdentity, create_channel
from libs.common.clock import SystemClock
from libs.common.errors import Exhausted, Internal, Invalid, NotFound, Precondition, Unavailable
from libs.common.identity import IdentityIssuer
from libs.common.names import TaskName
from libs.task.testing import blob_ref, make_manifest
from services.deployer.domain.model import BlobRef, Preflight
from services.deployer.simulator import RemoteSimulator
from services.deployer.testing import IDENTITY_KEY, Client, Running, refused, running_deployer
from services.device_agent.simulator.testing import SimulatorProcess, lines
from services.device_agent.vm.testing import until

State = preflight_pb2.Preflight.State
SCRIPT = b"def pre(context):\n    return {'n': 1 / context.events[-1].fields['n']}\n"
ENDLESS = b"def pre(context):\n    while True: pass\n"
GOOD, BAD = lines(1, 2, 3), lines(1, 0)


class Late:
    """A simulator whose address is known once it runs."""

    def __init__(self) -> None:
        self.real: RemoteSimulator | None = None
        self.calls = 0

    async def simulate(self, task: TaskName, signed: bytes, events: BlobRef | None) -> Preflight:
        assert self.real is not None
        self.calls += 1
        return await self.real.simulate(task, signed, events)


@dataclass(frozen=True, slots=True)
class Rig:
    running: Running
    simulator: SimulatorProcess
    late: Late
    client: Client

    async def publish(
        self, version: str, script: bytes = SCRIPT, events: bytes | None = None, **more: object
    ) -> task_pb2.Version:
        await self.client.upload(script)
        recording = await self.client.upload(events) if events is not None else None
        manifest = make_manifest(version=version, script=script, wall_time_s=30)
        return await self.client.publish_manifest(manifest, events=recording, **more)

    async def get(self, version: str) -> task_pb2.Version:
        name = f"tenants/acme/tasks/genres/versions/{version}"
        return (await self.client.tasks.GetVersion(task_pb2.GetVersionRequest(name=name))).version


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    simulator, late = SimulatorProcess(tmp_path / "simulator"), Late()
    simulator.trust("deployer", IDENTITY_KEY.public_key())
    trusted = {"simulator": simulator.public_key()}
    async with running_deployer(tmp_path, simulator=late, trusted=trusted) as running:
        await simulator.start(running.channel.target)
        identity = ServiceIdentity(IdentityIssuer("deployer", IDENTITY_KEY, SystemClock()), "simulator")
        async with create_channel(simulator.target, identity=identity) as channel:
            late.real = RemoteSimulator(channel, 100.0)
            client = running.client()
            await client.install_root()
            await client.create_task()
            yield Rig(running, simulator, late, client)
        await simulator.stop()


async def test_a_good_version_is_published_with_its_verdict(rig: Rig) -> None:
    checked = await rig.publish("1.0.0", events=GOOD, validate_only=True)
    assert (checked.preflight.state, checked.preflight.run_count) == (State.STATE_PASSED, 3)
    with refused(NotFound):
        await rig.get("1.0.0")
    version = await rig.publish("1.0.0", events=GOOD)
    found = version.preflight
    assert (found.state, found.event_count, found.run_count) == (State.STATE_PASSED, 3, 3)
    assert found.events == blob_ref(GOOD)
    assert await rig.get("1.0.0") == version
    stat = await rig.running.deployer.blobs.stat("acme", found.events.digest)
    assert stat.pin_count == 1
    (audited,) = [
        detail for action, detail in await details(rig.client, version.name) if action == "version.publish"
    ]
    assert audited.endswith("; pre-flight passed: 3 runs over 3 events")

    # The same again isn't tried again, whatever events come with it; a new one takes the events on.
    calls = rig.late.calls
    assert await rig.publish("1.0.0", events=BAD) == version
    assert rig.late.calls == calls
    later = await rig.publish("1.0.1")
    assert later.preflight.events == blob_ref(GOOD)
    assert later.preflight.run_count == 3
    request = task_pb2.ListVersionsRequest(parent="tenants/acme/tasks/genres")
    listed = (await rig.client.tasks.ListVersions(request)).versions
    assert list(listed) == [later, version]


async def details(client: Client, resource: str) -> list[tuple[str, str]]:
    request = audit_pb2.ListAuditEntriesRequest(parent="tenants/acme", resource=resource)
    answer = await client.audit.ListAuditEntries(request)
    return [(entry.action, entry.detail) for entry in answer.entries]


async def test_a_bad_version_is_not_published_and_told_why(rig: Rig) -> None:
    for validate_only in (True, False):
        told = "line 2 of the events ('rate' of user 'u1'"
        with refused(Precondition, told, reason="PREFLIGHT_FAILED") as caught:
            await rig.publish("1.0.0", events=BAD, validate_only=validate_only)
        assert "ZeroDivisionError" in caught[0].message
        assert "isthmus task try" in caught[0].message
        assert caught[0].metadata == {
            "failure_reason": "EXCEPTION",
            "event_count": "2",
            "run_count": "2",
            "failure_count": "1",
        }
    with refused(NotFound):
        await rig.get("1.0.0")
    with refused(Precondition, "none of 1 events completed the trigger", reason="PREFLIGHT_FAILED"):
        await rig.publish("1.0.0", events=lines(1, type_="other"))
    assert (await rig.publish("1.0.0", events=GOOD)).preflight.state == State.STATE_PASSED


async def test_events_that_cannot_be_used_are_refused(rig: Rig) -> None:
    with refused(Invalid, "events: line 1"):
        await rig.publish("1.0.0", events=b"no event\n")
    await rig.client.upload(SCRIPT)
    manifest = make_manifest(script=SCRIPT)
    other = rig.running.client("other")
    theirs = await other.upload(lines(7))
    for events, kind, text in (
        (theirs, Precondition, "upload it first"),
        (manifest_pb2.BlobRef(digest="sha256:7", size_bytes=1), Invalid, "events.digest"),
        (manifest_pb2.BlobRef(digest=theirs.digest, size_bytes=17 << 20), Invalid, "more than 16 MiB"),
        (manifest_pb2.BlobRef(), Invalid, "events.digest"),
    ):
        with refused(kind, text):
            await rig.client.publish_manifest(manifest, events=events)
    mine = await rig.client.upload(GOOD)
    mine.size_bytes += 1
    with refused(Invalid, "bytes, not", reason="SIZE_MISMATCH"):
        await rig.client.publish_manifest(manifest, events=mine)


async def test_without_its_simulator_nothing_is_published_until_it_is_back(rig: Rig) -> None:
    publishing = asyncio.create_task(rig.publish("1.0.0", ENDLESS, GOOD))
    await until(lambda: publishing.done() or rig.simulator.scratch != [], "it is being tried")
    # Nothing is locked meanwhile.
    await rig.client.create_task("another")
    await rig.simulator.stop()
    with refused(Unavailable, reason="SIMULATOR_UNAVAILABLE"):
        await publishing
    with refused(Unavailable, "try again", reason="SIMULATOR_UNAVAILABLE"):
        await rig.publish("1.0.0", events=GOOD)
    with refused(NotFound):
        await rig.get("1.0.0")
    await rig.simulator.start(rig.running.channel.target)
    version = await eventually_published(rig)
    assert version.preflight.state == State.STATE_PASSED


async def eventually_published(rig: Rig) -> task_pb2.Version:
    """Publish as soon as the channel, which backs off, is connected again."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await rig.publish("1.0.0", events=GOOD)
            except Exception as error:
                if "SIMULATOR_UNAVAILABLE" not in str(error) and "try again" not in str(error):
                    raise
                await asyncio.sleep(0.2)


async def test_a_publisher_that_gives_up_ends_the_simulation(rig: Rig) -> None:
    publishing = asyncio.create_task(rig.publish("1.0.0", ENDLESS, GOOD))
    await until(lambda: publishing.done() or rig.simulator.scratch != [], "it is being tried")
    publishing.cancel()
    await until(lambda: rig.simulator.scratch == [], "its simulation is gone")
    with refused(Unavailable):
        await rig.publish("1.0.0", ENDLESS, GOOD, timeout_s=1.5)
    await until(lambda: rig.simulator.scratch == [], "the one whose deadline passed is gone")
    assert (await rig.publish("1.0.0", events=GOOD)).preflight.run_count == 3


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (Exhausted("busy", reason="SIMULATOR_BUSY", retry_after_s=5.0), Exhausted, "SIMULATOR_BUSY"),
        (Internal("broken", reason="SIMULATION_BROKEN"), Internal, "SIMULATION_BROKEN"),
        (Invalid("events: line 3: no", reason="BAD_EVENTS"), Invalid, "BAD_EVENTS"),
    ],
)
async def test_what_the_simulator_refuses_reaches_the_publisher(
    tmp_path: Path, error: Exception, kind: type[Internal], reason: str
) -> None:
    class Refuses:
        async def simulate(self, task: TaskName, signed: bytes, events: BlobRef | None) -> Preflight:
            raise error

    async with running_deployer(tmp_path, simulator=Refuses()) as running:
        client = running.client()
        await client.install_root()
        await client.create_task()
        with refused(kind, reason=reason) as caught:
            await client.publish()
        assert caught[0].retry_after_s == getattr(error, "retry_after_s", None)
        with refused(NotFound):
            name = "tenants/acme/tasks/genres/versions/1.0.0"
            await client.tasks.GetVersion(task_pb2.GetVersionRequest(name=name))


async def test_a_cloud_without_a_simulator_says_so(tmp_path: Path) -> None:
    async with running_deployer(tmp_path) as running:
        client = running.client()
        await client.install_root()
        await client.create_task()
        events = await client.upload(json.dumps({"type": "rate", "time_s": 1}).encode())
        manifest = make_manifest(script=SCRIPT)
        await client.upload(SCRIPT)
        version = await client.publish_manifest(manifest, events=events)
        assert version.preflight == preflight_pb2.Preflight(state=State.STATE_SKIPPED, events=events)
        ((_, detail),) = await details(client, version.name)
        assert detail.endswith("; pre-flight skipped: no simulator")
        assert (
            running.metrics.get_sample_value("isthmus_deployer_preflights_total", {"outcome": "skipped"})
            == 1.0
        )
