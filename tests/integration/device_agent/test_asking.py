"""`context.ask` from a script to a cloud and back; without one the device goes on as if nobody had asked."""

import asyncio
import json
from struct import pack, unpack

from isthmus.tunnel.v1 import tunnel_pb2
from services.device_agent.app import Agent
from services.device_agent.testing.app import running
from services.device_agent.testing.tasks import task

ASKS = """
def run(context):
    fields = context.events[-1].fields
    found = context.ask(
        "ranker", {"item": fields["n"], "history": [fields["n"]] * 3}, timeout=fields.get("timeout", "20s")
    )
    score = None if found is None else float(found["score"][0])
    return {"n": fields["n"], "score": score, "log": context.log_lines}
"""
RANKER = {"ranker": {"item": ("INT64", 1), "history": ("INT64", 10)}}


async def score(request):
    """Answer with half of the item's number."""
    (item,) = unpack("<q", request.inputs[0].content)
    output = tunnel_pb2.Tensor(name="score", datatype="FP32", shape=[1], content=pack("<f", item / 2))
    return tunnel_pb2.Answer(id=request.id, model_version="3", outputs=[output])


async def asking(cloud, app, source=ASKS, **settings):
    cloud.publish(task(source=source, pending=4096, endpoints=RANKER, **settings))
    await cloud.want("d1", {"hello": "1"})
    await app.until_state("hello@1", "ACTIVE")
    await app.until(lambda status: status.tunnel_connected)


async def ask(app, number, **fields):
    """Trigger a run and return its result."""
    before = len(await app.all_results())
    await app.go(first=number, n=number, **fields)
    found = (await app.results(before + 1))[-1]
    return json.loads(found.result_json) if found.result_json else found


async def test_an_answer_of_the_cloud_reaches_the_script(cloud, agent_config):
    cloud.tunnel.model = score
    async with running(Agent(agent_config())) as app:
        await asking(cloud, app)
        asked = [await ask(app, number) for number in range(1, 4)]
        assert [each["score"] for each in asked] == [0.5, 1.0, 1.5]
        assert all(not each["log"] for each in asked)
        counters = (await app.status()).counters
        assert counters.request_count == counters.answer_count == len(cloud.tunnel.requests) == 3
        assert (counters.request_bytes, counters.answer_bytes) == (3 * 32, 3 * 4)
        assert (counters.late_answer_count, counters.refused_request_count) == (0, 0)


async def test_nothing_leaves_but_declared_inputs(cloud, agent_config):
    """The wire holds the inputs of the requests, and nothing else of the events."""
    cloud.tunnel.model = score
    async with running(Agent(agent_config())) as app:
        await asking(cloud, app)
        found = await ask(app, 11, secret="alice-was-here")
        assert found["score"] == 5.5
    sent = b"".join(data for messages in cloud.wire.values() for data in messages)
    assert b"alice-was-here" not in sent
    assert len(cloud.tunnel.requests) == 1
    for data in cloud.wire["Connect"]:
        message = tunnel_pb2.ConnectRequest.FromString(data)
        if message.HasField("request"):
            request = message.request
            (number,) = unpack("<q", request.inputs[0].content)
            assert 0 < request.timeout.ToMicroseconds() <= 20_000_000
            request.ClearField("timeout")
            assert request == tunnel_pb2.Request(
                id=request.id,
                model="ranker",
                inputs=[
                    tunnel_pb2.Tensor(name="item", datatype="INT64", shape=[], content=pack("<q", number)),
                    tunnel_pb2.Tensor(
                        name="history", datatype="INT64", shape=[3], content=pack("<3q", *[number] * 3)
                    ),
                ],
            )


UNDECLARED = """
def run(context):
    fields = context.events[-1].fields
    try:
        context.ask(fields["model"], fields["inputs"] and {fields["inputs"]: fields["value"]})
    except Exception:
        pass
    return {"caught": True}
"""


async def test_what_is_not_declared_is_refused_counted_and_fails_the_run(cloud, agent_config):
    cloud.tunnel.model = score
    wrong = [
        {"model": "alice-model", "inputs": "item", "value": 1},
        {"model": "ranker", "inputs": "alice-input", "value": 1},
        {"model": "ranker", "inputs": "item", "value": "alice-value"},
        {"model": "ranker", "inputs": "item", "value": [1, 2]},
    ]
    async with running(Agent(agent_config())) as app:
        await asking(cloud, app, UNDECLARED, max_failures=4)
        for number, fields in enumerate(wrong):
            await app.go(first=number, **fields)
        results = await app.results(4)
        assert [result.failure_reason for result in results] == ["BAD_REQUEST"] * 4
        assert (
            "'alice-model' is not declared by the manifest; it declares: ranker" in results[0].failure_message
        )
        assert "input 'alice-input' is not declared" in results[1].failure_message
        assert "which is no INT64" in results[2].failure_message
        assert "has 2 elements, more than the declared 1" in results[3].failure_message
        status = await app.until(lambda s: s.counters.refused_request_count == 4)
        assert (status.counters.request_count, status.counters.request_bytes) == (0, 0)
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@1"))
    assert cloud.tunnel.requests == []
    assert b"alice" not in b"".join(data for messages in cloud.wire.values() for data in messages)


