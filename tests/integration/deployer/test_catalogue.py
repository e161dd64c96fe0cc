"""Publishing: what is refused, why, and what is idempotent."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from isthmus.deployer.v1 import audit_pb2, task_pb2, trust_service_pb2
from isthmus.engine.v1 import plan_pb2
from isthmus.trust.v1 import trust_pb2
from libs.common.errors import AlreadyExists, Invalid, NotFound, Precondition
from libs.runtime.codec import encode
from libs.runtime.testing import linear_plan
from libs.task.testing import SCRIPT, add_model, make_manifest
from libs.trust.signing import RoleKeys, sign_message
from libs.trust.testing import Authority, fake_key
from services.deployer.testing import Client, Running, make_notary, refused, running_deployer


async def test_a_task_is_made_once_however_often_the_request_comes(client: Client) -> None:
    request = task_pb2.CreateTaskRequest(
        parent="tenants/acme", task_id="anomaly", description="finds it", request_id=str(uuid.uuid4())
    )
    first = (await client.tasks.CreateTask(request)).task
    assert (await client.tasks.CreateTask(request)).task == first
    request.description = "another"
    with refused(AlreadyExists, reason="REQUEST_ID_REUSED"):
        await client.tasks.CreateTask(request)
    with refused(AlreadyExists, reason="TASK_EXISTS"):
        await client.create_task("anomaly")
    assert (await client.tasks.GetTask(task_pb2.GetTaskRequest(name=first.name))).task == first


async def test_lists_go_page_by_page(client: Client) -> None:
    for name in ("a", "b", "c"):
        await client.create_task(name)
    names, token = [], ""
    while True:
        page = await client.tasks.ListTasks(
            task_pb2.ListTasksRequest(parent="tenants/acme", page_size=2, page_token=token)
        )
        names += [task.name.rpartition("/")[2] for task in page.tasks]
        token = page.next_page_token
        if not token:
            break
    assert names == ["a", "b", "c", "genres"]
    page = await client.tasks.ListTasks(task_pb2.ListTasksRequest(parent="tenants/acme", page_size=1))
    with refused(Invalid, "page_token"):
        await client.tasks.ListVersions(
            task_pb2.ListVersionsRequest(parent="tenants/acme/tasks/a", page_token=page.next_page_token)
        )
    with refused(Invalid, "page_token"):
        await client.tasks.ListTasks(
            task_pb2.ListTasksRequest(parent="tenants/acme", page_token=page.next_page_token + "x")
        )


async def test_malformed_names_say_their_form(client: Client) -> None:
    with refused(Invalid, "tenants/{tenant}/tasks/{task}"):
        await client.tasks.GetTask(task_pb2.GetTaskRequest(name="genres"))
    with refused(Invalid, "task_id"):
        await client.create_task("No Such Id")
    with refused(Invalid, "description"):
        await client.tasks.CreateTask(
            task_pb2.CreateTaskRequest(parent="tenants/acme", task_id="x", description="ü" * 513)
        )


async def test_a_version_is_published_once_and_never_changes(client: Client) -> None:
    version = await client.publish()
    assert version.name == "tenants/acme/tasks/genres/versions/1.0.0"
    assert version.total_bytes == len(SCRIPT)
    assert await client.publish() == version
    with refused(AlreadyExists, reason="VERSION_EXISTS"):
        await client.publish(min_agent_version="0.2.0")
    read = await client.tasks.GetVersion(task_pb2.GetVersionRequest(name=version.name))
    assert read.version == version
    assert [action for _, action in await client.actions(version.name)] == ["version.publish"]


async def test_checking_alone_stores_nothing(client: Client) -> None:
    await client.upload(SCRIPT)
    checked = await client.publish_manifest(make_manifest(), validate_only=True)
    assert checked.manifest_digest.startswith("sha256:")
    with refused(NotFound):
        await client.tasks.GetVersion(task_pb2.GetVersionRequest(name=checked.name))
    await client.publish()
    await client.publish_manifest(make_manifest(), validate_only=True)


async def test_missing_blobs_are_named(client: Client) -> None:
    manifest = make_manifest(resources={"model.bin": b"weights"})
    with refused(Precondition, manifest.phases[0].script.digest, reason="MISSING_BLOBS") as caught:
        await client.publish_manifest(manifest)
    assert manifest.resources[0].blob.digest in caught[0].message


async def test_a_size_that_is_not_the_blobs_is_refused(client: Client) -> None:
    await client.upload(SCRIPT)
    manifest = make_manifest()
    manifest.phases[0].script.size_bytes += 1
    with refused(Invalid, str(len(SCRIPT)), reason="SIZE_MISMATCH"):
        await client.publish_manifest(manifest)


async def test_a_plan_is_checked_when_it_is_published(client: Client) -> None:
    sound = encode(linear_plan([1.0]))
    foreign = plan_pb2.Plan.FromString(sound)
    foreign.major = 9
    for plan, says in ((b"no plan", "it can't be read"), (foreign.SerializeToString(), "format 9.0")):
        manifest = make_manifest()
        add_model(manifest, plan)
        await client.upload(SCRIPT)
        await client.upload(plan)
        with refused(Invalid, says) as caught:
            await client.publish_manifest(manifest)
        assert "model.plan" in caught[0].message
    manifest = make_manifest()
    add_model(manifest, sound)
    with refused(Precondition, manifest.plans[0].blob.digest, reason="MISSING_BLOBS"):
        await client.publish_manifest(manifest)
    await client.upload(sound)
    version = await client.publish_manifest(manifest)
    assert version.total_bytes == len(SCRIPT) + len(sound)


async def test_a_syntax_error_in_a_script_shows_its_line(client: Client) -> None:
    script = b"def pre(context):\n    return {'a': 1\n"
    await client.upload(script)
    with refused(Invalid, "line 2") as caught:
        await client.publish_manifest(make_manifest(script=script))
    assert "return {'a': 1" in caught[0].message


async def test_a_missing_entry_point_is_suggested(client: Client) -> None:
    await client.upload(SCRIPT)
    manifest = make_manifest()
    manifest.phases[0].entry_point = "prey"
    with refused(Invalid, "did you mean 'pre'"):
        await client.publish_manifest(manifest)


async def test_a_malformed_trigger_says_where(client: Client) -> None:
    await client.upload(SCRIPT)
    with refused(Invalid, "line 1, column"):
        await client.publish_manifest(make_manifest(trigger='{"sequence": [{"evnt": "rate"}]}'))


async def test_only_the_roots_authors_publish(client: Client) -> None:
    await client.upload(SCRIPT)
    foreign = sign_message(make_manifest(), [fake_key("somebody")])
    tampered = client.authority.manifest(make_manifest())
    tampered.payload += b" "
    renamed = client.authority.manifest(make_manifest())
    renamed.type = "isthmus.trust.v1.Root"
    for signed in (foreign, tampered, renamed, trust_pb2.Signed()):
        request = task_pb2.PublishVersionRequest(parent="tenants/acme/tasks/genres", manifest=signed)
        with refused(Invalid):
            await client.tasks.PublishVersion(request)


async def test_a_manifest_goes_to_its_own_task(client: Client) -> None:
    await client.upload(SCRIPT)
    await client.create_task("other")
    request = task_pb2.PublishVersionRequest(
        parent="tenants/acme/tasks/other", manifest=client.authority.manifest(make_manifest())
    )
    with refused(Invalid, reason="WRONG_TASK"):
        await client.tasks.PublishVersion(request)
    request.parent = "tenants/acme/tasks/none"
    with refused(NotFound):
        await client.tasks.PublishVersion(request)


async def test_publishing_needs_a_root(running: Running) -> None:
    client = running.client("rootless")
    await client.create_task()
    with refused(Precondition, reason="NO_ROOT"):
        await client.publish()


async def test_roots_follow_one_another_by_their_own_consent(running: Running, client: Client) -> None:
    listed = (await client.trust.ListRoots(trust_service_pb2.ListRootsRequest(parent="tenants/acme"))).roots
    assert len(listed) == 1

    async def install(signed: trust_pb2.Signed) -> int:
        request = trust_service_pb2.InstallRootRequest(parent="tenants/acme", root=signed)
        return int((await client.trust.InstallRoot(request)).version)

    assert await install(listed[0]) == 1  # again: accepted
    first = client.authority.root
    second = first.successor(first.create_time, first.expire_time - first.create_time)
    with refused(Invalid, reason="SIGNATURE_THRESHOLD"):
        await install(second.sign([fake_key("somebody")]))
    skipping = second.successor(first.create_time, first.expire_time - first.create_time)
    with refused(Invalid, "newest installed is 1"):
        await install(skipping.sign(client.authority.root_keys))
    assert await install(second.sign(client.authority.root_keys)) == 2
    with refused(AlreadyExists, "version 2 is newer"):
        await install(listed[0])
    page = await client.trust.ListRoots(
        trust_service_pb2.ListRootsRequest(parent="tenants/acme", first_version=2)
    )
    assert [root.payload for root in page.roots] == [second.sign([]).payload]


async def test_a_root_under_which_no_set_could_be_signed_is_refused(client: Client) -> None:
    strange = replace(client.authority.root, version=2, deployer=RoleKeys.of([fake_key("stranger").public]))
    request = trust_service_pb2.InstallRootRequest(
        parent="tenants/acme", root=strange.sign(client.authority.root_keys)
    )
    with refused(Precondition, "GetDeployerKeys", reason="DEPLOYER_KEYS"):
        await client.trust.InstallRoot(request)


async def test_another_tenants_root_is_refused(running: Running, client: Client) -> None:
    request = trust_service_pb2.InstallRootRequest(parent="tenants/other", root=client.authority.signed_root)
    with refused(Invalid, reason="WRONG_TENANT"):
        await running.client("other").trust.InstallRoot(request)


async def test_during_a_rotation_both_keys_are_told_and_sign(tmp_path: Path) -> None:
    notary = make_notary(None, fake_key("next"), fake_key("deployer"))
    async with running_deployer(tmp_path, notary=notary) as running:
        client = running.client()
        keys = (await client.trust.GetDeployerKeys(trust_service_pb2.GetDeployerKeysRequest())).keys
        assert [key.key_id for key in keys] == [fake_key("next").key_id, fake_key("deployer").key_id]
        # A device that pinned a root with the old key alone takes the set all the same.
        client.authority = Authority("acme", datetime.now(UTC) - timedelta(days=1))
        await client.trust.InstallRoot(
            trust_service_pb2.InstallRootRequest(parent="tenants/acme", root=client.authority.signed_root)
        )
        device = await client.enrol("d1")
        accepted, _ = await device.plan()
        assert accepted.counter == 1


async def test_the_audit_is_paged_newest_first(client: Client) -> None:
    await client.publish()
    request = audit_pb2.ListAuditEntriesRequest(parent="tenants/acme", page_size=1)
    seen = []
    while True:
        page = await client.audit.ListAuditEntries(request)
        seen += [(entry.actor, entry.action) for entry in page.entries]
        request.page_token = page.next_page_token
        if not request.page_token:
            break
    assert seen == list(reversed(await client.actions()))
    actor = "tenants/acme/keys/test"
    assert seen == [(actor, "version.publish"), (actor, "task.create"), (actor, "root.install")]


async def test_lists_of_large_things_come_in_pages_that_fit(client: Client) -> None:
    await client.upload(SCRIPT)
    versions = [f"{number}.0.0" for number in range(6)]
    for version in versions:
        manifest = make_manifest("genres", version)
        # Bytes of a later version's field, which are kept as they were signed.
        manifest.MergeFromString(bytes([0xFA, 0x7F]) + _varint(900_000) + b"x" * 900_000)
        await client.publish_manifest(manifest)
    request = task_pb2.ListVersionsRequest(parent="tenants/acme/tasks/genres", page_size=100)
    seen, pages = [], 0
    while True:
        answer = await client.tasks.ListVersions(request)
        seen += [version.name.rpartition("/")[2] for version in answer.versions]
        pages += 1
        request.page_token = answer.next_page_token
        if not request.page_token:
            break
    assert seen == versions[::-1]
    assert pages == 2


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
