"""Enrolment, devices, plans and reports: what is refused, what is idempotent, what a device may see."""

import base64
from datetime import timedelta
from pathlib import Path

import jwt
import pytest
from google.protobuf.duration_pb2 import Duration

from isthmus.deployer.v1 import device_pb2, device_pb2_grpc, manifest_pb2, pull_pb2, trust_service_pb2
from libs.common.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Precondition,
    Unauthenticated,
)
from libs.common.names import DeviceName
from libs.common.testing import FakeClock
from libs.trust.testing import fake_key
from services.deployer.domain import pull
from services.deployer.domain.pull import INCOMPATIBLE
from services.deployer.testing import (
    DONE,
    IDENTITY_KEY,
    Client,
    Running,
    SimulatedDevice,
    Stage,
    enrol_request,
    refused,
    running_deployer,
)


def enrolling(running: Running) -> device_pb2_grpc.EnrolmentServiceStub:
    return device_pb2_grpc.EnrolmentServiceStub(running.channel.acting_as(None))


async def get(client: Client, device: str) -> device_pb2.Device:
    request = device_pb2.GetDeviceRequest(name=f"tenants/{client.tenant}/devices/{device}")
    return (await client.devices.GetDevice(request)).device


async def test_enrolling_gives_a_credential_the_gateway_can_verify(running: Running, client: Client) -> None:
    token = await client.token(tier="high")
    key = fake_key("d1")
    answer = await enrolling(running).Enrol(enrol_request(token, "d1", key, {"os": "linux", "tier": "low"}))
    assert answer.device == "tenants/acme/devices/d1"
    assert jwt.get_unverified_header(answer.credential) == {
        "alg": "EdDSA",
        "typ": "isthmus-credential+jwt",
        "kid": "deployer",
    }
    claims = jwt.decode(answer.credential, IDENTITY_KEY.public_key(), algorithms=["EdDSA"])
    assert (claims["iss"], claims["sub"], claims["tenant"]) == ("deployer", answer.device, "acme")
    assert base64.urlsafe_b64decode(claims["cnf"]["x"] + "=") == key.public.public_bytes_raw()
    assert claims["exp"] - claims["iat"] == 30 * 86400 == answer.expire_time.seconds - claims["iat"]
    assert claims["jti"]
    roots = await client.trust.ListRoots(trust_service_pb2.ListRootsRequest(parent="tenants/acme"))
    assert [answer.root] == list(roots.roots)
    # What the token says wins over what the device says.
    assert dict((await get(client, "d1")).attributes) == {"os": "linux", "tier": "high"}


async def test_enrolling_again_with_the_same_key_uses_nothing_up(running: Running, client: Client) -> None:
    token = await client.token(use_count=1)
    request = enrol_request(token, "d1", fake_key("d1"))
    await enrolling(running).Enrol(request)
    assert (await enrolling(running).Enrol(request)).device == "tenants/acme/devices/d1"
    with refused(Unauthenticated, reason="TOKEN_USED_UP"):
        await enrolling(running).Enrol(enrol_request(token, "d2", fake_key("d2")))


async def test_two_agents_with_one_identity_are_told_apart(running: Running, client: Client) -> None:
    token = await client.token()
    await enrolling(running).Enrol(enrol_request(token, "d1", fake_key("one")))
    with refused(AlreadyExists, "give this one an id of its own", reason="OTHER_KEY"):
        await enrolling(running).Enrol(enrol_request(token, "d1", fake_key("two")))


async def test_enrolling_without_what_it_takes_is_refused(running: Running, client: Client) -> None:
    token, key = await client.token(), fake_key("d1")
    good = enrol_request(token, "d1", key)
    with refused(Unauthenticated, reason="BAD_TOKEN"):
        await enrolling(running).Enrol(enrol_request("ise_" + "0" * 64, "d1", key))
    for change in (
        {"proof": b"x" * 64},
        {"proof": b""},
        {"proof": enrol_request(token, "d2", key).proof},
        {"proof": enrol_request(token, "d1", fake_key("other")).proof},
        {"device_id": "d2"},
    ):
        request = device_pb2.EnrolRequest()
        request.CopyFrom(good)
        request.MergeFrom(device_pb2.EnrolRequest(**change))
        if change.get("proof") == b"":
            request.ClearField("proof")
        with refused(Unauthenticated, reason="BAD_PROOF"):
            await enrolling(running).Enrol(request)
    for bad in (
        device_pb2.EnrolRequest(token=token, device_id="D 1", public_key=good.public_key, proof=good.proof),
        device_pb2.EnrolRequest(token=token, device_id="d1", public_key=b"short", proof=good.proof),
        enrol_request(token, "d1", key, {"Bad Key": "x"}),
        enrol_request(token, "d1", key, {"os": "x" * 257}),
        enrol_request(token, "d1", key, {f"k{i}": "" for i in range(65)}),
        enrol_request("x" * 300, "d1", key),
    ):
        with refused(Invalid):
            await enrolling(running).Enrol(bad)
    with refused(NotFound):
        await get(client, "d1")


