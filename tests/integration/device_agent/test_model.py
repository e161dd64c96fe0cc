"""A task with a model, from the cloud to a result: fetched, verified, loaded, run; or refused."""

import json

import pytest

from isthmus.deployer.v1 import pull_pb2
from isthmus.engine.v1 import plan_pb2
from libs.runtime.codec import encode
from libs.runtime.testing import linear_plan
from services.device_agent.app import Agent
from services.device_agent.testing.app import running
from services.device_agent.testing.tasks import task

PLAN = encode(linear_plan([1.0, -1.0]))
PRE = """
def run(context):
    event = context.events[-1]
    return {"x": [[event.fields["a"], event.fields["b"]]]}
"""


def _failed(cloud):
    (report,) = [r for r in cloud.reports.values() if r.stage == pull_pb2.StageReport.STAGE_FAILED]
    return report


def _of_major(number):
    message = plan_pb2.Plan.FromString(PLAN)
    message.major = number
    return message.SerializeToString()


async def test_a_model_is_fetched_and_run(cloud, agent_config):
    cloud.publish(task(source=PRE, plan=PLAN))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go(a=1.0, b=0.0)
        (result,) = await app.results(1)
        assert json.loads(result.result_json)["probability"] == pytest.approx([0.7311], abs=1e-4)


async def test_a_run_that_doesnt_fit_fails_and_its_text_stays_here(cloud, agent_config):
    cloud.publish(task(source=PRE, plan=PLAN, max_failures=1))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go(a="Alice", b="Bob")
        (result,) = await app.results(1)
        assert result.failure_reason == "BAD_INPUT"
        assert "model.plan: input 'x' must hold float32" in result.failure_message
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@1"))
        failed = _failed(cloud)
        assert "Alice" not in str(failed)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (_of_major(9), "model.plan: plan is of format 9.0; this runtime reads format 2: update the runtime"),
        (b"PK\x03\x04 no plan", "model.plan: plan: it can't be read: it is no plan, or it is damaged"),
    ],
)
async def test_a_plan_that_cant_be_run_is_reported_with_the_reason(cloud, agent_config, plan, says):
    cloud.publish(task(source=PRE, plan=plan))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())):
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@1"))
        failed = _failed(cloud)
        assert failed.failure_reason == "LOAD_ERROR"
        assert says in failed.failure_message


async def test_a_device_without_numpy_refuses_a_model_before_fetching_it(cloud, agent_config, monkeypatch):
    monkeypatch.setattr("services.device_agent.pulling.check_runs_here", _without_numpy)
    cloud.publish(task(source=PRE, plan=PLAN))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())):
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@1"))
        failed = _failed(cloud)
        assert failed.failure_reason == "MODEL_UNSUPPORTED"
        assert "numpy" in failed.failure_message
    assert not cloud.offsets


def _without_numpy(manifest):
    from services.device_agent.capability import check_runs_here

    check_runs_here(manifest, find=lambda name: None)
