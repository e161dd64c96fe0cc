"""One trace from an app's event on a device to the answer of a model in the cloud, over real processes."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1 import trace_pb2

from isthmus.device_agent.v1 import device_agent_pb2
from services.serving.testing_models import scale
from tests.e2e.otlp import Collector, collecting
from tests.integration.system.agents import Agent, event
from tests.integration.system.world import PATIENCE_S, WITHOUT, publish, running_stack, tenant, until

pytestmark = pytest.mark.timeout(400)

TRACE, APP = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SCRIPT = """
def run(context):
    n = context.events[-1].fields["n"]
    answer = context.ask("scale", {"x": [[n, 1.0]]}, timeout="10s")
    return {"y": answer["y"].tolist() if answer is not None else None}
"""
CHAIN = (
    ("device_agent", "isthmus.device_agent.v1.AgentService/SendEvents"),
    ("device_agent", "run"),
    ("device_agent", "ask"),
    ("tunnel", "isthmus.tunnel.v1.Request"),
    ("serving", "inference.GRPCInferenceService/ModelInfer"),
)
"""Each is the parent of the next; the first's is the app."""


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, str]]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def agent(collector: tuple[Collector, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """A device on which a task runs that asks a model."""
    _, endpoint = collector
    settings = {
        f"ISTHMUS_{name}_OTLP_ENDPOINT": endpoint for name in ("GATEWAY", "DEPLOYER", "TUNNEL", "SERVING")
    }
    model: Path = tmp_path_factory.mktemp("model") / "scale.onnx"
    model.write_bytes(scale(2.0, 2))
    without = (*WITHOUT, "engine", "scheduler", "tuner", "simulator")
    with ExitStack() as stack:
        running = stack.enter_context(running_stack(without=without, **settings))
        cloud = stack.enter_context(tenant(running, "traced"))
        cloud.isthmus("endpoint", "deploy", "scale", str(model))
        asks = publish(
            cloud, "asks", "1", SCRIPT, endpoints={"scale": {"x": {"datatype": "FP32", "max_elements": 2}}}
        )
        token = cloud.enrolment_token()
        agent = Agent("d1", cloud.home / "d", cloud.gateway, token, "--otlp-endpoint", endpoint)
        agent.start()
        stack.callback(agent.stop)
        cloud.isthmus("release", "create", asks.key)
        until("the task to be there", lambda: agent.runs() == {asks.key}, lambda: (agent.status(), agent.log))
        yield agent


def test_an_event_can_be_followed_to_the_model_in_the_cloud(
    agent: Agent, collector: tuple[Collector, str]
) -> None:
    collected, _ = collector

    def answered() -> bool:
        # Until its tunnel is connected, an agent answers its scripts with None: the next event asks again.
        number = len(agent.results()) + 1
        request = device_agent_pb2.SendEventsRequest(events=[event(number, f"e{number}")])
        trace = (("traceparent", f"00-{TRACE}-{APP}-01"),)
        agent.stub.SendEvents(request, timeout=PATIENCE_S, metadata=trace)
        until("the run", lambda: len(agent.results()) >= number, lambda: agent.log)
        return "[[" in agent.results()[-1].result_json

    until("an answer", answered, lambda: (agent.results(), agent.log))
    spans = until(
        "the spans of all",
        lambda: None if collected.complete(*CHAIN) is None else collected.traces[bytes.fromhex(TRACE)],
        collected.names,
    )
    assert chains(list(spans)), [(service, span.name, span.parent_span_id.hex()) for service, span in spans]


def chains(spans: list[tuple[str, trace_pb2.Span]]) -> bool:
    """Whether somewhere in these spans each of CHAIN is the parent of the next, from the app on."""
    parents = {bytes.fromhex(APP)}
    for wanted in CHAIN:
        parents = {
            span.span_id
            for service, span in spans
            if (service, span.name) == wanted and span.parent_span_id in parents
        }
    return bool(parents)
