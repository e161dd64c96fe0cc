"""A loaded version that answers requests, and every loaded version there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from libs.common.clock import Clock
from libs.common.errors import NotFound, Unavailable
from libs.common.names import shown
from libs.common.suggest import did_you_mean
from services.serving.domain.backend import Backend
from services.serving.domain.batcher import Batcher, Policy, WorkConservingBatcher
from services.serving.domain.model import Condition, ModelKey, Platform, ServingConfig, State
from services.serving.domain.statistics import Statistics


class Deployment:
    """A version in memory: its backend, its instances (threads) and its batcher."""

    def __init__(
        self,
        version: str,
        platform: Platform,
        config: ServingConfig,
        backend: Backend,
        max_rows: int,
        clock: Clock,
        statistics: Statistics,
    ) -> None:
        """Serve `backend`; `max_rows` is what it takes at most in one execution."""
        self.version = version
        self.platform = platform
        self.config = config
        self.backend = backend
        self.backend_rows = max_rows
        self.statistics = statistics
        self.max_rows = min(config.max_batch_rows, max_rows)
        self._executor = ThreadPoolExecutor(config.instance_count, f"run-{version[:32]}")
        policy = Policy(
            self.max_rows,
            config.max_batch_delay_s,
            config.instance_count,
            config.queue_capacity,
            config.queue_timeout_s,
        )
        self.batcher: Batcher = WorkConservingBatcher(backend, policy, self._executor, clock, statistics)

    async def drain(self) -> None:
        """End when every request in hand is answered."""
        await self.batcher.drain()
        self._executor.shutdown(wait=False)


@dataclass(slots=True)
class Endpoint:
    """A model's versions as they are in this process.

    Attributes:
        live: the version that takes requests which name none; "" for none.
        deployments: loaded versions.
        conditions: how each version is.
        statistics: of each version that was ever loaded, kept over reloads.
    """

    live: str = ""
    deployments: dict[str, Deployment] = field(default_factory=dict)
    conditions: dict[str, Condition] = field(default_factory=dict)
    statistics: dict[str, Statistics] = field(default_factory=dict)

    def condition(self, version: str) -> Condition:
        """Return how a version is."""
        return self.conditions.get(version, Condition(State.UNLOADED))


class Fleet:
    """Every endpoint. The repository changes it, the data plane reads it, on one event loop."""

    def __init__(self) -> None:
        self.endpoints: dict[ModelKey, Endpoint] = {}
        self.ready = False
        """Whether everything that should be loaded was tried once."""

    def of(self, key: ModelKey) -> Endpoint:
        """Return a model's endpoint, made when it isn't there."""
        return self.endpoints.setdefault(key, Endpoint())

    def find(self, key: ModelKey) -> Endpoint:
        """Return a model's endpoint; raise NotFound, or Unavailable while models are being loaded."""
        endpoint = self.endpoints.get(key)
        if endpoint is not None:
            return endpoint
        if not self.ready:
            raise Unavailable("models are being loaded", reason="MODELS_LOADING", retry_after_s=1.0)
        known = [each.model for each in self.endpoints if each.tenant == key.tenant]
        raise NotFound(
            f"model_name: there is no model {shown(key.model)}{did_you_mean(key.model, known)}",
            reason="MODEL_NOT_FOUND",
        )

    def deployment(self, key: ModelKey, version: str) -> Deployment:
        """Return what answers requests for a version ("" is the live one).

        Raises:
            NotFound: when there is no such model or version.
            Unavailable: when it isn't loaded.
        """
        endpoint = self.find(key)
        name = version or endpoint.live
        found = endpoint.deployments.get(name)
        if found is not None:
            return found
        if name and name not in endpoint.conditions:
            raise NotFound(
                f"model_version: {shown(key.model)} has no version {shown(name)}"
                f"{did_you_mean(name, endpoint.conditions)}",
                reason="VERSION_NOT_FOUND",
            )
        condition = endpoint.condition(name)
        told = f": {condition.message}" if condition.message else ""
        state = condition.state.value if name else "without a version"
        raise Unavailable(
            f"model {shown(key.model)} doesn't answer requests, it is {state}{told}",
            reason="MODEL_NOT_READY",
            retry_after_s=1.0,
        )

    def statistics(self) -> Iterator[tuple[ModelKey, str, Statistics]]:
        """Yield what each version did; also for another thread, so it goes over copies."""
        for key, endpoint in list(self.endpoints.items()):
            for version, statistics in list(endpoint.statistics.items()):
                yield key, version, statistics

    def deployed(self) -> Mapping[tuple[ModelKey, str], Deployment]:
        """Return every loaded version; also for another thread."""
        return {
            (key, version): deployment
            for key, endpoint in list(self.endpoints.items())
            for version, deployment in list(endpoint.deployments.items())
        }
