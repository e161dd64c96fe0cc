"""What every store of experiments must do."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from libs.common.errors import AlreadyExists, Conflict, NotFound
from libs.common.names import ExperimentName
from libs.common.sql import open_database
from libs.common.testing import START
from services.tuner.app import MIGRATIONS
from services.tuner.domain.model import (
    Application,
    ApplicationState,
    Constraint,
    Counts,
    ExperimentState,
    Objective,
    PastRequest,
    SamplerKind,
    TrialState,
)
from services.tuner.stores.memory import MemoryStore
from services.tuner.stores.schema import metadata
from services.tuner.stores.sql import SqlStore
from services.tuner.testing import NAME_, make_experiment, make_spec, make_trial, metrics_of

LATER = START + timedelta(hours=1, microseconds=7)
OTHER = ExperimentName("acme", "e2")
THEIRS = ExperimentName("other", "e1")


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore()
        return
    url = f"sqlite:///{tmp_path}/tuner.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql_url")
    made = SqlStore(await open_database(url, script_location=MIGRATIONS))
    yield made
    await made.close()


async def test_an_experiment_reads_as_it_was_written(store):
    spec = make_spec(
        sampler=SamplerKind.BAYESIAN,
        seed=2**64 - 1,
        objective=Objective("p99_ms", minimize=True),
        constraints=(Constraint("peak_memory_bytes", 1.5e9),),
    )
    made = make_experiment(spec=spec, message="π — “quoted”")
    assert await store.create(made, None) == (made, True)
    assert await store.get(NAME_) == made
    application = Application(
        3,
        ApplicationState.APPLIED,
        LATER,
        "+25 %",
        b"\x00\xff",
        True,
        metrics_of(1.5),
        metrics_of(1e-9),
        LATER,
    )
    changed = replace(
        made,
        state=ExperimentState.SUCCEEDED,
        best_trial=3,
        end_time=LATER,
        application=application,
        revision=2,
    )
    await store.update(changed)
    assert await store.get(NAME_) == changed
    assert await store.get(OTHER) is None


async def test_a_name_is_taken_once(store):
    await store.create(make_experiment(), None)
    with pytest.raises(AlreadyExists, match="experiments/e1"):
        await store.create(make_experiment(), PastRequest("r1", "f"))
    await store.create(make_experiment(THEIRS), None)


async def test_a_repeated_request_gets_its_first_answer(store):
    made = make_experiment()
    request = PastRequest("r1", "f")
    assert await store.create(made, request) == (made, True)
    later = make_experiment(OTHER, create_time=LATER)
    assert await store.create(later, request) == (made, False)
    with pytest.raises(AlreadyExists, match="request_id"):
        await store.create(later, PastRequest("r1", "g"))
    assert (await store.create(make_experiment(THEIRS), request))[1], "ids are a tenant's own"
    await store.delete(NAME_, 1)
    with pytest.raises(NotFound):
        await store.create(later, request)


async def test_a_request_is_remembered_for_a_week(store):
    request = PastRequest("r1", "f")
    await store.create(make_experiment(), request)
    within = make_experiment(OTHER, create_time=START + timedelta(days=7))
    assert not (await store.create(within, request))[1]
    after = make_experiment(OTHER, create_time=START + timedelta(days=7, microseconds=1))
    assert (await store.create(after, request))[1]


async def test_requests_at_once_make_one_experiment(store):
    request = PastRequest("r1", "f")
    names = [ExperimentName("acme", f"e{number}") for number in range(8)]
    made = await asyncio.gather(*(store.create(make_experiment(name), request) for name in names))
    assert len({experiment.name for experiment, _ in made}) == 1
    assert sum(new for _, new in made) == 1
    assert len(await store.list("acme", "", 10)) == 1


async def test_a_stale_write_is_refused(store):
    made = make_experiment()
    await store.create(made, None)
    await store.update(replace(made, best_trial=1, revision=2))
    for revision in (1, 2, 4):
        with pytest.raises(Conflict):
            await store.update(replace(made, best_trial=9, revision=revision))
    with pytest.raises(NotFound):
        await store.update(make_experiment(OTHER, revision=2))
    with pytest.raises(Conflict):
        await store.delete(NAME_, 1)
    assert (await store.get(NAME_)).best_trial == 1


async def test_of_two_writers_one_wins(store):
    made = make_experiment()
    await store.create(made, None)
    results = await asyncio.gather(
        *(store.update(replace(made, best_trial=n, revision=2)) for n in range(6)), return_exceptions=True
    )
    assert sum(result is None for result in results) == 1
    assert {type(result) for result in results if result is not None} == {Conflict}


async def test_lists_are_in_order_and_of_one_tenant(store):
    for name in ("b", "a", "c", "a-1"):
        await store.create(make_experiment(ExperimentName("acme", name)), None)
    await store.create(make_experiment(THEIRS), None)
    assert [e.name.experiment for e in await store.list("acme", "", 10)] == ["a", "a-1", "b", "c"]
    assert [e.name.experiment for e in await store.list("acme", "a", 2)] == ["a-1", "b"]


async def test_trials_read_as_they_were_written_and_go_with_their_experiment(store):
    await store.create(make_experiment(), None)
    await store.create(make_experiment(THEIRS), None)
    done = make_trial(
        2,
        {"max_batch_delay_ms": 0.1},
        state=TrialState.SUCCEEDED,
        metrics=metrics_of(1 / 3),
        feasible=True,
        end_time=LATER,
    )
    await store.put_trial(done)
    await store.put_trial(make_trial(10))
    await store.put_trial(make_trial(1, state=TrialState.FAILED, message="no"))
    await store.put_trial(replace(make_trial(1), experiment=THEIRS))
    await store.put_trial(make_trial(10, state=TrialState.RUNNING))
    assert [trial.number for trial in await store.trials(NAME_, 0, 10)] == [1, 2, 10]
    assert await store.trials(NAME_, 1, 1) == [done]
    assert (await store.counts([NAME_, OTHER])) == {NAME_: Counts(1, 1, 1), OTHER: Counts()}
    await store.delete(NAME_, 1)
    assert await store.trials(NAME_, 0, 10) == []
    assert len(await store.trials(THEIRS, 0, 10)) == 1
    with pytest.raises(NotFound):
        await store.put_trial(make_trial(1))


async def test_what_has_not_ended_is_found_after_a_restart(store):
    going = Application(1, ApplicationState.MEASURING_AFTER, START)
    done = replace(going, state=ApplicationState.ROLLED_BACK)
    ended = ExperimentState.SUCCEEDED
    for name, changes in {
        "runs": {},
        "ended": {"state": ended},
        "applying": {"state": ended, "application": going},
        "applied": {"state": ended, "application": done},
    }.items():
        await store.create(make_experiment(ExperimentName("acme", name), **changes), None)
    await store.create(make_experiment(THEIRS), None)
    found = {str(experiment.name) for experiment in await store.unsettled()}
    assert found == {f"tenants/acme/experiments/{n}" for n in ("runs", "applying")} | {str(THEIRS)}
    assert await store.running_count("acme") == 1
    runs = ExperimentName("acme", "runs")
    for number, state in enumerate(TrialState, 1):
        await store.put_trial(replace(make_trial(number, state=state), experiment=runs))
    assert {trial.state for trial in await store.open_trials()} == {TrialState.STARTING, TrialState.RUNNING}
    assert await store.counts([runs]) == {runs: Counts(2, 1, 1)}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_migrated_database_has_exactly_this_schema(kind, tmp_path, request):
    url = f"sqlite:///{tmp_path}/tuner.db"
    if kind == "postgresql":
        url = request.getfixturevalue("postgresql_url")

    def compare(connection: sa.Connection):
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return [d for d in compare_metadata(context, metadata) if "alembic_version" not in str(d)]

    database = await open_database(url, script_location=MIGRATIONS)
    try:
        assert await database.run(compare) == []
    finally:
        await database.close()


async def test_what_a_request_made_can_be_asked(store):
    request = PastRequest("r1", "f")
    assert await store.past("acme", request) is None
    made, _ = await store.create(make_experiment(), request)
    assert await store.past(made.name.tenant, request) == made
    assert await store.past("rival", request) is None
    with pytest.raises(AlreadyExists, match="r1"):
        await store.past(made.name.tenant, PastRequest("r1", "g"))
    await store.delete(made.name, made.revision)
    with pytest.raises(NotFound):
        await store.past(made.name.tenant, request)