async def test_a_token_expires(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running_deployer(tmp_path, clock=clock) as running:
        client = running.client()
        await client.install_root(clock.now())
        made = await client.devices.CreateEnrolmentToken(
            device_pb2.CreateEnrolmentTokenRequest(
                parent="tenants/acme", ttl=Duration(seconds=60), use_count=9
            )
        )
        await enrolling(running).Enrol(enrol_request(made.token, "d1", fake_key("d1")))
        clock.advance(60)
        with refused(Unauthenticated, reason="TOKEN_EXPIRED"):
            await enrolling(running).Enrol(enrol_request(made.token, "d2", fake_key("d2")))
        # A device that is there comes back all the same.
        await enrolling(running).Enrol(enrol_request(made.token, "d1", fake_key("d1")))
        for ttl in (Duration(seconds=31 * 86400), Duration(seconds=-1)):
            with refused(Invalid, "ttl"):
                await client.devices.CreateEnrolmentToken(
                    device_pb2.CreateEnrolmentTokenRequest(parent="tenants/acme", ttl=ttl)
                )


async def test_enrolling_needs_a_root(running: Running) -> None:
    rootless = running.client("rootless")
    with refused(Precondition, reason="NO_ROOT"):
        await rootless.enrol("d1")


async def test_a_credential_is_renewed(client: Client) -> None:
    device = await client.enrol("d1")
    answer = await device.enrolment.RenewCredential(device_pb2.RenewCredentialRequest())
    claims = jwt.decode(answer.credential, IDENTITY_KEY.public_key(), algorithms=["EdDSA"])
    assert claims["sub"] == device.name


async def test_attributes_are_replaced_by_etag(client: Client) -> None:
    device = await client.enrol("d1", os="linux")
    read = await get(client, "d1")

    async def update(etag: str, **attributes: str) -> device_pb2.Device:
        request = device_pb2.UpdateDeviceRequest(name=device.name, attributes=attributes, etag=etag)
        return (await client.devices.UpdateDevice(request)).device

    await device.plan()  # the device's own calls don't make an etag stale
    changed = await update(read.etag, tier="low")
    assert dict(changed.attributes) == {"tier": "low"}
    with refused(Conflict, reason="STALE_ETAG"):
        await update(read.etag, tier="high")
    assert dict((await update("", tier="high")).attributes) == {"tier": "high"}
    with refused(Invalid, "attributes"):
        await update("", **{"Tier": "x"})
    assert [action for _, action in await client.actions(device.name)] == [
        "device.enrol",
        "device.update",
        "device.update",
    ]


async def test_a_revoked_device_is_shut_out_for_good(running: Running, client: Client) -> None:
    await client.publish()
    device = await client.enrol("d1")
    release = await client.release()
    await device.follow()
    request = device_pb2.RevokeDeviceRequest(name=device.name)
    revoked = (await client.devices.RevokeDevice(request)).device
    assert (revoked.revoked, list(revoked.wanted)) == (True, [])
    assert (await client.devices.RevokeDevice(request)).device == revoked
    with refused(Forbidden, reason="DEVICE_REVOKED"):
        await device.plan()
    with refused(Forbidden, reason="DEVICE_REVOKED"):
        await device.report(("genres", "1.0.0", release.name), DONE)
    with refused(Forbidden, reason="DEVICE_REVOKED"):
        await device.enrolment.RenewCredential(device_pb2.RenewCredentialRequest())
    with refused(Forbidden, reason="DEVICE_REVOKED"):
        await device.enrol(await client.token())
    with refused(Forbidden, reason="DEVICE_REVOKED"):
        await client.devices.UpdateDevice(device_pb2.UpdateDeviceRequest(name=device.name))
    other = await client.release(release_id="second")
    assert other.counts.targeted_count == 0


async def test_devices_are_listed_page_by_page_with_what_they_run_and_should(client: Client) -> None:
    await client.publish()
    devices = await client.enrol_many(3)
    await client.release()
    await devices[0].follow()
    names, token = [], ""
    while True:
        page = await client.devices.ListDevices(
            device_pb2.ListDevicesRequest(parent="tenants/acme", page_size=2, page_token=token)
        )
        names += [(d.name[-2:], list(d.reported), list(d.wanted)) for d in page.devices]
        token = page.next_page_token
        if not token:
            break
    wanted = ["genres@1.0.0"]
    assert names == [("d0", wanted, wanted), ("d1", [], wanted), ("d2", [], wanted)]


async def test_a_plan_carries_just_what_the_device_lacks(client: Client) -> None:
    version = await client.publish()
    device = await client.enrol("d1")
    empty, answer = await device.plan()
    assert (dict(empty.entries), list(answer.manifests), list(answer.roots)) == ({}, [], [])
    release = await client.release()
    accepted, answer = await device.plan()
    entry = accepted.entries["genres"]
    assert (entry.key, entry.manifest_digest) == ("genres@1.0.0", version.manifest_digest)
    assert entry.release == release.name
    assert list(answer.manifests) == [version.manifest]
    assert (accepted.counter, empty.counter) == (2, 1)
    device.profile = {"genres@1.0.0", "old@1"}
    again, answer = await device.plan()
    assert (again.counter, list(answer.manifests), list(answer.remove)) == (2, [], ["old@1"])


async def test_an_equal_set_is_signed_anew_with_the_same_counter_and_a_later_expiry(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running_deployer(tmp_path, clock=clock) as running:
        client = running.client()
        await client.install_root(clock.now())
        device = await client.enrol("d1")

        async def ask() -> pull_pb2.DeviceSet:
            request = pull_pb2.PlanRequest(agent_version="0.1.0", python_version="3.11")
            return pull_pb2.DeviceSet.FromString((await device.pull.Plan(request)).device_set.payload)

        first = await ask()
        clock.advance(3600)
        second = await ask()
        assert first.counter == second.counter == 1
        assert first.expire_time.ToDatetime() - first.sign_time.ToDatetime() == timedelta(days=1)
        assert second.expire_time.seconds - first.expire_time.seconds == 3600


async def test_a_device_learns_of_new_roots(client: Client) -> None:
    device = await client.enrol("d1")
    first = client.authority.root
    second = first.successor(first.create_time, timedelta(days=365))
    await client.trust.InstallRoot(
        trust_service_pb2.InstallRootRequest(
            parent="tenants/acme", root=second.sign(client.authority.root_keys)
        )
    )
    _, answer = await device.plan()
    assert len(answer.roots) == 1
    _, answer = await device.plan()
    assert len(answer.roots) == 0


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("min_agent_version", "9.0.0", "needs agent 9.0.0"),
        ("python_versions", ["3.99"], "runs on Python 3.99"),
    ],
)
async def test_a_version_that_cannot_run_on_the_device_counts_as_failed_there(
    running: Running, client: Client, field: str, value: str | list[str], says: str
) -> None:
    await client.publish()
    await client.publish(version="2.0.0", **{field: value})
    device = await client.enrol("d1")
    old = await client.release()
    await device.follow()
    await client.release_when(old.name, lambda r: r.state == r.STATE_SUCCEEDED)
    new = await client.release("2.0.0", failed_percent=100)
    accepted, _ = await device.plan()
    assert [entry.key for entry in accepted.entries.values()] == ["genres@1.0.0"]
    assert (await client.get_release(new.name)).counts.failed_count == 1
    name = DeviceName.parse(device.name)
    stages = await running.deployer.store.read(lambda tx: tx.device_stages(name))
    assert [stage.failure_reason for stage in stages if stage.failure_reason] == [INCOMPATIBLE]
    assert says in stages[-1].failure_message
    await device.plan()  # and once only
    assert (await client.get_release(new.name)).counts.failed_count == 1


