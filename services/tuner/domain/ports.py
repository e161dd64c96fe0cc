"""What the domain needs of the world."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from libs.common.names import ExperimentName, ModelName
from services.tuner.domain.model import Load, Metric, Point, Served


class Trials(Protocol):
    """Makes trials: an instance of its own for each, measured and torn down."""

    async def measure(
        self,
        experiment: ExperimentName,
        number: int,
        served: Served,
        point: Point,
        load: Load,
        seed: int,
        on_loaded: Callable[[], Awaitable[None]],
    ) -> tuple[Metric, ...]:
        """Start an instance with this point, warm it, load it, and return what was measured.

        When this returns or raises, cancellation included, nothing of the instance is left.

        Args:
            experiment: whose trial it is; its tenant's model is tried.
            number: the trial's.
            served: what is tried.
            point: what differs from how it is served.
            load: what the instance has to answer.
            seed: of what is left to chance.
            on_loaded: awaited once the instance answers, before it is loaded.

        Raises:
            Error: when it can't be started or measured.
        """
        ...

    async def sweep(self) -> None:
        """End what an earlier process of this service left; called before any trial is made."""
        ...


class Endpoint(Protocol):
    """The models that are served."""

    async def served(self, model: ModelName) -> Served:
        """Return how a model is served now.

        Raises:
            NotFound: when there is no such model.
            Precondition: when it has no live version.
        """
        ...

    async def config(self, model: ModelName) -> tuple[bytes, str]:
        """Return a model's configuration and etag; raise NotFound when there is no such model."""
        ...

    async def put(self, model: ModelName, config: bytes, etag: str) -> str:
        """Change a model's configuration; return its new etag. Raise Conflict when the etag is stale."""
        ...

    def with_point(self, config: bytes, point: Point) -> bytes:
        """Return the configuration with a point's values in it."""
        ...

    async def measure(self, model: ModelName, load: Load, seed: int) -> tuple[Metric, ...]:
        """Load the model as it is served; return what a caller sees. Raise Error when it fails."""
        ...


class Meter(Protocol):
    """What is counted."""

    def trial_ended(self, state: str, seconds: float) -> None:
        """Count a trial that ended in a state, after so long."""
        ...

    def experiment_ended(self, state: str) -> None:
        """Count an experiment that ended in a state."""
        ...

    def application_ended(self, state: str) -> None:
        """Count an application that ended in a state."""
        ...
