"""Real processes: a tuner, serving, an instance of serving for each trial, and what loads it."""

import asyncio
import os
import signal

import pytest
from google.protobuf.duration_pb2 import Duration

from isthmus.serving.v1 import model_pb2
from isthmus.tuner.v1 import tuner_pb2 as pb
from libs.common.testing import eventually
from services.serving.testing import Client as ServingUser
from services.serving.testing_models import scale
from services.tuner.domain.validation import LOAD_METRICS, METRICS
from services.tuner.testing_process import surroundings

MODEL = "scale"
NAME = "tenants/acme/experiments/e1"
PARAMETERS = [pb.Parameter(name="max_batch_rows", values=[1, 64])]
LOAD = pb.Load(duration=Duration(seconds=1), concurrency=4)


@pytest.fixture
async def world(tmp_path):
    async with surroundings(tmp_path) as made:
        user = ServingUser(made.channel(made.serving), "acme")
        await user.put(MODEL, model_pb2.ServingConfig(max_batch_rows=1, queue_capacity=77))
        await user.create(MODEL, "1", made.blobs.put("acme", scale(2.0)).to_proto())
        made.user = user
        yield made


async def create(client, **changes):
    spec = pb.ExperimentSpec(
        model=f"tenants/acme/models/{MODEL}",
        parameters=PARAMETERS,
        sampler=pb.ExperimentSpec.SAMPLER_GRID,
        objective=pb.Objective(metric="goodput_rps"),
        load=LOAD,
    )
    for name, value in changes.items():
        spec.ClearField(name)
        spec.MergeFrom(pb.ExperimentSpec(**{name: value}))
    request = pb.CreateExperimentRequest(parent="tenants/acme", experiment_id="e1", spec=spec)
    return (await client.stub.CreateExperiment(request)).experiment


async def test_a_model_is_tuned_and_its_configuration_applied(world):
    client = world.client()
    await create(client)
    ended = await client.ended()
    trials = await client.trials()
    assert ended.state == pb.Experiment.STATE_SUCCEEDED, [trial.message for trial in trials]
    assert [trial.state for trial in trials] == [pb.Trial.STATE_SUCCEEDED] * 2
    for trial in trials:
        values = {metric.name: metric for metric in trial.metrics}
        assert set(values) == set(METRICS)
        assert all(metric.low <= metric.value <= metric.high for metric in trial.metrics)
        assert values["throughput_rps"].value > 0
        assert values["cpu_us_per_request"].value > 0
        assert values["peak_memory_bytes"].value > 10e6
    assert world.instances() == [], "a trial's processes end with it"
    assert list((world.folder / "tuner" / "trials" / "instances").iterdir()) == []
    applied = await client.apply()
    assert applied.state in (pb.Application.STATE_APPLIED, pb.Application.STATE_ROLLED_BACK), applied
    assert {metric.name for metric in applied.after} == set(LOAD_METRICS)
    config = (await world.user.get(MODEL)).config
    stays = applied.state == pb.Application.STATE_APPLIED
    best = trials[ended.best_trial - 1].point["max_batch_rows"]
    assert config.max_batch_rows == (best if stays else 1)
    assert config.queue_capacity == 77


async def test_arrivals_and_a_point_at_which_nothing_is_answered(world):
    client = world.client()
    # Requests have more rows than the first point takes in one execution.
    load = pb.Load(duration=Duration(seconds=1), rate_rps=50, rows_per_request=8)
    parameters = [pb.Parameter(name="max_batch_rows", values=[4, 64])]
    await create(client, parameters=parameters, load=load)
    ended = await client.ended()
    refused, answered = await client.trials()
    assert refused.state == pb.Trial.STATE_FAILED
    assert not refused.metrics
    assert "the first failed with" in refused.message
    assert "rows" in refused.message
    assert answered.state == pb.Trial.STATE_SUCCEEDED, answered.message
    assert (ended.state, ended.best_trial) == (pb.Experiment.STATE_SUCCEEDED, 2)
    rate = {metric.name: metric.value for metric in answered.metrics}["throughput_rps"]
    # No more than arrived; how many of them were answered in time is the machine's affair.
    assert 0 < rate < 90


async def test_a_killed_tuner_leaves_nothing_and_goes_on(world):
    client = world.client()
    await create(client, load=pb.Load(duration=Duration(seconds=2), concurrency=2))
    async for response in client.stub.WatchExperiment(pb.WatchExperimentRequest(name=NAME), timeout=60):
        if any(trial.state == pb.Trial.STATE_RUNNING for trial in response.trials):
            break
    # The instance and what loads it.
    await eventually(lambda: len(world.instances()) == 2)
    await world.tuner.end(signal.SIGKILL)
    await eventually(lambda: world.instances() == [])
    await world.tuner.start()
    ended = await world.client().ended()
    trials = await world.client().trials()
    assert ended.state == pb.Experiment.STATE_SUCCEEDED, [trial.message for trial in trials]
    assert [trial.number for trial in trials] == [1, 2]
    assert world.instances() == []


async def test_an_instance_that_dies_fails_its_trial_alone(world):
    client = world.client()
    await create(client, parameters=[pb.Parameter(name="max_batch_rows", values=[1, 2])])
    await eventually(lambda: len(world.instances()) >= 1)
    os.kill(world.instances()[0], signal.SIGKILL)
    ended = await client.ended()
    trials = await client.trials()
    assert ended.state == pb.Experiment.STATE_SUCCEEDED, [trial.message for trial in trials]
    assert [trial.state for trial in trials] == [pb.Trial.STATE_FAILED, pb.Trial.STATE_SUCCEEDED]
    assert trials[0].message
    assert ended.best_trial == 2
    assert world.instances() == []


async def test_cancelling_or_being_told_to_stop_ends_the_processes(world):
    client = world.client()
    await create(client, load=pb.Load(duration=Duration(seconds=60), concurrency=2))
    await eventually(lambda: len(world.instances()) == 2)
    await client.stub.CancelExperiment(pb.CancelExperimentRequest(name=NAME))
    assert (await client.ended()).state == pb.Experiment.STATE_CANCELLED
    assert world.instances() == []
    await client.stub.DeleteExperiment(pb.DeleteExperimentRequest(name=NAME))
    await create(client)
    await eventually(lambda: len(world.instances()) >= 1)
    assert await world.tuner.end(signal.SIGTERM) == 0
    assert world.instances() == []


async def test_a_tuner_killed_while_it_applies_goes_back(world):
    client = world.client()
    parameters = [
        pb.Parameter(name="max_batch_delay_ms", values=[0]),
        pb.Parameter(name="max_batch_rows", values=[64]),
    ]
    await create(client, parameters=parameters)
    await client.ended()
    await client.stub.ApplyExperiment(pb.ApplyExperimentRequest(name=NAME))
    async for response in client.stub.WatchExperiment(pb.WatchExperimentRequest(name=NAME), timeout=60):
        if response.experiment.application.state == pb.Application.STATE_MEASURING_AFTER:
            break

    async def applied():
        return (await world.user.get(MODEL)).config.max_batch_rows == 64

    async with asyncio.timeout(60):
        while not await applied():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    await world.tuner.end(signal.SIGKILL)
    assert await applied()
    await world.tuner.start()
    found = await world.client().ended()
    assert found.application.state == pb.Application.STATE_ROLLED_BACK, found.application
    config = (await world.user.get(MODEL)).config
    assert (config.max_batch_rows, config.queue_capacity) == (1, 77)
