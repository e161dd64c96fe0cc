"""The agent as a process among others: metrics, logs, standard input, TLS, imports, twins."""

import asyncio
import datetime
import http.client
import ipaddress
import json
import logging
import os
import subprocess
import sys

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from prometheus_client.parser import text_string_to_metric_families

from services.device_agent.app import Agent
from services.device_agent.errors import EXIT_ENROLMENT, EnrolmentRefused
from services.device_agent.testing.app import App, config, event, running
from services.device_agent.testing.cloud import FakeCloud
from services.device_agent.testing.tasks import task

SENDS = 'def run(context):\n    context.send("out", {"x": 1})\n    return {}\n'


async def test_metrics_tell_what_the_status_tells_with_bounded_labels(cloud, agent_config):
    cloud.publish(task(source=SENDS, uploads={"out": {"y": ("NUMBER", 0)}}))
    await cloud.want("d1", {"hello": "1"})
    agent = Agent(agent_config(metrics_port=0))
    async with running(agent) as app:
        await app.until_state("hello@1", "ACTIVE")
        await app.go(3, user="alice")
        await app.until(lambda s: s.counters.success_count == 3)
        text = await asyncio.to_thread(_scrape, agent._metrics.port)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["isthmus_device_agent_events_total",] == 3
    assert found["isthmus_device_agent_runs_total", "success"] == 3
    assert found["isthmus_device_agent_refused_frames_total",] == 3
    assert found["isthmus_device_agent_versions", "CONFIRMED"] == 1
    assert found["isthmus_device_agent_problems",] == 1
    handled = {key[1:]: value for key, value in found.items() if key[0] == "grpc_server_handled_total"}
    assert [value for key, value in handled.items() if {"SendEvents", "OK"} <= set(key)] == [1]
    assert "alice" not in text
    assert "devices/d1" not in text


def _scrape(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


async def test_a_second_agent_with_the_same_identity_is_refused(cloud, agent_config, tmp_path):
    async with running(Agent(agent_config())) as app:
        await app.until(lambda s: s.device)
        other = Agent(config(tmp_path / "other", cloud))
        try:
            await other.start()
            with pytest.raises(EnrolmentRefused, match="another key"):
                await other.run()
        finally:
            await other.close()


async def test_a_copied_identity_is_fenced_and_both_say_so_or_run(cloud, agent_config, tmp_path, caplog):
    """Two agents with one credential: the tunnel is the newer one's, and the older one's status tells."""
    uploads = {"out": {"x": ("NUMBER", 0)}}
    cloud.publish(task(source=SENDS, uploads=uploads))
    await cloud.want("d1", {"hello": "1"})
    async with running(Agent(agent_config())) as app:
        await app.until(lambda s: s.tunnel_connected)
    copy = tmp_path / "copy"
    await asyncio.to_thread(subprocess.run, ["cp", "-r", str(tmp_path / "state"), str(copy)], check=True)
    async with running(Agent(agent_config())) as app:
        await app.until(lambda s: s.tunnel_connected)
        async with running(Agent(config(copy, cloud, fenced_wait_s=60.0))) as twin:
            await twin.until(lambda s: s.tunnel_connected)
            await app.go()
            await app.until_problem("another agent uses this device's identity")


async def test_events_come_from_the_standard_input(tmp_path):
    lines = [json.dumps({"event_id": f"e{i}", "type": "a", "time_s": i}) for i in range(700)]
    environ = {**os.environ, "ISTHMUS_DEVICE_AGENT_STATE_DIR": str(tmp_path / "state")}
    settings = config(tmp_path / "state")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.device_agent", "--gateway-target", "", "--events-file", "-",
        env=environ, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    logs = asyncio.create_task(process.stderr.read())
    process.stdin.write("\n".join([*lines, "nonsense"]).encode())
    await process.stdin.drain()
    process.stdin.close()
    while not settings.socket.exists():  # noqa: ASYNC110 - nothing tells that it is there
        await asyncio.sleep(0.02)
    app = App(settings.socket)
    try:
        status = await app.until(lambda s: s.counters.event_count == 700 and bool(s.problems))
        assert "line 701" in status.problems[0]
    finally:
        await app.channel.close()
        process.terminate()
        assert await process.wait() == 0
    told = [json.loads(line) for line in (await logs).decode().splitlines()]
    assert {line["service"] for line in told} == {"device_agent"}
    assert told[-1]["message"] == "stopped"


async def test_it_ends_on_a_signal_while_its_standard_input_stays_open(tmp_path):
    settings = config(tmp_path / "state")
    environ = {**os.environ, "ISTHMUS_DEVICE_AGENT_STATE_DIR": str(tmp_path / "state")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.device_agent", "--gateway-target", "", "--events-file", "-",
        env=environ, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    while not settings.socket.exists():  # noqa: ASYNC110 - nothing tells that it is there
        await asyncio.sleep(0.02)
    process.terminate()
    assert await process.wait() == 0


async def test_tls_with_an_authority_of_its_own(tmp_path):
    certificate, key = _certificate()
    (tmp_path / "ca.pem").write_bytes(certificate)
    async with FakeCloud() as cloud:
        await cloud.stop()
        cloud.credentials = grpc.ssl_server_credentials([(key, certificate)])
        await cloud.start()
        cloud.publish(task())
        await cloud.want("d1", {"hello": "1"})
        settings = {"plaintext": False, "gateway_ca_file": tmp_path / "ca.pem"}
        async with running(Agent(config(tmp_path / "state", cloud, **settings))) as app:
            await app.until_state("hello@1", "ACTIVE")
        # Without that authority the cloud isn't believed, and nothing is sent to it.
        enrolments = cloud.calls["Enrol"]
        async with running(Agent(config(tmp_path / "other", cloud, plaintext=False))) as app:
            await app.until_problem("enrolment")
            assert cloud.calls["Enrol"] == enrolments


def _certificate() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


async def test_a_refusal_by_the_cloud_has_its_own_exit_code(cloud, tmp_path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.device_agent", "--state-dir", str(tmp_path), "--device-id", "d1",
        "--gateway-target", f"127.0.0.1:{cloud.port}", "--plaintext", "--enrolment-token", "wrong",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, logs = await process.communicate()
    last = json.loads(logs.decode().splitlines()[-1])
    assert process.returncode == EXIT_ENROLMENT
    assert "token: unknown or expired" in last["message"]
    assert last["reason"] == "BAD_TOKEN"
    assert "wrong" not in logs.decode()


def test_the_device_imports_little():
    script = "import sys, services.device_agent.app; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert imported.isdisjoint({"aiohttp", "alembic", "click", "numpy", "rich", "sqlalchemy", "torch"})


async def test_secrets_stay_out_of_logs_and_status(cloud, agent_config, caplog):
    cloud.publish(task())
    await cloud.want("d1", {"hello": "1"})
    with caplog.at_level(logging.DEBUG):
        async with running(Agent(agent_config())) as app:
            await app.until_state("hello@1", "ACTIVE")
            await app.send(event("go", "e1"))
            status = str(await app.status())
    credential = cloud.devices["d1"].credential
    for secret in (credential, "token-for-tests"):
        assert secret not in caplog.text
        assert secret not in status
