"""Enrolment, credentials, clocks, and the state folder."""

import os
import socket
import stat
import subprocess
import sys

import pytest

from libs.common.errors import (
    AlreadyExists,
    Forbidden,
    Invalid,
    NotFound,
    Precondition,
    Unauthenticated,
    Unavailable,
)
from services.device_agent.app import Agent
from services.device_agent.errors import EXIT_CONFIG, EXIT_ENROLMENT, EnrolmentRefused, exit_code
from services.device_agent.process import main
from services.device_agent.testing.app import config, running
from services.device_agent.testing.tasks import task


async def test_the_key_is_made_once_and_private(cloud, agent_config, tmp_path):
    async with running(Agent(agent_config())) as app:
        await app.until(lambda s: s.device)
    key = tmp_path / "state" / "device.key"
    first = key.read_bytes()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    # Enrolled for good: no token, no id, and the cloud may be away.
    await cloud.stop()
    async with running(Agent(agent_config(enrolment_token="", device_id=""))) as app:
        assert (await app.status()).device == "tenants/acme/devices/d1"
    assert key.read_bytes() == first
    assert cloud.calls["Enrol"] == 1


async def test_enrolment_is_tried_again_until_the_cloud_is_there(cloud, agent_config):
    await cloud.stop()
    async with running(Agent(agent_config())) as app:
        await app.until_problem("enrolment")
        await app.go()  # events are taken meanwhile
        await cloud.start()
        status = await app.until(lambda s: s.device)
        assert status.counters.event_count == 1
        await app.until(lambda s: not s.problems)


async def test_a_refused_token_ends_the_agent_with_a_reason(cloud, agent_config):
    agent = Agent(agent_config(enrolment_token="wrong"))
    try:
        await agent.start()
        with pytest.raises(EnrolmentRefused, match="token: unknown or expired"):
            await agent.run()
    finally:
        await agent.close()


@pytest.mark.parametrize(
    "error",
    [
        Precondition("tenants/acme: has no trust root yet", reason="NO_ROOT"),
        Precondition("no such method", reason="UNIMPLEMENTED"),
        NotFound("not here"),
        Unavailable("not now"),
    ],
)
async def test_enrolment_waits_for_what_may_be_mended_in_the_cloud(cloud, agent_config, error):
    cloud.fail["Enrol"] = [error] * 3
    async with running(Agent(agent_config())) as app:
        await app.until(lambda s: s.device and not s.problems)
    assert cloud.calls["Enrol"] == 4


@pytest.mark.parametrize(
    "error",
    [
        AlreadyExists("d1: is enrolled with another key", reason="OTHER_KEY"),
        Forbidden("d1: was revoked", reason="DEVICE_REVOKED"),
        Unauthenticated("token: is used up", reason="TOKEN_USED_UP"),
        Invalid("attributes: too many", reason="BAD_ATTRIBUTE"),
    ],
)
async def test_what_the_cloud_says_about_the_device_itself_ends_the_agent(cloud, agent_config, error):
    cloud.fail["Enrol"] = [error]
    agent = Agent(agent_config())
    try:
        await agent.start()
        with pytest.raises(EnrolmentRefused) as caught:
            await agent.run()
    finally:
        await agent.close()
    assert (caught.value.reason, cloud.calls["Enrol"]) == (error.reason, 1)
    assert error.message in caught.value.message


async def test_a_gateway_that_lets_no_device_in_yet_costs_no_credential(cloud, agent_config):
    cloud.publish(task(uploads={"out": {"n": ("NUMBER", 0)}}))
    await cloud.want("d1", {"hello": "1"})
    cloud.credential_s = 2.0  # renewed while nothing is let in
    methods = ("Plan", "Report", "Watch", "RenewCredential", "Connect")
    for method in methods:
        cloud.fail[method] = [Unavailable("which devices are revoked?", reason="PUSH_INDEX_NOT_READY")] * 3
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        await cloud.until(lambda: not any(cloud.fail[method] for method in methods))
        await app.until(lambda s: s.push_connected and s.tunnel_connected and not s.problems)
    assert cloud.calls["Enrol"] == 1


async def test_a_device_that_a_restored_cloud_has_forgotten_enrols_again(cloud, agent_config):
    cloud.credential_s = 1.0
    cloud.fail["RenewCredential"] = [NotFound("tenants/acme/devices/d1: not found")]
    async with running(Agent(agent_config())) as app:
        await cloud.until(lambda: cloud.calls["Enrol"] == 2 and cloud.calls["RenewCredential"] >= 2)
        await app.until(lambda s: not s.problems)


async def test_without_a_token_an_unknown_device_cannot_start(agent_config):
    with pytest.raises(EnrolmentRefused, match="--enrolment-token"):
        async with running(Agent(agent_config(enrolment_token=""))):
            pass


async def test_the_state_folder_of_another_device_is_refused(agent_config):
    async with running(Agent(agent_config())) as app:
        await app.until(lambda s: s.device)
    with pytest.raises(Invalid, match="the state folder is of device 'd1'"):
        async with running(Agent(agent_config(device_id="d2"))):
            pass


async def test_two_agents_on_one_folder_are_refused(agent_config):
    async with running(Agent(agent_config())):
        with pytest.raises(Precondition, match="another agent uses"):
            async with running(Agent(agent_config(socket_path=None))):
                pass


async def test_the_credential_is_renewed_after_half_its_life(cloud, agent_config):
    cloud.credential_s = 2.0
    async with running(Agent(agent_config())) as app:
        await app.until(lambda s: s.device)
        await cloud.until(lambda: cloud.calls["RenewCredential"] >= 2)


