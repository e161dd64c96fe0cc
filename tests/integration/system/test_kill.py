"""kill -9 of each process at each stage of a rollout: nothing acknowledged is lost, no device runs a half or
unverified version, and the rollout goes on."""

import dataclasses
import itertools
import json
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from deploy.local.stack import Stack
from isthmus.deployer.v1 import release_pb2, release_pb2_grpc
from tests.integration.system.agents import Agent, Feeder, SlowLink
from tests.integration.system.world import (
    WITHOUT_COMPUTE,
    Cloud,
    Published,
    patiently,
    publish,
    running_stack,
    tenant,
    until,
)

pytestmark = pytest.mark.timeout(300)

AGENTS = 4
GOOD = """
def run(context):
    n = context.events[-1].fields["n"]
    context.send("out", {"n": n})
    return {"n": n}
"""
BAD = """
def run(context):
    raise ValueError("bad on purpose")
"""
SERVICES = ("gateway", "tunnel", "deployer")
VICTIMS = (*SERVICES, "agent", "everything")
RUNNING, SUCCEEDED, ROLLED_BACK = (
    release_pb2.Release.STATE_RUNNING,
    release_pb2.Release.STATE_SUCCEEDED,
    release_pb2.Release.STATE_ROLLED_BACK,
)


@dataclasses.dataclass(slots=True)
class Fleet:
    """Devices that run a task, its versions and what was fed to them."""

    stack: Stack
    cloud: Cloud
    link: SlowLink
    agents: dict[str, Agent]
    feeders: dict[str, Feeder]
    published: dict[str, Published] = dataclasses.field(default_factory=dict)
    good: str = ""
    """The version that every device runs between two tests."""
    numbers: Iterator[int] = dataclasses.field(default_factory=lambda: itertools.count(1))

    def publish(self, source: str, resource: bytes = b"") -> str:
        """Publish the next version and return its key, `task@version`."""
        made = publish(self.cloud, "job", f"1.{next(self.numbers)}", source, resource=resource)
        self.published[made.key] = made
        return made.key

    def release(self, key: str, *steps: float) -> str:
        """Release a version to all devices, to half of them first by default; return the release's name."""
        task, _, version = key.partition("@")
        parent = f"tenants/{self.cloud.tenant}"
        gate = release_pb2.Gate(confirmed_percent=100.0, failed_percent=5.0, min_report_count=1)
        gate.soak_time.FromSeconds(1)
        request = release_pb2.CreateReleaseRequest(
            parent=parent,
            version=f"{parent}/tasks/{task}/versions/{version}",
            steps_percent=steps or (50.0, 100.0),
            gate=gate,
            request_id=str(uuid.uuid4()),
        )
        stub = release_pb2_grpc.ReleaseServiceStub(self.cloud.channel)
        return patiently(lambda: stub.CreateRelease(request).release.name)

    def kill(self, victim: str, key: str) -> None:
        """Kill a service, the agent of a device that is to run a version, or everything at once."""
        agents: list[Agent] = []
        if victim == "agent":
            wanting = [name for name, device in self.cloud.devices().items() if key in device.wanted]
            agents = [self.agents[min(wanting, default="d0")]]
        elif victim == "everything":
            agents = list(self.agents.values())
        for service in SERVICES:
            if victim in (service, "everything"):
                self.stack.kill(service)
        for agent in agents:
            agent.kill()
        for agent in agents:
            agent.start()

    def describe(self) -> str:
        """Return what one wants to know when a test gets stuck."""
        devices = self.cloud.devices()
        return "\n".join(
            f"{name}: {agent.states()}, wants {list(devices[name].wanted)}, "
            f"problems {list(agent.status().problems)}"
            for name, agent in self.agents.items()
        )

    def until_release(
        self, what: str, name: str, done: Callable[[release_pb2.Release], bool]
    ) -> release_pb2.Release:
        """Wait for a release to be so; meanwhile no device may have anything but whole versions."""

        def seen() -> release_pb2.Release | None:
            self.check_disks()
            found = self.cloud.release(name)
            return found if done(found) else None

        def detail() -> str:
            return f"{self.cloud.release(name)}\n{self.describe()}"

        found = until(f"{what} of {name}", seen, detail)
        assert found is not None
        return found

    def until_all_run(self, key: str) -> None:
        """Wait until every device runs and has confirmed a version, and it alone."""
        for name, agent in self.agents.items():
            until(
                f"{name} to run {key}",
                lambda agent=agent: agent.states().get(key) == "CONFIRMED" and agent.runs() == {key},  # type: ignore[misc]
                self.describe,
            )
        reported = lambda: all(list(d.reported) == [key] for d in self.cloud.devices().values())  # noqa: E731
        until(f"the deployer to know that all run {key}", reported, self.describe)

    def check_disks(self) -> None:
        """Whatever version a device has is whole."""
        faults = [fault for agent in self.agents.values() for fault in agent.disk_faults(self.published)]
        assert not faults, faults

    def feed(self) -> None:
        """Let the events trickle."""
        for feeder in self.feeders.values():
            feeder.resume()

    def hold(self) -> None:
        """Let no more events come."""
        for feeder in self.feeders.values():
            feeder.pause()

    def settle(self) -> None:
        """Let no more events come, and wait until those that came are worked off and their frames arrived."""
        self.hold()
        for name, agent in self.agents.items():

            def settled(agent: Agent = agent) -> bool:
                counters = agent.status().counters
                ended = counters.success_count + counters.failure_count + counters.dropped_run_count
                return (
                    ended == counters.trigger_count == counters.event_count
                    and counters.acked_frame_count == counters.frame_count
                )

            until(f"{name} to work off its runs and frames", settled, agent.status)

    def check_books(self) -> None:
        """Every acknowledged event is stored, triggered once, has one result or is counted as dropped, and
        every frame that a run sent is in the cloud once."""
        self.settle()
        records = self.cloud.exported()
        keys = Counter((r["device"], r["stream"], r["epoch"], r["sequence"]) for r in records)
        assert max(keys.values()) == 1, keys.most_common(3)
        for name, agent in self.agents.items():
            counters, results = agent.status().counters, agent.results()
            acknowledged = set(self.feeders[name].acknowledged)
            good = [json.loads(result.result_json)["n"] for result in results if result.result_json]
            assert counters.event_count == len(acknowledged), name
            assert counters.success_count == len(good) == len(set(good)), name
            assert set(good) <= acknowledged, name
            assert counters.failure_count == len(results) - len(good), name
            arrived = [r["payload"]["n"] for r in records if r["device"] == name and "payload" in r]
            assert sorted(arrived) == sorted(good), name
            assert counters.frame_count == sum(1 for r in records if r["device"] == name), name
            assert counters.refused_frame_count == 0, name

    def check(self) -> None:
        """Check all that must hold once a rollout has ended."""
        self.check_books()
        self.check_disks()
        for agent in self.agents.values():
            assert all(
                (agent.home / "state" / "versions" / key.replace("@", "/")).is_dir() for key in agent.runs()
            )
        # What they said of connections that broke, they take back.
        until(
            "devices to have no problem",
            lambda: not any(a.status().problems for a in self.agents.values()),
            self.describe,
        )


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with (
        running_stack(without=WITHOUT_COMPUTE, ISTHMUS_DEPLOYER_RECONCILE_INTERVAL_S="0.5") as stack,
        tenant(stack, "t") as cloud,
    ):
        link = SlowLink(stack.gateway)
        token = cloud.enrolment_token(AGENTS)
        agents = {f"d{i}": Agent(f"d{i}", cloud.home / f"d{i}", link.address, token) for i in range(AGENTS)}
        feeders: dict[str, Feeder] = {}
        try:
            for agent in agents.values():
                agent.start()
            for name, agent in agents.items():
                until(f"{name} to enrol", lambda agent=agent: agent.status().device)  # type: ignore[misc]
                feeders[name] = Feeder(agent)
            made = Fleet(stack, cloud, link, agents, feeders)
            made.good = made.publish(GOOD)
            name = made.release(made.good, 100.0)
            # Events come only now, so that each of them has a version to trigger.
            until("all to run 1.1", lambda: all(a.runs() for a in agents.values()), made.describe)
            made.feed()
            made.until_release("success", name, lambda release: release.state == SUCCEEDED)
            made.until_all_run(made.good)
            yield made
        finally:
            for feeder in feeders.values():
                feeder.stop()
            for agent in agents.values():
                agent.stop()
            link.close()


