"""The API over a real server; trials and the served model are fakes."""

import pytest
from google.protobuf.duration_pb2 import Duration

from isthmus.tuner.v1 import tuner_pb2 as pb
from libs.common.client import rpc_errors
from libs.common.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, Precondition
from libs.common.testing import eventually
from services.tuner.stores.memory import MemoryStore
from services.tuner.testing import (
    FakeEndpoint,
    FakeTrials,
    make_spec_message,
    metrics_of,
    points,
    running_tuner,
)

NAME = "tenants/acme/experiments/e1"


@pytest.fixture
async def tuner():
    trials, endpoint = FakeTrials(), FakeEndpoint()
    async with running_tuner(MemoryStore(), trials, endpoint) as running:
        yield running, trials, endpoint


async def test_an_experiment_from_its_beginning_to_its_application(tuner):
    running, _, endpoint = tuner
    client = running.client()
    made = await client.create(parallel_trial_count=3)
    assert made.name == NAME
    assert made.state == pb.Experiment.STATE_RUNNING
    assert made.version == "tenants/acme/models/Ranker.v2/versions/1"
    assert made.spec.max_trial_count == 20
    ended = await client.ended()
    assert ended.state == pb.Experiment.STATE_SUCCEEDED
    assert (ended.succeeded_count, ended.failed_count, ended.running_count) == (12, 0, 0)
    trials = await client.trials()
    assert len({tuple(sorted(point.items())) for point in points(trials)}) == 12
    best = trials[ended.best_trial - 1]
    assert dict(best.point) == {"max_batch_rows": 8.0, "instance_count": 3.0}
    assert {metric.name: metric.value for metric in best.metrics}["goodput_rps"] == 100.0
    assert all(metric.low <= metric.value <= metric.high for metric in best.metrics)
    applied = await client.apply()
    assert applied.state == pb.Application.STATE_APPLIED
    assert len(endpoint.puts) == 1
    await client.stub.DeleteExperiment(pb.DeleteExperimentRequest(name=NAME, etag=(await client.get()).etag))
    with pytest.raises(NotFound), rpc_errors():
        await client.get()


async def test_a_watch_streams_changes(tuner):
    running, trials, _ = tuner
    client = running.client()
    trials.gate.clear()
    await client.create()
    seen = []
    async for response in client.stub.WatchExperiment(pb.WatchExperimentRequest(name=NAME), timeout=60):
        seen.append(response)
        trials.gate.set()
    assert seen[0].experiment.state == pb.Experiment.STATE_RUNNING
    assert seen[-1].experiment.state == pb.Experiment.STATE_SUCCEEDED
    last = {trial.number: trial.state for response in seen for trial in response.trials}
    assert last == dict.fromkeys(range(1, 13), pb.Trial.STATE_SUCCEEDED)


async def test_cancelling_ends_a_watch_with_everything_torn_down(tuner):
    running, trials, _ = tuner
    client = running.client()
    trials.gate.clear()
    await client.create(parallel_trial_count=2)
    await eventually(lambda: len(trials.alive) == 2)
    found = await client.stub.CancelExperiment(pb.CancelExperimentRequest(name=NAME))
    assert found.experiment.state == pb.Experiment.STATE_CANCELLED
    assert (await client.ended()).state == pb.Experiment.STATE_CANCELLED
    assert trials.alive == set()
    assert {trial.state for trial in await client.trials()} == {pb.Trial.STATE_CANCELLED}


async def test_pages(tuner):
    running, _, _ = tuner
    client = running.client()
    for experiment in ("a", "b", "c"):
        await client.create(experiment)
        await client.ended(experiment)
    names, token = [], ""
    while True:
        request = pb.ListExperimentsRequest(parent="tenants/acme", page_size=2, page_token=token)
        page = await client.stub.ListExperiments(request)
        names += [experiment.name.rpartition("/")[2] for experiment in page.experiments]
        token = page.next_page_token
        if not token:
            break
    assert names == ["a", "b", "c"]
    assert page.experiments[0].succeeded_count == 12
    numbers, token = [], ""
    while True:
        request = pb.ListTrialsRequest(parent="tenants/acme/experiments/a", page_size=5, page_token=token)
        page = await client.stub.ListTrials(request)
        numbers += [trial.number for trial in page.trials]
        token = page.next_page_token
        if not token:
            break
    assert numbers == list(range(1, 13))


async def test_tenants_never_see_each_other(tuner):
    running, _, _ = tuner
    await running.client().create()
    await running.client().ended()
    stub = running.client("other").stub
    for call in (
        lambda: stub.GetExperiment(pb.GetExperimentRequest(name=NAME)),
        lambda: stub.ListExperiments(pb.ListExperimentsRequest(parent="tenants/acme")),
        lambda: stub.ListTrials(pb.ListTrialsRequest(parent=NAME)),
        lambda: stub.CancelExperiment(pb.CancelExperimentRequest(name=NAME)),
        lambda: stub.ApplyExperiment(pb.ApplyExperimentRequest(name=NAME)),
        lambda: stub.DeleteExperiment(pb.DeleteExperimentRequest(name=NAME)),
        lambda: stub.CreateExperiment(
            pb.CreateExperimentRequest(parent="tenants/acme", spec=make_spec_message())
        ),
    ):
        with pytest.raises(NotFound), rpc_errors():
            await call()
    with pytest.raises(NotFound), rpc_errors():
        async for _ in stub.WatchExperiment(pb.WatchExperimentRequest(name=NAME)):
            pass
    with pytest.raises(Invalid, match=r"spec.model"), rpc_errors():
        await running.client("other").create()