@pytest.mark.parametrize(
    "change",
    [
        {"profile": ["genres"]},
        {"profile": ["genres@1", "genres@1"]},
        {"profile": [f"t{i}@1" for i in range(1001)]},
        {"agent_version": "new"},
        {"agent_version": ""},
        {"python_version": "3"},
    ],
)
async def test_a_malformed_plan_request_is_refused(client: Client, change: dict[str, object]) -> None:
    device = await client.enrol("d1")
    request = {"agent_version": "0.1.0", "python_version": "3.11", **change}
    with refused(Invalid):
        await device.pull.Plan(pull_pb2.PlanRequest(**request))


async def test_a_report_counts_once_however_often_it_comes(client: Client) -> None:
    await client.publish()
    device = await client.enrol("d1")
    release = await client.release(steps=[100], confirmed_percent=100, failed_percent=100)
    told = ("genres", "1.0.0", release.name)
    await device.report(told, [Stage.STAGE_ACTIVATED], report_id="a")
    await device.report(told, [Stage.STAGE_ACTIVATED], report_id="a")
    await device.report(told, [Stage.STAGE_DOWNLOADED], report_id="late")
    counts = (await client.get_release(release.name)).counts
    assert (counts.targeted_count, counts.activated_count, counts.downloaded_count) == (1, 1, 0)
    # Known by its id: what it says the second time doesn't count.
    await device.report(told, [Stage.STAGE_FAILED], report_id="a")
    assert (await client.get_release(release.name)).counts.failed_count == 0


