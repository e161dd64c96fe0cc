"""Experiments from their beginning to their end; nothing real is started."""

import asyncio

import pytest

from libs.common.errors import Exhausted, Invalid, NotFound, Precondition, Unavailable
from libs.common.names import ExperimentName, ModelName
from libs.common.testing import eventually
from services.tuner.domain.model import (
    Constraint,
    ExperimentState,
    Objective,
    PastRequest,
    SamplerKind,
    TrialState,
)
from services.tuner.stores.memory import MemoryStore
from services.tuner.testing import (
    NAME_,
    World,
    make_experiment,
    make_spec,
    make_trial,
    metrics_of,
    surface,
)


async def test_every_point_is_measured_and_the_best_one_found():
    async with World().running() as world:
        await world.create()
        found = await world.ended()
        trials = await world.all_trials()
        assert found.state is ExperimentState.SUCCEEDED
        assert len(trials) == 12
        assert {trial.state for trial in trials} == {TrialState.SUCCEEDED}
        best = trials[found.best_trial - 1]
        assert dict(best.point) == {"max_batch_rows": 8.0, "instance_count": 3.0}
        assert world.trials.alive == set()
        assert world.trials.most_alive == 1


@pytest.mark.parametrize("kind", list(SamplerKind))
async def test_trials_at_once_have_different_points(kind):
    async with World().running() as world:
        world.trials.gate.clear()
        await world.create(sampler=kind, parallel_trials=4)
        await eventually(lambda: len(world.trials.alive) == 4)
        world.trials.gate.set()
        await world.ended()
        points = [tuple(point.values()) for point in world.trials.made]
        assert len(points) == len(set(points)) == 12
        assert world.trials.most_alive == 4


async def test_a_machine_makes_no_more_trials_than_it_may():
    async with World(most_trials=2).running() as world:
        world.trials.gate.clear()
        await world.create(parallel_trials=8)
        await eventually(lambda: len(world.trials.alive) == 2)
        await eventually(lambda: len(world.store.kept_trials) == 8)
        world.trials.gate.set()
        await world.ended()
        assert world.trials.most_alive == 2


async def test_trials_that_cannot_start_neither_win_nor_hold_up_the_others():
    async with World().running() as world:
        # The best point can't start; a minimum would be won by a zero.
        world.trials.broken = lambda point: Unavailable("no memory") if surface(point) > 90 else None
        await world.create(objective=Objective("p99_ms", minimize=True), parallel_trials=3, max_failures=10)
        found = await world.ended()
        trials = await world.all_trials()
        failed = [trial for trial in trials if trial.state is TrialState.FAILED]
        assert found.state is ExperimentState.SUCCEEDED
        assert len(trials) == 12
        assert {trial.message for trial in failed} == {"no memory"}
        assert all(not trial.metrics and not trial.feasible for trial in failed)
        assert trials[found.best_trial - 1].state is TrialState.SUCCEEDED


async def test_too_many_failures_end_it_and_tear_down_the_rest():
    async with World().running() as world:
        world.trials.broken = lambda point: Unavailable("no memory") if point["max_batch_rows"] == 1 else None
        world.trials.stuck = lambda point: True
        await world.create(max_failures=2, parallel_trials=3)
        found = await world.ended()
        assert found.state is ExperimentState.FAILED
        assert "trials failed" in found.message
        assert world.trials.alive == set()
        states = {trial.state for trial in await world.all_trials()}
        assert states <= {TrialState.FAILED, TrialState.CANCELLED}


async def test_a_fault_of_ours_fails_the_trial_alone(caplog):
    async with World().running() as world:
        world.trials.broken = lambda p: ZeroDivisionError() if p["instance_count"] == 1 else None
        await world.create()
        found = await world.ended()
        assert found.state is ExperimentState.SUCCEEDED
        messages = {t.message for t in await world.all_trials() if t.state is TrialState.FAILED}
        assert messages == {"a fault of the tuner; see its log"}
        assert "ZeroDivisionError" in caplog.text


async def test_a_trial_that_hangs_fails_in_time():
    async with World(start_s=1.0).running() as world:
        world.trials.stuck = lambda point: point["instance_count"] == 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("services.tuner.domain.conductor.CALL_S", -2.1)
            await world.create(parallel_trials=12)
            found = await world.ended()
        assert found.state is ExperimentState.SUCCEEDED
        failed = [t for t in await world.all_trials() if t.state is TrialState.FAILED]
        assert [t.point["instance_count"] for t in failed] == [1.0] * 3
        assert "wasn't measured within" in failed[0].message