async def test_scopes(tuner):
    running, _, _ = tuner
    await running.client().create()
    await running.client().ended()
    reader = running.client("acme", "experiments:read")
    assert (await reader.get()).name == NAME
    with pytest.raises(Forbidden, match="experiments:write"), rpc_errors():
        await reader.create("e2")
    writer = running.client("acme", "experiments:write", "models:read")
    with pytest.raises(Forbidden, match="models:write"), rpc_errors():
        await writer.apply()


async def test_repeating_a_request(tuner):
    running, _, _ = tuner
    stub = running.client().stub
    request = pb.CreateExperimentRequest(
        parent="tenants/acme", spec=make_spec_message(), request_id="6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    )
    first = (await stub.CreateExperiment(request)).experiment
    assert (await stub.CreateExperiment(request)).experiment.name == first.name
    request.spec.seed = 9
    with pytest.raises(AlreadyExists, match="request_id"), rpc_errors():
        await stub.CreateExperiment(request)


def bad(**changes):
    spec = make_spec_message()
    for name, value in changes.items():
        spec.ClearField(name)
        spec.MergeFrom(pb.ExperimentSpec(**{name: value}))
    return spec


PARAMETER = pb.Parameter(name="max_batch_rows", values=[1])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (bad(model="x"), "spec.model"),
        (bad(model="tenants/acme/models/.."), "spec.model"),
        (bad(parameters=[]), r"spec.parameters: 0 entries is not between 1 and 16"),
        (bad(parameters=[pb.Parameter(name="max_batch_row", values=[1])]), "did you mean 'max_batch_rows'"),
        (bad(parameters=[PARAMETER, PARAMETER]), "comes twice"),
        (bad(parameters=[pb.Parameter(name="instance_count", values=[1.5])]), "isn't whole"),
        (bad(parameters=[pb.Parameter(name="instance_count", values=[2, 1])]), "ascend"),
        (bad(parameters=[pb.Parameter(name="instance_count", values=[0])]), "between 1 and 64"),
        (bad(parameters=[pb.Parameter(name="instance_count", values=[float("nan")])]), "nan"),
        (bad(sampler=9), "spec.sampler: 9"),
        (bad(max_trial_count=1001), "spec.max_trial_count: 1001"),
        (bad(parallel_trial_count=17), "spec.parallel_trial_count"),
        (bad(objective=pb.Objective(metric="goodput")), "did you mean 'goodput_rps'"),
        (bad(objective=pb.Objective(metric="p99_ms")), "asks for the worst p99_ms; set it"),
        (bad(objective=pb.Objective(metric="goodput_rps", minimize=True)), "leave it unset"),
        (bad(constraints=[pb.Constraint(metric="p98_ms", at_most=1)]), r"spec.constraints\[0\].metric"),
        (bad(constraints=[pb.Constraint(metric="p99_ms", at_most=float("inf"))]), "at_most"),
        (bad(load=pb.Load(concurrency=257)), "spec.load.concurrency"),
        (bad(load=pb.Load(rate_rps=-1)), "spec.load.rate_rps"),
        (bad(load=pb.Load(duration=Duration(seconds=601))), "spec.load.duration"),
        (bad(load=pb.Load(duration=Duration(seconds=2**62))), "isn't a duration"),
        (bad(load=pb.Load(target_latency=Duration(seconds=-1))), "spec.load.target_latency"),
        (bad(deadline=Duration(seconds=10**7)), "spec.deadline"),
    ],
)
async def test_bad_specifications_are_refused_by_field(tuner, spec, message):
    running, trials, _ = tuner
    request = pb.CreateExperimentRequest(parent="tenants/acme", spec=spec)
    with pytest.raises(Invalid, match=message), rpc_errors():
        await running.client().stub.CreateExperiment(request)
    assert trials.made == []


async def test_bad_requests(tuner):
    running, _, _ = tuner
    client = running.client()
    await client.create()
    await client.ended()
    stub = client.stub
    for request in (
        pb.ListTrialsRequest(parent=NAME, page_token="nonsense"),
        pb.ListTrialsRequest(parent="tenants/acme"),
    ):
        with pytest.raises(Invalid), rpc_errors():
            await stub.ListTrials(request)
    with pytest.raises(AlreadyExists), rpc_errors():
        await client.create()
    with pytest.raises(Invalid, match="experiment"), rpc_errors():
        await client.create("UPPER")
    with pytest.raises(Conflict), rpc_errors():
        await stub.DeleteExperiment(pb.DeleteExperimentRequest(name=NAME, etag="99"))
    with pytest.raises(Precondition, match="trial 77"), rpc_errors():
        await client.apply(trial=77)


async def test_what_is_worse_is_told_with_figures(tuner):
    running, _, endpoint = tuner
    client = running.client()
    await client.create()
    await client.ended()
    first = endpoint.current
    endpoint.result = lambda config: metrics_of(100.0 if config == first else 50.0)
    applied = await client.apply()
    assert applied.state == pb.Application.STATE_ROLLED_BACK
    assert "-50.0%" in applied.message
    assert (applied.before[0].value, applied.after[0].value) == (100.0, 50.0)
    assert endpoint.current == first
