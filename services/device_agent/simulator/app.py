"""The composition root: builds the simulator out of its parts and runs it."""

import contextlib
from functools import partial
from pathlib import Path

from libs.common.blobs import BlobClient, BlobRef
from libs.common.client import ServiceIdentity, client_credentials, create_channel, on_behalf_of
from libs.common.clock import SystemClock
from libs.common.errors import Invalid
from libs.common.folder_lock import held_folder
from libs.common.identity import (
    IdentityIssuer,
    IdentityVerifier,
    load_or_create_key,
    load_trust_dir,
    publish_key,
)
from libs.common.rand import SystemRandomness
from libs.common.server import create_server, serve
from libs.common.telemetry import Telemetry, setup_tracing, start_metrics_server
from services.device_agent.simulator.access import ACCESS
from services.device_agent.simulator.config import SimulatorConfig
from services.device_agent.simulator.leash import run_child
from services.device_agent.simulator.metrics import Metrics
from services.device_agent.simulator.service import SimulatorService
from services.device_agent.simulator.simulations import Limits, Simulations

NAME = "simulator"
# Without these a tenant's script could read this service's key, and by it other tenants' files.
_CONFINEMENT = ("landlock", "seccomp")


class TenantBlobs:
    """See `services.device_agent.simulator.simulations.Blobs`."""

    def __init__(self, client: BlobClient) -> None:
        """Call through `client`, whose channel mints this service's identity."""
        self._client = client

    async def download(self, tenant: str, ref: BlobRef, path: Path) -> None:
        """See `Blobs`."""
        with on_behalf_of(f"tenants/{tenant}"):
            await self._client.download(ref, path)


async def run(config: SimulatorConfig) -> None:
    """Serve until told to stop.

    Raises:
        Precondition: when the port or the folder is taken.
        Invalid: when a key file can't be used.
    """
    clock = SystemClock()
    if config.identity_trust_dir is None:
        raise Invalid(
            "--identity-trust-dir: is missing; name the folder of the services' public keys (NAME.pub)"
        )
    identity_file = config.identity_key_file or config.data_dir / f"{NAME}.key"
    scratch = config.data_dir.absolute() / "scratch"
    config.data_dir.mkdir(parents=True, exist_ok=True)
    identity_file.parent.mkdir(parents=True, exist_ok=True)
    scratch.mkdir(mode=0o700, exist_ok=True)
    key = load_or_create_key(identity_file)
    if load_trust_dir(config.identity_trust_dir).get(NAME) != key.public_key():
        publish_key(config.identity_trust_dir, NAME, key.public_key())
    telemetry = Telemetry(NAME, tracer_provider=setup_tracing(NAME, config.otlp_endpoint))
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(held_folder(config.data_dir, NAME))
        credentials = None
        if config.deployer_ca_file is not None:
            credentials = client_credentials(
                config.deployer_ca_file, config.deployer_cert_file, config.deployer_key_file
            )
        identity = ServiceIdentity(IdentityIssuer(NAME, key, clock), "deployer")
        channel = await stack.enter_async_context(
            create_channel(config.deployer_target, credentials=credentials, identity=identity)
        )
        simulations = Simulations(
            scratch,
            TenantBlobs(BlobClient(channel)),
            partial(run_child, demanded=() if config.allow_unconfined else _CONFINEMENT),
            Limits(
                config.max_simulations, config.deadline_s, config.scratch_bytes, config.disk_reserve_bytes
            ),
            clock,
            SystemRandomness(),
            Metrics(telemetry.registry),
        )
        await simulations.sweep()
        server = create_server(
            config,
            [SimulatorService(simulations, clock)],
            access=ACCESS,
            verifier=IdentityVerifier(NAME, load_trust_dir(config.identity_trust_dir), clock),
            telemetry=telemetry,
            clock=clock,
        )
        exporter = start_metrics_server(
            config.host,
            config.metrics_port,
            telemetry.registry,
            cert_file=config.tls_cert_file,
            key_file=config.tls_key_file,
            client_ca_file=config.tls_client_ca_file,
        )
        if exporter is not None:
            stack.callback(exporter.close)
        await serve(server, config)
