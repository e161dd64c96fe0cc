"""A trace goes from an app's call over the durable queue to a run and to what it asks; else there is none."""

import asyncio
import sqlite3
from contextlib import closing

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from isthmus.device_agent.v1 import device_agent_pb2 as pb
from isthmus.tunnel.v1 import tunnel_pb2
from libs.common.telemetry import Telemetry
from services.device_agent.app import Agent
from services.device_agent.testing.app import event, running
from services.device_agent.testing.tasks import task
from services.device_agent.testing.tunnel import no_serving

TRACE, APP = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SOURCE = 'def run(context):\n    return {"none": context.ask("ranker", {"item": 1}, timeout="20s") is None}\n'


def traced_agent(config, **settings):
    """Return an agent, and where its spans go."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Agent(config, telemetry=Telemetry("device_agent", tracer_provider=provider), **settings), exporter


async def ready(cloud, app):
    cloud.publish(task(source=SOURCE, endpoints={"ranker": {"item": ("INT64", 1)}}))
    await cloud.want("d1", {"hello": "1"})
    await app.until_state("hello@1", "ACTIVE")
    await app.until(lambda status: status.tunnel_connected)


async def send(app, event_id):
    """Hand an event over inside the app's own trace."""
    request = pb.SendEventsRequest(events=[event("go", event_id)])
    await app.stub.SendEvents(request, metadata=(("traceparent", f"00-{TRACE}-{APP}-01"),))


def traced(exporter):
    """Return the spans of the app's trace by name, with the names of their parents."""
    mine = [span for span in exporter.get_finished_spans() if f"{span.context.trace_id:032x}" == TRACE]
    names = {span.context.span_id: span.name.rpartition("/")[2] for span in mine} | {int(APP, 16): "app"}
    return {(names[span.parent.span_id], names[span.context.span_id]) for span in mine}


async def test_a_trace_goes_from_the_app_to_what_its_run_asks(cloud, agent_config):
    agent, exporter = traced_agent(agent_config())
    async with running(agent) as app:
        await ready(cloud, app)
        await send(app, "e1")
        await app.results(1)
    assert {("app", "SendEvents"), ("SendEvents", "run"), ("run", "ask")} == traced(exporter)
    request: tunnel_pb2.Request = cloud.tunnel.requests[0]
    asks = {f"{span.context.span_id:016x}" for span in exporter.get_finished_spans() if span.name == "ask"}
    version, trace, parent, flags = request.traceparent.split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert parent in asks


async def test_a_run_goes_on_with_its_trace_after_a_restart(cloud, agent_config):
    agent, _ = traced_agent(agent_config(), runners=1)
    async with running(agent) as app:
        await ready(cloud, app)
        hangs = asyncio.Event()

        async def never(request):
            hangs.set()
            await asyncio.Event().wait()

        cloud.tunnel.model = never
        await send(app, "e1")
        await hangs.wait()
    cloud.tunnel.model = no_serving
    agent, exporter = traced_agent(agent_config())
    async with running(agent) as app:
        await app.results(1)
    runs = [span for span in exporter.get_finished_spans() if span.name == "run"]
    assert [f"{span.context.trace_id:032x}" for span in runs] == [TRACE]


async def test_without_an_exporter_nothing_is_kept_of_a_trace(cloud, agent_config, tmp_path):
    async with running(Agent(agent_config())) as app:
        await ready(cloud, app)
        await send(app, "e1")
        await app.results(1)
    assert cloud.tunnel.requests[0].traceparent == ""
    with closing(sqlite3.connect(tmp_path / "state" / "agent.db")) as store:
        assert store.execute("SELECT DISTINCT traceparent FROM events").fetchall() == [("",)]
