"""What people see of devices' failures: on the device, and of releases that had ended before."""

from datetime import UTC
from pathlib import Path

from isthmus.deployer.v1 import device_pb2, pull_pb2, release_pb2
from libs.common.testing import FakeClock
from services.deployer.domain.fleet import MAX_FAILURES
from services.deployer.testing import Client, SimulatedDevice, Stage, running_deployer

State = release_pb2.Release.State
VERSION = "tenants/acme/tasks/genres/versions/1.0.0"


async def get(client: Client, device: SimulatedDevice) -> device_pb2.Device:
    return (await client.devices.GetDevice(device_pb2.GetDeviceRequest(name=device.name))).device


async def fail(device: SimulatedDevice, release: str, reason: str, message: str = "") -> None:
    device.reports += 1
    report = pull_pb2.StageReport(
        report_id=f"f{device.reports}",
        task="genres",
        version="1.0.0",
        release=release,
        stage=Stage.STAGE_FAILED,
        failure_reason=reason,
        failure_message=message,
    )
    await device.pull.Report(pull_pb2.ReportRequest(reports=[report]))
    device.profile = set()


async def succeeded(client: Client, *devices: SimulatedDevice) -> release_pb2.Release:
    release = await client.release()
    for device in devices:
        await device.follow()
    return await client.release_when(release.name, lambda r: r.state == State.STATE_SUCCEEDED)


async def test_a_device_shows_what_failed_on_it_and_why(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running_deployer(tmp_path, clock=clock) as running:
        client = running.client()
        await client.install_root(clock.now())
        await client.create_task()
        await client.publish()
        device = await client.enrol("d1")
        assert list((await get(client, device)).failures) == []
        first = await client.release(failed_percent=100)
        await fail(device, first.name, "DIGEST_MISMATCH", "pre.py: other bytes")
        failed_at = clock.now()
        clock.advance(60)
        second = await client.release(failed_percent=100)
        await fail(device, second.name, "")
        shown = (await get(client, device)).failures
        assert [(f.version, f.release, f.reason, f.message) for f in shown] == [
            (VERSION, second.name, "UNKNOWN", ""),
            (VERSION, first.name, "DIGEST_MISMATCH", "pre.py: other bytes"),
        ]
        assert shown[1].event_time.ToDatetime(UTC) == failed_at
        listed = await client.devices.ListDevices(device_pb2.ListDevicesRequest(parent=client.parent))
        assert list(listed.devices[0].failures) == []


async def test_a_device_is_shown_with_a_bounded_number_of_failures(client: Client) -> None:
    await client.publish()
    device = await client.enrol("d1")
    names = []
    for _ in range(MAX_FAILURES + 1):
        names.append((await client.release(failed_percent=100)).name)
        await fail(device, names[-1], "EXCEPTION")
    shown = (await get(client, device)).failures
    assert [failure.release for failure in shown] == names[:0:-1]


async def test_a_release_shows_failures_that_came_after_it_had_succeeded(client: Client) -> None:
    await client.publish()
    devices = await client.enrol_many(3)
    done = await succeeded(client, *devices)
    assert (done.late_failed_count, list(done.failures)) == (0, [])
    latecomer = await client.enrol("late")
    await latecomer.plan()
    await fail(latecomer, done.name, "SIGNATURE_THRESHOLD")
    await fail(devices[0], done.name, "EXCEPTION")  # that had confirmed it
    await fail(devices[1], done.name, "EXCEPTION")
    shown = await client.get_release(done.name)
    assert shown.counts == done.counts
    assert shown.steps == done.steps
    assert shown.etag == done.etag
    assert shown.late_failed_count == 3
    assert [(f.reason, f.device_count) for f in shown.failures] == [
        ("EXCEPTION", 2),
        ("SIGNATURE_THRESHOLD", 1),
    ]
    assert shown.state_reason == (
        f"{done.state_reason}; since then 3 devices failed, most often EXCEPTION (2 devices)"
    )
    listed = await client.releases.ListReleases(release_pb2.ListReleasesRequest(parent=client.parent))
    assert list(listed.releases) == [shown]


async def test_rolling_back_a_release_counts_those_that_failed_later(client: Client) -> None:
    await client.publish()
    devices = await client.enrol_many(2)
    done = await succeeded(client, *devices)
    await fail(devices[0], done.name, "EXCEPTION")
    request = release_pb2.RollBackReleaseRequest(name=done.name, reason="it breaks")
    back = (await client.releases.RollBackRelease(request)).release
    counts = back.counts
    assert (counts.targeted_count, counts.confirmed_count, counts.failed_count) == (2, 1, 1)
    assert back.late_failed_count == 0
    assert "it had 1 of 2 devices confirmed, 1 failed, most often EXCEPTION" in back.state_reason
    again = await client.get_release(done.name)
    assert again == back