async def test_an_expired_credential_is_replaced_by_enrolling_again(cloud, agent_config):
    cloud.publish(task())
    async with running(Agent(agent_config())) as app:
        await app.until(lambda s: s.device)
        cloud.credential_s = 0.0
        cloud.devices["d1"].credential = "another"  # what the device holds isn't known any more
    cloud.credential_s = 30 * 86400.0
    agent = Agent(agent_config())
    await cloud.want("d1", {"hello": "1"})
    async with running(agent) as app:
        # Nothing tells it that it should renew before half of the life; the first refusal does.
        await app.until_state("hello@1", "ACTIVE")
    assert cloud.calls["Enrol"] == 2


@pytest.mark.parametrize("ahead_s", [-30 * 86400.0, 400.0, 3600.0])
async def test_a_wrong_clock_is_corrected_by_the_gateways_time(cloud, agent_config, ahead_s):
    cloud.clock_ahead_s = ahead_s
    cloud.publish(task())
    await cloud.want("d1", {"hello": "1"})
    agent = Agent(agent_config())
    async with running(agent) as app:
        await app.until_state("hello@1", "ACTIVE")
        assert abs(agent.cloud_clock.offset_s - ahead_s) < 60


async def test_a_clock_that_jumps_while_the_agent_runs_changes_nothing_for_the_cloud(cloud, agent_config):
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2"))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until_state("hello@1", "ACTIVE")
        cloud.clock_ahead_s = 5 * 86400.0  # as if ours had jumped back
        await cloud.want("d1", {"hello": "2"}, "r2")
        await app.until_state("hello@2", "ACTIVE")
        await app.go()
        await cloud.until(lambda: "CONFIRMED" in cloud.stages("hello@2"))


async def test_the_socket_is_private_and_a_stale_one_is_replaced(agent_config, tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    path = tmp_path / "state" / "agent.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    async with running(Agent(agent_config())) as app:
        assert (await app.status()).agent_version
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(Precondition, match="no socket"):
        async with running(Agent(agent_config())):
            pass
    assert path.read_text() == "mine"


async def test_failing_push_and_reports_are_told_and_mended(cloud, agent_config):
    cloud.publish(task())
    await cloud.want("d1", {"hello": "1"})
    for method in ("Watch", "Report"):
        cloud.fail[method] = [Unavailable("no way")] * 6
    async with running(Agent(agent_config())) as app:
        await app.until_problem("push: no way")
        await cloud.until(lambda: "ACTIVATED" in cloud.stages("hello@1"))
        await app.until(lambda s: not s.problems)
        assert (await app.status()).push_connected


async def test_a_hint_on_any_answer_is_enough(cloud, agent_config):
    """Without the push stream a call's trailer tells; here the renewal's."""
    cloud.publish(task(version="1"))
    cloud.publish(task(version="2"))
    await cloud.want("d1", {"hello": "1"})
    cloud.fail["Watch"] = [Unavailable("no push")] * 100_000
    settings = {"retry_initial_s": 30.0, "retry_max_s": 30.0}
    cloud.credential_s = 4.0
    async with running(Agent(agent_config(**settings))) as app:
        await app.until_state("hello@1", "ACTIVE")
        await cloud.want("d1", {"hello": "2"}, "r2")
        await app.until_state("hello@2", "ACTIVE")


def test_the_process_tells_every_fault_of_its_configuration(tmp_path, capsys):
    argv = ["--device-id", "No Id", "--gateway-target", "10.1.1.1:7400", "--plaintext", "--vm-worker", "3"]
    assert main(argv, {}) == EXIT_CONFIG
    told = capsys.readouterr().err
    assert "--state-dir" in told
    assert "did you mean '--vm-workers'?" in told
    argv = [
        "--state-dir",
        str(tmp_path),
        "--device-id",
        "No Id",
        "--gateway-target",
        "10.1.1.1:7400",
        "--plaintext",
    ]
    assert main([*argv, "--attributes", "a"], {}) == EXIT_CONFIG
    told = capsys.readouterr().err
    for text in ("--device-id", "off the loopback", "'a' is not key=value"):
        assert text in told


def test_the_exit_code_tells_a_refusal_from_a_crash(tmp_path):
    environ = {
        **os.environ,
        "ISTHMUS_DEVICE_AGENT_STATE_DIR": str(tmp_path),
        "ISTHMUS_DEVICE_AGENT_DEVICE_ID": "d1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "services.device_agent"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == EXIT_ENROLMENT
    assert "isn't enrolled yet" in done.stderr


async def test_help_names_every_setting(capsys, tmp_path):
    assert main(["--help"], {}) == 0
    text = capsys.readouterr().out
    for name in type(config(tmp_path)).__dataclass_fields__:
        assert f"--{name.replace('_', '-')} " in text


async def test_a_missing_key_of_an_enrolled_device_is_told_and_not_replaced(cloud, agent_config, tmp_path):
    async with running(Agent(agent_config())) as app:
        await app.until(lambda s: s.device)
    key = tmp_path / "state" / "device.key"
    key.unlink()
    agent = Agent(agent_config())
    with pytest.raises(Precondition, match=r"device\.key is missing.*restore it.*under a new id") as refused:
        await agent.start()
    await agent.close()
    assert refused.value.reason == "DEVICE_KEY_MISSING"
    assert exit_code(refused.value) == EXIT_CONFIG
    assert not key.exists()
