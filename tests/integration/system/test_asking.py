"""Scripts on a device ask a model through the whole stack; the device goes on while parts of it are down."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import psutil
import pytest

from deploy.local.stack import Stack
from services.serving.testing_models import scale
from tests.integration.system.agents import Agent, event
from tests.integration.system.world import WITHOUT, Cloud, publish, running_stack, tenant, until

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
def run(context):
    fields = context.events[-1].fields
    n = fields["n"]
    answer = context.ask("scale", {"x": [[n, 1.0]]}, timeout=fields.get("timeout", "5s"))
    return {"n": n, "y": None if answer is None else answer["y"].tolist(), "log": context.log_lines}
"""
WITHOUT_OTHERS = (*WITHOUT, "engine", "scheduler", "tuner", "simulator")


class Device:
    """A device on which a task runs that asks a model."""

    def __init__(self, stack: Stack, cloud: Cloud, agent: Agent) -> None:
        self.stack = stack
        self.cloud = cloud
        self.agent = agent
        self.numbers = count(1)

    def ask(self, **fields: str) -> dict:
        """Let the task run once; return its result, which there is whatever the cloud does."""
        n = next(self.numbers)
        self.agent.send(event(n, f"e{n}", **fields))
        results = until("a result", lambda: self.agent.results()[n - 1 :], lambda: self.agent.log)
        found = json.loads(results[0].result_json)
        assert found["n"] == n
        return found

    def answered(self) -> dict:
        """Let it run until it is answered."""
        return until(
            "an answer", lambda: found if (found := self.ask())["y"] else None, lambda: self.agent.log
        )


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """A device of a stack of its own."""
    model = tmp_path_factory.mktemp("model") / "scale.onnx"
    model.write_bytes(scale(2.0, 2))
    with ExitStack() as exits:
        stack = exits.enter_context(running_stack(without=WITHOUT_OTHERS))
        cloud = exits.enter_context(tenant(stack, "asking"))
        cloud.isthmus("endpoint", "deploy", "scale", str(model))
        endpoints = {"scale": {"x": {"datatype": "FP32", "max_elements": 2}}}
        asks = publish(cloud, "asks", "1", SCRIPT, uploads={}, endpoints=endpoints)
        agent = Agent("d1", cloud.home / "d", cloud.gateway, cloud.enrolment_token())
        agent.start()
        exits.callback(agent.stop)
        cloud.isthmus("release", "create", asks.key)
        until("the task to be there", lambda: agent.runs() == {asks.key}, lambda: (agent.status(), agent.log))
        yield Device(stack, cloud, agent)


def test_a_model_in_the_cloud_answers_a_device(device: Device) -> None:
    device.answered()
    before = device.agent.status().counters
    found = device.ask()
    assert found["y"] == [[2.0 * found["n"], 2.0]]
    after = device.agent.status().counters
    assert after.request_count == before.request_count + 1
    assert after.request_bytes == before.request_bytes + 8
    assert after.answer_bytes == before.answer_bytes + 8


@pytest.mark.parametrize("victim", ["serving", "tunnel", "gateway"])
def test_while_a_part_of_the_cloud_is_down_the_device_goes_on_and_asks_again_after(
    device: Device, victim: str
) -> None:
    device.answered()
    device.stack.kill(victim)
    found = device.ask()  # answered or not, as quick as the stack starts the victim again: there is a result
    assert found["y"] in (None, [[2.0 * found["n"], 2.0]])
    assert bool(found["log"]) == (found["y"] is None)
    device.stack.wait_healthy(victim)
    found = device.answered()
    assert found["y"] == [[2.0 * found["n"], 2.0]]


@pytest.mark.parametrize("victim", ["serving", "tunnel", "gateway"])
def test_while_a_part_of_the_cloud_hangs_the_device_goes_on_and_asks_again_after(
    device: Device, victim: str
) -> None:
    device.answered()
    process = psutil.Process(device.stack.pid(victim))
    process.suspend()  # worse than dead: the connection stays and nobody answers
    try:
        found = [device.ask(timeout="100ms") for _ in range(5)]
    finally:
        process.resume()
    assert {each["y"] for each in found} == {None}
    assert found[0]["log"] == ["ask scale: no answer within 100ms"]
    found_after = device.answered()
    assert found_after["y"] == [[2.0 * found_after["n"], 2.0]]


def test_a_run_that_a_kill_of_the_agent_interrupts_is_made_once(device: Device) -> None:
    device.answered()
    device.agent.send(event(next(device.numbers), "last"))
    device.agent.kill()
    device.agent.start()
    device.agent.status()  # it serves again
    device.answered()
    numbers = [json.loads(result.result_json)["n"] for result in device.agent.results()]
    assert numbers == list(range(1, len(numbers) + 1))
