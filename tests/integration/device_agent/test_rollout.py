"""Versions come, go, fail and are gone back from."""

import json

import pytest

from isthmus.deployer.v1 import pull_pb2
from services.device_agent.app import Agent
from services.device_agent.testing.app import running, states
from services.device_agent.testing.tasks import task

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
