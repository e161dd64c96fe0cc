"""A configuration is applied, judged by the same load, and taken back when it is worse."""

import asyncio

import pytest

from isthmus.serving.v1 import model_pb2
from libs.common.errors import Precondition, Unavailable
from libs.common.testing import eventually
from services.tuner.domain.model import ApplicationState, ExperimentState, Objective, TrialState
from services.tuner.stores.memory import MemoryStore
from services.tuner.testing import (
    NAME_,
    World,
    make_experiment,
    make_served,
    make_spec,
    make_trial,
    metrics_of,
)

POINT = {"max_batch_rows": 8.0, "instance_count": 3.0}
OLD = make_served().config


def rows(config):
    return model_pb2.ServingConfig.FromString(config).max_batch_rows


async def searched(store, **changes):
    """Store an experiment that has ended, with one good trial and one failed."""
    made = {"state": ExperimentState.SUCCEEDED, "best_trial": 2, **changes}
    await store.create(make_experiment(**made), None)
    await store.put_trial(make_trial(1, state=TrialState.FAILED))
    good = {"state": TrialState.SUCCEEDED, "metrics": metrics_of(200), "feasible": True}
    await store.put_trial(make_trial(2, POINT, **good))
    return store


async def applied(world, trial=0):
    await world.tuner.applier.begin(NAME_, trial)
    return (await world.ended()).application


async def test_what_is_better_stays_and_only_the_point_changes():
    world = World(await searched(MemoryStore()))
    world.endpoint.result = lambda config: metrics_of(200.0 if rows(config) == 8 else 100.0)
    async with world.running():
        found = await applied(world)
    assert found.state is ApplicationState.APPLIED
    assert found.trial == 2
    assert "+100.0%" in found.message
    assert (found.before[0].value, found.after[0].value) == (100.0, 200.0)
    config = model_pb2.ServingConfig.FromString(world.endpoint.current)
    assert (config.max_batch_rows, config.instance_count, config.queue_capacity) == (8, 3, 77)
    assert world.registry.get_sample_value("isthmus_tuner_applications_total", {"state": "applied"}) == 1


@pytest.mark.parametrize(
    ("after", "state"),
    [(97.0, ApplicationState.ROLLED_BACK), (99.0, ApplicationState.APPLIED)],
    ids=["beyond both intervals", "within them"],
)
async def test_what_is_worse_beyond_the_intervals_goes_back(after, state):
    world = World(await searched(MemoryStore()))
    world.endpoint.result = lambda config: metrics_of(after if rows(config) == 8 else 100.0)
    async with world.running():
        found = await applied(world)
    assert found.state is state
    assert rows(world.endpoint.current) == (1 if state is ApplicationState.ROLLED_BACK else 8)


async def test_what_cannot_be_judged_goes_back():
    world = World(await searched(MemoryStore()))

    def result(config):
        if rows(config) == 8:
            raise Unavailable("nobody answers")
        return metrics_of(100.0)

    world.endpoint.result = result
    async with world.running():
        found = await applied(world)
    assert found.state is ApplicationState.ROLLED_BACK
    assert "nobody answers" in found.message
    assert world.endpoint.current == OLD


async def test_a_model_that_cannot_be_measured_is_left_alone():
    world = World(await searched(MemoryStore()))

    def result(config):
        raise Unavailable("nobody answers")

    world.endpoint.result = result
    async with world.running():
        found = await applied(world)
    assert (found.state, found.message) == (ApplicationState.FAILED, "nobody answers")
    assert world.endpoint.puts == []


async def test_what_only_a_trial_can_measure_is_judged_by_goodput():
    spec = make_spec(objective=Objective("peak_memory_bytes", minimize=True))
    world = World(await searched(MemoryStore(), spec=spec))
    world.endpoint.result = lambda config: metrics_of(50.0 if rows(config) == 8 else 100.0)[:4]
    async with world.running():
        found = await applied(world)
    assert found.state is ApplicationState.ROLLED_BACK
    assert "goodput_rps" in found.message


async def test_a_change_by_somebody_else_is_never_overwritten():
    world = World(await searched(MemoryStore()))

    async def interfere(number):
        if number == 2:
            theirs = model_pb2.ServingConfig(max_batch_rows=32).SerializeToString()
            await world.endpoint.put(make_spec().model, theirs, "")

    world.endpoint.hold = interfere
    world.endpoint.result = lambda config: metrics_of(100.0 if rows(config) == 1 else 10.0)
    async with world.running():
        found = await applied(world)
    assert found.state is ApplicationState.FAILED
    assert "somebody changed the model" in found.message
    assert rows(world.endpoint.current) == 32


