"""Requests through a real tunnel to a serving over gRPC that does what a test wants."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inference import open_inference_pb2 as pb
from libs.common.errors import Invalid, Precondition, Unavailable
from libs.common.identity import Identity, load_or_create_key
from libs.common.status import error_from_rpc
from libs.common.telemetry import Telemetry
from libs.common.testing import FakeClock, ServerChannel, eventually, running_server
from services.gateway.tunnel.testing import FakeServing
from services.serving.access import ACCESS
from tests.integration.tunnel.asking import HELLO, ROW, ask, connect, frame
from tests.integration.tunnel.conftest import Served, running_tunnel

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


@dataclass(frozen=True, slots=True)
class World:
    served: Served
    serving: FakeServing
    channel: ServerChannel
    spans: InMemorySpanExporter

    def requests(self, outcome: str) -> float:
        found = self.served.telemetry.registry.get_sample_value(
            "isthmus_tunnel_requests_total", {"outcome": outcome}
        )
        assert found is not None
        return found

    @property
    def open(self) -> float | None:
        return self.served.telemetry.registry.get_sample_value("isthmus_tunnel_open_requests")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    serving, spans = FakeServing(), InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    telemetry = Telemetry("tunnel", tracer_provider=provider)
    trusted = {"tunnel": load_or_create_key(tmp_path / "tunnel.key").public_key()}
    async with (
        running_server(serving, identity=None, access=ACCESS, audience="serving", trusted=trusted) as channel,
        running_tunnel(tmp_path, telemetry, serving_target=channel.target) as served,
    ):
        yield World(served, serving, channel, spans)


async def test_serving_hears_on_whose_behalf_the_tunnel_asks(world: World) -> None:
    asker = await connect(world.served, "phone-7", "rival")
    await asker.send(ask(1))
    answer = await asker.answer(1)
    assert (answer.model_version, answer.failure_reason) == ("v1", "")
    assert np.array_equal(await asker.result(1), ROW)
    assert world.serving.callers == [
        Identity("", "tunnel", "service", frozenset(), "tunnel", "tenants/rival/devices/phone-7")
    ]
    await eventually(lambda: world.requests("answered") == 1)
    assert world.open == 0
    await asker.end()


async def test_a_request_is_a_part_of_the_devices_trace(world: World) -> None:
    asker = await connect(world.served)
    await asker.send(ask(1, traceparent=f"00-{TRACE}-{SPAN}-01"), ask(2), ask(3, traceparent="no trace\n"))
    for number in (1, 2, 3):
        await asker.answer(number)
    await asker.end()
    (span,) = (
        each
        for each in world.spans.get_finished_spans()
        if each.name == "isthmus.tunnel.v1.Request" and each.context.trace_id == int(TRACE, 16)
    )
    assert span.parent is not None
    assert span.parent.span_id == int(SPAN, 16)
    assert span.attributes == {"isthmus.model": "m"}
    assert f"00-{TRACE}-{span.context.span_id:016x}-01" in world.serving.traces
    assert sum(TRACE in each for each in world.serving.traces) == 1


async def test_malformed_requests_are_answered_and_the_connection_lives_on(world: World) -> None:
    asker = await connect(world.served)
    await asker.send(
        ask(1, model="a/b"),
        ask(2, timeout_s=0),
        ask(3, inputs=[]),
        ask(4, np.zeros((1, 65_537), np.float32)),
        frame(1),
        ask(5),
    )
    await asker.result(5)
    reasons = [(await asker.answer(number)).failure_reason for number in (1, 2, 3, 4)]
    assert reasons == ["BAD_MODEL", "BAD_TIMEOUT", "BAD_INPUT", "REQUEST_TOO_LARGE"]
    await asker.until_acked(1)
    assert len(world.serving.callers) == 1
    assert world.requests("refused") == 4
    await asker.end()


async def test_serving_hears_that_a_device_has_gone(world: World) -> None:
    world.serving.gate.clear()
    asker = await connect(world.served)
    await asker.send(ask(1), ask(2))
    await eventually(lambda: len(world.serving.callers) == 2)
    assert world.open == 2
    await asker.end()
    await eventually(lambda: world.serving.cancelled == 2)
    await eventually(lambda: world.requests("cancelled") == 2 and world.open == 0)


async def test_a_fenced_connections_requests_are_cancelled_and_the_newer_one_asks(world: World) -> None:
    world.serving.gate.clear()
    older = await connect(world.served)
    await older.send(ask(1))
    await eventually(lambda: len(world.serving.callers) == 1)
    newer = await connect(world.served)
    await eventually(lambda: world.serving.cancelled == 1)
    failed = await older.ended()
    assert failed is not None
    assert error_from_rpc(failed).reason == "FENCED"
    world.serving.gate.set()
    await newer.send(ask(1))
    await newer.result(1)
    await newer.end()


async def test_late_answers_are_not_sent(world: World) -> None:
    world.serving.gate.clear()
    asker = await connect(world.served)
    await asker.send(ask(1, timeout_s=0.5))
    await eventually(lambda: world.requests("late") == 1)
    # Where the machine was so slow that it hadn't got there, there is nothing to cancel.
    await eventually(lambda: world.serving.cancelled == len(world.serving.callers))
    world.serving.gate.set()
    await asker.send(ask(2))
    await asker.result(2)
    assert set(asker.answers) == {2}
    await asker.end()


async def test_a_storm_is_refused_beyond_what_may_be_open(world: World) -> None:
    world.serving.gate.clear()
    asker = await connect(world.served)
    await asker.send(*(ask(number) for number in range(1, 501)))
    refused = [await asker.answer(number) for number in range(17, 501)]
    assert {answer.failure_reason for answer in refused} == {"TOO_MANY_REQUESTS"}
    assert world.open == 16
    world.serving.gate.set()
    for number in range(1, 17):
        await asker.result(number)
    assert len(world.serving.callers) == 16
    await asker.end()


async def test_serving_s_own_reason_reaches_the_device(world: World) -> None:
    world.serving.failure = Precondition("m: version v1 is loading", reason="MODEL_NOT_READY")
    asker = await connect(world.served)
    await asker.send(ask(1))
    answer = await asker.answer(1)
    assert (answer.failure_reason, answer.failure_message) == ("MODEL_NOT_READY", "m: version v1 is loading")
    assert world.requests("failed") == 1
    world.serving.failure = Unavailable("too late", reason="DEADLINE_EXCEEDED")
    await asker.send(ask(2))
    await eventually(lambda: world.requests("late") == 1)
    assert set(asker.answers) == {1}
    await asker.end()


def typed(request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    response = pb.ModelInferResponse(model_version="v1")
    response.outputs.add(name="y", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.0)
    return response


def large(size: int) -> Any:
    def respond(request: pb.ModelInferRequest) -> pb.ModelInferResponse:
        response = pb.ModelInferResponse(model_version="v1", raw_output_contents=[bytes(size)])
        response.outputs.add(name="y", datatype="UINT8", shape=[size])
        return response

    return respond


@pytest.mark.parametrize(
    ("respond", "reason"),
    [
        (typed, "BAD_ANSWER"),
        (large(1024 * 1024), ""),
        (large(1024 * 1024 + 1), "ANSWER_TOO_LARGE"),
        (large(5 * 1024 * 1024), "ANSWER_TOO_LARGE"),
    ],
)
async def test_answers_of_other_forms_and_sizes(world: World, respond: Any, reason: str) -> None:
    world.serving.respond = respond
    asker = await connect(world.served)
    await asker.send(ask(1))
    assert (await asker.answer(1)).failure_reason == reason
    await asker.end()


async def test_a_request_id_that_comes_twice_ends_the_connection(world: World) -> None:
    world.serving.gate.clear()
    asker = await connect(world.served)
    await asker.send(frame(1), ask(1))
    await eventually(lambda: len(world.serving.callers) == 1)
    await asker.send(ask(1))
    failed = await asker.ended()
    assert failed is not None
    error = error_from_rpc(failed)
    assert isinstance(error, Invalid)
    assert error.reason == "REQUEST_TWICE"
    assert asker.acked == 1
    await eventually(lambda: world.serving.cancelled == 1)


async def test_a_device_that_ends_its_side_still_hears_its_answers(world: World) -> None:
    world.serving.gate.clear()
    asker = await connect(world.served)
    await asker.send(frame(1), ask(1))
    await asker.call.done_writing()
    await asker.until_acked(1)
    world.serving.gate.set()
    await asker.result(1)
    assert await asker.ended() is None


async def test_a_shutdown_answers_what_ends_in_time_and_cancels_the_rest(tmp_path: Path) -> None:
    serving, clock = FakeServing(), FakeClock()
    serving.gate.clear()
    trusted = {"tunnel": load_or_create_key(tmp_path / "tunnel.key").public_key()}
    async with (
        running_server(
            serving, identity=None, access=ACCESS, audience="serving", trusted=trusted, clock=clock
        ) as channel,
        running_tunnel(tmp_path, clock=clock, serving_target=channel.target) as served,
    ):
        asker = await connect(served)
        await asker.send(ask(1))
        await eventually(lambda: len(serving.callers) == 1)
        asleep = clock.sleepers
        stopping = asyncio.create_task(served.server.stop(600.0))
        await clock.wait_for_sleepers(asleep + 1)  # streams have their grace now
        serving.gate.set()
        await asker.result(1)
        serving.gate.clear()
        await asker.send(ask(2))
        await eventually(lambda: len(serving.callers) == 2)
        clock.advance(2.0)
        failed = await asker.ended()
        assert failed is not None
        assert error_from_rpc(failed).reason == "SHUTTING_DOWN"
        await stopping
        await eventually(lambda: serving.cancelled == 1)


async def test_a_serving_that_does_not_know_the_tunnel(tmp_path: Path, caplog: Any) -> None:
    async with (
        running_server(FakeServing(), identity=None, access=ACCESS, audience="serving") as channel,
        running_tunnel(tmp_path, serving_target=channel.target) as served,
    ):
        asker = await connect(served)
        await asker.send(ask(1), frame(1))
        assert (await asker.answer(1)).failure_reason == "SERVING_MISTRUST"
        await asker.until_acked(1)
        assert "doesn't believe this tunnel" in caplog.text
        await asker.end()


async def test_without_serving_requests_are_refused_and_frames_go_on(served: Served) -> None:
    asker = await connect(served)
    await asker.send(ask(1), frame(1))
    answer = await asker.answer(1)
    assert answer.failure_reason == "NO_SERVING"
    assert "--serving-target" in answer.failure_message
    await asker.until_acked(1)
    await asker.end()


async def test_an_old_device_never_sees_an_answer(world: World) -> None:
    call = world.served.connect()
    await call.write(HELLO)
    for sequence in range(1, 101):
        await call.write(frame(sequence))
    await call.done_writing()
    kinds = set()
    while (response := await call.read()) is not grpc.aio.EOF:
        kinds.add(response.WhichOneof("kind"))
        acked = response.ack.sequence
    assert (kinds, acked) == ({"ack"}, 100)
    assert world.serving.callers == []
