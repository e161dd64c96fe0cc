"""Releases: how people steer them, and what becomes of devices that come, change, fail and go."""

import asyncio
import uuid
from pathlib import Path

import pytest

from isthmus.deployer.v1 import device_pb2, release_pb2
from libs.common.errors import AlreadyExists, Conflict, Invalid, NotFound, Precondition
from libs.common.testing import FakeClock, eventually
from services.deployer.testing import Client, Running, refused, running_deployer

State = release_pb2.Release.State


@pytest.fixture
async def published(client: Client) -> Client:
    await client.publish()
    await client.publish(version="2.0.0")
    return client


async def pause(client: Client, name: str, etag: str = "", reason: str = "") -> release_pb2.Release:
    request = release_pb2.PauseReleaseRequest(name=name, etag=etag, reason=reason)
    return (await client.releases.PauseRelease(request)).release


async def resume(client: Client, name: str, etag: str = "") -> release_pb2.Release:
    request = release_pb2.ResumeReleaseRequest(name=name, etag=etag)
    return (await client.releases.ResumeRelease(request)).release


async def roll_back(client: Client, name: str, etag: str = "", reason: str = "") -> release_pb2.Release:
    request = release_pb2.RollBackReleaseRequest(name=name, etag=etag, reason=reason)
    return (await client.releases.RollBackRelease(request)).release


async def succeed(client: Client, version: str = "1.0.0", *, devices: list[object]) -> release_pb2.Release:
    release = await client.release(version)
    for device in devices:
        await device.follow()
    return await client.release_when(release.name, lambda r: r.state == State.STATE_SUCCEEDED)


async def test_a_release_is_made_once_however_often_the_request_comes(published: Client) -> None:
    request = release_pb2.CreateReleaseRequest(
        parent="tenants/acme",
        version="tenants/acme/tasks/genres/versions/1.0.0",
        request_id=str(uuid.uuid4()),
    )
    first = (await published.releases.CreateRelease(request)).release
    second = (await published.releases.CreateRelease(request)).release
    assert first.name == second.name
    listed = await published.releases.ListReleases(release_pb2.ListReleasesRequest(parent="tenants/acme"))
    assert [release.name for release in listed.releases] == [first.name]
    request.steps_percent.append(50)
    with refused(AlreadyExists, reason="REQUEST_ID_REUSED"):
        await published.releases.CreateRelease(request)
    await published.release(release_id="mine")
    with refused(AlreadyExists, reason="RELEASE_EXISTS"):
        await published.release(release_id="mine")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": [0.0]}, "steps_percent[0]"),
        ({"steps": [100.5]}, "steps_percent[0]"),
        ({"steps": [10, 12.345]}, "steps_percent[1]"),
        ({"steps": [float("nan")]}, "steps_percent[0]"),
        ({"steps": [50, 50]}, "50 doesn't ascend from 50; give each step a larger share"),
        ({"steps": [50, 10]}, "doesn't ascend"),
        ({"steps": [float(i) for i in range(1, 22)]}, "21 steps"),
        ({"policy": '{"eq": ["os"]}'}, "policy_json"),
        ({"policy": '{"exist": "os"}'}, "did you mean"),
        ({"policy": "{"}, "line 1"),
        ({"policy": "os=linux"}, "write a JSON expression over device attributes"),
        ({"confirmed_percent": 101.0}, "gate.confirmed_percent"),
        ({"failed_percent": -1.0}, "gate.failed_percent"),
        ({"confirmed_percent": float("inf")}, "gate.confirmed_percent"),
        ({"soak_s": -1}, "gate.soak_time"),
        ({"soak_s": 10, "timeout_s": 10}, "gate.step_timeout"),
        ({"timeout_s": 366 * 86400}, "gate.step_timeout"),
        ({"release_id": "No Id"}, "release_id"),
    ],
)
async def test_a_malformed_release_is_refused(
    published: Client, change: dict[str, object], says: str
) -> None:
    with refused(Invalid, says):
        await published.release(**change)


