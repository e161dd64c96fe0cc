"""A task with a model over a real stack: published, fetched and run by a device, its results told."""

import json
from collections.abc import Iterator

import pytest

from isthmus.engine.v1 import plan_pb2
from libs.runtime.codec import encode
from libs.runtime.testing import linear_plan
from tests.integration.system.agents import Agent, event
from tests.integration.system.world import Cloud, CommandFailed, until

SCRIPT = """
def pre(context):
    return {"x": [[context.events[-1].fields["n"], 1.0]]}


def post(context, outputs):
    probability = round(float(outputs["probability"][0]), 4)
    context.send("clicks", {"probability": probability})
    return {"probability": probability}
"""
TASK = {
    "task": "click",
    "phases": [
        {"kind": "pre", "script": "task.py"},
        {"kind": "model", "plan": "click.plan"},
        {"kind": "post", "script": "task.py"},
    ],
    "trigger": {"sequence": [{"event": "tick"}]},
    "limits": {"wall_time": "20s", "pending_count": 4096},
    "uploads": {"clicks": {"probability": "number"}},
    "health": {"confirm_run_count": 2, "confirm_idle_time": "1h", "max_failure_count": 1},
}


@pytest.fixture
def agent(cloud: Cloud) -> Iterator[Agent]:
    agent = Agent("model-device", cloud.home / "model-device", cloud.gateway, cloud.enrolment_token())
    agent.start()
    yield agent
    agent.stop()


def publish(cloud: Cloud, version: str, plan: bytes) -> None:
    folder = cloud.home / f"click-{version}"
    folder.mkdir()
    (folder / "task.json").write_text(json.dumps({**TASK, "version": version}))
    (folder / "task.py").write_text(SCRIPT)
    (folder / "click.plan").write_bytes(plan)
    cloud.isthmus("task", "publish", str(folder), "--keys", str(cloud.home / "keys"))


def test_a_model_goes_to_a_device_and_its_predictions_come_back(cloud: Cloud, agent: Agent) -> None:
    publish(cloud, "1", encode(linear_plan([1.0, -1.0])))
    cloud.isthmus("release", "create", "click@1")
    until("the task to run", lambda: agent.runs() == {"click@1"}, agent.status)
    agent.send(*(event(n, f"e{n}") for n in range(4)))
    until("a result of each run", lambda: len(agent.results()) == 4, agent.status)
    results = [json.loads(result.result_json)["probability"] for result in agent.results()]
    assert results == [0.2689, 0.5, 0.7311, 0.8808]
    until("its frames", lambda: len(cloud.exported()) == 4, agent.status)
    assert [record["payload"]["probability"] for record in cloud.exported()] == results
    until("the device to believe in it", lambda: agent.states() == {"click@1": "CONFIRMED"}, agent.status)


def test_a_plan_of_another_major_version_is_refused_before_it_leaves(cloud: Cloud) -> None:
    foreign = plan_pb2.Plan.FromString(encode(linear_plan([1.0, -1.0])))
    foreign.major = 9
    with pytest.raises(CommandFailed) as refused:
        publish(cloud, "2", foreign.SerializeToString())
    assert refused.value.error["reason"] == "PLAN_VERSION"
    assert "click.plan: plan is of format 9.0; this runtime reads format 2" in refused.value.error["message"]
