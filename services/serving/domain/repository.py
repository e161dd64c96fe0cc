"""What is served, in which versions: written durably, then brought into memory, then given the traffic.

Writes of one model come one after another. A write that was begun goes on when its caller gives up; a
repeated one finds what it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from libs.common.blobs import BlobRef
from libs.common.clock import Clock
from libs.common.errors import AlreadyExists, Error, Exhausted, NotFound, Precondition
from services.serving.domain.deployment import Fleet
from services.serving.domain.fitter import Fitted, Fitter
from services.serving.domain.model import Condition, Model, ModelKey, ServingConfig, State, Version
from services.serving.store import Store, model_not_found, stale, version_exists

T = TypeVar("T")
_log = logging.getLogger("isthmus.serving.repository")


class Blobs(Protocol):
    """The tenants' files."""

    async def check(self, tenant: str, ref: BlobRef) -> None:
        """Raise NotFound when the tenant has no such blob, Invalid when its size is another."""
        ...

    async def download(self, tenant: str, ref: BlobRef, path: Path) -> None:
        """Bring a blob to a file, whole or not at all."""
        ...

    async def pin(self, tenant: str, ref: BlobRef, resource: str) -> None:
        """Keep a blob as long as a resource needs it."""
        ...

    async def unpin(self, tenant: str, resource: str) -> None:
        """End the pins of a resource."""
        ...


class Files(Protocol):
    """Blobs on this machine."""

    def held(self, tenant: str, ref: BlobRef) -> AbstractAsyncContextManager[Path]:
        """Give the path of a blob, brought here if need be, which stays while it is held."""
        ...

    async def keep_only(self, digests: Set[str]) -> None:
        """Remove what is neither named nor held."""
        ...