async def test_a_version_that_is_not_there_is_not_found(published: Client) -> None:
    with refused(NotFound, "versions/9.9.9: not found; the newest is '2.0.0'"):
        await published.release("9.9.9")
    with refused(NotFound, "versions/2.0.O: not found; did you mean '2.0.0'?"):
        await published.release("2.0.O")
    request = release_pb2.CreateReleaseRequest(parent="tenants/acme")
    request.version = "tenants/acme/tasks/genre/versions/1.0.0"
    with refused(NotFound, "tasks/genre: not found; did you mean 'genres'?"):
        await published.releases.CreateRelease(request)
    await published.create_task("likes")
    request.version = "tenants/acme/tasks/likes/versions/1.0.0"
    with refused(NotFound, "has no versions yet"):
        await published.releases.CreateRelease(request)


async def test_rolling_back_an_old_release_keeps_what_its_steps_were(published: Client) -> None:
    devices = await published.enrol_many(3)
    done = await succeed(published, devices=devices)
    back = await roll_back(published, done.name, reason="withdrawn")
    assert back.steps == done.steps
    assert back.counts == done.counts
    assert back.state_reason == (
        "rolled back by tenants/acme/keys/test: withdrawn (it had 3 of 3 devices confirmed, 0 failed)"
    )
    assert (await published.audited(done.name))[-1].detail == (
        "withdrawn (it had 3 of 3 devices confirmed, 0 failed)"
    )
    for device in devices:
        assert await device.follow() == set()


async def test_a_person_who_rolls_back_sees_why_devices_failed(published: Client) -> None:
    devices = await published.enrol_many(4)
    release = await published.release(failed_percent=100)
    for device in devices[:2]:
        await device.follow(failing=["genres@1.0.0"])
    back = await roll_back(published, release.name)
    assert [(failure.reason, failure.device_count) for failure in back.failures] == [("EXCEPTION", 2)]
    assert back.state_reason.endswith(
        "(it had 0 of 4 devices confirmed, 2 failed, most often EXCEPTION (2 devices))"
    )


async def test_a_release_that_is_not_there_is_not_found(published: Client) -> None:
    await published.release(release_id="spring")
    with refused(NotFound, "releases/sprung: not found; did you mean 'spring'?"):
        await published.get_release("tenants/acme/releases/sprung")


async def test_checking_alone_tells_how_many_the_policy_selects(published: Client) -> None:
    await published.enrol("d1", os="linux")
    await published.enrol("d2", os="linux")
    await published.enrol("d3", os="android")
    checked = await published.release(steps=[50, 100], policy='{"eq": ["os", "linux"]}', validate_only=True)
    assert checked.counts.targeted_count == 2
    assert "selects 2 of 3 devices" in checked.state_reason
    listed = await published.releases.ListReleases(release_pb2.ListReleasesRequest(parent="tenants/acme"))
    assert not listed.releases


async def test_defaults_are_shown_as_they_were_taken(published: Client) -> None:
    release = await published.release()
    assert list(release.steps_percent) == [100]
    assert (release.gate.confirmed_percent, release.gate.failed_percent) == (95, 5)
    assert (release.gate.min_report_count, release.gate.step_timeout.seconds) == (1, 86400)


async def test_a_gate_that_allows_no_failure_takes_none(published: Client) -> None:
    devices = await published.enrol_many(5)
    release = await published.release(failed_percent=0, confirmed_percent=0, min_report_count=5, soak_s=3600)
    assert (release.gate.failed_percent, release.gate.confirmed_percent) == (0, 0)
    for device in devices[:4]:
        await device.follow()
    await devices[4].follow(failing=["genres@1.0.0"])
    back = await published.release_when(release.name, lambda r: r.state == State.STATE_ROLLED_BACK)
    assert "1 of 5 devices that confirmed or failed has failed (20 %), more than the 0 %" in back.state_reason


async def test_a_release_to_nobody_waits_and_says_so(published: Client) -> None:
    empty = await published.release(release_id="empty")
    assert empty.state == State.STATE_RUNNING
    assert "has no devices yet" in empty.state_reason
    device = await published.enrol("d1", os="linux")
    nobody = await published.release("2.0.0", release_id="nobody", policy='{"eq": ["os", "beos"]}')
    assert "selects none of 1 device" in nobody.state_reason
    await device.follow()
    done = await published.release_when(
        "tenants/acme/releases/empty", lambda r: r.state == State.STATE_SUCCEEDED
    )
    assert done.counts.confirmed_count == 1


