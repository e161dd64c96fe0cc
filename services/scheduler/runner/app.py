"""Puts the runner together and runs it: `python -m services.scheduler --role runner`."""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from libs.common.blobs import BlobClient
from libs.common.client import Channel, ServiceIdentity, client_credentials, create_channel
from libs.common.clock import SystemClock
from libs.common.errors import Precondition
from libs.common.identity import IdentityIssuer, load_or_create_key, load_trust_dir, publish_key
from libs.common.names import NodeName
from libs.common.process import run_service
from libs.common.rand import SystemRandomness
from libs.common.retry import RetryPolicy
from libs.common.service_config import is_loopback_target
from libs.common.telemetry import Telemetry, start_metrics_server
from services.scheduler.domain.objects import Facts, Resources
from services.scheduler.runner import convert, inventory
from services.scheduler.runner.attachment import Attachment
from services.scheduler.runner.config import RunnerConfig
from services.scheduler.runner.folder import Folders
from services.scheduler.runner.life import Tools
from services.scheduler.runner.metrics import Metrics
from services.scheduler.runner.users import Users
from services.scheduler.runner.workers import Workers

NAME = "scheduler-runner"
_MANY = 1_000_000
_log = logging.getLogger(__name__)


def facts_of(config: RunnerConfig) -> Facts:
    """Return what this node is: as configured, and for the rest as the machine is; blocks.

    Raises:
        Invalid: when the description of its GPUs is wrong.
    """
    gpus, links = inventory.gpus(config.gpus)
    capacity = Resources(
        config.cpu_millis or inventory.cpu_millis(),
        config.memory_bytes or inventory.this_machines_memory(),
        len(gpus),
    )
    try:
        own_version = version("isthmus")
    except PackageNotFoundError:
        own_version = ""
    return Facts(
        capacity,
        gpus,
        links,
        config.topology,
        own_version,
        config.advertised_host,
        (config.first_port, config.last_port),
    )


def _take_state_dir(config: RunnerConfig) -> int:
    """Make the folder and hold it for this process; return what holds it."""
    config.state_dir.mkdir(parents=True, exist_ok=True)
    config.state_dir.chmod(0o711 if config.worker_users else 0o700)
    fd = os.open(config.state_dir / "runner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Precondition(
            f"--state-dir: another runner uses {config.state_dir}; stop it, or give this one its own folder",
            reason="STATE_DIR_TAKEN",
        ) from None
    return fd


async def run(config: RunnerConfig) -> None:
    """Run until told to stop.

    Raises:
        Precondition: when another runner uses the folder, the metrics port is taken, or only root could.
        Invalid: when the GPUs' description or the key is wrong.
    """
    clock, randomness = SystemClock(), SystemRandomness()
    users = Users.parse(config.worker_users)
    if users is not None and os.geteuid():
        raise Precondition("--worker-users: only root may run workers as others; start the runner as root")
    async with contextlib.AsyncExitStack() as stack:
        lock = _take_state_dir(config)
        stack.callback(os.close, lock)
        config.identity_key_file.parent.mkdir(parents=True, exist_ok=True)
        key = load_or_create_key(config.identity_key_file)
        trust = config.identity_trust_dir
        if trust is not None and load_trust_dir(trust).get(NAME) != key.public_key():
            publish_key(trust, NAME, key.public_key())
        issuer = IdentityIssuer(NAME, key, clock)
        telemetry = Telemetry(NAME)
        stack.callback(telemetry.close)
        metrics = Metrics(telemetry.registry)
        exporter = start_metrics_server(
            config.metrics_host,
            config.metrics_port,
            telemetry.registry,
            cert_file=config.tls_cert_file,
            key_file=config.tls_key_file,
            client_ca_file=config.tls_ca_file,
        )
        if exporter is not None:
            stack.callback(exporter.close)

        def dial(target: str, audience: str = "scheduler") -> Channel:
            ca, cert, private = config.tls_ca_file, config.tls_cert_file, config.tls_key_file
            if ca is None and not is_loopback_target(target):
                raise Precondition(f"{target!r} is off the loopback; give --tls-ca-file", reason="NO_TLS")
            return create_channel(
                target,
                credentials=client_credentials(ca, cert, private) if ca is not None else None,
                identity=ServiceIdentity(issuer, audience),
            )

        deployer = await stack.enter_async_context(dial(config.deployer_target, "deployer"))
        node = NodeName(config.node)
        attachment = Attachment(
            node,
            await asyncio.to_thread(facts_of, config),
            config.scheduler_target,
            dial,
            clock=clock,
            randomness=randomness,
            on_change=metrics.attached,
        )
        tools = Tools(
            fetching=BlobClient(deployer, policy=RetryPolicy(attempts=_MANY, total_s=config.fetch_s)),
            keeping=BlobClient(deployer, policy=RetryPolicy(attempts=_MANY, total_s=config.keep_s)),
            clock=clock,
            environ=os.environ,
            log_bytes=config.log_bytes,
            log_bytes_per_s=config.log_bytes_per_s,
            process_count=config.process_count,
        )
        workers = Workers(
            node,
            await asyncio.to_thread(
                Folders, (config.state_dir / "workers").absolute(), own_users=users is not None
            ),
            tools,
            attachment.append_log,
            read=convert.stored_assignment,
            users=users,
            on_end=metrics.ended,
        )
        metrics.watch(lambda: workers.running_count)
        stack.push_async_callback(workers.close)
        await workers.adopt()
        await _until_told(attachment, workers, config)


async def _until_told(attachment: Attachment, workers: Workers, config: RunnerConfig) -> None:
    """Stay attached until SIGTERM or SIGINT; then end the workers if they aren't to be kept."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    attaching = asyncio.create_task(attachment.run(workers))
    telling = asyncio.create_task(told.wait())
    try:
        _log.info("runs workers in %s", config.state_dir)
        await asyncio.wait({attaching, telling}, return_when=asyncio.FIRST_COMPLETED)
        if attaching.done():
            await attaching
        if not config.keep_workers:
            await workers.stop_all("LOST")
    finally:
        attaching.cancel()
        telling.cancel()
        await asyncio.gather(attaching, telling, return_exceptions=True)
        _log.info("stopped; workers that go on: %d", workers.running_count)


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the runner with these flags; return the process's exit status."""
    return run_service(NAME, RunnerConfig, run, argv, environ)
