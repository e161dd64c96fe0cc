"""kill -9 of a real engine process while it makes a plan: no half plan, no worker left, and it goes on."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from isthmus.engine.v1 import engine_pb2
from libs.common.client import Channel, create_channel
from libs.common.clock import SystemClock
from libs.common.identity import GATEWAY, IDENTITY_HEADER, IdentityIssuer, publish_key
from libs.common.testing import eventually
from services.deployer.testing import KEEPER_KEYS
from services.deployer.testing import Running as Deployer
from services.engine.app import NAME
from services.engine.testing_models import Model
from services.engine.testing_service import Client, user


class Process:
    """An engine in a process of its own, which can be killed and started again over the same folder."""

    def __init__(self, folder: Path, deployer: Deployer) -> None:
        self._folder = folder
        self._target = deployer.channel.target
        key = Ed25519PrivateKey.generate()
        publish_key(folder / "trust", GATEWAY, key.public_key())
        self._issuer = IdentityIssuer(GATEWAY, key, SystemClock())
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None
        # The deployer knows the engine by this key.
        (folder / "engine.key").write_bytes(private_pem(KEEPER_KEYS[NAME]))
        (folder / "engine.key").chmod(0o600)

    async def start(self) -> Client:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.engine",
            "--port=0",
            "--metrics-port=-1",
            f"--data-dir={self._folder}/data",
            f"--deployer-target={self._target}",
            f"--identity-key-file={self._folder}/engine.key",
            f"--identity-trust-dir={self._folder}/trust",
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"]},
        )
        assert self._process.stderr is not None
        port, seen = None, []
        async with asyncio.timeout(60):
            while line := await self._process.stderr.readline():
                seen.append(line)
                entry = json.loads(line) if line.startswith(b"{") else {}
                if "port" in entry:
                    port = entry["port"]
                    break
        assert port, b"".join(seen).decode()
        token = self._issuer.mint(user("acme"), NAME)
        self._channel = create_channel(f"127.0.0.1:{port}", metadata=[lambda *_: ((IDENTITY_HEADER, token),)])
        return Client(self._channel, "acme")

    async def end(self, how: signal.Signals) -> int:
        assert self._process is not None
        assert self._channel is not None
        self._process.send_signal(how)
        async with asyncio.timeout(60):
            await self._process.wait()
        await self._channel.close()
        assert self._process.returncode is not None
        return self._process.returncode


def private_pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def workers_of(folder: Path) -> list[str]:
    """Return the processes that work in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in command and b"services.engine.worker" in command:
                found.append(entry.name)
    return found


def deep_model() -> bytes:
    """Return a model that takes seconds to work on."""
    m = Model("deep")
    x = m.input("x", "batch", 16)
    for _ in range(400):
        x = m.add("Softmax", m.add("MatMul", x, m.weight(16, 16)), axis=-1)
    m.add("Relu", x, output="y")
    return m.finish({"y": ("batch", 16)})


async def drained(call: grpc.aio.UnaryStreamCall) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_killed_engine_leaves_nothing_half_done(deployer: Deployer, tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    process = Process(folder, deployer)
    model = await deployer.client().upload(deep_model())
    client = await process.start()
    call = client.stub.Optimize(engine_pb2.OptimizeRequest(parent="tenants/acme", model=model))
    response = await call.read()
    assert response.stage.name == "read"
    assert workers_of(folder)
    assert await process.end(signal.SIGKILL) == -signal.SIGKILL
    # A connection that breaks while grpc.aio reads can look as if the caller had cancelled.
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await drained(call)
    # The worker dies with the engine.
    await eventually(lambda: not workers_of(folder))
    assert not list((folder / "data" / "plans").glob("*.plan"))
    client = await process.start()
    assert list((folder / "data" / "work").iterdir()) == []
    _, result = await client.optimise(model)
    assert not result.cached
    assert result.plan.size_bytes == len(await deployer.client().read(result.plan.digest))
    assert await process.end(signal.SIGKILL) == -signal.SIGKILL
    # What was finished is there.
    client = await process.start()
    _, again = await client.optimise(model)
    assert again.cached
    assert again.plan == result.plan
    assert await process.end(signal.SIGTERM) == 0