async def test_a_paused_release_takes_no_step_until_it_is_resumed(published: Client) -> None:
    devices = await published.enrol_many(10)
    release = await published.release(steps=[50, 100])
    paused = await pause(published, release.name, release.etag, "lunch")
    assert paused.state == State.STATE_PAUSED
    assert "lunch" in paused.state_reason
    for device in devices:
        await device.follow()
    held = await published.get_release(release.name)
    assert (held.state, held.step_index) == (State.STATE_PAUSED, 0)
    assert held.counts.confirmed_count == held.counts.targeted_count > 0
    assert (await pause(published, release.name)).etag == held.etag  # again: nothing changes
    with refused(Conflict, reason="STALE_ETAG"):
        await resume(published, release.name, release.etag)
    await resume(published, release.name, held.etag)
    opened = await published.release_when(release.name, lambda r: r.step_index == 1)
    assert opened.steps[0].close_time.seconds
    for device in devices:
        await device.follow()
    done = await published.release_when(release.name, lambda r: r.state == State.STATE_SUCCEEDED)
    for steer in (pause, resume):
        with refused(Precondition, "has ended (succeeded)"):
            await steer(published, done.name)


async def test_rolling_back_gives_each_device_what_it_ran_before(published: Client) -> None:
    devices = await published.enrol_many(4)
    await succeed(published, devices=devices)
    newcomer = await published.enrol("newcomer")
    second = await succeed(published, "2.0.0", devices=[*devices, newcomer])
    with refused(Conflict):
        await roll_back(published, second.name, "7")
    back = await roll_back(published, second.name, second.etag, "second thoughts")
    assert back.state == State.STATE_ROLLED_BACK
    assert "second thoughts" in back.state_reason
    assert back.counts.confirmed_count == 5
    for device in devices:
        assert await device.follow() == {"genres@1.0.0"}
    assert (await roll_back(published, second.name)).etag == back.etag
    with refused(Precondition, "has ended (rolled back)"):
        await resume(published, second.name)
    actor, action = (await published.actions(second.name))[-1]
    assert (actor, action) == ("tenants/acme/keys/test", "release.roll_back")


async def test_late_joiners_are_counted_and_served(published: Client) -> None:
    devices = await published.enrol_many(3, os="linux")
    release = await published.release(policy='{"eq": ["os", "linux"]}', confirmed_percent=100)
    late = await published.enrol("late", os="linux")
    changed = await published.enrol("changed", os="android")
    request = device_pb2.UpdateDeviceRequest(name=changed.name, attributes={"os": "linux"})
    await published.devices.UpdateDevice(request)
    for device in devices:
        await device.follow()
    waiting = await published.get_release(release.name)
    assert (waiting.state, waiting.counts.targeted_count) == (State.STATE_RUNNING, 5)
    for device in (late, changed):
        assert await device.follow() == {"genres@1.0.0"}
    done = await published.release_when(release.name, lambda r: r.state == State.STATE_SUCCEEDED)
    assert done.counts.confirmed_count == 5
    # Those who come after it has ended get it too.
    assert await (await published.enrol("later", os="linux")).follow() == {"genres@1.0.0"}


async def test_who_leaves_counts_no_more(published: Client) -> None:
    devices = await published.enrol_many(3, os="linux")
    release = await published.release(policy='{"eq": ["os", "linux"]}', confirmed_percent=100)
    for device in devices[:2]:
        await device.follow()
    request = device_pb2.UpdateDeviceRequest(name=devices[0].name, attributes={"os": "android"})
    await published.devices.UpdateDevice(request)
    await published.devices.RevokeDevice(device_pb2.RevokeDeviceRequest(name=devices[2].name))
    done = await published.release_when(release.name, lambda r: r.state == State.STATE_SUCCEEDED)
    assert (done.counts.targeted_count, done.counts.confirmed_count) == (1, 1)
    assert await devices[0].follow() == set()


