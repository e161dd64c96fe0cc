"""Versions come, go, fail and are gone back from; nothing that doesn't verify is ever installed."""

import asyncio
import errno
import io
import json
from datetime import UTC, datetime, timedelta

import pytest

from isthmus.deployer.v1 import pull_pb2
from isthmus.trust.v1 import trust_pb2
from libs.common.errors import Unavailable
from libs.trust.digests import sha256_of
from libs.trust.keys import SigningKey
from libs.trust.root import overlap
from libs.trust.signing import RoleKeys
from services.device_agent.app import Agent
from services.device_agent.files import VersionFiles
from services.device_agent.testing.app import running, states
from services.device_agent.testing.tasks import ECHO, task

V2 = 'def run(context):\n    return {"v": 2}\n'
SOMETIMES = """
def run(context):
    if context.events[-1].fields.get("bad"):
        raise ValueError("bad")
    return {}
"""
RAISES = 'def run(context):\n    raise ValueError("no such luck")\n'


async def test_an_upgrade_keeps_the_version_before_and_leaves_no_other_folder(cloud, agent_config, tmp_path):
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2", source=V2))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go()
        await app.until_state("hello@1", "CONFIRMED")
        await cloud.want("d1", {"hello": "2"}, "r2")
        await app.until_state("hello@2", "ACTIVE")
        await app.go(first=10)
        second = (await app.results(2))[-1]
        assert json.loads(second.result_json) == {"v": 2}
        status = await app.until_state("hello@2", "CONFIRMED")
        assert states(status) == {"hello@1": "STAGED", "hello@2": "CONFIRMED"}
        cloud.publish(task(version="3", source=V2))
        await cloud.want("d1", {"hello": "3"}, "r3")
        await app.until(lambda s: states(s) == {"hello@2": "STAGED", "hello@3": "ACTIVE"})
        folder = tmp_path / "state" / "versions" / "hello"
        await app.until(lambda _: {p.name for p in folder.iterdir()} == {"2", "3"})
        assert list((tmp_path / "state" / "blobs").iterdir()) == []


async def test_a_set_whose_manifests_take_several_plans_is_installed_in_one_pull(cloud, agent_config):
    names = [f"task-{number}" for number in range(5)]
    for name in names:
        cloud.publish(task(name))

    def two_at_a_time(response: pull_pb2.PlanResponse) -> pull_pb2.PlanResponse:
        del response.manifests[2:]
        return response

    cloud.plan = two_at_a_time
    await cloud.want("d1", dict.fromkeys(names, "1"))
    # Nothing but the pull at the start may ask: no retry, no interval.
    config = agent_config(pull_interval_s=3600.0, retry_initial_s=3600.0, retry_max_s=3600.0)
    async with running(Agent(config)) as app:
        await app.until(lambda s: states(s) == {f"{name}@1": "ACTIVE" for name in names})
        await app.until(lambda s: not s.problems)


async def test_a_plan_that_never_brings_a_manifest_is_shown_as_a_problem(cloud, agent_config):
    cloud.publish(task())

    def none(response: pull_pb2.PlanResponse) -> pull_pb2.PlanResponse:
        del response.manifests[:]
        return response

    cloud.plan = none
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        status = await app.until(lambda s: any("lacks its manifest" in p for p in s.problems))
        assert states(status) == {}
        cloud.plan = lambda response: response
        await app.until_state("hello@1", "ACTIVE")


async def test_the_cloud_goes_back_without_a_download(cloud, agent_config):
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2", source=V2))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go()
        await app.until_state("hello@1", "CONFIRMED")
        await cloud.want("d1", {"hello": "2"}, "r2")
        await app.until_state("hello@2", "ACTIVE")
        reads = cloud.calls["ReadBlob"]
        await cloud.want("d1", {"hello": "1"}, "r1")
        # What was withdrawn isn't kept to go back to.
        await app.until(lambda s: states(s) == {"hello@1": "ACTIVE"})
        assert cloud.calls["ReadBlob"] == reads


async def test_a_task_that_leaves_the_set_is_removed(cloud, agent_config, tmp_path):
    cloud.publish(task())
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await cloud.want("d1", {})
        await app.until(lambda s: states(s) == {})
        await cloud.until(lambda: cloud.devices["d1"].reported == [])
        await app.go()
        await app.until(lambda s: s.counters.event_count == 1)
        assert await app.all_results() == []


