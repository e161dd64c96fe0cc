"""kill -9 at each stage: what was acknowledged is there, effects appear once, no half version ever runs."""

import asyncio
import json
import os
import signal
import sqlite3
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from isthmus.device_agent.v1 import device_agent_pb2 as pb
from services.device_agent.testing.app import App, event, states
from services.device_agent.testing.tasks import task

SENDS = """
def run(context):
    n = context.events[-1].fields["n"]
    context.send("out", {"n": n})
    return {"n": n}
"""
UPLOADS = {"out": {"n": ("NUMBER", 0)}}
WAITS = """
import time
def gate(context):
    while not context.resource("gate").with_name("open").exists():
        time.sleep(0.01)
""" + SENDS.replace("    n =", "    gate(context)\n    n =")
V2 = SENDS.replace('return {"n": n}', 'return {"n": n, "v": 2}')


class Process:
    """An agent in a process of its own."""

    def __init__(self, agent_config) -> None:
        settings = agent_config()
        self.socket = settings.socket
        names = (
            "state_dir",
            "device_id",
            "gateway_target",
            "plaintext",
            "enrolment_token",
            "retry_initial_s",
            "retry_max_s",
            "vm_workers",
            "disk_reserve_bytes",
        )
        values = {f"ISTHMUS_DEVICE_AGENT_{name.upper()}": str(getattr(settings, name)) for name in names}
        self.environ = {**os.environ, **values}

    @asynccontextmanager
    async def __call__(self):
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.device_agent", env=self.environ, stderr=asyncio.subprocess.DEVNULL
        )
        # Connecting before it listens would only make gRPC wait longer before the next try.
        while not self.socket.exists() and self.process.returncode is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        app = App(self.socket)
        try:
            await app.stub.GetStatus(pb.GetStatusRequest(), wait_for_ready=True, timeout=60)
            yield app
        finally:
            await app.channel.close()
            if self.process.returncode is None:
                self.process.terminate()
                assert await self.process.wait() == 0

    async def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        self.socket.unlink(missing_ok=True)


@pytest.fixture
def agent(agent_config):
    return Process(agent_config)


def numbers(cloud):
    frames = cloud.frames["d1", "hello/out"]
    return [json.loads(frames[s].payload)["n"] for s in sorted(frames)]


@pytest.mark.parametrize("stage", ["Enrol", "Plan", "ReadBlob", "chunk", "Report"])
async def test_killed_while_the_cloud_is_at_a_stage(cloud, agent, tmp_path, stage):
    cloud.publish(task(source=SENDS, uploads=UPLOADS, resources={"big": bytes(200_000)}))
    await cloud.want("d1", {"hello": "1"})
    cloud.hold[stage] = asyncio.Event()
    async with agent():
        await cloud.reached[stage].wait()
        await agent.kill()
    cloud.hold.pop(stage).set()
    versions = tmp_path / "state" / "versions" / "hello"
    if stage != "Report":
        assert not versions.exists() or list(versions.iterdir()) == []
    async with agent() as app:
        await app.until(lambda s: states(s).get("hello@1") in ("ACTIVE", "CONFIRMED"))
        await app.send(event("go", "e1", n=1))
        await cloud.until(lambda: numbers(cloud) == [1])
        await cloud.until(lambda: "CONFIRMED" in cloud.stages("hello@1"))
        assert set(cloud.stages("hello@1")) == {"DOWNLOADED", "VERIFIED", "STAGED", "ACTIVATED", "CONFIRMED"}


async def test_killed_again_and_again_during_an_upgrade_it_never_runs_half_a_version(cloud, agent, tmp_path):
    cloud.publish(task(version="1", source=SENDS, uploads=UPLOADS))
    cloud.publish(task(version="2", source=V2, uploads=UPLOADS, resources={"big": bytes(300_000)}))
    await cloud.want("d1", {"hello": "1"})
    async with agent() as app:
        await app.until_state("hello@1", "ACTIVE")
    for stage in ("Plan", "ReadBlob", "chunk", "Report"):
        cloud.hold[stage] = asyncio.Event()
        await cloud.want("d1", {"hello": "2"}, "r2")
        cloud.reached.pop(stage, None)
        async with agent() as app:
            await cloud.reached[stage].wait()
            running = {
                k for k, state in states(await app.status()).items() if state in ("ACTIVE", "CONFIRMED")
            }
            assert len(running) == 1
            await agent.kill()
        cloud.hold.pop(stage).set()
    async with agent() as app:
        await app.until(lambda s: states(s).get("hello@2") in ("ACTIVE", "CONFIRMED"))
        await app.send(event("go", "e1", n=1))
        results = await app.results(1)
        assert json.loads(results[0].result_json) == {"n": 1, "v": 2}


async def test_events_acknowledged_before_a_kill_have_each_their_one_result_and_frame(cloud, agent):
    cloud.publish(task(source=SENDS, uploads=UPLOADS, pending=4096))
    await cloud.want("d1", {"hello": "1"})
    sent = 0
    async with agent() as app:
        await app.until_state("hello@1", "ACTIVE")
    for _ in range(4):
        async with agent() as app:
            events = [event("go", f"e{sent + i}", n=sent + i) for i in range(40)]
            await app.send(*events)
            sent += 40
            # Some are done, some run, some wait.
            await app.until(lambda s, sent=sent: s.counters.success_count > sent - 40)
            await agent.kill()
    async with agent() as app:
        await app.send(*(event("go", f"e{i}", n=i) for i in range(sent)))  # an app that isn't sure: all again
        await app.until(lambda s: s.counters.success_count == sent)
        results = await app.all_results()
        assert sorted(json.loads(result.result_json)["n"] for result in results) == list(range(sent))
        await cloud.until(lambda: len(cloud.frames["d1", "hello/out"]) == sent)
        assert sorted(numbers(cloud)) == list(range(sent))
        status = await app.until(lambda s: s.counters.acked_frame_count == sent)
        assert status.counters.event_count == status.counters.trigger_count == sent