async def test_a_newer_release_takes_the_place_of_one_that_runs(published: Client) -> None:
    devices = await published.enrol_many(10)
    older = await published.release(steps=[50, 100], soak_s=3600)
    had = {device.device_id for device in devices if await device.follow()}
    newer = await published.release("2.0.0", steps=[20, 100], soak_s=3600)
    ended = await published.get_release(older.name)
    assert ended.state == State.STATE_SUPERSEDED
    assert newer.name in ended.state_reason
    for device in devices:
        await device.follow()
    for device in devices:
        if device.profile != {"genres@2.0.0"}:
            kept = {"genres@1.0.0"} if device.device_id in had else set()
            assert device.profile == kept
    await roll_back(published, newer.name)
    for device in devices:
        assert await device.follow() == ({"genres@1.0.0"} if device.device_id in had else set())


async def test_releases_that_share_no_device_run_side_by_side(published: Client) -> None:
    await published.enrol("d1", os="linux")
    await published.enrol("d2", os="android")
    one = await published.release(policy='{"eq": ["os", "linux"]}')
    two = await published.release("2.0.0", policy='{"eq": ["os", "android"]}')
    assert (await published.get_release(one.name)).state == State.STATE_RUNNING
    assert two.state == State.STATE_RUNNING


LINUX, BETA = '{"eq": ["os", "linux"]}', '{"eq": ["tier", "beta"]}'


async def test_a_device_that_two_releases_select_counts_in_the_one_that_serves_it(published: Client) -> None:
    linux = await published.enrol("linux", os="linux")
    beta = await published.enrol("beta", tier="beta")
    older = await published.release(policy=LINUX, steps=[100], soak_s=3600, confirmed_percent=100)
    newer = await published.release("2.0.0", policy=BETA, soak_s=3600, confirmed_percent=100)
    both = await published.enrol("both", os="linux", tier="beta")
    for device in (linux, beta, both):
        await device.follow()
    assert both.profile == {"genres@2.0.0"}
    for name, confirmed in ((older.name, 1), (newer.name, 2)):
        counts = (await published.release_when(name, lambda r: "soaking" in r.state_reason)).counts
        assert (counts.targeted_count, counts.confirmed_count) == (confirmed, confirmed)


async def test_a_device_that_moves_under_a_newer_release_leaves_the_older_ones_counts(
    published: Client,
) -> None:
    devices = await published.enrol_many(2, os="linux")
    await published.enrol("beta", tier="beta")
    older = await published.release(policy=LINUX, soak_s=3600)
    newer = await published.release("2.0.0", policy=BETA, soak_s=3600)
    for device in devices:
        await device.follow()
    await published.devices.UpdateDevice(
        device_pb2.UpdateDeviceRequest(name=devices[0].name, attributes={"os": "linux", "tier": "beta"})
    )
    counts = (await published.get_release(older.name)).counts
    assert (counts.targeted_count, counts.confirmed_count) == (1, 1)
    assert await devices[0].follow() == {"genres@2.0.0"}
    counts = (await published.get_release(newer.name)).counts
    assert (counts.targeted_count, counts.confirmed_count) == (2, 1)


async def test_a_device_on_which_the_newer_version_failed_counts_in_the_older_release_again(
    published: Client,
) -> None:
    await published.enrol("linux", os="linux")
    await published.enrol("beta", tier="beta")
    older = await published.release(policy=LINUX, soak_s=3600)
    newer = await published.release("2.0.0", policy=BETA, failed_percent=100)
    both = await published.enrol("both", os="linux", tier="beta")
    assert (await published.get_release(older.name)).counts.targeted_count == 1
    await both.follow(failing=["genres@2.0.0"])
    assert await both.follow() == {"genres@1.0.0"}
    counts = (await published.get_release(older.name)).counts
    assert (counts.targeted_count, counts.confirmed_count) == (2, 1)
    assert (await published.get_release(newer.name)).counts.failed_count == 1


async def test_a_release_all_of_whose_devices_a_newer_one_serves_waits_and_says_so(published: Client) -> None:
    device = await published.enrol("d1", os="linux")
    await published.enrol("beta", tier="beta")
    older = await published.release(policy=LINUX)
    await published.release("2.0.0", policy=BETA)
    await published.devices.UpdateDevice(
        device_pb2.UpdateDeviceRequest(name=device.name, attributes={"os": "linux", "tier": "beta"})
    )
    held = await published.get_release(older.name)
    assert held.state == State.STATE_RUNNING
    assert "its policy selects 1 device, all served by a newer release of the task" in held.state_reason