async def test_a_cloud_without_models_is_none_at_once(cloud, agent_config):
    async with running(Agent(agent_config())) as app:
        await asking(cloud, app)
        found = await ask(app, 1)
        assert found["score"] is None
        assert found["log"] == ["ask ranker: NO_SERVING: no models here"]
        await app.until_problem("model ranker: NO_SERVING")


async def test_nothing_is_kept_for_a_task_that_is_gone(cloud, agent_config):
    async with running(Agent(agent_config())) as app:
        await asking(cloud, app)
        await ask(app, 1)
        await app.until_problem("model ranker: NO_SERVING")
        await cloud.want("d1", {})
        await app.until(lambda status: not status.tunnel_connected and not status.problems)


async def test_a_tunnel_that_nothing_needs_any_more_is_no_problem(cloud, agent_config):
    async with running(Agent(agent_config())) as app:
        await asking(cloud, app, "def run(context):\n    raise ValueError\n", max_failures=1)
        await cloud.stop()
        await app.until_problem("tunnel: ")
        await app.go()  # it fails, and with it the only version that asks
        await app.until(lambda status: not any(text.startswith("tunnel: ") for text in status.problems))


async def test_an_answer_that_comes_too_late_is_dropped_and_counted(cloud, agent_config):
    release = asyncio.Event()

    async def slow(request):
        await release.wait()
        return await score(request)

    async with running(Agent(agent_config())) as app:
        cloud.tunnel.model = score
        await asking(cloud, app)
        cloud.tunnel.model = slow
        made = []
        while not cloud.tunnel.requests:  # on a busy machine the time may be over before it is sent
            made.append(await ask(app, len(made), timeout="50ms"))
        assert {each["score"] for each in made} == {None}
        assert made[0]["log"] == ["ask ranker: no answer within 50ms"]
        release.set()
        status = await app.until(lambda s: s.counters.late_answer_count >= 1)
        assert (status.counters.request_count, status.counters.answer_count) == (len(made), 0)


async def test_without_the_cloud_the_device_goes_on_and_asks_again_after_its_return(cloud, agent_config):
    cloud.tunnel.model = score
    async with running(Agent(agent_config())) as app:
        await asking(cloud, app)
        await cloud.stop()
        await app.until(lambda s: not s.tunnel_connected)
        for number in range(1, 6):
            found = await ask(app, number)
            assert found["score"] is None
            assert found["log"] == ["ask ranker: not connected to the cloud"]
        await cloud.start()
        await app.until(lambda s: s.tunnel_connected)
        assert (await ask(app, 8))["score"] == 4.0


async def test_a_connection_without_streams_is_known_before_anything_is_asked(cloud, agent_config):
    async with running(Agent(agent_config())) as app:
        await asking(cloud, app)
        await app.until(lambda status: status.tunnel_connected)
        await cloud.stop()
        await app.until(lambda status: not status.tunnel_connected and bool(status.problems))
        await cloud.start()
        await app.until(lambda status: status.tunnel_connected and not status.problems)
        assert cloud.tunnel.requests == []


async def test_a_connection_that_ends_answers_what_is_open_with_none(cloud, agent_config):
    hangs = asyncio.Event()
    async with running(Agent(agent_config())) as app:
        cloud.tunnel.model = score
        await asking(cloud, app)

        async def never(request):
            hangs.set()
            await asyncio.Event().wait()

        cloud.tunnel.model = never
        waiting = asyncio.create_task(ask(app, 1))
        await hangs.wait()
        await cloud.stop()
        found = await waiting
        assert found["log"] == ["ask ranker: the connection to the cloud ended"]


async def test_requests_and_frames_share_the_connection(cloud, agent_config):
    source = ASKS.replace("    return", '    context.send("out", {"n": fields["n"]})\n    return')
    cloud.tunnel.model = score
    async with running(Agent(agent_config(vm_workers=2))) as app:
        await asking(cloud, app, source, uploads={"out": {"n": ("NUMBER", 0)}})
        for number in range(100, 140):
            await app.go(first=number, user=f"u{number % 4}", n=number)
        await app.until(lambda s: s.counters.success_count == 40 and not s.pending_run_count)
        results = [json.loads(result.result_json) for result in await app.all_results()]
        assert sorted(each["n"] for each in results) == list(range(100, 140))
        assert all(each["score"] == each["n"] / 2 for each in results)
        await cloud.until(
            lambda: {
                json.loads(frame.payload)["n"] for frame in cloud.frames["d1", "hello/out"].values()
            }.issuperset(range(100, 140))
        )
        assert cloud.calls["Connect"] <= 2


async def test_a_run_made_again_after_an_interruption_asks_again(cloud, agent_config):
    asked = asyncio.Event()

    async def never(request):
        asked.set()
        await asyncio.Event().wait()

    async with running(Agent(agent_config())) as app:
        cloud.tunnel.model = score
        await asking(cloud, app)
        cloud.tunnel.model = never
        done = len(await app.all_results())
        await app.go(first=1, n=1)
        await asked.wait()
    before = len(cloud.tunnel.requests)
    cloud.tunnel.model = score
    async with running(Agent(agent_config())) as app:
        found = json.loads((await app.results(done + 1))[-1].result_json)
        # At once after a start there is no connection yet; the result is the run's, made once.
        assert found["n"] == 1
        await app.until(lambda s: s.tunnel_connected)
        assert (await ask(app, 8))["score"] == 4.0
    assert len(cloud.tunnel.requests) > before
