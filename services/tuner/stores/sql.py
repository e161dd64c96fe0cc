"""The store in SQL."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Table, and_, delete, func, select, update
from sqlalchemy.exc import IntegrityError

from libs.common.names import ExperimentName
from libs.common.sql import Database
from services.tuner.domain.model import Counts, Experiment, ExperimentState, PastRequest, Trial, TrialState
from services.tuner.store import REQUEST_LIFE
from services.tuner.stores.memory import counted, gone, reused, stale, taken
from services.tuner.stores.schema import experiments, requests, trials
from services.tuner.stores.texts import (
    dump_application,
    dump_metrics,
    dump_point,
    dump_served,
    dump_spec,
    load_application,
    load_metrics,
    load_point,
    load_served,
    load_spec,
    micros,
    moment,
)

_OPEN = [state.value for state in TrialState if not state.ended]


class SqlStore:
    """See `services.tuner.store.Store`; owns the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, experiment: Experiment, request: PastRequest | None) -> tuple[Experiment, bool]:
        """See `Store`."""
        name = experiment.name

        def work(connection: Connection) -> tuple[Experiment, bool]:
            oldest = micros(experiment.create_time - REQUEST_LIFE)
            old = and_(requests.c.tenant == name.tenant, requests.c.create_time < oldest)
            connection.execute(delete(requests).where(old))
            earlier = None if request is None else _past(connection, name.tenant, request)
            if earlier is not None:
                return earlier, False
            connection.execute(experiments.insert(), {**_key(name), **_values(experiment)})
            if request is not None:
                connection.execute(
                    requests.insert(),
                    {
                        "tenant": name.tenant,
                        "request_id": request.request_id,
                        "fingerprint": request.fingerprint,
                        "experiment": name.experiment,
                        "create_time": micros(experiment.create_time),
                    },
                )
            return experiment, True

        try:
            return await self._database.run(work)
        except IntegrityError:
            # Two at once: the other may have been the same request.
            earlier = None if request is None else await self.past(name.tenant, request)
            if earlier is not None:
                return earlier, False
            raise taken(name) from None

    async def past(self, tenant: str, request: PastRequest) -> Experiment | None:
        """See `Store`."""
        return await self._database.run(lambda connection: _past(connection, tenant, request))

    async def get(self, name: ExperimentName) -> Experiment | None:
        """See `Store`."""
        query = select(experiments).where(_is(experiments, name))
        row = await self._database.run(lambda connection: connection.execute(query).first())
        return None if row is None else _experiment(row)

    async def list(self, tenant: str, after: str, limit: int) -> Sequence[Experiment]:
        """See `Store`."""
        table = experiments.c
        query = select(experiments).where(table.tenant == tenant, table.experiment > after)
        return await self._experiments(query.order_by(table.experiment).limit(limit))

    async def _experiments(self, query: Any) -> Sequence[Experiment]:
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        return [_experiment(row) for row in rows]

    async def update(self, experiment: Experiment) -> None:
        """See `Store`."""
        statement = (
            update(experiments)
            .where(and_(_is(experiments, experiment.name), experiments.c.revision == experiment.revision - 1))
            .values(_values(experiment))
        )

        def work(connection: Connection) -> None:
            if connection.execute(statement).rowcount != 1:
                raise _why(connection, experiment.name)

        await self._database.run(work)

    async def delete(self, name: ExperimentName, revision: int) -> None:
        """See `Store`."""

        def work(connection: Connection) -> None:
            mine = and_(_is(experiments, name), experiments.c.revision == revision)
            if connection.execute(delete(experiments).where(mine)).rowcount != 1:
                raise _why(connection, name)
            connection.execute(delete(trials).where(_is(trials, name)))

        await self._database.run(work)

    async def put_trial(self, trial: Trial) -> None:
        """See `Store`."""
        key = {**_key(trial.experiment), "number": trial.number}
        values = {
            "point": dump_point(trial.point),
            "state": trial.state.value,
            "message": trial.message,
            "metrics": dump_metrics(trial.metrics),
            "feasible": trial.feasible,
            "start_time": micros(trial.start_time),
            "end_time": micros(trial.end_time),
        }

        def work(connection: Connection) -> None:
            mine = and_(_is(trials, trial.experiment), trials.c.number == trial.number)
            owner = select(experiments.c.tenant).where(_is(experiments, trial.experiment)).with_for_update()
            if connection.execute(owner).first() is None:
                raise gone(trial.experiment)
            if connection.execute(update(trials).where(mine).values(values)).rowcount == 0:
                connection.execute(trials.insert(), {**key, **values})

        await self._database.run(work)

    async def trials(self, name: ExperimentName, after: int, limit: int) -> Sequence[Trial]:
        """See `Store`."""
        query = select(trials).where(_is(trials, name), trials.c.number > after)
        return await self._trials(query.order_by(trials.c.number).limit(limit))

    async def _trials(self, query: Any) -> Sequence[Trial]:
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        return [_trial(row) for row in rows]

    async def counts(self, names: Collection[ExperimentName]) -> Mapping[ExperimentName, Counts]:
        """See `Store`."""
        tenants = {name.tenant for name in names}
        query = (
            select(trials.c.tenant, trials.c.experiment, trials.c.state, func.count().label("count"))
            .where(trials.c.tenant.in_(tenants), trials.c.experiment.in_({n.experiment for n in names}))
            .group_by(trials.c.tenant, trials.c.experiment, trials.c.state)
        )
        rows = await self._database.run(lambda connection: connection.execute(query).all())
        states: dict[ExperimentName, list[TrialState]] = {name: [] for name in names}
        for tenant, experiment, state, count in rows:
            states.get(ExperimentName(tenant, experiment), []).extend([TrialState(state)] * count)
        return {name: counted(found) for name, found in states.items()}

    async def unsettled(self) -> Sequence[Experiment]:
        """See `Store`."""
        return await self._experiments(select(experiments).where(experiments.c.settled.is_(False)))

    async def open_trials(self) -> Sequence[Trial]:
        """See `Store`."""
        return await self._trials(select(trials).where(trials.c.state.in_(_OPEN)))

    async def running_count(self, tenant: str) -> int:
        """See `Store`."""
        table = experiments.c
        query = select(func.count()).where(
            table.tenant == tenant, table.state == ExperimentState.RUNNING.value
        )
        return await self._database.run(lambda connection: connection.scalar(query) or 0)

    async def close(self) -> None:
        """See `Store`."""
        await self._database.close()


