"""What doesn't verify is never installed, and the last good set stays."""

from datetime import UTC, datetime, timedelta

import pytest

from isthmus.deployer.v1 import pull_pb2
from isthmus.trust.v1 import trust_pb2
from libs.trust.keys import SigningKey
from libs.trust.root import overlap
from libs.trust.signing import RoleKeys
from services.device_agent.app import Agent
from services.device_agent.testing.app import running, states
from services.device_agent.testing.tasks import task

V2 = 'def run(context):\n    return {"v": 2}\n'


async def test_a_tampered_blob_is_not_installed(cloud, agent_config, tmp_path):
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2", source=V2))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        cloud.blob = lambda digest, data: data.replace(b"2", b"3")
        await cloud.want("d1", {"hello": "2"}, "r2")
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@2"))
        assert states(await app.status())["hello@1"] == "ACTIVE"
    (failed,) = [r for r in cloud.reports.values() if r.stage == pull_pb2.StageReport.STAGE_FAILED]
    assert failed.failure_reason == "DIGEST_MISMATCH"
    assert not (tmp_path / "state" / "versions" / "hello" / "2").exists()


async def test_a_manifest_that_the_author_did_not_sign_is_not_installed(cloud, agent_config):
    version = task()
    version.author = SigningKey.generate()
    cloud.publish(version)
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())):
        await cloud.until(lambda: cloud.stages("hello@1") == ["FAILED"])
    (failed,) = cloud.reports.values()
    assert failed.failure_reason == "SIGNATURE_THRESHOLD"
    assert cloud.calls["ReadBlob"] == 0


async def test_a_changed_manifest_is_no_manifest_of_the_set(cloud, agent_config):
    cloud.publish(task())
    await cloud.want("d1", {"hello": "1"})

    def change(response):
        response.manifests[0].payload += b"\x08\x01"
        return response

    cloud.plan = change
    async with running(Agent(agent_config())) as app:
        status = await app.until_problem("lacks its manifest")
        assert states(status) == {}
        cloud.plan = lambda response: response
        await app.until_state("hello@1", "ACTIVE")


def _foreign(cloud, response):
    other = SigningKey.generate()
    cloud.deployer, ours = other, cloud.deployer
    response.device_set.CopyFrom(cloud.signed_set("d1"))
    cloud.deployer = ours


def _of_another_device(cloud, response):
    cloud.devices["d2"] = cloud.devices["d1"]
    response.device_set.CopyFrom(cloud.signed_set("d2"))
    del cloud.devices["d2"]


def _expired(cloud, response):
    lifetime, cloud.set_lifetime = cloud.set_lifetime, timedelta(seconds=-1)
    response.device_set.CopyFrom(cloud.signed_set("d1"))
    cloud.set_lifetime = lifetime


def _other_type(cloud, response):
    response.device_set.type = "isthmus.deployer.v1.TaskManifest"


def _unsigned(cloud, response):
    del response.device_set.signatures[:]


@pytest.mark.parametrize(
    ("lie", "problem"),
    [
        (_foreign, "signature"),
        (_of_another_device, "device"),
        (_expired, "expired"),
        (_other_type, ""),
        (_unsigned, "signature"),
    ],
)
async def test_a_set_that_is_not_ours_installs_nothing_and_keeps_the_last_good(
    cloud, agent_config, lie, problem
):
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2", source=V2))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")

        def change(response):
            lie(cloud, response)
            return response

        cloud.plan = change
        await cloud.want("d1", {"hello": "2"}, "r2")
        status = await app.until(lambda s: any(p.startswith("pull: ") and problem in p for p in s.problems))
        assert states(status) == {"hello@1": "ACTIVE"}
        assert cloud.stages("hello@2") == []
        cloud.plan = lambda response: response
        status = await app.until_state("hello@2", "ACTIVE")
        await app.until(lambda s: not s.problems)


async def test_a_replayed_old_set_is_refused_also_after_a_restart(cloud, agent_config):
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2", source=V2))
    await cloud.want("d1", {"hello": "1"})
    old = trust_pb2.Signed()

    def remember(response):
        old.CopyFrom(response.device_set)
        return response

    cloud.plan = remember
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        cloud.plan = lambda response: response
        await cloud.want("d1", {"hello": "2"}, "r2")
        await app.until_state("hello@2", "ACTIVE")

    def replay(response):
        response.device_set.CopyFrom(old)
        return response

    cloud.plan = replay
    async with running(Agent(agent_config())) as app:
        status = await app.until_problem("no newer than")
        assert states(status)["hello@2"] == "ACTIVE"