def activated(release: release_pb2.Release) -> bool:
    """Tell whether a device runs, or has run, the version."""
    counts = release.counts
    return counts.activated_count + counts.confirmed_count + counts.failed_count > 0


def downloading(fleet: Fleet, victim: str) -> tuple[str, str]:
    """Kill it while devices fetch a large file over slow links."""
    key = fleet.publish(GOOD, os.urandom(2 * 1024 * 1024))
    fleet.link.slow_down()
    try:
        before = fleet.link.bytes_down
        name = fleet.release(key)
        until("a download", lambda: fleet.link.bytes_down > before + 256 * 1024, fleet.describe)
        counts = fleet.cloud.release(name).counts
        assert [field.name for field, _ in counts.ListFields()] == ["targeted_count"], counts
        fleet.kill(victim, key)
    finally:
        fleet.link.speed_up()
    return key, name


def before_the_release(fleet: Fleet, victim: str) -> tuple[str, str]:
    """Kill it when the version is published, and release at once."""
    key = fleet.publish(GOOD)
    fleet.kill(victim, key)
    return key, fleet.release(key)


def before_the_gate(fleet: Fleet, victim: str) -> tuple[str, str]:
    """Kill it when devices run the version and none can confirm, for want of events."""
    key = fleet.publish(GOOD)
    fleet.settle()
    name = fleet.release(key)
    fleet.until_release("an activation", name, activated)
    assert not fleet.cloud.release(name).counts.confirmed_count
    fleet.kill(victim, key)
    fleet.feed()
    return key, name


