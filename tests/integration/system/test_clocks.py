"""A device whose clock is wrong, against the real gateway, deployer and tunnel."""

import asyncio
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from libs.common.clock import SystemClock
from services.device_agent.app import Agent
from services.device_agent.config import AgentConfig
from services.device_agent.enrolling import CREDENTIAL
from services.device_agent.identity import Credential
from services.device_agent.store import values
from services.device_agent.testing.app import event, running
from tests.integration.system.world import PATIENCE_S, Cloud, publish

pytestmark = pytest.mark.timeout(300)

ECHO = """
def run(context):
    context.send("out", {"n": context.events[-1].fields["n"]})
    return {}
"""


class WrongClock(SystemClock):
    """Wrong by so many seconds."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead = timedelta(seconds=ahead_s)

    def now(self) -> datetime:
        return super().now() + self._ahead


async def stored(agent: Agent) -> Credential:
    """Return the credential that the agent would go on with after a restart."""
    found = await agent.database.run(lambda connection: values.get_blob(connection, CREDENTIAL))
    assert found is not None
    return Credential.from_json(found)


@pytest.mark.parametrize("ahead_s", [-40 * 86400.0, 3600.0])
async def test_a_wrong_clock_changes_nothing_and_the_credential_is_renewed(
    cloud: Cloud, tmp_path: Path, ahead_s: float
) -> None:
    name = f"clock{'ahead' if ahead_s > 0 else 'behind'}"
    version = await asyncio.to_thread(publish, cloud, name, "1", ECHO)
    token = await asyncio.to_thread(cloud.enrolment_token)
    config = AgentConfig(
        state_dir=tmp_path,
        device_id=name,
        gateway_target=cloud.gateway,
        plaintext=True,
        enrolment_token=token,
        attributes=(f"fleet={name}",),
        socket_path=cloud.home / f"{name}.sock",
        disk_reserve_bytes=0,
        vm_workers=1,
        retry_initial_s=0.05,
    )
    agent = Agent(config, clock=WrongClock(ahead_s))
    async with asyncio.timeout(PATIENCE_S), running(agent) as app:
        # Nothing runs yet: the hint comes over the held stream.
        await app.until(lambda s: s.push_connected and not s.problems)
        await asyncio.to_thread(
            cloud.isthmus, "release", "create", version.key, "--attribute", f"fleet={name}"
        )
        await app.until_state(version.key, "ACTIVE")
        happened_s = time.time()
        await app.send(
            event("tick", "e1", time_s=happened_s + ahead_s, n=1),
            event("tick", "e2", time_s=happened_s + ahead_s, n=2),
        )
        await app.until(lambda s: s.counters.acked_frame_count == 2 and not s.problems)
        await app.until_state(version.key, "CONFIRMED")
        assert abs(agent.cloud_clock.offset_s + ahead_s) < 30
        first = await stored(agent)
        assert abs(first.issued_s - happened_s) < PATIENCE_S
        # As if half of its life had passed while the device was off.
        aged = replace(first, issued_s=2 * (happened_s - 60) - first.expires_s)
        await agent.database.run(lambda connection: values.set_blob(connection, CREDENTIAL, aged.to_json()))

    frames = [f for f in await asyncio.to_thread(cloud.exported) if f["stream"] == f"{name}/out"]
    assert [frame["payload"]["n"] for frame in frames] == [1, 2]
    # Apps' times are by the device's clock; in the cloud they are by the cloud's.
    for frame in frames:
        told = datetime.fromisoformat(frame["event_time"].replace("Z", "+00:00")).timestamp()
        assert abs(told - happened_s) < 30

    again = Agent(replace(config, enrolment_token=""), clock=WrongClock(ahead_s))
    async with asyncio.timeout(PATIENCE_S), running(again) as app:
        while (renewed := await stored(again)).token == aged.token:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)
        assert renewed.expires_s >= first.expires_s
        # What it holds now is good: the next event's frame goes up with it.
        await app.send(event("tick", "e3", n=3))
        await app.until(lambda s: s.counters.acked_frame_count == 3 and not s.problems)