async def test_a_root_is_rotated_and_the_old_keys_stop_counting(cloud, agent_config):
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2", source=V2))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        old, cloud.deployer = cloud.deployer, SigningKey.generate()
        deployer = overlap(cloud.root.deployer, add=[cloud.deployer], retire=[old.key_id])
        now = datetime.now(UTC)
        cloud.rotate(
            cloud.root.successor(now, timedelta(days=365), {"deployer": deployer}), [cloud.root_keys]
        )
        await cloud.want("d1", {"hello": "2"}, "r2")
        await app.until_state("hello@2", "ACTIVE")
        status = await app.until(lambda s: s.root_version == 2)
        cloud.deployer = old
        await cloud.want("d1", {"hello": "1"}, "r3")
        status = await app.until_problem("signature")
        assert states(status)["hello@2"] == "ACTIVE"


@pytest.mark.parametrize("last_key_is_new", [True, False])
async def test_roots_that_take_several_plans_are_followed_in_one_pull(cloud, agent_config, last_key_is_new):
    cloud.publish(task(version="1"))
    await cloud.want("d1", {"hello": "1"})
    now = datetime.now(UTC)
    # The device pins the first root at enrolment, and the others come one a plan.
    first, first_author = cloud.roots[0], cloud.author
    cloud.author = SigningKey.generate()
    for number in range(4):
        roles = {}
        if number == 3:
            roles["author"] = RoleKeys.of([cloud.author.public])
            if last_key_is_new:
                cloud.deployer = SigningKey.generate()
                roles["deployer"] = RoleKeys.of([cloud.deployer.public])
        cloud.rotate(cloud.root.successor(now, timedelta(days=365), roles), [cloud.root_keys])
    cloud.publish(task(version="1"))
    assert first_author.key_id not in cloud.root.author.keys
    plans = []

    def one_root_at_a_time(response):
        # As the deployer does: no manifest before the last root.
        plans.append(len(response.roots))
        if len(response.roots) > 1:
            del response.roots[1:]
            del response.manifests[:]
        return response

    cloud.plan = one_root_at_a_time
    cloud.enrolment_root = first
    # Nothing but the pull at the start may ask: no retry, no interval.
    config = agent_config(pull_interval_s=3600.0, retry_initial_s=3600.0, retry_max_s=3600.0)
    async with running(Agent(config)) as app:
        status = await app.until_state("hello@1", "ACTIVE")
        assert status.root_version == 5
        await app.until(lambda s: not s.problems)
    assert plans[:4] == [4, 3, 2, 1]


async def test_a_counter_of_replaced_keys_stays_forgotten_when_the_agent_stops_in_between(
    cloud, agent_config
):
    """A stolen key may have signed a huge counter; the root that replaces it has to free the device of it."""
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2", source=V2))
    await cloud.want("d1", {"hello": "1"})
    cloud.devices["d1"].counter = 2**62
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        cloud.deployer, stolen = SigningKey.generate(), cloud.deployer
        replaced = RoleKeys.of([cloud.deployer.public])
        now = datetime.now(UTC)
        cloud.rotate(
            cloud.root.successor(now, timedelta(days=365), {"deployer": replaced}), [cloud.root_keys]
        )
        good, cloud.deployer = cloud.deployer, stolen
        await cloud.want("d1", {"hello": "2"}, "r2")  # the new root comes with a set that doesn't hold
        await app.until_problem("signature")
    cloud.deployer = good
    cloud.devices["d1"].counter = 0
    await cloud.want("d1", {"hello": "2"}, "r2")
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@2", "ACTIVE")


async def test_an_expired_root_accepts_nothing_new_and_what_runs_goes_on(cloud, agent_config):
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2", source=V2))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        cloud.clock_ahead_s = 400 * 86400.0
        await cloud.want("d1", {"hello": "2"}, "r2")
        status = await app.until(lambda s: any("root" in p and "expired" in p for p in s.problems))
        assert states(status) == {"hello@1": "ACTIVE"}
        await app.go()
        assert len(await app.results(1)) == 1