async def test_what_an_older_release_counted_is_let_go_when_a_newer_ones_step_opens(
    published: Client,
) -> None:
    devices = await published.enrol_many(20, os="linux")
    beta = await published.enrol("beta", tier="beta")
    older = await published.release(policy=LINUX, soak_s=3600)
    newer = await published.release("2.0.0", policy=BETA, steps=[1, 100], confirmed_percent=100)
    await pause(published, newer.name)
    for device in (*devices, beta):
        await device.follow()
    for device in devices:
        await published.devices.UpdateDevice(
            device_pb2.UpdateDeviceRequest(name=device.name, attributes={"os": "linux", "tier": "beta"})
        )
    await resume(published, newer.name)
    async with asyncio.timeout(60):
        while (await published.get_release(newer.name)).step_index == 0:
            for device in (*devices, beta):
                await device.follow()
    for device in devices:
        await device.follow()

    await published.release_when(
        older.name, lambda r: (r.counts.targeted_count, r.counts.confirmed_count) == (0, 0), within_s=60
    )


async def test_devices_that_run_the_version_already_count_as_confirmed(published: Client) -> None:
    devices = await published.enrol_many(4)
    await succeed(published, devices=devices)
    again = await published.release(release_id="again")
    done = await published.release_when(again.name, lambda r: r.state == State.STATE_SUCCEEDED)
    assert done.counts.confirmed_count == 4


async def test_a_failed_version_is_tried_again_by_a_newer_release_only(published: Client) -> None:
    device = await published.enrol("d1")
    first = await published.release(failed_percent=100)
    assert await device.follow(failing=["genres@1.0.0"]) == set()
    assert await device.follow() == set()
    assert (await published.get_release(first.name)).counts.failed_count == 1
    await published.release(release_id="retry")
    assert await device.follow() == {"genres@1.0.0"}


async def test_a_step_that_takes_too_long_pauses_the_release_by_the_clock_alone(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running_deployer(tmp_path, clock=clock) as running:
        client = running.client()
        await client.install_root(clock.now())
        await client.create_task()
        await client.publish()
        await client.enrol("d1")
        release = await client.release(timeout_s=60)

        async def state() -> int:
            return (await client.get_release(release.name)).state

        assert await state() == State.STATE_RUNNING
        while await state() == State.STATE_RUNNING:
            await clock.wait_for_sleepers()
            clock.advance(5)
        paused = await client.get_release(release.name)
        assert paused.state == State.STATE_PAUSED
        assert "0 of 1 device confirmed" in paused.state_reason
        assert clock.monotonic() >= 60
        resumed = await resume(client, release.name)
        assert resumed.state == State.STATE_RUNNING


async def test_watching_tells_of_each_change_and_ends_with_the_release(published: Client) -> None:
    devices = await published.enrol_many(2)
    release = await published.release(steps=[100])
    call = published.releases.WatchRelease(release_pb2.WatchReleaseRequest(name=release.name), timeout=60)
    seen = []
    async for answer in call:
        seen.append(answer.release)
        if len(seen) == 1:
            for device in devices:
                await device.follow()
    assert seen[-1].state == State.STATE_SUCCEEDED
    confirmed = [one.counts.confirmed_count for one in seen]
    assert confirmed == sorted(confirmed)
    with refused(NotFound):
        await published.releases.WatchRelease(
            release_pb2.WatchReleaseRequest(name="tenants/acme/releases/none")
        ).read()


async def test_the_operator_sees_releases_and_devices_in_the_metrics(
    running: Running, published: Client
) -> None:
    devices = await published.enrol_many(2)
    await published.release(confirmed_percent=100)
    await devices[0].follow()

    def sample(name: str, **labels: str) -> float | None:
        return running.metrics.get_sample_value(name, labels)

    await eventually(lambda: sample("isthmus_deployer_release_devices", stage="targeted") == 2)
    await eventually(lambda: sample("isthmus_deployer_release_devices", stage="confirmed") == 1)
    assert sample("isthmus_deployer_reports_total", stage="confirmed") == 1
    assert sample("isthmus_deployer_sets_signed_total") == 1
    await devices[1].follow()
    await eventually(lambda: sample("isthmus_deployer_release_decisions_total", decision="succeed") == 1)
    await eventually(lambda: sample("isthmus_deployer_release_devices", stage="targeted") == 0)