async def test_failures_in_a_row_go_back_to_the_good_version_and_are_reported(cloud, agent_config):
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2", source=RAISES, max_failures=2))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go()
        await app.until_state("hello@1", "CONFIRMED")
        await cloud.want("d1", {"hello": "2"}, "r2")
        await app.until_state("hello@2", "ACTIVE")
        await app.go(2, first=10)
        await app.until(lambda s: states(s) == {"hello@1": "CONFIRMED", "hello@2": "FAILED"})
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@2"))
        (failed,) = [r for r in cloud.reports.values() if r.stage == pull_pb2.StageReport.STAGE_FAILED]
        assert failed.failure_reason == "EXCEPTION"
        assert "ValueError (run.py, line 2, in run)" in failed.failure_message
        assert "no such luck" not in failed.failure_message
        assert "no such luck" in (await app.all_results())[-1].failure_message
        assert failed.release == "tenants/acme/releases/r2"
        await app.go(1, first=20)
        assert json.loads((await app.results(4))[-1].result_json) == {"type": "go", "user": "u1"}
    assert "CONFIRMED" not in cloud.stages("hello@2")


async def test_failures_with_a_success_between_do_not_roll_back(cloud, agent_config):
    cloud.publish(task(source=SOMETIMES, max_failures=2, confirm_runs=2))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config(vm_workers=1))) as app:
        await app.until_state("hello@1", "ACTIVE")
        for i, bad in enumerate((True, False, True, False)):
            await app.go(first=i, bad=bad)
            await app.results(i + 1)
        status = await app.until_state("hello@1", "CONFIRMED")
        assert (status.tasks[0].success_count, status.tasks[0].failure_count) == (2, 2)


async def test_a_confirmed_version_is_given_up_too_when_it_turns_bad(cloud, agent_config):
    cloud.publish(task(source=SOMETIMES, max_failures=2))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go()
        await app.until_state("hello@1", "CONFIRMED")
        await app.go(2, first=5, bad=True)
        await app.until_state("hello@1", "FAILED")
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@1"))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def run(context:\n", "LOAD_ERROR"),
        ("import no_such_module_anywhere\ndef run(context):\n    return {}\n", "LOAD_ERROR"),
        ("def other(context):\n    return {}\n", "LOAD_ERROR"),
    ],
)
async def test_a_version_that_does_not_load_never_runs(cloud, agent_config, source, reason):
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2", source=source))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await cloud.want("d1", {"hello": "2"}, "r2")
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@2"))
        (failed,) = [r for r in cloud.reports.values() if r.stage == pull_pb2.StageReport.STAGE_FAILED]
        assert failed.failure_reason == reason
        assert "ACTIVATED" not in cloud.stages("hello@2")
        assert states(await app.status()) == {"hello@1": "ACTIVE", "hello@2": "FAILED"}


async def test_a_failed_version_is_tried_again_only_for_another_release(cloud, agent_config):
    cloud.publish(task(source=RAISES, max_failures=1))
    await cloud.want("d1", {"hello": "1"}, "r1")
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go()
        await app.until_state("hello@1", "FAILED")
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@1"))
        plans = cloud.calls["Plan"]
        await cloud.want("d1", {"hello": "1"}, "r1")
        await cloud.until(lambda: cloud.calls["Plan"] > plans)
        assert states(await app.status()) == {"hello@1": "FAILED"}
        await cloud.want("d1", {"hello": "1"}, "r2")
        await app.until_state("hello@1", "ACTIVE")


async def test_a_running_version_under_another_release_is_reported_for_it(cloud, agent_config):
    cloud.publish(task())
    await cloud.want("d1", {"hello": "1"}, "r1")
    async with running(Agent(agent_config(pull_interval_s=1.0))) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go()
        await app.until_state("hello@1", "CONFIRMED")
        await cloud.want("d1", {"hello": "1"}, "r2")  # the same profile, so no hint: the interval finds it
        await cloud.until(
            lambda: any(
                report.release.endswith("/r2") and report.stage == pull_pb2.StageReport.STAGE_CONFIRMED
                for report in cloud.reports.values()
            )
        )


async def test_a_version_that_nothing_triggers_confirms_after_its_idle_time(cloud, agent_config):
    cloud.publish(task(confirm_idle_s=0.2))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "CONFIRMED")
        await cloud.until(lambda: "CONFIRMED" in cloud.stages("hello@1"))


async def test_a_version_for_another_python_is_refused(cloud, agent_config):
    cloud.publish(task(python_versions=("3.1",)))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())):
        await cloud.until(lambda: cloud.stages("hello@1") == ["FAILED"])
    (failed,) = cloud.reports.values()
    assert failed.failure_reason == "PYTHON_UNSUPPORTED"


async def test_a_blob_that_the_cloud_does_not_have_fails_the_version(cloud, agent_config):
    version = cloud.publish(task())
    for digest in version.blobs:
        cloud.forget_blob(digest)
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())):
        await cloud.until(lambda: cloud.stages("hello@1") == ["FAILED"])
    (failed,) = cloud.reports.values()
    assert failed.failure_reason == "NO_BLOB"
    assert cloud.calls["ReadBlob"] == 1


