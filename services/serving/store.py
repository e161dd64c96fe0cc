"""Models and versions: what is asked of a store, and one in memory."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from libs.common.errors import AlreadyExists, Conflict, NotFound
from services.serving.domain.model import Model, ModelKey, Version


class Store(Protocol):
    """Keeps models and versions.

    What a write has returned is durable and seen by every later read; each method is one transaction. One
    process uses a store: it holds in memory what the store says. Times are kept to the microsecond. Ids are
    checked by the caller. A version that isn't committed is there for `all_versions` and `add_version` alone.
    """

    async def put_model(self, model: Model, expected: int) -> Model:
        """Store a model whose stored revision is `expected` (0: there is none); return it with its revision.

        Raises:
            Conflict: when the revision is another.
        """
        ...

    async def get_model(self, key: ModelKey) -> Model:
        """Return a model; raise NotFound when there is none."""
        ...

    async def list_models(self, tenant: str, after: str, limit: int) -> list[Model]:
        """Return a tenant's models in the order of ids, after `after` (exclusive; "" starts)."""
        ...

    async def all_models(self) -> list[Model]:
        """Return every model."""
        ...

    async def delete_model(self, key: ModelKey) -> None:
        """Remove a model and its versions, if it is there."""
        ...

    async def add_version(self, version: Version) -> Version:
        """Store a version that isn't committed yet; return it with its sequence.

        Raises:
            NotFound: when there is no such model.
            AlreadyExists: when the model has one of that name, committed or not.
        """
        ...

    async def commit_version(self, version: Version, model: Model) -> Model:
        """Commit a version and store its model, as `put_model` does with the model's own revision.

        Raises:
            Conflict: when the revision is another.
            NotFound: when the version isn't there.
        """
        ...

    async def withdraw_versions(self, versions: Iterable[Version]) -> None:
        """Make versions uncommitted, those that are there."""
        ...

    async def remove_version(self, version: Version) -> None:
        """Remove a version, if it is there."""
        ...

    async def get_version(self, key: ModelKey, version: str) -> Version:
        """Return a committed version; raise NotFound when there is none."""
        ...

    async def list_versions(self, key: ModelKey, before: int, limit: int) -> list[Version]:
        """Return a model's versions, newest first, of sequences below `before` (0 starts)."""
        ...

    async def all_versions(self, key: ModelKey | None = None) -> list[Version]:
        """Return every version, of one model or of all, the uncommitted ones too, oldest first."""
        ...

    async def close(self) -> None:
        """Release what the store holds."""
        ...


def model_not_found(key: ModelKey) -> NotFound:
    """Return the error for a model that isn't there."""
    return NotFound(f"there is no model '{key}'", reason="MODEL_NOT_FOUND")


def version_not_found(key: ModelKey, version: str) -> NotFound:
    """Return the error for a version that isn't there."""
    return NotFound(f"there is no version '{key}/versions/{version}'", reason="VERSION_NOT_FOUND")


def version_exists(version: Version) -> AlreadyExists:
    """Return the error for a version that is there."""
    return AlreadyExists(
        f"version_id: '{version}' exists already; versions don't change, choose another id",
        reason="VERSION_EXISTS",
    )


def stale(key: ModelKey) -> Conflict:
    """Return the error for a revision that isn't the stored one."""
    return Conflict(f"etag: '{key}' was changed meanwhile; read it again", reason="STALE_ETAG")


class MemoryStore:
    """A store that forgets everything with the process."""

    def __init__(self) -> None:
        self._models: dict[ModelKey, Model] = {}
        self._versions: dict[tuple[ModelKey, str], Version] = {}
        self._sequence = 0

    async def put_model(self, model: Model, expected: int) -> Model:
        """See `Store`."""
        stored = self._models.get(model.key)
        if (stored.revision if stored is not None else 0) != expected:
            raise stale(model.key)
        self._models[model.key] = model = replace(model, revision=expected + 1)
        return model

    async def get_model(self, key: ModelKey) -> Model:
        """See `Store`."""
        if key not in self._models:
            raise model_not_found(key)
        return self._models[key]

    async def list_models(self, tenant: str, after: str, limit: int) -> list[Model]:
        """See `Store`."""
        own = sorted(key for key in self._models if key.tenant == tenant and key.model > after)
        return [self._models[key] for key in own[:limit]]

    async def all_models(self) -> list[Model]:
        """See `Store`."""
        return [self._models[key] for key in sorted(self._models)]

    async def delete_model(self, key: ModelKey) -> None:
        """See `Store`."""
        self._models.pop(key, None)
        self._versions = {each: version for each, version in self._versions.items() if each[0] != key}

    async def add_version(self, version: Version) -> Version:
        """See `Store`."""
        if version.key not in self._models:
            raise model_not_found(version.key)
        if (version.key, version.version) in self._versions:
            raise version_exists(version)
        self._sequence += 1
        version = replace(version, sequence=self._sequence, committed=False)
        self._versions[version.key, version.version] = version
        return version

    async def commit_version(self, version: Version, model: Model) -> Model:
        """See `Store`."""
        if (version.key, version.version) not in self._versions:
            raise version_not_found(version.key, version.version)
        model = await self.put_model(model, model.revision)
        self._versions[version.key, version.version] = replace(version, committed=True)
        return model

    async def withdraw_versions(self, versions: Iterable[Version]) -> None:
        """See `Store`."""
        for version in versions:
            place = (version.key, version.version)
            if place in self._versions:
                self._versions[place] = replace(self._versions[place], committed=False)

    async def remove_version(self, version: Version) -> None:
        """See `Store`."""
        self._versions.pop((version.key, version.version), None)

    async def get_version(self, key: ModelKey, version: str) -> Version:
        """See `Store`."""
        found = self._versions.get((key, version))
        if found is None or not found.committed:
            raise version_not_found(key, version)
        return found

    async def list_versions(self, key: ModelKey, before: int, limit: int) -> list[Version]:
        """See `Store`."""
        own = [
            version
            for version in self._versions.values()
            if version.key == key and version.committed and (not before or version.sequence < before)
        ]
        own.sort(key=lambda version: -version.sequence)
        return own[:limit]

    async def all_versions(self, key: ModelKey | None = None) -> list[Version]:
        """See `Store`."""
        found = [version for version in self._versions.values() if key in (None, version.key)]
        return sorted(found, key=lambda version: version.sequence)

    async def close(self) -> None:
        """Forget everything."""
