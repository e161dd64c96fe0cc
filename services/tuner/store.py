"""What the tuner needs of its store.

Each method is one transaction: durable when it returns, or nothing when it raises. Any number of tasks of one
event loop may call at once. One process at a time uses a store: experiments that run belong to it.

`update` compares the stored revision with that of the value it is given, less one, and raises Conflict when
another write came between; the caller builds the new value with `dataclasses.replace`.

Two implementations hold these promises, and one contract suite runs over both: `stores.memory` for tests and
`stores.sql` for everything else.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from libs.common.names import ExperimentName
from services.tuner.domain.model import Counts, Experiment, PastRequest, Trial

REQUEST_LIFE = timedelta(days=7)
"""How long a create is remembered for its repetitions."""


class Store(Protocol):
    """Experiments and trials."""

    async def create(self, experiment: Experiment, request: PastRequest | None) -> tuple[Experiment, bool]:
        """Store a new experiment; return it, and True.

        A request that was made before gets the experiment that it made, as it is now, and False. Requests are
        remembered for `REQUEST_LIFE` by the experiments' times, and forgotten at the next create after that.

        Raises:
            AlreadyExists: when the name is taken, or the request's id was used for something else.
            NotFound: when the request was made before and its experiment is gone.
        """
        ...

    async def past(self, tenant: str, request: PastRequest) -> Experiment | None:
        """Return what a request made, as it is now; None when it wasn't made before, or is forgotten.

        Raises:
            AlreadyExists: when its id was used for something else.
            NotFound: when its experiment is gone.
        """
        ...

    async def get(self, name: ExperimentName) -> Experiment | None:
        """Return an experiment, or None."""
        ...

    async def list(self, tenant: str, after: str, limit: int) -> Sequence[Experiment]:
        """Return experiments by ascending id, those after `after`."""
        ...

    async def update(self, experiment: Experiment) -> None:
        """Store a change; raise Conflict as said above, NotFound when it is gone."""
        ...

    async def delete(self, name: ExperimentName, revision: int) -> None:
        """Remove an experiment with its trials; raise Conflict unless it has this revision."""
        ...

    async def put_trial(self, trial: Trial) -> None:
        """Store a trial, new or changed; raise NotFound when its experiment is gone."""
        ...

    async def trials(self, name: ExperimentName, after: int, limit: int) -> Sequence[Trial]:
        """Return trials by ascending number, those after `after`."""
        ...

    async def counts(self, names: Collection[ExperimentName]) -> Mapping[ExperimentName, Counts]:
        """Return trials by state for each of these experiments, which are of one tenant."""
        ...

    async def unsettled(self) -> Sequence[Experiment]:
        """Return every tenant's experiments that run or are being applied."""
        ...

    async def open_trials(self) -> Sequence[Trial]:
        """Return every tenant's trials that haven't ended."""
        ...

    async def running_count(self, tenant: str) -> int:
        """Return how many experiments of a tenant run."""
        ...

    async def close(self) -> None:
        """Release what it holds."""
        ...
