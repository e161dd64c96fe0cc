"""The gateway as a process: the first key, and what is left of it after kill -9."""

import asyncio
import json
import signal
import socket
import stat
import sys
from contextlib import asynccontextmanager

import grpc
import pytest

from isthmus.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from libs.common.status import error_from_rpc
from services.gateway.testing import bearer

MODULE = (sys.executable, "-m", "services.gateway")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@asynccontextmanager
async def gateway_process(folder, port, *flags):
    process = await asyncio.create_subprocess_exec(
        *MODULE,
        *(f"--port={port}", "--http-port=-1", f"--database-url=sqlite:///{folder}/gateway.db"),
        *(f"--identity-key-file={folder}/gateway.key", f"--identity-trust-dir={folder}"),
        *("--upstreams=deployer=127.0.0.1:9", *flags),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def command(*arguments):
    process = await asyncio.create_subprocess_exec(
        *MODULE, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def admin_key(folder):
    code, out, err = await command(
        "admin-key", f"--database-url=sqlite:///{folder}/gateway.db", f"--out={folder}/admin.key"
    )
    assert code == 0, err
    return out, (folder / "admin.key").read_text().strip()


@asynccontextmanager
async def keys_of(port):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 60)
        yield gateway_pb2_grpc.KeyServiceStub(channel)


LIST = gateway_pb2.ListKeysRequest(parent="tenants/default")


async def test_keys_outlive_kill_9(tmp_path):
    port = free_port()
    _, admin = await admin_key(tmp_path)
    async with gateway_process(tmp_path, port) as process, keys_of(port) as keys:
        made = await keys.CreateKey(
            gateway_pb2.CreateKeyRequest(parent="tenants/default", scopes=["keys:read"]),
            metadata=bearer(admin),
        )
        gone = await keys.CreateKey(
            gateway_pb2.CreateKeyRequest(parent="tenants/default", scopes=["keys:read"]),
            metadata=bearer(admin),
        )
        await keys.RevokeKey(gateway_pb2.RevokeKeyRequest(name=gone.key.name), metadata=bearer(admin))
        process.kill()
        assert await process.wait() == -signal.SIGKILL
    async with gateway_process(tmp_path, port), keys_of(port) as keys:
        listed = await keys.ListKeys(LIST, metadata=bearer(made.secret))
        assert {key.name: key.revoked for key in listed.keys if key.display_name == ""} == {
            made.key.name: False,
            gone.key.name: True,
        }
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await keys.ListKeys(LIST, metadata=bearer(gone.secret))
        assert error_from_rpc(caught.value).reason == "REVOKED_KEY"


async def test_the_admin_key_is_made_once_and_again_when_it_stops_working(tmp_path):
    out, first = await admin_key(tmp_path)
    assert "new" in out
    assert first not in out
    assert stat.S_IMODE((tmp_path / "admin.key").stat().st_mode) == 0o600
    out, again = await admin_key(tmp_path)
    assert "new" not in out
    assert again == first
    port = free_port()
    async with gateway_process(tmp_path, port), keys_of(port) as keys:
        (key,) = (await keys.ListKeys(LIST, metadata=bearer(first))).keys
        await keys.RevokeKey(gateway_pb2.RevokeKeyRequest(name=key.name), metadata=bearer(first))
        out, second = await admin_key(tmp_path)  # while the gateway runs
        assert "new" in out
        assert second != first
        assert len((await keys.ListKeys(LIST, metadata=bearer(second))).keys) == 2


async def test_the_audit_log_is_written_whatever_the_log_level(tmp_path):
    port = free_port()
    _, admin = await admin_key(tmp_path)
    async with gateway_process(tmp_path, port, "--log-level=ERROR") as process:
        async with keys_of(port) as keys:
            made = await keys.CreateKey(
                gateway_pb2.CreateKeyRequest(parent="tenants/default", scopes=["keys:read"]),
                metadata=bearer(admin),
            )
        process.send_signal(signal.SIGTERM)
        _, err = await process.communicate()
    (line,) = [json.loads(line) for line in err.decode().splitlines() if '"audit"' in line]
    assert (line["action"], line["resource"], line["audit"]) == ("key.create", made.key.name, True)
    assert line["scopes"] == ["keys:read"]
    assert made.secret.rpartition("_")[2] not in err.decode()


async def test_sigterm_ends_it_in_order(tmp_path):
    port = free_port()
    async with gateway_process(tmp_path, port) as process:
        async with keys_of(port):
            process.send_signal(signal.SIGTERM)
        _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert "Traceback" not in err.decode()


async def test_a_second_gateway_on_one_sqlite_file_is_refused(tmp_path):
    port = free_port()
    async with gateway_process(tmp_path, port), keys_of(port):
        async with gateway_process(tmp_path, free_port()) as second:
            _, err = await second.communicate()
        assert second.returncode == 1
        assert "one replica" in err.decode()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--role=porter",), ["'porter'", "tunnel"]),
        (("--porrt=1",), ["--port"]),
        (
            ("--upstreams=deployer",),
            ["--upstreams", "NAME=HOST:PORT", "--identity-key-file", "--identity-trust-dir"],
        ),
    ],
)
async def test_wrong_settings_are_all_named(flags, says):
    code, _, err = await command(*flags)
    assert code == 2
    for text in says:
        assert text in err


async def test_a_taken_port_is_named(tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        async with gateway_process(tmp_path, port) as process:
            _, err = await process.communicate()
    assert process.returncode == 1
    assert str(port) in err.decode()
    assert "Traceback" not in err.decode()