async def test_no_trial_that_breaks_a_constraint_is_the_best():
    async with World().running() as world:
        world.trials.result = lambda p: metrics_of(surface(p), p99_ms=surface(p))
        await world.create(constraints=(Constraint("p99_ms", 75.0),))
        found = await world.ended()
        trials = await world.all_trials()
        assert trials[found.best_trial - 1].metric("goodput_rps").value == 70.0
        assert {t.metric("p99_ms").value for t in trials if not t.feasible} == {80.0, 90.0, 100.0}


async def test_without_any_feasible_trial_it_has_failed_and_says_so():
    async with World().running() as world:
        await world.create(constraints=(Constraint("p99_ms", 1.0),))
        found = await world.ended()
        assert found.state is ExperimentState.FAILED
        assert found.best_trial == 0
        assert "12 were measured, and none meets every constraint" in found.message


async def test_the_deadline_ends_it_with_what_is_known():
    async with World().running() as world:
        world.trials.stuck = lambda point: point["instance_count"] == 4
        await world.create(deadline_s=60.0)
        await eventually(lambda: 4 in world.trials.alive)
        world.clock.advance(61.0)
        found = await world.ended()
        assert found.state is ExperimentState.SUCCEEDED
        assert found.best_trial == 3
        assert "deadline" in found.message
        assert [t.state for t in await world.all_trials()][-1] is TrialState.CANCELLED
        assert world.trials.alive == set()


async def test_cancelling_tears_down_and_keeps_what_was_measured():
    async with World().running() as world:
        world.trials.stuck = lambda point: point["instance_count"] == 4
        await world.create()
        await eventually(lambda: 4 in world.trials.alive)
        first = (await world.tuner.experiments.cancel(NAME_)).experiment
        again = (await world.tuner.experiments.cancel(NAME_)).experiment
        assert first == again
        found = await world.ended()
        assert found.state is ExperimentState.CANCELLED
        assert found.best_trial == 3
        states = [trial.state for trial in await world.all_trials()]
        assert states == [TrialState.SUCCEEDED] * 3 + [TrialState.CANCELLED]
        assert world.trials.alive == set()
        await world.tuner.experiments.delete(NAME_, found and str(found.revision))
        assert await world.all_trials() == []


async def test_a_tuner_that_stopped_goes_on_and_repeats_what_was_in_flight():
    store = MemoryStore()
    first = World(store)
    async with first.running():
        first.trials.stuck = lambda point: point["instance_count"] == 4
        await first.create(parallel_trials=2)
        await eventually(lambda: {4, 8} <= first.trials.alive)
    assert first.trials.alive == set()
    # Whatever a killed tuner would have left as it was.
    assert [t.number for t in await store.open_trials()] == [4, 8]
    second = World(store)
    async with second.running():
        found = await second.ended()
    trials = await second.all_trials()
    assert second.trials.sweeps == 1
    assert found.state is ExperimentState.SUCCEEDED
    assert [trial.number for trial in trials] == list(range(1, 13))
    assert {trial.state for trial in trials} == {TrialState.SUCCEEDED}
    assert [tuple(p.values()) for p in second.trials.made[:2]] == [(1.0, 4.0), (8.0, 4.0)]
    assert len(second.trials.made) == 12 - 6


async def test_trials_of_an_experiment_that_was_cancelled_before_a_crash_are_closed():
    store = MemoryStore()
    ended = make_experiment(state=ExperimentState.CANCELLED)
    await store.create(ended, None)
    await store.put_trial(make_trial(1, state=TrialState.RUNNING))
    async with World(store).running() as world:
        await world.ended()
        assert [trial.state for trial in await world.all_trials()] == [TrialState.CANCELLED]
        assert world.trials.made == []


async def test_a_store_that_is_away_for_a_while_loses_nothing():
    class Away(MemoryStore):
        refusals = 5

        async def put_trial(self, trial):
            if trial.state is TrialState.SUCCEEDED and self.refusals:
                self.refusals -= 1
                raise Unavailable("the database doesn't answer")
            await MemoryStore.put_trial(self, trial)

    world = World(Away())
    async with world.running():
        await world.create()
        waiting = asyncio.create_task(world.ended())
        while not waiting.done():
            await asyncio.sleep(0)
            world.clock.advance(1.0)
        assert (await waiting).state is ExperimentState.SUCCEEDED
        assert len(world.trials.made) == 12


