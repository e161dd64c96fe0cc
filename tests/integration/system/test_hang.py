"""A service that hangs instead of dying: callers get an answer in time, others go on, nothing is lost."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from deploy.local.stack import Stack
from tests.integration.system.agents import Agent, SlowLink, event
from tests.integration.system.world import UNAVAILABLE, Cloud, CommandFailed, Published, publish, until

ECHO = """
def run(context):
    n = context.events[-1].fields["n"]
    context.send("out", {"n": n})
    return {"n": n}
"""


@contextmanager
def frozen(stack: Stack, service: str) -> Iterator[None]:
    """Let a service hang."""
    process = psutil.Process(stack.pid(service))
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def echo(cloud: Cloud) -> Published:
    return publish(cloud, "echo", "1", ECHO)


@pytest.fixture(scope="module")
def link(stack: Stack) -> Iterator[SlowLink]:
    link = SlowLink(stack.gateway)
    yield link
    link.close()


@pytest.fixture(scope="module")
def agent(cloud: Cloud, link: SlowLink, echo: Published) -> Iterator[Agent]:
    agent = Agent("d", cloud.home / "d", link.address, cloud.enrolment_token())
    agent.start()
    try:
        cloud.isthmus("release", "create", echo.key)
        until("the task to run", lambda: agent.runs() == {echo.key}, agent.status)
        agent.send(event(1, "e1"), event(2, "e2"))
        until("its frames to be there", lambda: agent.status().counters.acked_frame_count == 2, agent.status)
        yield agent
    finally:
        agent.stop()


def numbers(cloud: Cloud) -> list[int]:
    return [record["payload"]["n"] for record in cloud.exported() if record["device"] == "d"]


def test_a_deployer_that_hangs_holds_up_its_own_callers_only(
    stack: Stack, cloud: Cloud, agent: Agent
) -> None:
    with frozen(stack, "deployer"):
        # It returns while the deployer hangs: the caller's deadline is kept, and not that of somebody else.
        with pytest.raises(CommandFailed) as caught:
            cloud.isthmus("--timeout", "1", "task", "list")
        assert caught.value.status in (1, UNAVAILABLE)
        # Who needs no deployer notices nothing: keys, the device's runs, its frames.
        cloud.isthmus("key", "list")
        before = agent.status().counters.acked_frame_count
        agent.send(event(3, "e3"), event(4, "e4"))
        until(
            "frames to go on", lambda: agent.status().counters.acked_frame_count == before + 2, agent.status
        )
    until("the deployer to answer", lambda: cloud.isthmus("task", "list"))


def test_a_tunnel_that_hangs_loses_no_frame_and_holds_up_no_rollout(
    stack: Stack, cloud: Cloud, agent: Agent
) -> None:
    before = numbers(cloud)
    first = agent.status().counters.success_count + 100
    new = publish(cloud, "echo", "2", ECHO)
    with frozen(stack, "tunnel"):
        cloud.isthmus("release", "create", new.key)
        until("the new version to run", lambda: agent.runs() == {new.key}, agent.status)
        sent = list(range(first, first + 10))
        agent.send(*(event(n, f"e{n}") for n in sent))
        until("the runs to end", lambda: agent.states().get(new.key) == "CONFIRMED", agent.status)
        until("all to have results", lambda: len(agent.results()) == len(before) + len(sent), agent.status)
        waiting = agent.status().counters
        assert waiting.acked_frame_count < waiting.frame_count
    until("all frames to be there", lambda: sorted(numbers(cloud)) == sorted([*before, *sent]), agent.status)


def test_a_gateway_that_hangs_stops_no_run_on_the_device(stack: Stack, cloud: Cloud, agent: Agent) -> None:
    before = numbers(cloud)
    first = agent.status().counters.success_count + 200
    with frozen(stack, "gateway"):
        sent = list(range(first, first + 10))
        agent.send(*(event(n, f"e{n}") for n in sent))
        until("all to have results", lambda: len(agent.results()) == len(before) + len(sent), agent.status)
    until("all frames to be there", lambda: sorted(numbers(cloud)) == sorted([*before, *sent]), agent.status)


def test_a_link_that_breaks_again_and_again_loses_nothing_and_sends_nothing_twice(
    cloud: Cloud, agent: Agent, link: SlowLink
) -> None:
    before = numbers(cloud)
    first = agent.status().counters.success_count + 300
    sent = list(range(first, first + 40))
    for at in range(0, len(sent), 10):
        agent.send(*(event(n, f"e{n}") for n in sent[at : at + 10]))
        until("a frame to arrive", lambda: len(numbers(cloud)) > len(before), agent.status)
        link.cut()
    until("all frames to be there", lambda: len(numbers(cloud)) >= len(before) + len(sent), agent.status)
    assert sorted(numbers(cloud)) == sorted([*before, *sent])
    until("the device to be well", lambda: not agent.status().problems, agent.status)