async def test_a_report_that_the_cloud_refuses_does_not_hold_up_the_others(cloud, agent_config):
    cloud.publish(task())
    cloud.refuse_stage = "VERIFIED"
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await cloud.until(lambda: "ACTIVATED" in cloud.stages("hello@1"))
        await app.until(lambda s: not s.problems)
    assert cloud.stages("hello@1") == ["DOWNLOADED", "STAGED", "ACTIVATED"]


# ---- what must not be believed ----


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


# ---- what may pass ----


async def test_a_download_is_resumed_where_it_broke(cloud, agent_config):
    big = bytes(range(256)) * 1024
    cloud.publish(task(resources={"data/big.bin": big}))
    await cloud.want("d1", {"hello": "1"})
    broke = []

    def breaks_once(digest, data):
        if digest == sha256_of(big) and not broke:
            broke.append(digest)
            return data[: 100 * 1024]
        return data

    cloud.blob = breaks_once
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
    assert cloud.offsets.count(100 * 1024) == 1


async def test_failing_calls_are_tried_again(cloud, agent_config):
    cloud.publish(task())
    await cloud.want("d1", {"hello": "1"})
    for method in ("Enrol", "Plan", "ReadBlob", "Report", "Watch"):
        cloud.fail[method] = [Unavailable("down"), Unavailable("still down")]
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await cloud.until(lambda: "ACTIVATED" in cloud.stages("hello@1"))


class _Full(io.RawIOBase):
    """A file on a disk that is full after so many bytes."""

    def __init__(self, file, disk):
        self._file, self._disk = file, disk

    def write(self, data):
        if len(data) > self._disk["left"]:
            raise OSError(errno.ENOSPC, "no space left")
        self._disk["left"] -= len(data)
        return self._file.write(data)

    def fileno(self):
        return self._file.fileno()

    def writable(self):
        return True

    def close(self):
        self._file.close()
        super().close()


@pytest.mark.parametrize("left", [0, 1000, 70_000, 140_000])
async def test_a_full_disk_installs_nothing_and_goes_on_when_there_is_room(
    cloud, agent_config, tmp_path, left
):
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2", source=V2, resources={"big": bytes(100_000)}))
    await cloud.want("d1", {"hello": "1"})
    disk = {"left": 10**9}

    def opener(path, mode):
        return _Full(path.open(mode, buffering=0), disk)

    agent = Agent(agent_config(), files=lambda state, reserve: VersionFiles(state, reserve, opener))
    async with running(agent) as app:
        await app.until_state("hello@1", "ACTIVE")
        disk["left"] = left
        await cloud.want("d1", {"hello": "2"}, "r2")
        status = await app.until_problem("disk is full")
        assert states(status) == {"hello@1": "ACTIVE"}
        assert not (tmp_path / "state" / "versions" / "hello" / "2").exists()
        assert list((tmp_path / "state" / "staging").iterdir()) == []
        disk["left"] = 10**9
        await app.until_state("hello@2", "ACTIVE")
        assert "FAILED" not in cloud.stages("hello@2")


async def test_too_little_space_is_found_before_anything_is_fetched(cloud, agent_config):
    cloud.publish(task(resources={"big": bytes(100_000)}))
    await cloud.want("d1", {"hello": "1"})
    free = {"bytes": 50_000}
    agent = Agent(
        agent_config(),
        files=lambda state, reserve: VersionFiles(state, reserve, free_bytes=lambda path: free["bytes"]),
    )
    async with running(agent) as app:
        await app.until_problem("free some space")
        assert cloud.calls["ReadBlob"] == 0
        free["bytes"] = 10**9
        await app.until_state("hello@1", "ACTIVE")


async def test_files_that_changed_on_the_disk_are_quarantined_and_fetched_again(
    cloud, agent_config, tmp_path
):
    cloud.publish(task(source=ECHO))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
    script = tmp_path / "state" / "versions" / "hello" / "1" / "run.py"
    script.chmod(0o600)
    script.write_text('def run(context):\n    return {"hacked": True}\n')
    half = tmp_path / "state" / "staging" / "half"
    half.mkdir()
    (half / "run.py").write_text("half a file")
    cloud.hold["Plan"] = asyncio.Event()
    async with running(Agent(agent_config())) as app:
        status = await app.until_problem("quarantine")
        assert states(status) == {}
        assert not half.exists()
        await app.go()
        cloud.hold["Plan"].set()
        await app.until_state("hello@1", "ACTIVE")
        await app.go(first=1)
        (result,) = await app.results(1)
        assert json.loads(result.result_json) == {"user": "u1", "type": "go"}
        await app.until(lambda s: not s.problems)
