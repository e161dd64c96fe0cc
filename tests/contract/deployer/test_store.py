"""What `services.deployer.store` promises, of each implementation."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from libs.common.errors import AlreadyExists, Conflict, NotFound
from libs.common.names import DeviceName, ReleaseName, TaskName, VersionName
from libs.common.testing import START
from services.deployer.domain.model import (
    AuditEntry,
    BlobRef,
    Counts,
    Device,
    DeviceStage,
    EnrolmentToken,
    FailureCount,
    Gate,
    PastRequest,
    Preflight,
    PreflightState,
    Release,
    ReleaseState,
    Root,
    Stage,
    StepStatus,
    Task,
    Version,
    VersionFailure,
)
from services.deployer.store import Store, Tx

HOUR = timedelta(hours=1)
LATER = START + timedelta(seconds=1.234567)


def task(name: str = "genres", tenant: str = "acme") -> Task:
    return Task(TaskName(tenant, name), "what it does", START)


def version(number: str = "1.0.0", name: str = "genres", tenant: str = "acme") -> Version:
    return Version(VersionName(tenant, name, number), b"signed", "sha256:" + "a" * 64, START, "me", 12)


def device(name: str = "d1", tenant: str = "acme", **change: Any) -> Device:
    made = Device(DeviceName(tenant, name), b"k" * 32, {"os": "linux"}, START, START)
    return replace(made, **change)


def release(name: str = "r1", tenant: str = "acme", **change: Any) -> Release:
    made = Release(
        name=ReleaseName(tenant, name),
        version=VersionName(tenant, "genres", "1.0.0"),
        policy_json='{"eq": ["os", "linux"]}',
        shares=(1000, 10_000),
        gate=Gate(soak_time=timedelta(seconds=1.5)),
        salt=b"s" * 16,
        create_time=START,
        creator="me",
        steps=(StepStatus(1000, LATER),),
    )
    return replace(made, **change)


def stage(
    name: str = "d1", sequence: int = 1, reached: Stage = Stage.DOWNLOADED, tenant: str = "acme"
) -> DeviceStage:
    return DeviceStage(DeviceName(tenant, name), sequence, "genres", "1.0.0", reached)


async def test_what_a_transaction_wrote_is_gone_when_it_raises(store: Store) -> None:
    def work(tx: Tx) -> None:
        tx.add_task(task())
        tx.add_device(device())
        tx.add_audit(AuditEntry("acme", "me", "a", "r", "", START))
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        await store.run(work)
    assert await store.read(lambda tx: tx.get_task(task().name)) is None
    assert await store.read(lambda tx: tx.get_device(device().name)) is None
    assert await store.read(lambda tx: tx.fleet_revision("acme")) == 0
    assert await store.read(lambda tx: tx.list_audit("acme", "", None, 10)) == []


async def test_transactions_at_once_see_one_another_whole(store: Store) -> None:
    await store.run(lambda tx: tx.add_token(EnrolmentToken(b"h", "acme", {}, START + HOUR, 7)))
    taken = await asyncio.gather(*(store.run(lambda tx: tx.use_token(b"h")) for _ in range(20)))
    assert sum(taken) == 7
    token = await store.read(lambda tx: tx.get_token(b"h"))
    assert token is not None
    assert token.uses_left == 0


async def test_tasks(store: Store) -> None:
    for name in ("b", "a", "c"):
        await store.run(lambda tx, name=name: tx.add_task(task(name)))
    await store.run(lambda tx: tx.add_task(task("a", "other")))
    assert await store.read(lambda tx: tx.get_task(TaskName("acme", "a"))) == task("a")
    assert await store.read(lambda tx: tx.get_task(TaskName("nobody", "a"))) is None
    page = await store.read(lambda tx: tx.list_tasks("acme", "", 2))
    assert [t.name.task for t in page] == ["a", "b"]
    assert [t.name.task for t in await store.read(lambda tx: tx.list_tasks("acme", "b", 2))] == ["c"]
    with pytest.raises(AlreadyExists):
        await store.run(lambda tx: tx.add_task(task("a")))


async def test_versions_come_newest_first(store: Store) -> None:
    for number in ("1", "3", "2"):
        await store.run(lambda tx, number=number: tx.add_version(version(number)))
    await store.run(lambda tx: tx.add_version(version("1", tenant="other")))
    found = await store.read(lambda tx: tx.list_versions(TaskName("acme", "genres"), None, 2))
    assert [v.name.version for v in found] == ["2", "3"]
    rest = await store.read(lambda tx: tx.list_versions(TaskName("acme", "genres"), found[-1].sequence, 2))
    assert [v.name.version for v in rest] == ["1"]
    one = await store.read(lambda tx: tx.get_version(version("3").name))
    assert one is not None
    assert replace(one, sequence=0) == version("3")
    with pytest.raises(AlreadyExists):
        await store.run(lambda tx: tx.add_version(version("3")))


async def test_a_versions_preflight_is_kept_and_its_events_found(store: Store) -> None:
    events = [BlobRef("sha256:" + letter * 64, size) for letter, size in (("e", 7), ("f", 8))]
    name = task().name
    full = Preflight(
        state=PreflightState.PASSED,
        message="übel ✓",
        events=events[0],
        event_count=2**40,
        run_count=3,
        failure_count=4,
        frame_count=5,
        frame_bytes=6,
        refused_frame_count=7,
        asked_count=8,
        p50_run_time=timedelta(microseconds=1234),
        p99_run_time=timedelta(seconds=61),
        end_time=LATER,
    )
    skipped = Preflight(state=PreflightState.SKIPPED, events=events[1])
    bare = Preflight(state=PreflightState.FAILED, reason="LOAD_ERROR", message="no")
    assert await store.read(lambda tx: tx.newest_events(name)) is None
    for number, preflight in (("1", None), ("2", full), ("3", bare)):
        new = replace(version(number), preflight=preflight)
        await store.run(lambda tx, new=new: tx.add_version(new))
        assert (await store.read(lambda tx, new=new: tx.get_version(new.name))).preflight == preflight
    assert await store.read(lambda tx: tx.newest_events(name)) == events[0]
    await store.run(lambda tx: tx.add_version(replace(version("4"), preflight=skipped)))
    await store.run(lambda tx: tx.add_version(version("1", name="other")))
    await store.run(lambda tx: tx.add_version(replace(version("1", tenant="umbrella"), preflight=full)))
    assert await store.read(lambda tx: tx.newest_events(name)) == events[1]
    assert await store.read(lambda tx: tx.newest_events(TaskName("acme", "other"))) is None
    listed = await store.read(lambda tx: tx.list_versions(name, None, 10))
    assert [each.preflight for each in listed] == [skipped, bare, full, None]


async def test_roots(store: Store) -> None:
    assert await store.read(lambda tx: tx.newest_root("acme")) is None
    for number in (1, 2, 3):
        root = Root("acme", number, b"root %d" % number, LATER)
        await store.run(lambda tx, root=root: tx.add_root(root))
    newest = await store.read(lambda tx: tx.newest_root("acme"))
    assert newest == Root("acme", 3, b"root 3", LATER)
    assert [r.version for r in await store.read(lambda tx: tx.list_roots("acme", 2, 10))] == [2, 3]
    assert await store.read(lambda tx: tx.list_roots("other", 1, 10)) == []
    with pytest.raises(AlreadyExists):
        await store.run(lambda tx: tx.add_root(Root("acme", 2, b"another", START)))


async def test_a_devices_own_calls_and_peoples_writes_do_not_overwrite_one_another(store: Store) -> None:
    read = device()
    await store.run(lambda tx: tx.add_device(read))
    await store.run(
        lambda tx: tx.touch_device(
            replace(read, reported=("a@1",), last_seen_time=LATER, set_counter=3, set_digest=b"d")
        )
    )
    await store.run(lambda tx: tx.update_device(replace(read, attributes={"tier": "low"}, revision=2)))
    stored = await store.read(lambda tx: tx.get_device(read.name))
    assert stored == device(
        attributes={"tier": "low"},
        reported=("a@1",),
        last_seen_time=LATER,
        set_counter=3,
        set_digest=b"d",
        revision=2,
    )
    with pytest.raises(Conflict):
        await store.run(lambda tx: tx.update_device(replace(read, revoked=True, revision=2)))
    await store.run(lambda tx: tx.touch_device(replace(read, reported=("b@1",), attributes={"no": "no"})))
    kept = await store.read(lambda tx: tx.get_device(read.name))
    assert kept is not None
    assert (kept.attributes, kept.revision, kept.reported) == ({"tier": "low"}, 2, ("b@1",))


async def test_devices_are_listed_and_scanned_by_id_and_the_fleet_revision_tells_of_changes(
    store: Store,
) -> None:
    for name in ("d2", "d1", "d3"):
        await store.run(lambda tx, name=name: tx.add_device(device(name, attributes={"b": "2", "a": "1"})))
    await store.run(lambda tx: tx.add_device(device("d0", "other")))
    before = await store.read(lambda tx: tx.fleet_revision("acme"))
    assert before == 3
    await store.run(lambda tx: tx.touch_device(device("d1", reported=("x@1",))))
    assert await store.read(lambda tx: tx.fleet_revision("acme")) == before
    await store.run(lambda tx: tx.update_device(device("d2", revoked=True, revision=2)))
    assert await store.read(lambda tx: tx.fleet_revision("acme")) == before + 1
    listed = await store.read(lambda tx: tx.list_devices("acme", "d1", 10))
    assert [d.name.device for d in listed] == ["d2", "d3"]
    rows = await store.read(lambda tx: tx.scan_fleet("acme", "", 2))
    assert [(r.device, r.reported, r.revoked) for r in rows] == [("d1", ("x@1",), False), ("d2", (), True)]
    assert rows[0].attributes_json == '{"a":"1","b":"2"}'
    assert await store.read(lambda tx: tx.fleet_tenants()) == ["acme", "other"]
    with pytest.raises(AlreadyExists):
        await store.run(lambda tx: tx.add_device(device("d1")))


async def test_releases_keep_everything_and_compare_revisions(store: Store) -> None:
    stored = await store.run(lambda tx: tx.add_release(release()))
    assert await store.read(lambda tx: tx.get_release(stored.name)) == stored
    assert replace(stored, sequence=0) == release()
    changed = replace(
        stored,
        state=ReleaseState.ROLLED_BACK,
        state_reason="why",
        steps=(StepStatus(1000, START, LATER, Counts(9, confirmed=9)), StepStatus(10_000, LATER)),
        resume_time=LATER,
        end_time=LATER,
        end_counts=Counts(5, 1, 1, 1, 1, 1, 1, (FailureCount("TIMEOUT", 1),)),
        revision=2,
    )
    await store.run(lambda tx: tx.update_release(changed))
    assert await store.read(lambda tx: tx.get_release(stored.name)) == changed
    with pytest.raises(Conflict):
        await store.run(lambda tx: tx.update_release(changed))
    with pytest.raises(AlreadyExists):
        await store.run(lambda tx: tx.add_release(release()))


async def test_releases_are_found_by_tenant_and_state(store: Store) -> None:
    for name, state in (
        ("r1", ReleaseState.SUCCEEDED),
        ("r2", ReleaseState.ROLLED_BACK),
        ("r3", ReleaseState.RUNNING),
        ("r4", ReleaseState.PAUSED),
    ):
        await store.run(lambda tx, name=name, state=state: tx.add_release(release(name, state=state)))
    await store.run(lambda tx: tx.add_release(release("r1", "other")))
    page = await store.read(lambda tx: tx.list_releases("acme", None, 3))
    assert [r.name.release for r in page] == ["r4", "r3", "r2"]
    rest = await store.read(lambda tx: tx.list_releases("acme", page[-1].sequence, 3))
    assert [r.name.release for r in rest] == ["r1"]
    effective = await store.read(lambda tx: tx.releases_in_effect("acme"))
    assert sorted(r.name.release for r in effective) == ["r1", "r3", "r4"]
    running = await store.read(lambda tx: tx.running_releases())
    assert sorted(map(str, running)) == ["tenants/acme/releases/r3", "tenants/other/releases/r1"]
    counts = await store.read(lambda tx: tx.release_state_counts())
    assert dict(counts) == {
        ReleaseState.SUCCEEDED: 1,
        ReleaseState.ROLLED_BACK: 1,
        ReleaseState.RUNNING: 2,
        ReleaseState.PAUSED: 1,
    }
    assert await store.read(lambda tx: (tx.release_revision("acme"), tx.release_revision("other"))) == (4, 1)


async def test_a_stage_only_moves_forward(store: Store) -> None:
    assert await store.run(lambda tx: tx.put_stage(stage(reached=Stage.ACTIVATED)))
    assert not await store.run(lambda tx: tx.put_stage(stage(reached=Stage.DOWNLOADED)))
    assert not await store.run(lambda tx: tx.put_stage(stage(reached=Stage.ACTIVATED)))
    failed = replace(stage(reached=Stage.FAILED), failure_reason="TIMEOUT", failure_message="too slow")
    assert await store.run(lambda tx: tx.put_stage(failed))
    assert not await store.run(lambda tx: tx.put_stage(stage(reached=Stage.CONFIRMED)))
    assert await store.read(lambda tx: tx.device_stages(DeviceName("acme", "d1"))) == [failed]


async def test_a_devices_failures_come_with_their_releases_newest_first(store: Store) -> None:
    def work(tx: Tx) -> list[VersionFailure]:
        found = []
        for number in range(4):
            made = tx.add_release(release(f"r{number}"))
            failed = stage(sequence=made.sequence, reached=Stage.FAILED if number != 1 else Stage.CONFIRMED)
            time = LATER + number * HOUR if number else None
            tx.put_stage(replace(failed, failure_reason="TIMEOUT", failure_message=f"{number}", time=time))
            tx.put_stage(stage("d2", made.sequence, Stage.FAILED))
            if failed.stage is Stage.FAILED:
                found.append(VersionFailure(made.version, made.name, "TIMEOUT", f"{number}", time))
        return found

    found = await store.run(work)
    name = DeviceName("acme", "d1")
    assert await store.read(lambda tx: list(tx.device_failures(name, 10))) == found[::-1]
    assert await store.read(lambda tx: list(tx.device_failures(name, 2))) == found[:0:-1]
    assert await store.read(lambda tx: list(tx.device_failures(DeviceName("other", "d1"), 2))) == []
    assert await store.read(lambda tx: [tx.failed_count(s) for s in (1, 2, 9)]) == [2, 1, 0]


async def test_the_time_of_a_stage_is_that_of_the_latest(store: Store) -> None:
    staged, failed = (replace(stage(reached=s), time=LATER) for s in (Stage.STAGED, Stage.FAILED))
    failed = replace(failed, time=LATER + HOUR)
    await store.run(lambda tx: [tx.put_stage(staged), tx.put_stage(failed), tx.put_stage(staged)])
    assert await store.read(lambda tx: tx.device_stages(DeviceName("acme", "d1"))) == [failed]


async def test_a_versions_manifest_alone_is_replaced(store: Store) -> None:
    def work(tx: Tx) -> Version:
        first = tx.add_version(version())
        tx.add_version(version("2.0.0"))
        tx.replace_manifest(replace(first, manifest=b"signed twice", publisher="somebody"))
        return first

    first = await store.run(work)
    found = await store.read(lambda tx: tx.list_versions(TaskName("acme", "genres"), None, 10))
    assert found[1] == replace(first, manifest=b"signed twice")
    assert found[0].manifest == b"signed"


async def test_stages_are_counted_by_release_and_dropped_by_device(store: Store) -> None:
    running = replace(release(), sequence=1)

    def work(tx: Tx) -> None:
        tx.put_stage(stage("d1", 1, Stage.FAILED))
        tx.put_stage(stage("d2", 1, Stage.STAGED))
        tx.put_stage(stage("d3", 2, Stage.FAILED))
        tx.put_stage(stage("d1", 1, Stage.FAILED, tenant="other"))
        tx.put_running(running, ["d2", "d3", "d4"])
        tx.put_running(running, [])

    await store.run(work)
    counts = await store.read(lambda tx: tx.stage_counts(1))
    assert dict(counts) == {Stage.FAILED: 2, Stage.STAGED: 1, Stage.CONFIRMED: 2}
    found = await store.read(lambda tx: tx.failed_stages("acme", "d1", "d3"))
    assert [s.device.device for s in found] == ["d3"]
    await store.run(lambda tx: tx.drop_stages(DeviceName("acme", "d3"), [1, 7]))
    left = await store.read(lambda tx: tx.device_stages(DeviceName("acme", "d3")))
    assert [s.release_sequence for s in left] == [2]


async def test_failures_are_counted_by_reason(store: Store) -> None:
    def work(tx: Tx) -> None:
        for number, (reason, sequence) in enumerate(
            [("TIMEOUT", 1), ("EXCEPTION", 1), ("EXCEPTION", 1), ("OOM", 1), ("TIMEOUT", 2), ("ABC", 1)]
        ):
            failed = stage(f"d{number}", sequence, Stage.FAILED)
            tx.put_stage(replace(failed, failure_reason=reason))
        tx.put_stage(replace(stage("d9", 1, Stage.STAGED), failure_reason="TIMEOUT"))

    await store.run(work)
    found = await store.read(lambda tx: tx.failure_counts(1, 3))
    assert found == [FailureCount("EXCEPTION", 2), FailureCount("ABC", 1), FailureCount("OOM", 1)]
    assert await store.read(lambda tx: tx.failure_counts(3, 3)) == []


async def test_report_ids_are_known_until_they_are_pruned(store: Store) -> None:
    name = DeviceName("acme", "d1")
    assert await store.run(lambda tx: tx.add_report(name, "a", START))
    assert not await store.run(lambda tx: tx.add_report(name, "a", START))
    assert await store.run(lambda tx: tx.add_report(DeviceName("acme", "d2"), "a", START + HOUR))
    await store.run(lambda tx: tx.add_request(PastRequest("acme", "q", b"f", "r", START)))
    assert await store.run(lambda tx: tx.prune(START + HOUR)) == 2
    assert await store.run(lambda tx: tx.add_report(name, "a", START))
    assert not await store.run(lambda tx: tx.add_report(DeviceName("acme", "d2"), "a", START))


async def test_requests(store: Store) -> None:
    past = PastRequest("acme", "q", b"f", "tenants/acme/tasks/t", LATER)
    await store.run(lambda tx: tx.add_request(past))
    assert await store.read(lambda tx: tx.get_request("acme", "q")) == past
    assert await store.read(lambda tx: tx.get_request("other", "q")) is None
    with pytest.raises(AlreadyExists):
        await store.run(lambda tx: tx.add_request(past))


async def test_blobs_are_each_tenants_own_and_go_when_nobody_pins_them(store: Store) -> None:
    ref, other = BlobRef("sha256:" + "a" * 64, 3), BlobRef("sha256:" + "b" * 64, 4)
    record = await store.run(lambda tx: tx.put_blob("acme", ref, START))
    assert (record.blob, record.create_time, record.touch_time, record.pin_count) == (ref, START, START, 0)
    again = await store.run(lambda tx: tx.put_blob("acme", ref, START + HOUR))
    assert (again.create_time, again.touch_time) == (START, START + HOUR)
    await store.run(lambda tx: tx.put_blob("acme", other, START))
    await store.run(lambda tx: tx.put_blob("other", ref, START))
    assert await store.read(lambda tx: tx.get_blob("nobody", ref.digest)) is None

    def pin(tx: Tx) -> None:
        tx.pin_blobs("acme", "tenants/acme/tasks/t/versions/1", [other.digest])
        tx.pin_blobs("acme", "tenants/acme/tasks/t/versions/1", [other.digest])
        tx.pin_blobs("acme", "tenants/acme/tasks/t/versions/2", [other.digest])

    await store.run(pin)
    pinned = await store.read(lambda tx: tx.get_blob("acme", other.digest))
    assert pinned is not None
    assert pinned.pin_count == 2
    dropped = await store.run(lambda tx: tx.drop_unpinned_blobs(START + HOUR, 10))
    assert dropped == [ref.digest]  # the other tenant's: acme's was touched later
    assert await store.read(lambda tx: tx.blob_in_use(ref.digest))
    assert await store.run(lambda tx: tx.drop_unpinned_blobs(START + 2 * HOUR, 10)) == [ref.digest]
    assert not await store.read(lambda tx: tx.blob_in_use(ref.digest))
    assert await store.read(lambda tx: tx.blob_in_use(other.digest))

    first, second = (f"tenants/acme/tasks/t/versions/{number}" for number in (1, 2))
    later = START + 3 * HOUR
    assert await store.run(lambda tx: tx.unpin_blobs("other", first, later)) == 0
    assert await store.run(lambda tx: tx.unpin_blobs("acme", first, START)) == 1
    assert await store.run(lambda tx: tx.unpin_blobs("acme", first, START)) == 0
    assert await store.run(lambda tx: tx.drop_unpinned_blobs(later, 10)) == []
    assert await store.run(lambda tx: tx.unpin_blobs("acme", second, later)) == 1
    assert await store.run(lambda tx: tx.drop_unpinned_blobs(later, 10)) == []  # its grace begins now
    assert await store.run(lambda tx: tx.drop_unpinned_blobs(later + HOUR, 10)) == [other.digest]


async def test_the_audit_is_newest_first_and_by_resource(store: Store) -> None:
    for index in range(5):
        entry = AuditEntry("acme", "me", f"a{index}", f"r{index % 2}", "why", LATER)
        await store.run(lambda tx, entry=entry: tx.add_audit(entry))
    await store.run(lambda tx: tx.add_audit(AuditEntry("other", "me", "x", "r0", "", START)))
    found = await store.read(lambda tx: tx.list_audit("acme", "", None, 3))
    assert [e.action for e in found] == ["a4", "a3", "a2"]
    assert replace(found[0], sequence=0) == AuditEntry("acme", "me", "a4", "r0", "why", LATER)
    rest = await store.read(lambda tx: tx.list_audit("acme", "", found[-1].sequence, 3))
    assert [e.action for e in rest] == ["a1", "a0"]
    of_one = await store.read(lambda tx: tx.list_audit("acme", "r1", None, 10))
    assert [e.action for e in of_one] == ["a3", "a1"]


async def test_one_that_raises_among_many_at_once_undoes_only_its_own(store: Store) -> None:
    def work(index: int) -> Callable[[Tx], int]:
        def add(tx: Tx) -> int:
            tx.add_task(task(f"t{index:02}"))
            if index % 3 == 0:
                raise NotFound("no")
            if index % 3 == 1:
                tx.add_task(task(f"t{index:02}"))
            return index

        return add

    done = await asyncio.gather(*(store.run(work(i)) for i in range(30)), return_exceptions=True)
    assert [type(outcome) for outcome in done] == [NotFound, AlreadyExists, int] * 10
    stored = await store.read(lambda tx: tx.list_tasks("acme", "", 100))
    assert [t.name.task for t in stored] == [f"t{i:02}" for i in range(2, 30, 3)]


async def test_a_caller_that_gives_up_takes_nobody_with_it(store: Store) -> None:
    running = [asyncio.create_task(store.run(lambda tx, i=i: tx.add_task(task(f"t{i}")))) for i in range(6)]
    await asyncio.sleep(0)
    for one in running[::2]:
        one.cancel()
    done = await asyncio.gather(*running, return_exceptions=True)
    assert done[1::2] == [None] * 3
    stored = {t.name.task for t in await store.read(lambda tx: tx.list_tasks("acme", "", 100))}
    assert {"t1", "t3", "t5"} <= stored
