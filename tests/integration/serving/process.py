"""Serving in a process of its own, which can be killed and started again over the same folder."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from libs.common.client import Channel, create_channel
from libs.common.clock import SystemClock
from libs.common.identity import GATEWAY, IDENTITY_HEADER, IdentityIssuer, publish_key
from services.deployer.testing import KEEPER_KEYS
from services.deployer.testing import Running as Deployer
from services.serving.app import NAME
from services.serving.testing import Client, user


class Process:
    """`python -m services.serving` over a deployer."""

    def __init__(self, folder: Path, deployer: Deployer) -> None:
        self._folder = folder
        self._target = deployer.channel.target
        key = Ed25519PrivateKey.generate()
        publish_key(folder / "trust", GATEWAY, key.public_key())
        self._issuer = IdentityIssuer(GATEWAY, key, SystemClock())
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None
        self.target = ""
        # The deployer knows serving by this key.
        pem = KEEPER_KEYS[NAME].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / "serving.key").write_bytes(pem)
        (folder / "serving.key").chmod(0o600)

    def token(self, tenant: str = "acme") -> str:
        """Return an identity token of a user."""
        return self._issuer.mint(user(tenant), NAME)

    async def start(self, port: int = 0) -> Client:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.serving",
            f"--port={port}",
            "--metrics-port=-1",
            f"--data-dir={self._folder}/data",
            f"--deployer-target={self._target}",
            f"--identity-key-file={self._folder}/serving.key",
            f"--identity-trust-dir={self._folder}/trust",
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"]},
        )
        assert self._process.stderr is not None
        serves_on, seen = None, []
        async with asyncio.timeout(60):
            while line := await self._process.stderr.readline():
                seen.append(line)
                entry = json.loads(line) if line.startswith(b"{") else {}
                if "port" in entry:
                    serves_on = entry["port"]
                    break
        assert serves_on, b"".join(seen).decode()
        token = self.token()
        self.target = f"127.0.0.1:{serves_on}"
        self._channel = create_channel(self.target, metadata=[lambda *_: ((IDENTITY_HEADER, token),)])
        return Client(self._channel, "acme")

    def send(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)

    async def end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        self.send(how)
        return await self.ended()

    async def ended(self) -> int:
        """Wait until it has ended; return its exit status. What was still asked of it is given up."""
        assert self._process is not None
        assert self._channel is not None
        process, self._process = self._process, None
        async with asyncio.timeout(60):
            await process.communicate()
        await self._channel.close()
        assert process.returncode is not None
        return process.returncode
