"""Brings memory to what a model wants: versions are loaded and warmed beside the old, then replace them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

from libs.common.blobs import BlobRef
from libs.common.clock import Clock
from libs.common.errors import Error, Exhausted, Precondition
from services.serving.domain.backend import Backend, Loader, warm
from services.serving.domain.deployment import Deployment, Fleet
from services.serving.domain.model import (
    Condition,
    Model,
    ModelKey,
    ServingConfig,
    State,
    Version,
    wanted_versions,
)
from services.serving.domain.statistics import Statistics
from services.serving.domain.tensors import Signature, difference

_log = logging.getLogger("isthmus.serving.fitter")

Fitted: TypeAlias = Mapping[str, Deployment]
Hold: TypeAlias = Callable[[str, BlobRef], AbstractAsyncContextManager[Path]]


class Fitter:
    """Loads, swaps and drains the versions of a fleet. Calls for one model come one after another."""

    def __init__(self, fleet: Fleet, loader: Loader, hold: Hold, clock: Clock) -> None:
        """Load what `hold` brings to this machine."""
        self._fleet = fleet
        self._loader = loader
        self._hold = hold
        self._clock = clock
        self._drains: set[asyncio.Task[None]] = set()

    async def load(self, version: Version, config: ServingConfig) -> tuple[Backend, int]:
        """Load and warm a version; return it and the most rows it takes at once."""

        def load(path: Path) -> tuple[Backend, int]:
            try:
                backend = self._loader.load(path, version.platform, config)
                return backend, warm(backend)
            except MemoryError:
                raise Exhausted(
                    "the model needs more memory than there is", reason="TOO_MUCH_MEMORY"
                ) from None

        async with self._hold(version.key.tenant, version.blob) as path:
            return await asyncio.to_thread(load, path)

    async def fit(self, model: Model, versions: Sequence[Version]) -> Fitted:
        """Return a deployment of each version that the model wants, loaded where it isn't as wanted.

        An older version that can't be loaded is left out; for the live one the error is raised.
        """
        fitted: dict[str, Deployment] = {}
        for version in wanted_versions(model, list(versions)):
            try:
                fitted[version.version] = await self._fit(version, model.config)
            except Error as error:
                if version.version == model.live:
                    await self.drop(model.key, fitted)
                    raise
                _log.warning("'%s' can't be loaded: %s", version, error.message)
                self._condition(version, State.FAILED, error.message)
        return fitted

    async def _fit(self, version: Version, config: ServingConfig) -> Deployment:
        endpoint = self._fleet.endpoints.get(version.key)
        current = endpoint.deployments.get(version.version) if endpoint is not None else None
        if current is not None and current.config == config:
            return current
        if current is not None and _threads(current.config) == _threads(config):
            backend, rows = current.backend, current.backend_rows
        else:
            backend, rows = await self.load(version, config)
        statistics = Statistics()
        if endpoint is not None:
            statistics = endpoint.statistics.setdefault(version.version, statistics)
        return Deployment(version.version, version.platform, config, backend, rows, self._clock, statistics)

    def check_signature(self, model: Model, new: Signature) -> None:
        """Raise Precondition for another signature than the live version's, where that is loaded."""
        endpoint = self._fleet.endpoints.get(model.key)
        live = endpoint.deployments.get(model.live) if endpoint is not None else None
        told = difference(live.backend.signature, new) if live is not None else ""
        if told:
            raise Precondition(
                f"it doesn't fit in the place of the live version '{model.live}': {told}; callers of "
                f"'{model.key}' would fail: make another model for it, or allow it "
                "(allow_other_signature, `--allow-other-signature`)",
                reason="OTHER_SIGNATURE",
            )

    def swap(self, model: Model, versions: Iterable[Version], fitted: Fitted) -> None:
        """Give `fitted` the traffic, drain what it replaces. Nothing awaits: no request falls between."""
        endpoint = self._fleet.of(model.key)
        old, endpoint.deployments = endpoint.deployments, dict(fitted)
        endpoint.live = model.live
        conditions = {}
        for version in versions:
            name = version.version
            condition = endpoint.condition(name)
            if name in fitted:
                condition = Condition(State.READY)
            elif name in old:
                condition = Condition(State.DRAINING)
            elif condition.state is not State.FAILED:
                condition = Condition(State.UNLOADED)
            conditions[name] = condition
        endpoint.conditions = conditions
        endpoint.statistics = {
            name: statistics for name, statistics in endpoint.statistics.items() if name in conditions
        }
        for name, deployment in fitted.items():
            endpoint.statistics[name] = deployment.statistics
        for deployment in old.values():
            if fitted.get(deployment.version) is not deployment:
                self._drain(model.key, deployment)

    async def retire(self, key: ModelKey, name: str) -> None:
        """Drain a version that is removed, and forget it."""
        endpoint = self._fleet.of(key)
        deployment = endpoint.deployments.pop(name, None)
        endpoint.conditions.pop(name, None)
        endpoint.statistics.pop(name, None)
        if deployment is not None:
            await deployment.drain()

    async def drop(self, key: ModelKey, fitted: Fitted) -> None:
        """Let go of deployments that don't get the traffic after all."""
        endpoint = self._fleet.endpoints.get(key)
        current = set(endpoint.deployments.values()) if endpoint is not None else set()
        for deployment in fitted.values():
            if deployment not in current:
                await deployment.drain()

    def expect(self, model: Model, versions: Sequence[Version]) -> None:
        """Note what will be loaded, so that requests hear that it is on its way."""
        endpoint = self._fleet.of(model.key)
        endpoint.live = model.live
        wanted = {version.version for version in wanted_versions(model, list(versions))}
        for version in versions:
            state = State.LOADING if version.version in wanted else State.UNLOADED
            endpoint.conditions[version.version] = Condition(state)

    async def restore(self, model: Model, versions: Sequence[Version]) -> bool:
        """Load after a start; return whether trying again is of no use. Failures are in the conditions."""
        fitted: dict[str, Deployment] = {}
        final = True
        for version in wanted_versions(model, list(versions)):
            try:
                fitted[version.version] = await self._fit(version, model.config)
            except Error as error:
                _log.warning("'%s' can't be loaded: %s", version, error.message)
                self._condition(version, State.FAILED, error.message)
                final = final and not error.retriable
        self.swap(model, versions, fitted)
        return final

    def _condition(self, version: Version, state: State, message: str) -> None:
        self._fleet.of(version.key).conditions[version.version] = Condition(state, message)

    def _drain(self, key: ModelKey, deployment: Deployment) -> None:
        task = asyncio.get_running_loop().create_task(self._drained(key, deployment))
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)

    async def _drained(self, key: ModelKey, deployment: Deployment) -> None:
        await deployment.drain()
        endpoint = self._fleet.endpoints.get(key)
        if endpoint is None or endpoint.condition(deployment.version).state is not State.DRAINING:
            return
        if not any(task_version is deployment for task_version in endpoint.deployments.values()):
            endpoint.conditions[deployment.version] = Condition(State.UNLOADED)

    async def close(self) -> None:
        """Wait until what drains is done, then let go of the rest."""
        await asyncio.gather(*self._drains, return_exceptions=True)
        await asyncio.gather(*(each.drain() for each in self._fleet.deployed().values()))


def _threads(config: ServingConfig) -> tuple[int, int]:
    return config.instance_count, config.intra_op_thread_count
