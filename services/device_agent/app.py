"""The composition root: builds the agent, runs its loops, ends them in order (`process` is around it)."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from libs.common.client import create_channel
from libs.common.clock import Clock, SystemClock
from libs.common.errors import Error
from libs.common.identity import Identity
from libs.common.rand import Randomness, SystemRandomness
from libs.common.server import Server, create_server
from libs.common.service_config import ServiceConfig
from libs.common.telemetry import MetricsServer, Telemetry, start_metrics_server
from services.device_agent import AGENT_VERSION, folder
from services.device_agent.access import ACCESS
from services.device_agent.asking import Requests, models_asked
from services.device_agent.backoff import Backoff
from services.device_agent.cloud import Cloud
from services.device_agent.config import AgentConfig
from services.device_agent.domain.retention import RetentionPolicy
from services.device_agent.enrolling import Enroller, require_key
from services.device_agent.files import VersionFiles
from services.device_agent.housekeeping import Housekeeper
from services.device_agent.identity import CloudClock, DeviceKey
from services.device_agent.ingest import Ingest
from services.device_agent.metrics import AgentCollector, Figures
from services.device_agent.patience import Patience
from services.device_agent.pulling import Puller
from services.device_agent.replay import FileReader
from services.device_agent.reporting import Reporter
from services.device_agent.results import Results
from services.device_agent.running import Runner
from services.device_agent.service import AgentService
from services.device_agent.signals import Bell, Problems
from services.device_agent.status import Status, read_stored
from services.device_agent.store.bad_rows import COUNTER as BAD_ROW_COUNTER
from services.device_agent.store.database import Database
from services.device_agent.store.runs import Bounds
from services.device_agent.tasks import Tasks
from services.device_agent.tracing import Spans
from services.device_agent.triggering import Triggerer
from services.device_agent.tunnelling import Tunneller
from services.device_agent.vm import TaskVm, VmConfig
from services.device_agent.watching import Watcher

_log = logging.getLogger("isthmus.agent")


class Agent:
    """A whole agent in this process.

        agent = Agent(config)
        await agent.start()     # the store is open, what was installed runs, apps can connect
        await agent.run()       # until it is cancelled, or something ends it
        await agent.close()     # always, also when start has failed

    Args:
        config: its settings.
        clock: time.
        randomness: ids and jitter.
        telemetry: where its calls are counted.
        files: makes the folders of versions; tests put in one whose disk is full.
        runners: how many runs may be under way at once; 0 for one more than workers, so that none idles while
            a result is made durable.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        telemetry: Telemetry | None = None,
        files: Callable[[Path, int], VersionFiles] = VersionFiles,
        runners: int = 0,
    ) -> None:
        clock = clock if clock is not None else SystemClock()
        randomness = randomness if randomness is not None else SystemRandomness()
        self.config = config
        self.problems = Problems()
        self._clock = clock
        self._runners = runners or config.vm_workers + 1
        self._patience = Patience(clock, self.problems)
        self._telemetry = telemetry if telemetry is not None else Telemetry("device_agent")
        self._lock: int | None = None
        self._bad_rows = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._metrics: MetricsServer | None = None
        self._channel: grpc.aio.Channel | None = None
        self._cloud: Cloud | None = None
        self._loops: list[Callable[[], Awaitable[None]]] = []
        self._cloud_loops: list[Callable[[], Awaitable[None]]] = []

        state = config.state_dir
        backoff = Backoff(randomness, config.retry_initial_s, config.retry_max_s)
        self._backoff = backoff
        self._randomness = randomness
        self.cloud_clock = CloudClock(clock)
        self.database = Database(state / "agent.db", clock, self._store_trouble)
        self.vm = TaskVm(
            VmConfig(
                scratch_dir=state / "vm",
                workers=config.vm_workers,
                readable=((state / "versions").absolute(),),
            ),
            clock=clock,
            randomness=randomness,
        )
        self.tasks = Tasks(
            self.database, files(state, config.disk_reserve_bytes), self.vm, clock, randomness, self.problems
        )
        self._files = self.tasks.files
        frames, reports = Bell(), Bell()
        spans = Spans(self._telemetry)
        self.requests = Requests(self.database, clock, randomness, self.problems)
        self.runner = Runner(
            self.database,
            self.tasks,
            self.vm,
            clock,
            self.cloud_clock,
            self.problems,
            Bounds(config.max_frames, config.max_frame_bytes, config.max_results),
            frames,
            reports,
            self.requests,
            spans,
        )
        self.triggerer = Triggerer(
            self.database, self.tasks, self.runner.queue, clock, self.cloud_clock, self.problems
        )
        self.ingest = Ingest(
            self.database, self.triggerer.bell, self.cloud_clock, config.max_unprocessed_events, spans
        )
        self.results = Results(self.database, self.runner.results)
        self.housekeeper = Housekeeper(
            self.database,
            self.tasks,
            clock,
            self.cloud_clock,
            randomness,
            self.problems,
            retention=RetentionPolicy(config.max_events, config.max_event_bytes, config.max_event_age_s),
            max_tombstones=config.max_tombstones,
            interval_s=config.housekeeping_s,
            reports=reports,
            frames=frames,
        )
        self.reader: FileReader | None = None
        self.enroller: Enroller | None = None
        self.puller: Puller | None = None
        self.watcher: Watcher | None = None
        self.tunneller: Tunneller | None = None
        self._frames, self._reports = frames, reports

    # ---- starting ----

    async def start(self) -> None:
        """Lock the state folder, open the store, verify and load what is installed, open the socket.

        Where the disk has no room for that, it says so and waits for room.

        Raises:
            Precondition: when another agent uses the folder, or the key file or store can't be used.
            EnrolmentRefused: when there is a gateway, no credential, and nothing to enrol with.
        """
        self._loop = asyncio.get_running_loop()
        until_done = self._patience.until_done
        self._lock = await until_done(partial(asyncio.to_thread, folder.take, self.config))
        await until_done(self.database.open)
        stored = await self.database.run(read_stored, durable=False)
        self._bad_rows = stored.counters.get(BAD_ROW_COUNTER, 0)
        if self.config.gateway_target:
            await self._connect()
        # Before the workers: they are let read the folder of versions, which must be there for that.
        await until_done(partial(asyncio.to_thread, self._files.prepare))
        scratch = self.config.state_dir / "vm"
        await until_done(partial(asyncio.to_thread, folder.check_scratch, scratch))
        await self.vm.start()
        await until_done(self.tasks.start)
        await until_done(self.runner.start)
        self._add_loops()
        await self._serve()
        self._metrics = start_metrics_server(
            self.config.metrics_host, self.config.metrics_port, self._telemetry.registry
        )
        self._telemetry.registry.register(AgentCollector(self))

    async def _connect(self) -> None:
        config = self.config
        key_file = config.state_dir / "device.key"
        await self.database.run(partial(require_key, path=key_file), durable=False)
        key = await self._patience.until_done(partial(asyncio.to_thread, DeviceKey.load_or_create, key_file))
        credentials = None
        options: list[tuple[str, Any]] = []
        if not config.plaintext:
            authority = config.gateway_ca_file.read_bytes() if config.gateway_ca_file else None
            credentials = grpc.ssl_channel_credentials(authority)
            if config.gateway_server_name:
                options.append(("grpc.ssl_target_name_override", config.gateway_server_name))
        self._channel = create_channel(config.gateway_target, credentials=credentials, options=options)
        tasks, clock = self.tasks, self._clock
        cloud = self._cloud = Cloud(
            self._channel, key, clock, self.cloud_clock, lambda: tasks.profile_digest, self._hinted
        )
        self.enroller = Enroller(config, self.database, cloud, clock, self.problems, self._backoff)
        await self.enroller.start()
        reporter = Reporter(self.database, tasks, cloud, clock, self.problems, self._backoff, self._reports)
        puller = self.puller = Puller(
            self.database,
            self._files,
            tasks,
            cloud,
            self._reports,
            clock,
            self._randomness,
            self.problems,
            interval_s=config.pull_interval_s,
            hint_jitter_s=config.hint_jitter_s,
            backoff=self._backoff,
            telemetry=self._telemetry,
        )
        self.watcher = Watcher(tasks, cloud, puller, clock, self.problems, self._backoff)
        self.tunneller = Tunneller(
            self.database,
            cloud,
            clock,
            self._randomness,
            self.problems,
            self._backoff,
            config.fenced_wait_s,
            self._frames,
            self.requests,
            lambda: bool(models_asked(tasks)),
        )
        self._cloud_loops = [puller.run, reporter.run, self.watcher.run, self.tunneller.run]

    def _store_trouble(self, trouble: Error | None) -> None:
        if trouble is None:
            self.problems.clear("store")
        else:
            self.problems.set("store", trouble.message, trouble.reason)

    def _hinted(self, profile_digest: bytes) -> None:
        if self.puller is not None:
            self.puller.hinted(profile_digest)

    def _add_loops(self) -> None:
        config = self.config
        runners = [self.runner.run] * self._runners
        self._loops = [self.triggerer.run, self.housekeeper.run, self.requests.run, self._announce, *runners]
        if config.events_file:
            self.reader = FileReader(
                config.events_file,
                self.database,
                self.ingest,
                self.tasks,
                self.triggerer,
                self.runner.queue,
                self._clock,
                self.problems,
                follow=config.events_follow,
                speed=config.events_speed,
            )
            self._loops.append(self.reader.run)

    async def _announce(self) -> None:
        """Tell whoever speaks to the cloud of every change of what runs."""
        seen = self.tasks.changed.rings
        while True:
            seen = await self.tasks.changed.wait(seen)
            self.requests.keep(models_asked(self.tasks))
            self._frames.ring()
            self._reports.ring()

    async def _serve(self) -> None:
        path = self.config.socket
        await asyncio.to_thread(folder.clear_socket, path)
        config = ServiceConfig(host=f"unix:{path}", shutdown_grace_s=self.config.shutdown_grace_s)
        service = AgentService(self.ingest, self.results, self, self._clock)
        mask = os.umask(0o177)
        try:
            self._server = create_server(
                config,
                [service],
                access=ACCESS,
                verifier=_Anybody(),
                telemetry=self._telemetry,
                clock=self._clock,
            )
            await self._server.start()
        finally:
            os.umask(mask)
        await asyncio.to_thread(path.chmod, 0o600)
        _log.info("apps may connect", extra={"socket": str(path)})

    # ---- running ----

    async def run(self) -> None:
        """Run until cancelled.

        Raises:
            EnrolmentRefused: when the cloud refuses this device for good.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for loop in self._loops:
                    group.create_task(self._patience.forever(loop))
                if self.enroller is not None:
                    group.create_task(self._patience.forever(self._talk))
        except BaseExceptionGroup as failures:
            raise _cause(failures) from failures

    async def _talk(self) -> None:
        assert self.enroller is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._patience.forever(self.enroller.run))
            await self.enroller.enrolled.wait()
            for loop in self._cloud_loops:
                group.create_task(self._patience.forever(loop))

    async def status(self) -> Status:
        """Return what runs and how it does."""
        stored = await self.database.run(read_stored, durable=False)
        problems = self.problems.texts()
        if dropped := stored.counters.get(BAD_ROW_COUNTER, 0) - self._bad_rows:
            problems.append(
                f"store: {dropped} rows couldn't be used and were dropped since the start; see the log"
            )
        credential = self._cloud.credential if self._cloud is not None else None
        return Status(
            device=credential.device if credential is not None else "",
            agent_version=AGENT_VERSION,
            versions=stored.versions,
            counters=stored.counters,
            tunnel_connected=self.tunneller is not None and self.tunneller.connected,
            push_connected=self.watcher is not None and self.watcher.connected,
            root_version=self.puller.root_version if self.puller is not None else 0,
            problems=problems,
            pending_events=stored.pending_events,
            pending_runs=sum(stored.pending_runs.values()),
            event_room=stored.event_room(self.tasks.pending_limits()),
        )

    def figures(self) -> Figures:
        """Return the figures for metrics; called from another thread than the loop's."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self._figures(), self._loop).result(timeout=5.0)

    async def _figures(self) -> Figures:
        return Figures(
            status=await self.status(),
            vm=self.vm.stats(),
            triggers=self.tasks.index.stats(),
            bad_lines=self.reader.bad_lines if self.reader is not None else 0,
            left_out_streams=self.tunneller.left_out if self.tunneller is not None else 0,
        )

    # ---- ending ----

    async def close(self) -> None:
        """End in order: no new calls, no runs, no connection, and the store last."""
        if self._server is not None:
            await self._server.stop(self.config.shutdown_grace_s)
            await asyncio.to_thread(self.config.socket.unlink, missing_ok=True)
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)
        await self.vm.close()
        if self._channel is not None:
            await self._channel.close()
        await self.database.close()
        await asyncio.to_thread(self._telemetry.close)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class _Anybody:
    """The socket's permissions have said who may call."""

    async def authenticate(self, method: str, metadata: object) -> Identity | None:
        return None


def _cause(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what ended the loops: the first failure, which has cancelled the rest."""
    first = failures.exceptions[0]
    return _cause(first) if isinstance(first, BaseExceptionGroup) else first
