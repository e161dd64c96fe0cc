"""The store in memory, for tests."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from libs.common.errors import AlreadyExists, Conflict, NotFound
from libs.common.names import ExperimentName
from services.tuner.domain.model import Counts, Experiment, ExperimentState, PastRequest, Trial, TrialState
from services.tuner.store import REQUEST_LIFE


@dataclass(slots=True)
class MemoryStore:
    """See `services.tuner.store.Store`."""

    experiments: dict[ExperimentName, Experiment] = field(default_factory=dict)
    kept_trials: dict[tuple[ExperimentName, int], Trial] = field(default_factory=dict)
    requests: dict[tuple[str, str], tuple[str, ExperimentName, datetime]] = field(default_factory=dict)

    async def create(self, experiment: Experiment, request: PastRequest | None) -> tuple[Experiment, bool]:
        """See `Store`."""
        tenant = experiment.name.tenant
        oldest = experiment.create_time - REQUEST_LIFE
        for key in [k for k, (_, _, made) in self.requests.items() if k[0] == tenant and made < oldest]:
            del self.requests[key]
        if request is not None and (kept := await self.past(tenant, request)) is not None:
            return kept, False
        if experiment.name in self.experiments:
            raise taken(experiment.name)
        self.experiments[experiment.name] = experiment
        if request is not None:
            self.requests[tenant, request.request_id] = (
                request.fingerprint,
                experiment.name,
                experiment.create_time,
            )
        return experiment, True

    async def past(self, tenant: str, request: PastRequest) -> Experiment | None:
        """See `Store`."""
        past = self.requests.get((tenant, request.request_id))
        if past is None:
            return None
        if past[0] != request.fingerprint:
            raise reused(request.request_id, past[1])
        kept = self.experiments.get(past[1])
        if kept is None:
            raise gone(past[1])
        return kept

    async def get(self, name: ExperimentName) -> Experiment | None:
        """See `Store`."""
        return self.experiments.get(name)

    async def list(self, tenant: str, after: str, limit: int) -> Sequence[Experiment]:
        """See `Store`."""
        found = [e for n, e in self.experiments.items() if n.tenant == tenant and n.experiment > after]
        return sorted(found, key=lambda e: e.name.experiment)[:limit]

    async def update(self, experiment: Experiment) -> None:
        """See `Store`."""
        self._check(experiment.name, experiment.revision - 1)
        self.experiments[experiment.name] = experiment

    async def delete(self, name: ExperimentName, revision: int) -> None:
        """See `Store`."""
        self._check(name, revision)
        del self.experiments[name]
        for key in [key for key in self.kept_trials if key[0] == name]:
            del self.kept_trials[key]

    def _check(self, name: ExperimentName, revision: int) -> None:
        found = self.experiments.get(name)
        if found is None:
            raise gone(name)
        if found.revision != revision:
            raise stale(name, found.revision)

    async def put_trial(self, trial: Trial) -> None:
        """See `Store`."""
        if trial.experiment not in self.experiments:
            raise gone(trial.experiment)
        self.kept_trials[trial.experiment, trial.number] = trial

    async def trials(self, name: ExperimentName, after: int, limit: int) -> Sequence[Trial]:
        """See `Store`."""
        found = [t for (n, number), t in self.kept_trials.items() if n == name and number > after]
        return sorted(found, key=lambda t: t.number)[:limit]

    async def counts(self, names: Collection[ExperimentName]) -> Mapping[ExperimentName, Counts]:
        """See `Store`."""
        return {
            name: counted([t.state for (n, _), t in self.kept_trials.items() if n == name]) for name in names
        }

    async def unsettled(self) -> Sequence[Experiment]:
        """See `Store`."""
        return [experiment for experiment in self.experiments.values() if not experiment.settled]

    async def open_trials(self) -> Sequence[Trial]:
        """See `Store`."""
        return [trial for trial in self.kept_trials.values() if not trial.state.ended]

    async def running_count(self, tenant: str) -> int:
        """See `Store`."""
        running = ExperimentState.RUNNING
        return sum(1 for n, e in self.experiments.items() if n.tenant == tenant and e.state is running)

    async def close(self) -> None:
        """See `Store`."""


def counted(states: Sequence[TrialState]) -> Counts:
    """Return how many trials are in each state."""
    return Counts(
        sum(1 for state in states if not state.ended),
        states.count(TrialState.SUCCEEDED),
        states.count(TrialState.FAILED),
    )


def taken(name: ExperimentName) -> AlreadyExists:
    """Return the error of a name that is taken."""
    return AlreadyExists(f"{name}: exists already; choose another experiment_id")


def gone(name: ExperimentName) -> NotFound:
    """Return the error of an experiment that isn't there."""
    return NotFound(f"{name}: not found", reason="EXPERIMENT_NOT_FOUND")


def stale(name: ExperimentName, revision: int) -> Conflict:
    """Return the error of a write that came late."""
    return Conflict(
        f"{name}: was changed meanwhile and is now {revision}; read it again",
        reason="STALE_ETAG",
        metadata={"etag": str(revision)},
    )


def reused(request_id: str, name: ExperimentName) -> AlreadyExists:
    """Return the error of a request id that was used for something else."""
    return AlreadyExists(
        f"request_id: {request_id!r} was used for another request, which made {name}; "
        "draw a new id for each request",
        reason="REQUEST_ID_REUSED",
    )
