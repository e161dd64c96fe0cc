"""Keys that come and go: what can be released under the newest root, and how versions get new signatures."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from isthmus.deployer.v1 import task_pb2, trust_service_pb2
from isthmus.trust.v1 import trust_pb2
from libs.common.errors import Invalid, Precondition
from libs.common.testing import FakeClock
from libs.task.testing import SCRIPT, make_manifest
from libs.trust.keys import SigningKey
from libs.trust.root import Root
from libs.trust.signing import RoleKeys, sign_message
from libs.trust.testing import fake_key
from services.deployer import notary
from services.deployer.domain import pull
from services.deployer.testing import Client, refused, running_deployer

OLD, NEW, OTHER = fake_key("author"), fake_key("new author"), fake_key("other author")
NAME = "tenants/acme/tasks/genres/versions/1.0.0"


async def newest(client: Client) -> Root:
    request = trust_service_pb2.ListRootsRequest(parent=client.parent, page_size=1000)
    roots = (await client.trust.ListRoots(request)).roots
    return notary._root(roots[-1].SerializeToString())


async def install_authors(client: Client, *authors: SigningKey, threshold: int = 1) -> None:
    """Install a successor whose author role is these keys."""
    root = await newest(client)
    role = RoleKeys.of([key.public for key in authors], threshold)
    successor = root.successor(root.create_time, root.expire_time - root.create_time, {"author": role})
    request = trust_service_pb2.InstallRootRequest(
        parent=client.parent, root=successor.sign(client.authority.root_keys)
    )
    await client.trust.InstallRoot(request)


async def publish(
    client: Client, keys: Sequence[SigningKey], *, validate_only: bool = False
) -> task_pb2.Version:
    await client.upload(SCRIPT)
    request = task_pb2.PublishVersionRequest(
        parent=f"{client.parent}/tasks/genres",
        manifest=sign_message(make_manifest("genres", "1.0.0"), keys),
        validate_only=validate_only,
    )
    return (await client.tasks.PublishVersion(request)).version


async def stored(client: Client) -> task_pb2.Version:
    return (await client.tasks.GetVersion(task_pb2.GetVersionRequest(name=NAME))).version


def signers(version: task_pb2.Version) -> list[str]:
    return [signature.key_id for signature in version.manifest.signatures]


@pytest.mark.parametrize("validate_only", [False, True])
async def test_a_version_whose_author_was_retired_is_not_released(
    client: Client, validate_only: bool
) -> None:
    await publish(client, [OLD])
    await install_authors(client, NEW)
    with refused(Precondition, NAME, reason="VERSION_UNTRUSTED") as caught:
        await client.release(validate_only=validate_only)
    message = caught[0].message
    assert f"1 of its authors ({NEW.key_id})" in message
    assert f"signed the version ({OLD.key_id})" in message
    assert "isthmus task publish" in message


async def test_a_version_with_too_few_current_authors_is_not_released(client: Client) -> None:
    await publish(client, [OLD])
    await install_authors(client, OLD, NEW, threshold=2)
    with refused(Precondition, "2 of its authors", reason="VERSION_UNTRUSTED"):
        await client.release()
    await publish(client, [OLD, NEW])
    await client.release()


async def test_nothing_is_released_under_an_expired_root(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running_deployer(tmp_path, clock=clock) as running:
        client = running.client()
        await client.install_root(clock.now())
        await client.create_task()
        await client.publish()
        clock.advance(timedelta(days=366).total_seconds())
        with refused(Precondition, reason="ROOT_EXPIRED"):
            await client.release()


async def test_publishing_again_with_a_current_key_adds_its_signature(client: Client) -> None:
    first = await publish(client, [OLD])
    await install_authors(client, OLD, NEW)
    checked = await publish(client, [NEW], validate_only=True)
    assert signers(checked) == [OLD.key_id, NEW.key_id]
    assert await stored(client) == first
    second = await publish(client, [NEW])
    assert signers(second) == [OLD.key_id, NEW.key_id]
    assert second.manifest.payload == first.manifest.payload
    second.manifest.CopyFrom(first.manifest)
    assert second == first  # nothing else of it changed
    last = (await client.audited(NAME))[-1]
    assert (last.actor, last.action) == ("tenants/acme/keys/test", "version.sign")
    assert last.detail == f"signature by {NEW.key_id} added; 2 hold under root 2"


async def test_publishing_again_with_the_same_signature_changes_nothing(client: Client) -> None:
    first = await publish(client, [OLD])
    assert await publish(client, [OLD]) == first
    assert [action for _, action in await client.actions(NAME)] == ["version.publish"]


async def test_only_current_authors_add_signatures(client: Client) -> None:
    first = await publish(client, [OLD])
    with refused(Invalid, reason="SIGNATURE_THRESHOLD"):
        await publish(client, [OTHER])
    # Beside a good one a stranger's, or one that doesn't hold, isn't kept.
    assert await publish(client, [OLD, OTHER]) == first
    await install_authors(client, OLD, NEW)
    signed = sign_message(make_manifest("genres", "1.0.0"), [OLD])
    signed.signatures.append(trust_pb2.Signature(key_id=NEW.key_id, value=b"\0" * 64))
    request = task_pb2.PublishVersionRequest(parent=f"{client.parent}/tasks/genres", manifest=signed)
    assert (await client.tasks.PublishVersion(request)).version == first


async def test_a_bad_signature_gives_way_to_a_good_one_of_the_same_key(client: Client) -> None:
    await install_authors(client, OLD, NEW)
    signed = sign_message(make_manifest("genres", "1.0.0"), [OLD])
    signed.signatures.append(trust_pb2.Signature(key_id=NEW.key_id, value=b"\0" * 64))
    await client.upload(SCRIPT)
    request = task_pb2.PublishVersionRequest(parent=f"{client.parent}/tasks/genres", manifest=signed)
    await client.tasks.PublishVersion(request)
    await install_authors(client, NEW)
    with refused(Precondition, reason="VERSION_UNTRUSTED"):
        await client.release()
    merged = await publish(client, [NEW])
    assert sorted(signers(merged)) == sorted([OLD.key_id, NEW.key_id])
    await client.release()


async def test_signatures_that_nobody_asks_for_give_way_when_there_are_too_many(client: Client) -> None:
    strangers = [fake_key(f"stranger {number}") for number in range(63)]
    await publish(client, [*strangers, OLD])
    await install_authors(client, OLD, NEW)
    merged = await publish(client, [NEW])
    assert signers(merged) == [*(key.key_id for key in strangers[1:]), OLD.key_id, NEW.key_id]


async def test_a_device_gets_the_added_signature_with_its_next_plan(client: Client) -> None:
    await publish(client, [OLD])
    device = await client.enrol("d1")
    release = await client.release()
    await install_authors(client, NEW)
    merged = await publish(client, [NEW])
    # The plan verifies whole, by the new root, which doesn't know the first author.
    accepted, answer = await device.plan()
    assert list(answer.manifests) == [merged.manifest]
    assert accepted.entries["genres"].manifest_digest == merged.manifest_digest
    await device.follow()
    done = await client.release_when(release.name, lambda r: r.state == r.STATE_SUCCEEDED)
    assert done.counts.confirmed_count == 1


async def test_oversized_signatures_and_roots_are_refused(client: Client) -> None:
    await client.upload(SCRIPT)
    signed = client.authority.manifest(make_manifest())
    signed.signatures.append(trust_pb2.Signature(key_id="x" * 1_200_000, value=b"\0" * 64))
    request = task_pb2.PublishVersionRequest(parent=f"{client.parent}/tasks/genres", manifest=signed)
    with refused(Invalid, "at most", reason="MALFORMED"):
        await client.tasks.PublishVersion(request)
    root = await newest(client)
    successor = root.successor(root.create_time, timedelta(days=365)).sign(client.authority.root_keys)
    successor.signatures.append(trust_pb2.Signature(key_id="x" * 70_000, value=b"\0" * 64))
    with refused(Invalid, "at most", reason="MALFORMED"):
        await client.trust.InstallRoot(
            trust_service_pb2.InstallRootRequest(parent=client.parent, root=successor)
        )


async def test_the_largest_root_there_can_be_is_taken(client: Client) -> None:
    root = await newest(client)
    keys = [*client.authority.root_keys, *(fake_key(f"root {number}") for number in range(61))]
    successor = root.successor(
        root.create_time, timedelta(days=365), {"root": RoleKeys.of([key.public for key in keys], len(keys))}
    )
    request = trust_service_pb2.InstallRootRequest(parent=client.parent, root=successor.sign(keys))
    assert (await client.trust.InstallRoot(request)).version == 2


async def test_roots_come_over_several_plans_and_manifests_after_the_last(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(client, [OLD])
    device = await client.enrol("d1")
    await client.release()
    for _ in range(5):
        await install_authors(client, OLD)
    monkeypatch.setattr(pull, "MAX_ANSWER_BYTES", 1500)
    seen = []
    while not seen or not seen[-1][1]:
        _, answer = await device.plan()
        seen.append((len(answer.roots), len(answer.manifests)))
        assert len(seen) <= 6
        assert answer.ByteSize() <= 1500 or len(answer.roots) + len(answer.manifests) <= 1
    assert sum(roots for roots, _ in seen) == 5
    assert len(seen) > 2
    assert all(roots and not manifests for roots, manifests in seen[:-1])
    assert seen[-1][1] == 1
