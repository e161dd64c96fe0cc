"""`isthmus agent send` at a real agent whose task lets few runs wait."""

import asyncio
import json

from libs.cli.main import main
from services.device_agent.app import Agent
from services.device_agent.testing.app import running
from services.device_agent.testing.tasks import task


async def test_a_burst_far_beyond_what_may_wait_loses_no_run(cloud, agent_config, tmp_path, capfd):
    cloud.publish(task(pending=4))
    await cloud.want("d1", {"hello": "1"})
    lines = [json.dumps({"type": "go", "time_s": 1_600_000_000 + i, "fields": {"n": i}}) for i in range(150)]
    (tmp_path / "events").write_text("\n".join(lines))
    agent = Agent(agent_config())
    async with running(agent) as app:
        socket = str(agent.config.socket)
        waited = ["agent", "status", "--socket", socket, "--wait-for", "hello@1", "--wait", "60s"]
        assert await asyncio.to_thread(main, waited) == 0
        sent = ["--json", "agent", "send", "--socket", socket, "--wait", "60s", str(tmp_path / "events")]
        capfd.readouterr()
        assert await asyncio.to_thread(main, sent) == 0
        assert json.loads(capfd.readouterr().out) == {
            "accepted_count": 150,
            "duplicate_count": 0,
            "dropped_run_count": 0,
            "withdrawn_run_count": 0,
            "pending_run_count": 0,
        }
        status = await app.status()
        assert (status.pending_event_count, status.pending_run_count) == (0, 0)
        assert status.event_room == 2
        assert len(await app.all_results()) == 150