async def test_a_fault_in_choosing_points_is_logged_and_tried_again(caplog):
    world = World()
    faults = [RuntimeError("broken sampler")]
    real = world.tuner.conductor._samplers

    class Faulty:
        def next(self, spec, trials):
            if len(trials) == 3 and faults:
                raise faults.pop()
            return real.next(spec, trials)

    world.tuner.conductor._samplers = Faulty()
    async with world.running():
        await world.create()
        await world.clock.wait_for_sleepers(1)
        waiting = asyncio.create_task(world.ended())
        while not waiting.done():
            await asyncio.sleep(0)
            world.clock.advance(1.0)
        assert (await waiting).state is ExperimentState.SUCCEEDED
    assert "broken sampler" in caplog.text


async def test_a_create_that_is_repeated_begins_nothing_twice():
    async with World(most_running=1).running() as world:
        world.trials.gate.clear()
        request = PastRequest("6ba7b810", "f")
        create = world.tuner.experiments.create
        first = await create("acme", "", make_spec(), request)
        again = await create("acme", "", make_spec(), request)
        assert first.experiment.name == again.experiment.name
        world.trials.gate.set()
        await world.ended(first.experiment.name)
        assert len(world.trials.made) == 12


async def test_only_checking_makes_nothing():
    async with World().running() as world:
        seen = await world.tuner.experiments.create("acme", "e1", make_spec(), None, validate_only=True)
        assert seen.experiment.served.version.version == "1"
        with pytest.raises(NotFound):
            await world.tuner.experiments.get(NAME_)
        assert world.trials.made == []


async def test_what_cannot_be_tried_is_refused():
    async with World(most_running=1).running() as world:
        create = world.tuner.experiments.create
        with pytest.raises(NotFound):
            await create("acme", "e1", make_spec(model=ModelName("acme", "none")), None)
        with pytest.raises(Invalid, match=r"spec.model"):
            await create("acme", "e1", make_spec(model=ModelName("other", "Ranker.v2")), None)
        for request_id in ("x" * 65, "a\0b", "é"):
            with pytest.raises(Invalid, match="request_id"):
                await create("acme", "e1", make_spec(), PastRequest(request_id, "f"))
        world.trials.gate.clear()
        await world.create()
        with pytest.raises(Exhausted, match="1 experiments run"):
            await create("acme", "e2", make_spec(), None)
        with pytest.raises(Precondition, match="cancel it"):
            await world.tuner.experiments.delete(NAME_, "")
        world.trials.gate.set()
        await world.ended()


async def test_a_watcher_sees_each_trial_and_each_change_once():
    async with World().running() as world:
        world.trials.gate.clear()
        await world.create()
        seen = []
        async for change in world.tuner.experiments.watch(NAME_):
            seen.append(change)
            world.trials.gate.set()
        states = {}
        for change in seen:
            for trial in change.trials:
                assert states.get(trial.number) != trial, "told without a change"
                states[trial.number] = trial
        assert [states[number] for number in range(1, 13)] == list(await world.all_trials())
        assert seen[-1].seen.experiment.state is ExperimentState.SUCCEEDED
        assert seen[-1].seen.counts.succeeded == 12


async def test_a_watch_of_what_is_removed_or_was_never_there_ends():
    async with World().running() as world:
        with pytest.raises(NotFound):
            await world.ended(ExperimentName("acme", "none"))
        await world.store.create(make_experiment(state=ExperimentState.FAILED), None)
        assert (await world.ended()).state is ExperimentState.FAILED


async def test_trials_and_experiments_are_counted():
    async with World().running() as world:
        world.trials.broken = lambda p: Unavailable("no") if p["instance_count"] == 1 else None
        await world.create()
        await world.ended()
        count = world.registry.get_sample_value
        assert count("isthmus_tuner_trial_seconds_count", {"state": "succeeded"}) == 9
        assert count("isthmus_tuner_trial_seconds_count", {"state": "failed"}) == 3
        assert count("isthmus_tuner_experiments_total", {"state": "succeeded"}) == 1
        await eventually(lambda: count("isthmus_tuner_running_experiments") == 0)