class Repository:
    """Models and their versions. Used on one event loop."""

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        files: Files,
        fitter: Fitter,
        fleet: Fleet,
        clock: Clock,
        *,
        max_models: int,
        max_versions: int,
    ) -> None:
        """Serve through `fleet`; at most `max_models` in all, each of `max_versions` at most."""
        self._store = store
        self._blobs = blobs
        self._files = files
        self._fitter = fitter
        self._fleet = fleet
        self._clock = clock
        self._max_models = max_models
        self._max_versions = max_versions
        self._locks: WeakValueDictionary[ModelKey, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()

    # ---- models ----
    async def put(
        self, key: ModelKey, config: ServingConfig, *, live: str, etag: str, validate_only: bool
    ) -> Model:
        """Make a model or change how it is served, without dropping a request.

        Args:
            key: whose model.
            config: how it is served from now on.
            live: which version takes the traffic; "" leaves it.
            etag: what the caller read; "" whatever is there.
            validate_only: only check.

        Raises:
            Conflict: when the etag is another.
            NotFound: when there is no such version.
            Exhausted: when there are too many models.
            Error: when the version can't be loaded anew; nothing has changed then.
        """
        return await self._whole(self._put(key, config, live, etag, validate_only))

    async def _put(
        self, key: ModelKey, config: ServingConfig, live: str, etag: str, validate_only: bool
    ) -> Model:
        async with self._lock(key):
            stored = await self._find(key)
            if etag and (stored is None or stored.etag != etag):
                raise stale(key)
            if live:
                await self._store.get_version(key, live)
            if stored is None:
                if len(self._fleet.endpoints) >= self._max_models:
                    raise Exhausted(
                        f"there are {self._max_models} models, as many as may be; delete some",
                        reason="TOO_MANY_MODELS",
                    )
                model = Model(key, config, self._clock.now())
            else:
                model = replace(stored, config=config, live=live or stored.live)
            return model if validate_only else await self._change(model, stored)

    async def get(self, key: ModelKey) -> Model:
        """Return a model; raise NotFound when there is none."""
        return await self._store.get_model(key)

    async def list_models(self, tenant: str, after: str, limit: int) -> list[Model]:
        """Return a tenant's models by id, after `after`."""
        return await self._store.list_models(tenant, after, limit)

    async def delete(self, key: ModelKey, etag: str) -> None:
        """Remove a model with its versions, once its requests are answered.

        Raises:
            NotFound: when there is none.
            Conflict: when the etag is another.
        """
        await self._whole(self._delete(key, etag))

    async def _delete(self, key: ModelKey, etag: str) -> None:
        async with self._lock(key):
            model = await self._store.get_model(key)
            if etag and model.etag != etag:
                raise stale(key)
            versions = await self._store.all_versions(key)
            await self._store.withdraw_versions(versions)
            endpoint = self._fleet.endpoints.pop(key, None)
            if endpoint is not None:
                await asyncio.gather(*(each.drain() for each in endpoint.deployments.values()))
            for version in versions:
                await self._blobs.unpin(key.tenant, str(version))
            await self._store.delete_model(key)
        await self._collect()

    async def load(self, key: ModelKey) -> None:
        """Bring a model's versions into memory; raise what keeps the live one out."""
        await self._whole(self._set_unloaded(key, False))

    async def unload(self, key: ModelKey) -> None:
        """Take a model's versions out of memory, once the requests in hand are answered."""
        await self._whole(self._set_unloaded(key, True))

    async def _set_unloaded(self, key: ModelKey, unloaded: bool) -> None:
        async with self._lock(key):
            stored = await self._store.get_model(key)
            if not unloaded and not stored.live:
                raise Precondition(f"'{key}' has no version to load; create one", reason="NO_VERSION")
            await self._change(replace(stored, unloaded=unloaded), stored)

    # ---- versions ----
    async def create_version(
        self, draft: Version, *, validate_only: bool, allow_other_signature: bool = False
    ) -> tuple[Version, Condition]:
        """Add a version: load it, warm it, give it the traffic. One that can't be loaded changes nothing.

        Args:
            draft: the version.
            validate_only: only try it; the model needn't be there then.
            allow_other_signature: whether it may take or give other tensors than the live version.

        Raises:
            NotFound: when there is no such model, or the tenant has no such blob.
            Precondition: when it takes or gives other tensors than the live version, and may not.
            AlreadyExists: when there is a version of that name by another request.
            Exhausted: when the model has too many versions.
            Invalid, Precondition, Exhausted: when it can't be loaded.
        """
        return await self._whole(self._create_version(draft, validate_only, allow_other_signature))

    async def _create_version(
        self, draft: Version, validate_only: bool, any_signature: bool
    ) -> tuple[Version, Condition]:
        key = draft.key
        async with self._lock(key):
            model = await self._find(key)
            if model is None:
                if not validate_only:
                    raise model_not_found(key)
                model = Model(key, ServingConfig(), self._clock.now())
            repeated = await self._repeated(draft)
            if repeated is not None:
                return repeated, self.condition(repeated)
            if len(await self._versions(key)) >= self._max_versions:
                raise Exhausted(
                    f"'{key}' has {self._max_versions} versions, as many as may be; delete some",
                    reason="TOO_MANY_VERSIONS",
                )
            await self._blobs.check(key.tenant, draft.blob)
            if validate_only or model.unloaded:
                # Tried here, so that loading it later is no surprise.
                backend, _ = await self._fitter.load(draft, model.config)
                if not any_signature:
                    self._fitter.check_signature(model, backend.signature)
            if validate_only:
                await self._collect()
                return draft, Condition(State.UNLOADED, "only checked")
            version = await self._added(draft)
            fitted: Fitted = {}
            try:
                await self._blobs.pin(key.tenant, version.blob, str(version))
                versions = [*await self._versions(key), replace(version, committed=True)]
                wanted = replace(model, live=version.version)
                fitted = await self._fitter.fit(wanted, versions)
                if version.version in fitted and not any_signature:
                    self._fitter.check_signature(model, fitted[version.version].backend.signature)
                model = await self._store.commit_version(version, wanted)
            except BaseException:
                await self._fitter.drop(key, fitted)
                # Why it failed is what is told, not that it couldn't be cleared as well.
                await self._cleared(version)
                await self._collect()
                raise
            self._fitter.swap(model, versions, fitted)
            version = replace(version, committed=True)
            return version, self.condition(version)

    async def _added(self, draft: Version) -> Version:
        """Store a version that isn't committed yet, in the place of what was left half made of its name."""
        try:
            return await self._store.add_version(draft)
        except AlreadyExists:
            # Nobody else is at it: the model's lock is held, and no committed version has the name.
            await self._discard(draft)
            return await self._store.add_version(draft)

    async def _repeated(self, draft: Version) -> Version | None:
        try:
            found = await self._store.get_version(draft.key, draft.version)
        except NotFound:
            return None
        same = (found.platform, found.blob) == (draft.platform, draft.blob)
        if not draft.request_id or found.request_id != draft.request_id:
            raise version_exists(found)
        if not same:
            raise AlreadyExists(
                f"request_id: {draft.request_id!r} made '{found}' of another blob; use a new UUID",
                reason="REQUEST_ID_REUSED",
            )
        return found

    async def get_version(self, key: ModelKey, version: str) -> Version:
        """Return a version; raise NotFound when there is none."""
        return await self._store.get_version(key, version)

    async def list_versions(self, key: ModelKey, before: int, limit: int) -> list[Version]:
        """Return a model's versions, newest first; raise NotFound when there is no such model."""
        await self._store.get_model(key)
        return await self._store.list_versions(key, before, limit)

    def condition(self, version: Version) -> Condition:
        """Return how a version is in this process."""
        endpoint = self._fleet.endpoints.get(version.key)
        return Condition(State.UNLOADED) if endpoint is None else endpoint.condition(version.version)

    async def delete_version(self, key: ModelKey, name: str) -> None:
        """Remove a version that isn't the live one.

        Raises:
            NotFound: when there is no such version.
            Precondition: when it is the live one.
        """
        await self._whole(self._delete_version(key, name))

    async def _delete_version(self, key: ModelKey, name: str) -> None:
        async with self._lock(key):
            model = await self._store.get_model(key)
            version = await self._store.get_version(key, name)
            if model.live == name:
                raise Precondition(
                    f"'{version}' takes the traffic; put another live_version first, or delete the model",
                    reason="VERSION_IS_LIVE",
                )
            await self._store.withdraw_versions([version])
            await self._fitter.retire(key, name)
            await self._discard(version)
        await self._collect()

    # ---- the process's life ----
    async def recover(self) -> None:
        """Load what the store says, clear what a crash left; what can't be reached is tried for ever."""
        models = await self._store.all_models()
        for model in models:
            self._fitter.expect(model, await self._versions(model.key))
        undone = [model.key for model in models if not await self._recovered(model.key)]
        self._fleet.ready = True
        await self._collect()
        pause_s = 1.0
        while undone:
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, 60.0)
            undone = [key for key in undone if not await self._recovered(key)]

    async def _recovered(self, key: ModelKey) -> bool:
        """Clear and load a model's versions; return whether trying again is of no use."""
        try:
            async with self._lock(key):
                model = await self._find(key)
                if model is None:
                    return True
                # What isn't committed while the lock is held is in nobody's hands.
                half_made = [each for each in await self._store.all_versions(key) if not each.committed]
                cleared = [await self._cleared(version) for version in half_made]
                return await self._fitter.restore(model, await self._versions(key)) and all(cleared)
        except Exception:
            # A fault of one model must not keep the others from being loaded.
            _log.exception("'%s' couldn't be recovered, and is tried again", key)
            return False

    async def _cleared(self, version: Version) -> bool:
        """Clear what is half made; return whether trying again is of no use."""
        try:
            await self._discard(version)
        except Error as error:
            _log.warning("'%s' is half made and can't be cleared: %s", version, error.message)
            return not error.retriable
        return True

    async def close(self) -> None:
        """Stop what goes on; what it didn't finish is cleared at the next start."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fitter.close()
        await self._store.close()

    # ---- parts ----
    async def _change(self, model: Model, stored: Model | None) -> Model:
        versions = await self._versions(model.key)
        fitted = await self._fitter.fit(model, versions)
        try:
            model = await self._store.put_model(model, stored.revision if stored is not None else 0)
        except BaseException:
            await self._fitter.drop(model.key, fitted)
            raise
        self._fitter.swap(model, versions, fitted)
        return model

    async def _find(self, key: ModelKey) -> Model | None:
        try:
            return await self._store.get_model(key)
        except NotFound:
            return None

    async def _versions(self, key: ModelKey) -> list[Version]:
        return await self._store.list_versions(key, 0, 1_000_000)

    async def _discard(self, version: Version) -> None:
        await self._blobs.unpin(version.key.tenant, str(version))
        await self._store.remove_version(version)

    async def _collect(self) -> None:
        await self._files.keep_only({each.blob.digest for each in await self._store.all_versions()})

    @contextlib.asynccontextmanager
    async def _lock(self, key: ModelKey) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            yield

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Do a write to its end, also when the caller gives up."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Whoever gave up doesn't hear of its failure; it is taken here, so that nobody else does.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)