@pytest.mark.parametrize("measurement", [1, 2], ids=["before", "after"])
async def test_a_tuner_that_stopped_half_way_goes_back(measurement):
    store = await searched(MemoryStore())
    first = World(store)
    inside = asyncio.Event()

    async def hold(number):
        if number == measurement:
            inside.set()
            await asyncio.Event().wait()

    first.endpoint.hold = hold
    async with first.running():
        await first.tuner.applier.begin(NAME_, 0)
        await inside.wait()
    assert rows(first.endpoint.current) == (8 if measurement == 2 else 1)
    second = World(store)
    second.endpoint.current = first.endpoint.current
    async with second.running():
        found = (await second.ended()).application
    assert found.state is ApplicationState.ROLLED_BACK
    assert second.endpoint.current == OLD


async def test_rolling_back_is_stubborn():
    world = World(await searched(MemoryStore()))
    refusals = [Unavailable("away"), Unavailable("away")]

    def fault(config):
        return refusals.pop() if rows(config) == 1 and refusals else None

    world.endpoint.put_fault = fault
    world.endpoint.result = lambda config: metrics_of(10.0 if rows(config) == 8 else 100.0)
    async with world.running():
        waiting = asyncio.create_task(applied(world))
        while not waiting.done():
            await asyncio.sleep(0)
            world.clock.advance(1.0)
    assert waiting.result().state is ApplicationState.ROLLED_BACK
    assert world.endpoint.current == OLD
    assert refusals == []


async def test_what_is_not_fit_is_refused():
    world = World(await searched(MemoryStore()))
    async with world.running():
        begin = world.tuner.applier.begin
        for number in (1, 3):
            with pytest.raises(Precondition, match=f"trial {number} isn't fit"):
                await begin(NAME_, number)
        world.endpoint.version = "2"
        with pytest.raises(Precondition, match="'2', and '1' was tried"):
            await begin(NAME_, 0)
        world.endpoint.version = "1"
        held = asyncio.Event()

        async def hold(number):
            await held.wait()

        world.endpoint.hold = hold
        await begin(NAME_, 0)
        with pytest.raises(Precondition, match="is being applied"):
            await begin(NAME_, 0)
        with pytest.raises(Precondition, match="being applied"):
            await world.tuner.experiments.delete(NAME_, "")
        held.set()
        await world.ended()
        assert await applied(world), "a second one may follow"


async def test_nothing_is_applied_while_trials_run():
    async with World().running() as world:
        world.trials.gate.clear()
        await world.create()
        await eventually(lambda: bool(world.trials.alive))
        with pytest.raises(Precondition, match="runs"):
            await world.tuner.applier.begin(NAME_, 0)
        world.trials.gate.set()
        await world.ended()


@pytest.mark.parametrize("lost", ["answer", "request"])
async def test_a_change_whose_answer_was_lost_is_undone(lost):
    world = World(await searched(MemoryStore()))
    real, faults = world.endpoint.put, [True]

    async def put(model, config, etag):
        if rows(config) == 8 and faults:
            faults.pop()
            if lost == "answer":
                await real(model, config, etag)
            raise Unavailable("the connection broke")
        return await real(model, config, etag)

    world.endpoint.put = put
    async with world.running():
        found = await applied(world)
    assert found.state is ApplicationState.FAILED
    assert "the connection broke" in found.message
    assert found.before
    assert world.endpoint.current == OLD


async def test_a_way_back_whose_answer_was_lost_is_seen():
    world = World(await searched(MemoryStore()))
    real, faults = world.endpoint.put, [True]

    async def put(model, config, etag):
        made = await real(model, config, etag)
        if rows(config) == 1 and faults:
            faults.pop()
            raise Unavailable("the connection broke")
        return made

    world.endpoint.put = put
    world.endpoint.result = lambda config: metrics_of(10.0 if rows(config) == 8 else 100.0)
    async with world.running():
        waiting = asyncio.create_task(applied(world))
        while not waiting.done():
            await asyncio.sleep(0)
            world.clock.advance(1.0)
    assert waiting.result().state is ApplicationState.ROLLED_BACK
    assert world.endpoint.current == OLD