async def test_a_failure_after_confirmation_wins_and_the_version_is_wanted_no_more(client: Client) -> None:
    await client.publish()
    device = await client.enrol("d1")
    release = await client.release()
    await device.follow()
    await client.release_when(release.name, lambda r: r.state == r.STATE_SUCCEEDED)
    await device.report(("genres", "1.0.0", release.name), [Stage.STAGE_FAILED], reason="EXCEPTION")
    assert list((await get(client, "d1")).wanted) == []
    accepted, _ = await device.plan()
    assert not accepted.entries


async def test_reports_on_what_does_not_concern_the_device_are_taken_and_not_counted(client: Client) -> None:
    await client.publish()
    device = await client.enrol("d1", os="linux")
    other = await client.release(release_id="other", policy='{"eq": ["os", "android"]}')
    await device.report(("genres", "1.0.0", other.name), DONE)
    await device.report(("genres", "1.0.0", "tenants/acme/releases/none"), DONE)
    mine = await client.release(release_id="mine")
    await device.report(("genres", "9.9.9", mine.name), DONE)
    assert (await client.get_release(other.name)).counts.confirmed_count == 0
    assert (await client.get_release(mine.name)).counts.confirmed_count == 0


async def test_a_plan_that_does_not_fit_into_an_answer_comes_in_several(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "MAX_ANSWER_BYTES", 2000)
    tasks = [f"task-{number}" for number in range(5)]
    for task in tasks:
        await client.create_task(task)
        await client.publish(task)
    device = await client.enrol("d1")
    for task in tasks:
        await client.release(task=task)
    plans = []
    while len(device.profile) < 5:
        accepted, answer = await device.plan()
        assert len(accepted.entries) == 5
        plans.append(len(answer.manifests))
        assert plans[-1] > 0
        for signed in answer.manifests:
            manifest = manifest_pb2.TaskManifest.FromString(signed.payload)
            device.profile.add(f"{manifest.task}@{manifest.version}")
    assert len(plans) > 1
    assert sum(plans) == 5


async def test_a_failure_without_a_reason_counts_as_unknown(client: Client) -> None:
    await client.publish()
    release = await client.release(failed_percent=100)
    for number, reason in enumerate(("", "TIMEOUT", "")):
        device = await client.enrol(f"d{number}")
        await device.report(("genres", "1.0.0", release.name), [Stage.STAGE_FAILED], reason=reason)
    failures = (await client.get_release(release.name)).failures
    assert [(f.reason, f.device_count) for f in failures] == [("UNKNOWN", 2), ("TIMEOUT", 1)]


async def test_malformed_reports_are_refused_whole(client: Client) -> None:
    await client.publish()
    device = await client.enrol("d1")
    release = await client.release()
    good = {
        "report_id": "a",
        "task": "genres",
        "version": "1.0.0",
        "release": release.name,
        "stage": Stage.STAGE_CONFIRMED,
    }
    for change in (
        {"report_id": ""},
        {"report_id": "x" * 65},
        {"task": "A"},
        {"version": "/"},
        {"release": "r1"},
        {"stage": 0},
        {"stage": 99},
        {"failure_reason": "not upper"},
        {"failure_message": "x" * 4097},
    ):
        reports = [pull_pb2.StageReport(**good), pull_pb2.StageReport(**{**good, **change})]
        with refused(Invalid):
            await device.pull.Report(pull_pb2.ReportRequest(reports=reports))
    with refused(Invalid, "256"):
        many = [pull_pb2.StageReport(**good)] * 257
        await device.pull.Report(pull_pb2.ReportRequest(reports=many))
    with refused(NotFound):
        foreign = pull_pb2.StageReport(**{**good, "release": "tenants/other/releases/r1"})
        await device.pull.Report(pull_pb2.ReportRequest(reports=[foreign]))
    assert (await client.get_release(release.name)).counts.confirmed_count == 0


async def test_a_device_that_is_gone_is_not_found(running: Running) -> None:
    ghost = SimulatedDevice(running.channel.acting_as, "acme", "ghost")
    with refused(NotFound):
        await ghost.pull.Plan(pull_pb2.PlanRequest(agent_version="0.1.0", python_version="3.11"))
