"""Requests to models: answered once, in time, or not at all."""

import asyncio
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from isthmus.tunnel.v1 import tunnel_pb2
from libs.common.telemetry import Telemetry
from libs.common.testing import FakeClock, FakeRandomness
from libs.task.manifest import check_manifest
from libs.task.tensor import DATATYPES, Tensor
from libs.task.testing import make_manifest
from services.device_agent.asking import Requests, RunAsks
from services.device_agent.convert_requests import from_answer, to_request
from services.device_agent.signals import Problems
from services.device_agent.tracing import Spans
from services.device_agent.vm import Ask, Reply

ITEM = Tensor("item", "INT64", (), pack("<q", 7))
SCORE = Tensor("score", "FP32", (1,), pack("<f", 0.5))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def requests(clock):
    made = Requests(None, clock, FakeRandomness(), Problems())  # type: ignore[arg-type]  # only its loop stores
    made.opened()
    return made


def problems(requests):
    return requests._problems.texts()


def ask(timeout_s=0.2, outputs=(), model="ranker"):
    return Ask(model, (ITEM,), timeout_s, outputs)


def answer(number, *outputs, **members):
    tensors = [
        tunnel_pb2.Tensor(name=t.name, datatype=t.datatype, shape=t.shape, content=t.content) for t in outputs
    ]
    return tunnel_pb2.Answer(id=number, outputs=tensors, **members)


def manifest():
    made = make_manifest()
    made.endpoints.add(model="ranker").inputs.add(name="item", datatype="INT64")
    made.min_agent_version = "0.3.0"
    return check_manifest(made)


async def start(requests, *arguments, **keywords):
    """Ask, and return the task and the message that goes to the cloud."""
    asking = asyncio.create_task(requests.ask(ask(*arguments, **keywords)))
    return asking, (await requests.next()).request


async def late(requests, clock, count=1):
    for _ in range(count):
        asking, request = await start(requests)
        await clock.wait_for_sleepers(1)
        clock.advance(0.2)
        assert (await asking).why == "no answer within 200ms"
    return request


async def test_an_answer_finds_its_request_in_any_order(requests):
    first, one = await start(requests)
    second, two = await start(requests)
    assert one.id != two.id
    assert (one.model, one.timeout.ToMilliseconds(), list(one.outputs)) == ("ranker", 200, [])
    requests.answered(answer(two.id, SCORE))
    assert await second == Reply((SCORE,))
    assert not first.done()
    requests.answered(answer(one.id, failure_reason="NO_SERVING", failure_message="none"))
    assert await first == Reply(why="NO_SERVING: none")
    assert problems(requests) == ["model ranker: NO_SERVING: none"]
    assert requests.take_counts() == {
        "request_count": 2,
        "request_bytes": 16,
        "answer_count": 1,
        "answer_bytes": 4,
    }


async def test_the_time_of_a_message_is_what_is_left(requests, clock):
    asking = asyncio.create_task(requests.ask(ask(2.0)))
    await clock.wait_for_sleepers(1)
    clock.advance(1.5)
    assert (await requests.next()).request.timeout.ToMilliseconds() == 500
    asking.cancel()


async def test_a_request_whose_time_is_over_before_it_was_sent_is_never_sent(requests, clock):
    asking = asyncio.create_task(requests.ask(ask()))
    await clock.wait_for_sleepers(1)
    clock.advance(0.2)
    await asking
    other = asyncio.create_task(requests.ask(ask(model="other")))
    assert (await requests.next()).request.model == "other"
    assert requests.counts["request_bytes"] == 8
    other.cancel()


async def test_a_late_answer_is_counted_once_and_an_unknown_one_is_nothing(requests, clock):
    request = await late(requests, clock)
    for _ in range(2):
        requests.answered(answer(request.id, SCORE))
    requests.answered(answer(12345, SCORE))
    assert requests.take_counts() == {"request_count": 1, "request_bytes": 8, "late_answer_count": 1}


async def test_a_run_that_is_killed_gives_its_request_up(requests):
    asking, request = await start(requests)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    requests.answered(answer(request.id, SCORE))
    assert requests.counts["late_answer_count"] == 1
    assert requests.counts["answer_count"] == 0


async def test_a_connection_that_ends_takes_its_requests_with_it(requests):
    sent, _ = await start(requests)
    waiting = asyncio.create_task(requests.ask(ask()))
    await asyncio.sleep(0)
    requests.closed()
    assert (await sent).why == (await waiting).why == "the connection to the cloud ended"
    assert (await requests.ask(ask())).why == "not connected to the cloud"
    requests.opened()
    again, request = await start(requests)
    requests.answered(answer(request.id, SCORE))
    assert (await again).outputs == (SCORE,)


async def test_after_three_misses_a_model_is_not_asked_for_a_while_and_others_are(requests, clock):
    await late(requests, clock, 2)
    assert problems(requests) == []
    await late(requests, clock)
    assert [text.partition(";")[0] for text in problems(requests)] == [
        "model ranker: requests aren't answered in time"
    ]
    assert (await requests.ask(ask())).why == "paused, since requests were not answered in time"
    other, request = await start(requests, model="other")
    requests.answered(answer(request.id, SCORE))
    assert (await other).outputs == (SCORE,)
    clock.advance(1.0)
    trial, request = await start(requests)
    assert (await requests.ask(ask())).why.startswith("paused")
    requests.answered(answer(request.id, SCORE))
    assert (await trial).outputs == (SCORE,)
    assert problems(requests) == []
    again, request = await start(requests)
    again.cancel()