def _key(name: ExperimentName) -> dict[str, Any]:
    return {"tenant": name.tenant, "experiment": name.experiment}


def _is(table: Table, name: ExperimentName) -> Any:
    return and_(table.c.tenant == name.tenant, table.c.experiment == name.experiment)


def _past(connection: Connection, tenant: str, request: PastRequest) -> Experiment | None:
    query = select(requests).where(requests.c.tenant == tenant, requests.c.request_id == request.request_id)
    past = connection.execute(query).first()
    if past is None:
        return None
    made = ExperimentName(tenant, past.experiment)
    if past.fingerprint != request.fingerprint:
        raise reused(request.request_id, made)
    row = connection.execute(select(experiments).where(_is(experiments, made))).first()
    if row is None:
        raise gone(made)
    return _experiment(row)


def _why(connection: Connection, name: ExperimentName) -> Exception:
    found = connection.scalar(select(experiments.c.revision).where(_is(experiments, name)))
    return gone(name) if found is None else stale(name, int(found))


def _values(experiment: Experiment) -> dict[str, Any]:
    return {
        "spec": dump_spec(experiment.spec),
        "served": dump_served(experiment.served),
        "state": experiment.state.value,
        "message": experiment.message,
        "best_trial": experiment.best_trial,
        "application": dump_application(experiment.application),
        "settled": experiment.settled,
        "create_time": micros(experiment.create_time),
        "end_time": micros(experiment.end_time),
        "revision": experiment.revision,
    }


def _experiment(row: Row[Any]) -> Experiment:
    return Experiment(
        ExperimentName(row.tenant, row.experiment),
        load_spec(row.spec),
        load_served(row.served),
        ExperimentState(row.state),
        moment(row.create_time),
        row.message,
        row.best_trial,
        moment(row.end_time),
        load_application(row.application),
        row.revision,
    )


def _trial(row: Row[Any]) -> Trial:
    return Trial(
        ExperimentName(row.tenant, row.experiment),
        row.number,
        load_point(row.point),
        TrialState(row.state),
        moment(row.start_time),
        row.message,
        load_metrics(row.metrics),
        row.feasible,
        moment(row.end_time),
    )