def between_steps(fleet: Fleet, victim: str) -> tuple[str, str]:
    """Kill it when all devices of the first step have confirmed."""
    key = fleet.publish(GOOD)
    name = fleet.release(key)
    fleet.until_release(
        "the end of the first step",
        name,
        lambda r: r.step_index > 0 or 0 < r.counts.targeted_count == r.counts.confirmed_count,
    )
    fleet.kill(victim, key)
    return key, name


def frames_flow(fleet: Fleet, victim: str) -> tuple[str, str]:
    """Kill it when frames of the new version come in."""
    key = fleet.publish(GOOD)
    name = fleet.release(key)
    fleet.until_release("an activation", name, activated)
    before = len(fleet.cloud.exported())
    until("frames", lambda: len(fleet.cloud.exported()) > before, fleet.describe)
    fleet.kill(victim, key)
    return key, name


def rolling_back(fleet: Fleet, victim: str) -> tuple[str, str]:
    """Kill it when the first device has given a bad version up."""
    key = fleet.publish(BAD)
    name = fleet.release(key)
    fleet.until_release("a failure", name, lambda release: release.counts.failed_count > 0)
    fleet.kill(victim, key)
    return key, name


def rolled_back_by_hand(fleet: Fleet, victim: str) -> tuple[str, str]:
    """Kill it right after a person has taken a running version back."""
    key = fleet.publish(GOOD)
    fleet.settle()
    name = fleet.release(key)
    fleet.until_release("an activation", name, activated)
    fleet.cloud.isthmus("release", "rollback", name.rpartition("/")[2], "--reason", "test")
    fleet.kill(victim, key)
    fleet.feed()
    return key, name


FORWARD = (before_the_release, downloading, before_the_gate, between_steps, frames_flow)
BACK = (rolling_back, rolled_back_by_hand)
Stage = Callable[[Fleet, str], tuple[str, str]]


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("stage", FORWARD, ids=lambda stage: stage.__name__)
def test_a_rollout_goes_on_to_its_end(fleet: Fleet, stage: Stage, victim: str) -> None:
    fleet.feed()
    key, name = stage(fleet, victim)
    fleet.until_release("success", name, lambda release: release.state == SUCCEEDED)
    fleet.until_all_run(key)
    fleet.good = key
    fleet.check()


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("stage", BACK, ids=lambda stage: stage.__name__)
def test_a_version_taken_back_leaves_every_device(fleet: Fleet, stage: Stage, victim: str) -> None:
    fleet.feed()
    key, name = stage(fleet, victim)
    fleet.until_release("roll back", name, lambda release: release.state == ROLLED_BACK)
    fleet.until_all_run(fleet.good)
    assert all(agent.states().get(key, "FAILED") == "FAILED" for agent in fleet.agents.values())
    fleet.check()
