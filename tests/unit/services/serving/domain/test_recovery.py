"""What a start finds in the store is loaded, or cleared away, or tried again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from libs.common.blobs import BlobRef
from libs.common.errors import Conflict, NotFound, Unavailable
from libs.common.testing import FakeClock, eventually
from services.serving.app import Serving, build, recovering
from services.serving.config import ServingServiceConfig
from services.serving.domain.model import Model, ModelKey, Platform, ServingConfig, State, Version
from services.serving.store import MemoryStore
from services.serving.testing import FakeBackend, FakeLoader

KEY = ModelKey("acme", "m")


class FakeBlobs:
    """See `services.serving.domain.repository.Blobs`; away as long as it is told to."""

    def __init__(self) -> None:
        self.away = False
        self.pins: list[str] = []

    async def check(self, tenant: str, ref: BlobRef) -> None:
        self._answer()

    async def download(self, tenant: str, ref: BlobRef, path: Path) -> None:
        self._answer()
        await asyncio.to_thread(path.write_bytes, b"v1")

    async def pin(self, tenant: str, ref: BlobRef, resource: str) -> None:
        self._answer()
        self.pins.append(resource)

    async def unpin(self, tenant: str, resource: str) -> None:
        self._answer()
        self.pins = [pin for pin in self.pins if pin != resource]

    def _answer(self) -> None:
        if self.away:
            raise Unavailable("the deployer is away")


class Rig:
    def __init__(self, folder: Path) -> None:
        self.clock, self.store, self.blobs = FakeClock(), MemoryStore(), FakeBlobs()
        config = ServingServiceConfig(data_dir=folder, identity_trust_dir=folder)
        loader = FakeLoader(lambda content: FakeBackend())
        self.serving: Serving = build(
            config, self.store, self.blobs, self.clock, CollectorRegistry(), loader=loader
        )

    def draft(self, name: str) -> Version:
        return Version(KEY, name, Platform.ONNX, BlobRef.of(b"v1"), self.clock.now())

    async def stored(self) -> None:
        """Leave a committed version and one half made."""
        model = await self.store.put_model(Model(KEY, ServingConfig(), self.clock.now()), 0)
        made = await self.store.add_version(self.draft("v1"))
        await self.store.commit_version(made, replace(model, live="v1"))
        await self.store.add_version(self.draft("half"))
        self.blobs.pins = [f"{KEY}/versions/v1", f"{KEY}/versions/half"]

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        async with recovering(self.serving.repository):
            await eventually(lambda: self.serving.fleet.ready)
            yield
        await self.serving.repository.close()


async def test_what_is_half_made_is_cleared_and_the_rest_loaded(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.stored()
    with pytest.raises(Unavailable, match="being loaded"):
        rig.serving.plane.deployment(KEY, "")
    async with rig.started():
        assert rig.blobs.pins == [f"{KEY}/versions/v1"]
        assert [each.version for each in await rig.store.all_versions()] == ["v1"]
        assert rig.serving.plane.model_ready(KEY, "v1")
        # The name is free again.
        await rig.serving.repository.create_version(rig.draft("half"), validate_only=False)


async def test_what_cant_be_reached_is_tried_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.stored()
    rig.blobs.away = True
    async with rig.started():
        found = await rig.store.get_version(KEY, "v1")
        condition = rig.serving.repository.condition(found)
        assert (condition.state, condition.message) == (State.FAILED, "the deployer is away")
        with pytest.raises(Unavailable, match="the deployer is away"):
            rig.serving.plane.deployment(KEY, "")
        rig.blobs.away = False
        await rig.clock.wait_for_sleepers()
        rig.clock.advance(1.5)
        await eventually(lambda: rig.serving.plane.model_ready(KEY, ""))


async def test_a_creation_goes_on_when_its_caller_gives_up(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    async with rig.started():
        repository = rig.serving.repository
        await repository.put(KEY, ServingConfig(), live="", etag="", validate_only=False)
        task = asyncio.get_running_loop().create_task(
            repository.create_version(rig.draft("v1"), validate_only=False)
        )
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: rig.serving.plane.model_ready(KEY, "v1"))
        assert (await repository.get(KEY)).live == "v1"


async def test_a_creation_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    async with rig.started():
        repository = rig.serving.repository
        await repository.put(KEY, ServingConfig(), live="", etag="", validate_only=False)

        async def failing(version: Version, model: Model) -> Model:
            raise Unavailable("the database is away")

        rig.store.commit_version = failing  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="the database is away"):
            await repository.create_version(rig.draft("v1"), validate_only=False)
        assert (rig.blobs.pins, await rig.store.all_versions()) == ([], [])
        assert list((tmp_path / "models").iterdir()) == []
        assert not rig.serving.plane.model_ready(KEY, "")
        with pytest.raises(NotFound):
            await repository.get_version(KEY, "v1")


async def test_what_is_half_made_is_cleared_when_the_deployer_is_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.stored()
    rig.blobs.away = True
    async with rig.started():
        assert [each.version for each in await rig.store.all_versions()] == ["v1", "half"]
        rig.blobs.away = False
        await rig.clock.wait_for_sleepers()
        rig.clock.advance(1.5)
        await eventually(lambda: rig.blobs.pins == [f"{KEY}/versions/v1"])
        assert [each.version for each in await rig.store.all_versions()] == ["v1"]


async def test_what_is_half_made_doesnt_stand_in_the_way_of_its_name(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.stored()
    rig.blobs.away = True
    async with rig.started():
        rig.blobs.away = False
        # Nobody has cleared it yet.
        made, condition = await rig.serving.repository.create_version(rig.draft("half"), validate_only=False)
        assert (made.committed, condition.state) == (True, State.READY)
        await rig.clock.wait_for_sleepers()
        rig.clock.advance(1.5)
        await eventually(lambda: rig.serving.plane.model_ready(KEY, "v1"))
        assert (await rig.serving.repository.get_version(KEY, "half")).committed


async def test_a_fault_of_one_model_leaves_the_others_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path)
    await rig.stored()
    other = ModelKey("acme", "a-first-one")
    await rig.store.put_model(Model(other, ServingConfig(), rig.clock.now()), 0)
    get_model = rig.store.get_model

    async def faulty(key: ModelKey) -> Model:
        if key == other:
            raise ZeroDivisionError
        return await get_model(key)

    rig.store.get_model = faulty  # type: ignore[method-assign]
    async with rig.started():
        assert rig.serving.plane.model_ready(KEY, "v1")
        assert "'tenants/acme/models/a-first-one' couldn't be recovered" in caplog.text


async def test_why_a_creation_failed_is_told_also_where_it_cant_be_cleared(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    async with rig.started():
        repository = rig.serving.repository
        await repository.put(KEY, ServingConfig(), live="", etag="", validate_only=False)

        async def failing(version: Version, model: Model) -> Model:
            rig.blobs.away = True
            raise Conflict("somebody was quicker")

        rig.store.commit_version = failing  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="quicker"):
            await repository.create_version(rig.draft("v1"), validate_only=False)
        rig.blobs.away = False
        with pytest.raises(Conflict, match="quicker"):
            await repository.create_version(rig.draft("v1"), validate_only=False)
        rig.blobs.away = False
        await repository.delete(KEY, "")
        assert list((tmp_path / "models").iterdir()) == []