async def test_a_run_interrupted_by_a_kill_runs_again_and_its_effects_appear_once(cloud, agent, tmp_path):
    cloud.publish(task(source=WAITS, uploads=UPLOADS, resources={"gate": b""}, wall_s=60.0))
    await cloud.want("d1", {"hello": "1"})
    async with agent() as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.send(event("go", "e1", n=1))
        await app.until(lambda s: s.counters.trigger_count == 1)
        await agent.kill()
    (tmp_path / "state" / "versions" / "hello" / "1" / "open").touch()
    async with agent() as app:
        (result,) = await app.results(1)
        assert json.loads(result.result_json) == {"n": 1}
        await cloud.until(lambda: numbers(cloud) == [1])
        await app.until(lambda s: s.counters.acked_frame_count == 1)
        assert len(await app.all_results()) == 1


async def test_killed_before_an_ack_it_sends_the_frame_again_and_the_cloud_keeps_one(cloud, agent):
    cloud.publish(task(source=SENDS, uploads=UPLOADS))
    await cloud.want("d1", {"hello": "1"})
    async with agent() as app:
        await app.until_state("hello@1", "ACTIVE")
        cloud.hold["ack"] = asyncio.Event()
        await app.send(event("go", "e1", n=1))
        await cloud.until(lambda: numbers(cloud) == [1])
        await agent.kill()
    cloud.hold.pop("ack").set()
    async with agent() as app:
        await app.until(lambda s: s.counters.acked_frame_count == 1)
        await app.send(event("go", "e2", n=2))
        await cloud.until(lambda: numbers(cloud) == [1, 2])


async def test_killed_after_a_version_failed_the_failure_is_reported_and_the_version_does_not_come_back(
    cloud, agent
):
    cloud.publish(task(version="1", source=SENDS, uploads=UPLOADS))
    bad = 'def run(context):\n    raise ValueError("bad")\n'
    cloud.publish(task(version="2", source=bad, max_failures=2))
    await cloud.want("d1", {"hello": "1"})
    async with agent() as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.send(event("go", "e0", n=0))
        await app.until_state("hello@1", "CONFIRMED")
        await cloud.want("d1", {"hello": "2"}, "r2")
        await app.until_state("hello@2", "ACTIVE")
        await cloud.until(lambda: "ACTIVATED" in cloud.stages("hello@2"))
        cloud.hold["Report"] = asyncio.Event()
        cloud.reached.pop("Report")
        await app.send(event("go", "e1", n=1), event("go", "e2", n=2))
        await app.until(lambda s: states(s) == {"hello@1": "CONFIRMED", "hello@2": "FAILED"})
        await cloud.reached["Report"].wait()
        await agent.kill()
    cloud.hold.pop("Report").set()
    async with agent() as app:
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@2"))
        assert cloud.stages("hello@2").count("FAILED") == 1
        await app.send(event("go", "e3", n=3))
        await app.results(4)
        assert states(await app.status()) == {"hello@1": "CONFIRMED", "hello@2": "FAILED"}


async def test_killed_between_the_last_failure_and_the_roll_back_it_rolls_back_at_the_start(
    cloud, agent, tmp_path
):
    cloud.publish(task(version="1", source=SENDS, uploads=UPLOADS))
    bad = 'def run(context):\n    raise ValueError("bad")\n'
    cloud.publish(task(version="2", source=bad, max_failures=3))
    await cloud.want("d1", {"hello": "1"})
    async with agent() as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.send(event("go", "e0", n=0))
        await app.until_state("hello@1", "CONFIRMED")
        await cloud.want("d1", {"hello": "2"}, "r2")
        await app.until_state("hello@2", "ACTIVE")
        await app.send(event("go", "e1", n=1), event("go", "e2", n=2))
        await app.until(lambda s: s.counters.failure_count == 2)
        await agent.kill()
    # The third failure was counted, and then the lights went out.
    with sqlite3.connect(tmp_path / "state" / "agent.db") as connection:
        connection.execute("UPDATE versions SET failures_in_a_row = 3 WHERE version = '2'")
    connection.close()
    async with agent() as app:
        assert states(await app.status()) == {"hello@1": "CONFIRMED", "hello@2": "FAILED"}
        await cloud.until(lambda: "FAILED" in cloud.stages("hello@2"))
    failed = [report for report in cloud.reports.values() if report.failure_reason]
    assert [(report.version, report.failure_reason) for report in failed] == [("2", "EXCEPTION")]
    assert failed[0].failure_message.startswith(
        "3 failures in a row; the last: ValueError (run.py, line 2, in run)"
    )


async def test_a_stopped_agent_leaves_no_process_behind(cloud, agent):
    cloud.publish(task(source=SENDS, uploads=UPLOADS))
    await cloud.want("d1", {"hello": "1"})
    async with agent() as app:
        await app.until_state("hello@1", "ACTIVE")
        children = _children(agent.process.pid)
        assert children
        await agent.kill()
    while any(_alive(pid) for pid in children):  # noqa: ASYNC110 - nothing tells of a grandchild's end
        await asyncio.sleep(0.02)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