async def test_a_new_connection_ends_the_pause(requests, clock):
    await late(requests, clock, 3)
    requests.closed()
    requests.opened()
    asking, request = await start(requests)
    requests.answered(answer(request.id, SCORE))
    assert (await asking).outputs == (SCORE,)


async def test_how_it_went_with_a_model_is_forgotten_with_the_last_task_that_asks_it(requests, clock):
    await late(requests, clock, 3)
    requests.keep(["ranker", "other"])
    assert (await requests.ask(ask())).why.startswith("paused")
    assert len(problems(requests)) == 1
    requests.keep(["other"])
    assert problems(requests) == []
    asking, request = await start(requests)
    requests.answered(answer(request.id, SCORE))
    assert (await asking).outputs == (SCORE,)


async def test_requests_that_are_late_together_begin_with_the_first_pause(requests, clock):
    together = [asyncio.create_task(requests.ask(ask())) for _ in range(8)]
    await clock.wait_for_sleepers(8)
    clock.advance(0.2)
    await asyncio.gather(*together)
    assert (await requests.ask(ask())).why.startswith("paused")
    clock.advance(0.5)
    trial, request = await start(requests)
    requests.answered(answer(request.id, SCORE))
    assert (await trial).outputs == (SCORE,)


async def test_open_requests_are_bounded(requests):
    open_ = [asyncio.create_task(requests.ask(ask())) for _ in range(16)]
    await asyncio.sleep(0)
    assert (await requests.ask(ask())).why == "16 requests are open already"
    requests.closed()
    await asyncio.gather(*open_)


async def test_wanted_outputs_are_picked_here_and_a_missing_one_is_named(requests):
    asks = RunAsks(requests, manifest(), Spans(Telemetry("test")), "")
    other = Tensor("other", "BOOL", (1,), b"\1")
    asking = asyncio.create_task(asks.answer(ask(outputs=("other",))))
    request = (await requests.next()).request
    assert list(request.outputs) == []  # a name would be text that no manifest declares
    requests.answered(answer(request.id, SCORE, other))
    assert await asking == Reply((other,))
    asking = asyncio.create_task(asks.answer(ask(outputs=("scores",))))
    requests.answered(answer((await requests.next()).request.id, SCORE))
    assert (await asking).why == "the model has no output 'scores'; it has: score"


async def test_a_span_says_what_the_cloud_said_and_nothing_of_the_scripts(requests):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = Spans(Telemetry("test", tracer_provider=provider))
    asks = RunAsks(requests, manifest(), spans, "")
    for members in ({}, {"failure_reason": "NO_SERVING"}):
        asking = asyncio.create_task(asks.answer(ask(outputs=("alice",))))
        outputs = () if members else (SCORE,)
        requests.answered(answer((await requests.next()).request.id, *outputs, **members))
        await asking
    with pytest.raises(ValueError, match="alice"), spans.span("run", ""):
        raise ValueError("alice")
    told = [(span.name, span.status.description, len(span.events)) for span in exporter.get_finished_spans()]
    assert told == [("ask", None, 0), ("ask", "NO_SERVING", 0), ("run", "ValueError", 0)]


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        ((), "the answer has no outputs"),
        ((Tensor("s", "BYTES", (1,), b"x"),), "output 's' has the unknown datatype 'BYTES'"),
        ((Tensor("s", "FP32", (2,), b"1234"),), "output 's' has 4 bytes where its shape needs 8"),
        ((Tensor("s", "FP32", (-1, -1), b"1234"),), "output 's' has a negative dimension"),
        ((Tensor("s", "FP32", (0, 2**62), b""),), "output 's' has too many elements"),
        ((SCORE, SCORE), "the answer has two outputs of one name"),
        ((SCORE,) * 33, "the answer has more than 32 outputs"),
        ((Tensor("s" * 129, "BOOL", (1,), b"1"),), "an output has a name of more than 128 bytes"),
        ((Tensor("s", "BOOL", (2**20 + 1,), bytes(2**20 + 1)),), "the answer has more than 1048576 bytes"),
    ],
)
def test_a_malformed_answer_is_none_and_says_why(outputs, why):
    assert from_answer(answer(1, *outputs)) == (None, why)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_of_an_answer_are_read_or_refused(data):
    message = tunnel_pb2.Answer()
    try:
        message.ParseFromString(data)
    except Exception:
        return
    outputs, why = from_answer(message)
    assert bool(why) == (outputs is None)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(list(DATATYPES)), st.lists(st.integers(0, 3), max_size=3)),
        min_size=1,
        max_size=3,
    )
)
def test_tensors_pass_both_ways_unchanged(kinds):
    tensors = []
    for number, (datatype, shape) in enumerate(kinds):
        size = DATATYPES[datatype]
        for extent in shape:
            size *= extent
        tensors.append(Tensor(f"t{number}", datatype, tuple(shape), bytes(size)))
    request = to_request(1, "m", tensors, 0.5, "").request
    back, _ = from_answer(tunnel_pb2.Answer(id=1, outputs=request.inputs))
    assert back == tuple(tensors)


async def test_a_run_asks_only_what_its_manifest_declares(requests):
    asks = RunAsks(requests, manifest(), Spans(Telemetry("test")), "")
    refused = await asks.answer(ask(model="rankr"))
    assert "did you mean 'ranker'?" in refused.refusal
    asking = asyncio.create_task(asks.answer(ask()))
    request = (await requests.next()).request
    assert request.traceparent == ""
    requests.answered(answer(request.id, SCORE))
    assert (await asking).outputs == (SCORE,)
    first, second = asks.made
    assert (first.refused, first.answered, second.refused, second.answered) == (True, False, False, True)
    assert requests.counts["request_count"] == 1
