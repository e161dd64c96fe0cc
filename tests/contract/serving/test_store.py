"""What every store of models and versions must do."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from libs.common.blobs import BlobRef
from libs.common.errors import AlreadyExists, Conflict, NotFound
from services.serving.domain.model import Model, ModelKey, Platform, ServingConfig, Version
from services.serving.sql_store import open_store
from services.serving.store import MemoryStore

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
KEY = ModelKey("acme", "m")


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request, tmp_path):
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "sqlite":
        made = await open_store(f"sqlite:///{tmp_path}/serving.db")
    else:
        made = await open_store(request.getfixturevalue("postgresql_url"))
    yield made
    await made.close()


def version(name: str, key: ModelKey = KEY) -> Version:
    return Version(key, name, Platform.PLAN, BlobRef.of(name.encode()), NOW, "a-request")


async def test_a_model_reads_as_it_was_written(store):
    model = Model(KEY, ServingConfig(max_batch_rows=3, max_batch_delay_s=0.25), NOW)
    written = await store.put_model(model, 0)
    assert written == replace(model, revision=1)
    assert await store.get_model(KEY) == written
    changed = await store.put_model(replace(written, unloaded=True, live="v1"), 1)
    assert changed.revision == 2
    assert await store.all_models() == [changed]


async def test_a_stale_revision_is_refused(store):
    model = await store.put_model(Model(KEY, ServingConfig(), NOW), 0)
    with pytest.raises(Conflict, match="changed meanwhile"):
        await store.put_model(model, 0)
    with pytest.raises(Conflict):
        await store.put_model(model, 2)
    assert await store.get_model(KEY) == model


async def test_models_are_listed_by_tenant_and_id(store):
    for tenant, name in (("acme", "b"), ("acme", "a"), ("rival", "c")):
        await store.put_model(Model(ModelKey(tenant, name), ServingConfig(), NOW), 0)
    assert [each.key.model for each in await store.list_models("acme", "", 10)] == ["a", "b"]
    assert [each.key.model for each in await store.list_models("acme", "a", 10)] == ["b"]
    assert [each.key.model for each in await store.list_models("acme", "", 1)] == ["a"]


async def test_a_version_is_there_once_it_is_committed(store):
    with pytest.raises(NotFound, match="no model"):
        await store.add_version(version("v1"))
    model = await store.put_model(Model(KEY, ServingConfig(), NOW), 0)
    added = await store.add_version(version("v1"))
    assert added == replace(version("v1"), sequence=added.sequence)
    assert await store.all_versions() == [added]
    with pytest.raises(NotFound):
        await store.get_version(KEY, "v1")
    with pytest.raises(AlreadyExists, match="versions/v1"):
        await store.add_version(version("v1"))
    model = await store.commit_version(added, replace(model, live="v1"))
    assert (model.live, model.revision) == ("v1", 2)
    assert await store.get_model(KEY) == model
    assert await store.get_version(KEY, "v1") == replace(added, committed=True)


async def test_a_commit_with_a_stale_model_commits_nothing(store):
    model = await store.put_model(Model(KEY, ServingConfig(), NOW), 0)
    added = await store.add_version(version("v1"))
    await store.put_model(model, 1)
    with pytest.raises(Conflict):
        await store.commit_version(added, replace(model, live="v1"))
    assert await store.all_versions() == [added]
    assert (await store.get_model(KEY)).live == ""


async def test_a_version_that_was_removed_meanwhile_isnt_committed(store):
    model = await store.put_model(Model(KEY, ServingConfig(), NOW), 0)
    added = await store.add_version(version("v1"))
    await store.remove_version(added)
    with pytest.raises(NotFound, match="versions/v1"):
        await store.commit_version(added, replace(model, live="v1"))
    assert await store.get_model(KEY) == model


async def test_versions_of_one_model_are_told_from_those_of_others(store):
    other = ModelKey("acme", "other")
    for key in (KEY, other):
        await store.put_model(Model(key, ServingConfig(), NOW), 0)
        await store.add_version(version("v1", key))
    assert [each.key for each in await store.all_versions(other)] == [other]
    assert [each.key for each in await store.all_versions()] == [KEY, other]


async def test_versions_come_newest_first_and_can_be_withdrawn(store):
    model = await store.put_model(Model(KEY, ServingConfig(), NOW), 0)
    made = []
    for name in ("v1", "v2", "v3"):
        made.append(await store.add_version(version(name)))
        model = await store.commit_version(made[-1], model)
    assert [each.version for each in await store.list_versions(KEY, 0, 10)] == ["v3", "v2", "v1"]
    assert [each.version for each in await store.list_versions(KEY, made[2].sequence, 1)] == ["v2"]
    await store.withdraw_versions([made[1]])
    assert [each.version for each in await store.list_versions(KEY, 0, 10)] == ["v3", "v1"]
    await store.remove_version(made[1])
    await store.remove_version(made[1])
    again = await store.add_version(version("v2"))
    assert again.sequence > made[2].sequence


async def test_a_deleted_model_takes_its_versions_along(store):
    other = ModelKey("acme", "other")
    for key in (KEY, other):
        await store.put_model(Model(key, ServingConfig(), NOW), 0)
        await store.add_version(version("v1", key))
    await store.delete_model(KEY)
    await store.delete_model(KEY)
    with pytest.raises(NotFound):
        await store.get_model(KEY)
    assert [each.key for each in await store.all_versions()] == [other]
