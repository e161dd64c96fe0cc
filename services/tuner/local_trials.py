"""Trials on this machine: an instance of serving and one that calls it, each a process, for every trial.

Trials at once share the processors and disturb each other; where that matters, let one run at a time.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from libs.common.blobs import BlobClient, BlobRef
from libs.common.client import ServiceIdentity, create_channel, on_behalf_of
from libs.common.errors import Internal, Unavailable
from libs.common.fsio import disk_errors
from libs.common.identity import IdentityIssuer, load_or_create_key, publish_key
from libs.common.names import ExperimentName, ModelName
from services.tuner.domain.load import CALL_S
from services.tuner.domain.model import Load, Metric, Point, Served
from services.tuner.processes import error_named, running, serving_port
from services.tuner.relay import Relay
from services.tuner.serving_client import ServingClient, with_point

_ANSWER_BYTES = 1024 * 1024
_MOST_MODELS = 8


@dataclass(frozen=True, slots=True)
class Caller:
    """Makes load in a process of its own, as this service on a tenant's behalf.

    Attributes:
        identity_key_file: this service's private key.
        tls: files of authority, certificate and key for what is called; None on the loopback.
    """

    identity_key_file: Path
    tls: tuple[Path, Path | None, Path | None] | None = None

    async def measure(
        self, target: str, model: ModelName, version: str, load: Load, seed: int, pid: int = 0
    ) -> tuple[Metric, ...]:
        """Return what was measured; of the process `pid`, if given, processor and memory too.

        Raises:
            Error: what kept it from being measured.
        """
        job = {
            "target": target,
            "model": model.model,
            "version": version,
            "on_behalf_of": f"tenants/{model.tenant}",
            "load": asdict(load),
            "seed": seed % 2**31,
            "pid": pid,
            "tls": [str(path) if path else None for path in self.tls] if self.tls else None,
        }
        key_file = self.identity_key_file.absolute()
        most_s = load.warm_s + load.duration_s + 2 * CALL_S
        try:
            async with (
                asyncio.timeout(most_s),
                running(
                    "services.tuner.caller", (str(key_file),), stdin=subprocess.PIPE, stdout=subprocess.PIPE
                ) as process,
            ):
                out, err = await process.communicate(json.dumps(job).encode())
        except TimeoutError:
            raise Unavailable(f"the load wasn't done within {most_s:g} s", reason="LOAD_TOO_SLOW") from None
        if process.returncode != 0 or len(out) > _ANSWER_BYTES:
            last = err.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
            raise Internal(f"what makes the load ended with {process.returncode}: {last}", reason="NO_LOAD")
        answer: dict[str, Any] = json.loads(out)
        if "error" in answer:
            raise error_named(answer["error"], answer["message"], answer["reason"])
        return tuple(Metric(**metric) for metric in answer["metrics"])


class LocalTrials:
    """See `services.tuner.domain.ports.Trials`."""

    def __init__(
        self,
        folder: Path,
        blobs: BlobClient,
        relay: Relay,
        relay_target: str,
        issuer: IdentityIssuer,
        caller: Caller,
        *,
        start_s: float,
        module: str = "services.serving",
    ) -> None:
        """Work in `folder`, which is this object's own; blocks a little.

        Args:
            folder: where instances have their files.
            blobs: the deployer's, called as this service.
            relay: gives the instances their model.
            relay_target: where it serves.
            issuer: this service's identity.
            caller: makes the load.
            start_s: seconds that an instance may take to serve.
            module: what is started as an instance.
        """
        self._folder = folder
        self._blobs = blobs
        self._relay = relay
        self._relay_target = relay_target
        self._issuer = issuer
        self._caller = caller
        self._start_s = start_s
        self._module = module
        self._downloads = asyncio.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._serving_key = folder / "serving.key"
        trust = folder / "trust"
        key = load_or_create_key(self._serving_key)
        own = load_or_create_key(caller.identity_key_file)
        publish_key(trust, "serving", key.public_key())
        publish_key(trust, issuer.name, own.public_key())

    @property
    def trust_dir(self) -> Path:
        """Whom instances believe, and by which key the relay knows them."""
        return self._folder / "trust"

    async def sweep(self) -> None:
        """See `Trials`; the processes of an earlier tuner died with it, their files are left."""
        for name in ("instances", "models"):
            await asyncio.to_thread(shutil.rmtree, self._folder / name, ignore_errors=True)

    async def measure(
        self,
        experiment: ExperimentName,
        number: int,
        served: Served,
        point: Point,
        load: Load,
        seed: int,
        on_loaded: Callable[[], Awaitable[None]],
    ) -> tuple[Metric, ...]:
        """See `Trials`."""
        model = served.version.parent
        ref = BlobRef(served.digest, served.size_bytes)
        path = await self._model_file(model.tenant, ref)
        place = self._folder / "instances" / f"{experiment.tenant}.{experiment.experiment}.{number}"
        async with AsyncExitStack() as stack:
            # Before anything is awaited: what isn't offered may make room for another.
            stack.enter_context(self._relay.offering(ref, path))
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
            await asyncio.to_thread(place.mkdir, parents=True)
            stack.push_async_callback(asyncio.to_thread, shutil.rmtree, place, ignore_errors=True)
            process = await stack.enter_async_context(running(self._module, self._arguments(place)))
            try:
                async with asyncio.timeout(self._start_s):
                    port, drain = await serving_port(process, "the instance")
            except TimeoutError:
                raise Unavailable(
                    f"the instance didn't serve within {self._start_s:g} s", reason="NO_START"
                ) from None
            stack.callback(drain.cancel)
            target = f"127.0.0.1:{port}"
            channel = await stack.enter_async_context(
                create_channel(target, identity=ServiceIdentity(self._issuer, "serving"))
            )

            async def measure(model: ModelName, load: Load, seed: int) -> tuple[Metric, ...]:
                return await self._caller.measure(
                    target, model, served.version.version, load, seed, process.pid
                )

            client = ServingClient(channel, measure)
            await client.load(served, with_point(served.config, point))
            await on_loaded()
            metrics = await client.measure(model, load, seed)
            if process.returncode is not None:
                raise Unavailable(
                    f"the instance ended under load with {process.returncode}", reason="INSTANCE_ENDED"
                )
            return metrics

    def _arguments(self, place: Path) -> list[str]:
        return [
            "--port=0",
            "--metrics-port=-1",
            f"--data-dir={place.absolute()}",
            f"--deployer-target={self._relay_target}",
            f"--identity-key-file={self._serving_key.absolute()}",
            f"--identity-trust-dir={self.trust_dir.absolute()}",
            "--no-pin-blobs",
        ]

    async def _model_file(self, tenant: str, ref: BlobRef) -> Path:
        """Return a file with the model, brought once for all trials; the newest few are kept."""
        folder = self._folder / "models"
        path = folder / f"{tenant}.{ref.digest.partition(':')[2]}"
        async with self._downloads:
            if not path.exists():
                await asyncio.to_thread(self._make_room, folder)
                with on_behalf_of(f"tenants/{tenant}"):
                    await self._blobs.download(ref, path)
        return path

    def _make_room(self, folder: Path) -> None:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        by_age = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in by_age[: max(0, len(by_age) - _MOST_MODELS + 1)]:
            if not self._relay.offers(path):
                path.unlink(missing_ok=True)
