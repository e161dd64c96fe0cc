"""What a real simulator, in a process of its own, says of good and bad versions."""

import json

import pytest

from isthmus.deployer.v1 import manifest_pb2, preflight_pb2
from libs.common.errors import Invalid, NotFound
from services.device_agent.simulator.testing import Bench, lines

State = preflight_pb2.Preflight.State

GOOD = """
def pre(context):
    n = context.events[-1].fields["n"]
    context.send("out", {"n": n})
    context.send("out", {"user": context.events[-1].user})
    return {"n": n}
"""
OUT = {"out": [("n", "number")]}


async def test_a_good_version_passes_with_its_figures(bench: Bench) -> None:
    found = await bench.simulate(GOOD, lines(1, 2, 3), uploads=OUT)
    assert (found.state, found.reason, found.message) == (State.STATE_PASSED, "", "")
    assert (found.event_count, found.run_count, found.failure_count) == (3, 3, 0)
    assert (found.frame_count, found.refused_frame_count) == (3, 3)
    assert found.frame_bytes == 3 * len('{"n":1}')
    assert found.HasField("end_time")
    times = found.p50_run_time.ToTimedelta(), found.p99_run_time.ToTimedelta()
    assert 0 < times[0].total_seconds() <= times[1].total_seconds()
    assert found.events == bench.recording(lines(1, 2, 3))
    without = await bench.simulate(GOOD, uploads=OUT)
    assert (without.state, without.run_count, without.HasField("events")) == (State.STATE_PASSED, 0, False)
    assert bench.simulator.scratch == []


async def test_a_failing_run_fails_it_and_names_the_line(bench: Bench) -> None:
    script = "def pre(context):\n    return {'n': 1 / context.events[-1].fields['n']}\n"
    found = await bench.simulate(script, lines(1, 2, 0, 4))
    assert (found.state, found.reason) == (State.STATE_FAILED, "EXCEPTION")
    assert found.message.startswith("line 3 of the events ('rate' of user 'u1' at 1002.000): ")
    assert "ZeroDivisionError" in found.message
    assert 'pre.py", line 2' in found.message
    assert (found.event_count, found.run_count, found.failure_count) == (4, 4, 1)


async def test_what_a_script_does_to_its_worker_is_its_own_failure(bench: Bench) -> None:
    loop = await bench.simulate("def pre(context):\n    while True: pass\n", lines(1), wall_time_s=0.5)
    assert (loop.state, loop.reason, loop.run_count) == (State.STATE_FAILED, "TIMEOUT", 1)
    hog = await bench.simulate(
        "def pre(context):\n    x = []\n    while True: x.append(bytes(1 << 20))\n", lines(1), wall_time_s=30
    )
    assert (hog.state, hog.reason) == (State.STATE_FAILED, "MEMORY")
    dead = await bench.simulate("import os\ndef pre(context):\n    os.kill(os.getpid(), 9)\n", lines(1))
    assert (dead.state, dead.reason) == (State.STATE_FAILED, "CRASH")
    open_ = await bench.simulate("def pre(context):\n    return open('/etc/passwd').read()\n", lines(1))
    assert (open_.state, open_.reason) == (State.STATE_FAILED, "EXCEPTION")
    assert "PermissionError" in open_.message
    assert (await bench.simulate(GOOD, lines(1), uploads=OUT)).state == State.STATE_PASSED


async def test_a_version_that_does_not_load_fails(bench: Bench) -> None:
    found = await bench.simulate("import no_such_module\ndef pre(context): return 1\n", lines(1))
    assert (found.state, found.reason, found.run_count) == (State.STATE_FAILED, "LOAD_ERROR", 0)
    assert "no_such_module" in found.message


async def test_events_that_trigger_nothing_fail_it(bench: Bench) -> None:
    found = await bench.simulate(GOOD, lines(1, 2, type_="other"))
    assert (found.state, found.reason) == (State.STATE_FAILED, "NOTHING_TRIGGERED")
    assert "2 events" in found.message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lines(1) + b"{}\n" + lines(2), r'events: line 2.*key "type" is missing'),
        (b"\n \n", "events: holds no event"),
        (lines(*range(10_001)), "events: has more than 10,000 events"),
    ],
)
async def test_a_bad_recording_is_refused_by_line(bench: Bench, content: bytes, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        await bench.simulate(GOOD, content)
    assert bench.simulator.scratch == []


async def test_tenants_never_get_one_anothers_files(bench: Bench) -> None:
    theirs = bench.version(GOOD, tenant="other")
    with pytest.raises(NotFound):
        await bench.caller.simulate(theirs, tenant="acme")
    recording = bench.recording(lines(1), tenant="other")
    with pytest.raises(NotFound):
        await bench.caller.simulate(bench.version(GOOD), recording)
    assert (await bench.caller.simulate(theirs, tenant="other")).state == State.STATE_PASSED


async def test_nothing_answers_what_is_asked_and_it_is_counted(bench: Bench) -> None:
    script = """
def pre(context):
    n = context.events[-1].fields["n"]
    answer = context.ask("ranker", {"item" if n else "undeclared": [n]}, timeout="5s")
    return {"answered": answer is not None}
"""
    manifest = bench.version(script)
    manifest.min_agent_version = "0.3.0"
    item = manifest_pb2.EndpointInput(name="item", datatype="INT64")
    manifest.endpoints.add(model="ranker", inputs=[item])
    good = await bench.caller.simulate(manifest, bench.recording(lines(1, 2)))
    assert (good.state, good.run_count, good.asked_count) == (State.STATE_PASSED, 2, 2)
    bad = await bench.caller.simulate(manifest, bench.recording(lines(1, 0)))
    assert (bad.state, bad.reason, bad.asked_count) == (State.STATE_FAILED, "BAD_REQUEST", 1)
    assert "undeclared" in bad.message


async def test_of_events_alike_the_line_is_that_of_the_one_that_failed(bench: Bench) -> None:
    script = "def pre(context):\n    return {'n': 1 / (context.features['seen']['count'] - 7)}\n"
    pipeline = {
        "seen": {
            "source": {"event": "rate"},
            "ops": [{"window": {"size": "1d", "max_events": 100}}, {"reduce": {"count": {"fn": "count"}}}],
        }
    }
    alike = b'{"type": "rate", "user": "u1", "time_s": 1000}\n' * 9
    found = await bench.simulate(script, b"\n" + alike, pipeline=json.dumps(pipeline))
    assert (found.reason, found.failure_count) == ("EXCEPTION", 1)
    assert found.message.startswith("line 8 of the events "), found.message
