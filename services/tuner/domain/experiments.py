"""What users do with experiments."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace

from libs.common.clock import Clock
from libs.common.errors import Conflict, Exhausted, Invalid, NotFound, Precondition
from libs.common.names import ExperimentName, shown
from libs.common.rand import Randomness
from services.tuner.domain.board import Board
from services.tuner.domain.conductor import Conductor
from services.tuner.domain.model import Counts, Experiment, ExperimentState, PastRequest, Spec, Trial
from services.tuner.domain.ports import Endpoint
from services.tuner.domain.validation import check_spec
from services.tuner.store import Store

MAX_REQUEST_ID = 64
_ALL = 1000
_RETRY_S = 30.0
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Seen:
    """An experiment and how many of its trials are where."""

    experiment: Experiment
    counts: Counts


@dataclass(frozen=True, slots=True)
class Change:
    """An experiment, and the trials of it that changed."""

    seen: Seen
    trials: tuple[Trial, ...]


class Experiments:
    """Creates, reads, watches and ends experiments. The caller checks whose they are."""

    def __init__(
        self,
        store: Store,
        board: Board,
        conductor: Conductor,
        endpoint: Endpoint,
        clock: Clock,
        randomness: Randomness,
        *,
        most_running: int,
    ) -> None:
        """Let a tenant have at most `most_running` experiments that run."""
        self._store = store
        self._board = board
        self._conductor = conductor
        self._endpoint = endpoint
        self._clock = clock
        self._randomness = randomness
        self._most_running = most_running

    async def create(
        self,
        tenant: str,
        experiment_id: str,
        spec: Spec,
        request: PastRequest | None,
        *,
        validate_only: bool = False,
    ) -> Seen:
        """Start an experiment, or only check it.

        Raises:
            Invalid: for a specification that can't be searched.
            NotFound, Precondition: when the model isn't there, or has no live version.
            Exhausted: when the tenant has enough experiments running.
            AlreadyExists: when the id is taken, or the request's id was used for something else.
        """
        check_spec(spec)
        if spec.model.tenant != tenant:
            raise Invalid(
                f"spec.model: {spec.model} is not of tenants/{tenant}; name a model of the parent",
                metadata={"field": "spec.model"},
            )
        if request is not None and not _is_request_id(request.request_id):
            raise Invalid(
                f"request_id: {shown(request.request_id)} is not 1 to {MAX_REQUEST_ID} printable ASCII "
                "characters; use a UUID",
                metadata={"field": "request_id"},
            )
        name = ExperimentName(tenant, experiment_id or f"e-{self._randomness.id(10)}")
        # First: what was made may be the one too many, and its model may have changed since.
        past = None if request is None else await self._store.past(tenant, request)
        if past is not None:
            return await self._seen(past)
        served = await self._endpoint.served(spec.model)
        made = Experiment(name, spec, served, ExperimentState.RUNNING, self._clock.now())
        if validate_only:
            return Seen(made, Counts())
        if await self._store.running_count(tenant) >= self._most_running:
            raise Exhausted(
                f"tenants/{tenant}: {self._most_running} experiments run; wait for one or cancel one",
                reason="TOO_MANY_EXPERIMENTS",
                retry_after_s=_RETRY_S,
            )
        kept, new = await self._store.create(made, request)
        if new:
            self._conductor.begin(kept.name)
        return await self._seen(kept)

    async def get(self, name: ExperimentName) -> Seen:
        """Return an experiment; raise NotFound when it isn't there."""
        return await self._seen(await self._found(name))

    async def list(self, tenant: str, after: str, limit: int) -> Sequence[Seen]:
        """Return a tenant's experiments by ascending id, those after `after`."""
        found = await self._store.list(tenant, after, limit)
        counts: Mapping[ExperimentName, Counts] = (
            await self._store.counts([experiment.name for experiment in found]) if found else {}
        )
        return [Seen(experiment, counts[experiment.name]) for experiment in found]

    async def trials(self, name: ExperimentName, after: int, limit: int) -> Sequence[Trial]:
        """Return an experiment's trials by ascending number, those after `after`."""
        await self._found(name)
        return await self._store.trials(name, after, limit)

    async def watch(self, name: ExperimentName) -> AsyncGenerator[Change]:
        """Yield an experiment with all of its trials, then each change, until nothing more becomes of it."""
        told: dict[int, Trial] = {}
        last: Experiment | None = None
        with self._board.following(name) as event:
            while True:
                event.clear()
                experiment = await self._found(name)
                trials = await self._store.trials(name, 0, _ALL)
                changed = tuple(trial for trial in trials if told.get(trial.number) != trial)
                if changed or experiment != last:
                    yield Change(await self._seen(experiment), changed)
                told.update({trial.number: trial for trial in changed})
                last = experiment
                if experiment.settled and all(trial.state.ended for trial in trials):
                    return
                await event.wait()

    async def cancel(self, name: ExperimentName) -> Seen:
        """End an experiment; nothing happens to one that has ended."""
        for _ in range(_TRIES):
            experiment = await self._found(name)
            if experiment.ended:
                return await self._seen(experiment)
            ended = replace(
                experiment,
                state=ExperimentState.CANCELLED,
                message="cancelled",
                end_time=self._clock.now(),
                revision=experiment.revision + 1,
            )
            try:
                await self._store.update(ended)
            except Conflict:
                continue
            self._board.changed(name)
            self._conductor.stop(name)
            return await self._seen(ended)
        raise Conflict(f"{name}: changes all the time; try again")

    async def delete(self, name: ExperimentName, etag: str) -> None:
        """Remove an experiment that has ended.

        Raises:
            Precondition: when it runs or is being applied.
            Conflict: when the etag is given and isn't its.
        """
        experiment = await self._found(name)
        if etag and etag != str(experiment.revision):
            raise Conflict(
                f"etag: {shown(etag)} is not that of {name}, which is now {experiment.revision}; "
                "read it again",
                reason="STALE_ETAG",
                metadata={"etag": str(experiment.revision)},
            )
        if not experiment.settled:
            raise Precondition(
                f"{name}: runs or is being applied; cancel it, or wait for its end", reason="EXPERIMENT_RUNS"
            )
        await self._store.delete(name, experiment.revision)
        self._board.changed(name)

    async def _found(self, name: ExperimentName) -> Experiment:
        found = await self._store.get(name)
        if found is None:
            raise NotFound(f"{name}: not found", reason="EXPERIMENT_NOT_FOUND")
        return found

    async def _seen(self, experiment: Experiment) -> Seen:
        return Seen(experiment, (await self._store.counts([experiment.name]))[experiment.name])


def _is_request_id(text: str) -> bool:
    return len(text) <= MAX_REQUEST_ID and text.isascii() and text.isprintable()
