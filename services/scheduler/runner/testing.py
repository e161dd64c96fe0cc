"""A scheduler for tests of runners, and a runner for tests of anything, in this process."""

# ruff: noqa: N802 - gRPC names the methods

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from isthmus.deployer.v1 import manifest_pb2
from isthmus.scheduler.v1 import object_pb2, runner_pb2, runner_pb2_grpc
from libs.common.access import Access
from libs.common.blobs import BlobClient, BlobRef
from libs.common.client import Channel
from libs.common.clock import SystemClock
from libs.common.errors import NotFound, Unavailable
from libs.common.names import NodeName
from libs.common.rand import SystemRandomness
from libs.common.retry import RetryPolicy
from libs.common.testing import ServerChannel, running_server
from libs.common.testing_blobs import MemoryBlobService
from services.scheduler.domain.objects import Facts, Resources
from services.scheduler.runner import convert
from services.scheduler.runner.attachment import Attachment
from services.scheduler.runner.folder import Folders
from services.scheduler.runner.life import Tools
from services.scheduler.runner.users import Users
from services.scheduler.runner.workers import Workers

State = object_pb2.Worker.State
EVERYBODY = Access(kinds=frozenset({"user"}), callers=frozenset({"scheduler-runner"}))
ACCESS = {f"/isthmus.scheduler.v1.RunnerService/{method}": EVERYBODY for method in ("Attach", "AppendLog")}
NODE = NodeName("n1")
WITHIN_S = 60.0


def worker_id(job: str = "train", *, attempt: int = 1, rank: int = 0, uid: str = "") -> runner_pb2.WorkerId:
    """Return which worker is meant."""
    return runner_pb2.WorkerId(
        job=f"tenants/acme/jobs/{job}", job_uid=uid or f"{job}uid", attempt=attempt, rank=rank
    )


def start(
    command: Sequence[str],
    job: str = "train",
    *,
    rank: int = 0,
    workers: int = 1,
    memory_bytes: int = 512 * 2**20,
    grace_s: float = 5.0,
    deadline_s: float = 0.0,
    master_port: int = 20_000,
    gpus: Sequence[int] = (),
    files: Sequence[tuple[str, BlobRef, bool]] = (),
    artefacts: Sequence[tuple[str, str]] = (),
    env: dict[str, str] | None = None,
) -> runner_pb2.StartWorker:
    """Return the order to start a worker; `deadline_s` counts from now, 0 means none."""
    message = runner_pb2.StartWorker(
        id=worker_id(job, rank=rank),
        spec=object_pb2.JobSpec(
            command=command,
            environment=env or {},
            worker_count=workers,
            files=[
                object_pb2.JobFile(
                    path=path,
                    blob=manifest_pb2.BlobRef(digest=ref.digest, size_bytes=ref.size_bytes),
                    executable=executable,
                )
                for path, ref, executable in files
            ],
            artefacts=[object_pb2.Artefact(id=name, path=path) for name, path in artefacts],
        ),
        placement=object_pb2.WorkerPlacement(
            rank=rank,
            node=str(NODE),
            resources=object_pb2.Resources(cpu_millis=1000, memory_bytes=memory_bytes, gpu_count=len(gpus)),
            gpu_indexes=gpus,
        ),
        master_host="127.0.0.1",
        master_port=master_port,
        local_rank=rank,
    )
    message.spec.grace_time.FromNanoseconds(round(grace_s * 1e9))
    if deadline_s:
        nanoseconds = round(SystemClock().now().timestamp() * 1e9 + deadline_s * 1e9)
        message.deadline_time.FromNanoseconds(nanoseconds)
    return message


class FakeScheduler(runner_pb2_grpc.RunnerServiceServicer):
    """Notes what runners say, and tells them what a test wants.

    Attributes:
        hellos: in order.
        reports: every report, in order, those of hellos among them.
        logs: what is durable, by (job, attempt, rank).
        complete: the logs that were said to be complete.
        acknowledges: whether reports are acknowledged.
        refuse: how many of the next connections are refused.
        leader: the address of another scheduler, to which runners are sent; "" while this one leads.
        lose_log: how many of the next pieces of logs are refused as UNAVAILABLE.
        unwanted_logs: whether logs are refused for good.
        heartbeats: how many came.
    """

    def __init__(self, liveness_s: float = 10.0) -> None:
        self.hellos: list[runner_pb2.Hello] = []
        self.reports: list[runner_pb2.WorkerReport] = []
        self.logs: dict[tuple[str, int, int], bytes] = {}
        self.complete: set[tuple[str, int, int]] = set()
        self.acknowledges = True
        self.refuse = 0
        self.leader = ""
        self.lose_log = 0
        self.unwanted_logs = False
        self.heartbeats = 0
        self._liveness_s = liveness_s
        self._orders: asyncio.Queue[runner_pb2.AttachResponse | None] = asyncio.Queue()
        self._changed = asyncio.Condition()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`."""
        runner_pb2_grpc.add_RunnerServiceServicer_to_server(self, server)

    # ---- what a test says ----
    def tell(self, **message: Any) -> None:
        """Tell the runner something: `start=`, `stop=`, `forget=`."""
        self._orders.put_nowait(runner_pb2.AttachResponse(**message))

    def start(self, command: Sequence[str], job: str = "train", **details: Any) -> runner_pb2.WorkerId:
        """Have a worker started; see `start`."""
        message = start(command, job, **details)
        self.tell(start=message)
        return message.id

    def stop(self, worker: runner_pb2.WorkerId, reason: str = "CANCELLED") -> None:
        """Have a worker stopped."""
        self.tell(stop=runner_pb2.StopWorker(id=worker, reason=reason))

    def forget(self, worker: runner_pb2.WorkerId) -> None:
        """Have a worker's remains removed."""
        self.tell(forget=runner_pb2.ForgetWorker(id=worker))

    def hang_up(self) -> None:
        """End the runner's connection."""
        self._orders.put_nowait(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was noted makes a condition hold; TimeoutError when it doesn't in time."""
        async with asyncio.timeout(WITHIN_S), self._changed:
            await self._changed.wait_for(condition)

    def last(self, worker: runner_pb2.WorkerId) -> object_pb2.Worker | None:
        """Return how a worker is by its last report; None before the first."""
        found = [report for report in self.reports if report.id == worker]
        return found[-1].worker if found else None

    def state(self, worker: runner_pb2.WorkerId) -> "object_pb2.Worker.State.ValueType":
        """Return a worker's last reported state."""
        last = self.last(worker)
        return last.state if last is not None else object_pb2.Worker.STATE_UNSPECIFIED

    async def until_running(self, worker: runner_pb2.WorkerId) -> object_pb2.Worker:
        """Wait until a worker runs, and return how it is; AssertionError when it ended before."""
        await self.until(lambda: self.state(worker) >= object_pb2.Worker.STATE_RUNNING)
        last = self.last(worker)
        assert last is not None
        assert last.state == object_pb2.Worker.STATE_RUNNING, last
        return last

    async def until_ended(self, worker: runner_pb2.WorkerId) -> runner_pb2.WorkerReport:
        """Wait until a worker has ended, and return its last report."""
        await self.until(lambda: self.state(worker) >= object_pb2.Worker.STATE_EXITED)
        return [report for report in self.reports if report.id == worker][-1]

    def log(self, worker: runner_pb2.WorkerId) -> bytes:
        """Return what is durable of a worker's log."""
        return self.logs.get(_key(worker), b"")

    async def whole_log(self, worker: runner_pb2.WorkerId) -> bytes:
        """Wait until a worker's log is complete, and return it."""
        await self.until(lambda: _key(worker) in self.complete)
        return self.log(worker)

    # ---- what runners say ----
    async def _note(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def Attach(
        self, request_iterator: AsyncIterator[runner_pb2.AttachRequest], context: Any
    ) -> AsyncIterator[runner_pb2.AttachResponse]:
        """See the proto."""
        hello = (await anext(request_iterator)).hello
        if self.refuse:
            self.refuse -= 1
            raise Unavailable("not now")
        if self.leader:
            raise Unavailable("not me", reason="NOT_LEADER", metadata={"address": self.leader})
        self.hellos.append(hello)
        self.reports.extend(hello.workers)
        await self._note()
        liveness = Duration()
        liveness.FromNanoseconds(round(self._liveness_s * 1e9))
        yield runner_pb2.AttachResponse(welcome=runner_pb2.Welcome(liveness_time=liveness))
        listening = asyncio.create_task(self._listen(request_iterator))
        try:
            while (order := await self._orders.get()) is not None:
                yield order
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, messages: AsyncIterator[runner_pb2.AttachRequest]) -> None:
        async for message in messages:
            if message.WhichOneof("message") == "report":
                self.reports.append(message.report)
                if self.acknowledges:
                    self.tell(
                        acknowledge=runner_pb2.Acknowledge(
                            id=message.report.id, sequence=message.report.sequence
                        )
                    )
            else:
                self.heartbeats += 1
            await self._note()

    async def AppendLog(
        self, request: runner_pb2.AppendLogRequest, context: Any
    ) -> runner_pb2.AppendLogResponse:
        """See the proto."""
        key = _key(request.id)
        if self.unwanted_logs:
            raise NotFound("no such job")
        if self.lose_log:
            self.lose_log -= 1
            raise Unavailable("not now")
        known = self.logs.setdefault(key, b"")
        if request.offset_bytes <= len(known):
            self.logs[key] = known + request.data[len(known) - request.offset_bytes :]
            if request.last:
                self.complete.add(key)
        await self._note()
        return runner_pb2.AppendLogResponse(offset_bytes=len(self.logs[key]))


def _key(worker: runner_pb2.WorkerId) -> tuple[str, int, int]:
    return worker.job_uid, worker.attempt, worker.rank


@dataclass
class RunnerUnderTest:
    """A runner in this process."""

    folder: Path
    workers: Workers
    attachment: Attachment
    _attaching: "asyncio.Task[None]" = field(repr=False)

    @property
    def folders(self) -> list[str]:
        """Names of the workers' folders that are there."""
        return sorted(path.name for path in self.folder.iterdir())


@asynccontextmanager
async def running_runner(
    folder: Path,
    channel: ServerChannel,
    *,
    environ: dict[str, str] | None = None,
    facts: Facts = Facts(Resources(4000, 4 * 2**30)),  # noqa: B008 - a value
    fetching: RetryPolicy = RetryPolicy(attempts=3, base_s=0.001, cap_s=0.01),  # noqa: B008
    keeping: RetryPolicy = RetryPolicy(attempts=3, base_s=0.001, cap_s=0.01),  # noqa: B008
    repeat_s: float = 5.0,
    users: Users | None = None,
    **limits: Any,
) -> AsyncIterator[RunnerUnderTest]:
    """Run a runner out of `folder` against the services of `channel`; at the end its workers go on."""
    clock = SystemClock()
    attachment = Attachment(
        NODE,
        facts,
        [channel.target],
        lambda _: _Borrowed(channel),
        clock=clock,
        randomness=SystemRandomness(),
        repeat_s=repeat_s,
    )
    tools = Tools(
        fetching=BlobClient(channel, policy=fetching),
        keeping=BlobClient(channel, policy=keeping),
        clock=clock,
        environ=environ if environ is not None else {"PATH": "/usr/bin:/bin"},
        **{"log_bytes": 64 * 2**20, "log_bytes_per_s": 2.0**30, "process_count": 256, **limits},
    )
    workers = Workers(
        NODE,
        Folders(folder, own_users=users is not None),
        tools,
        attachment.append_log,
        read=convert.stored_assignment,
        users=users,
    )
    await workers.adopt()
    attaching = asyncio.create_task(attachment.run(workers))
    try:
        yield RunnerUnderTest(folder, workers, attachment, attaching)
    finally:
        attaching.cancel()
        await asyncio.gather(attaching, return_exceptions=True)
        await workers.close()


class _Borrowed(Channel):
    """The test's channel, which the runner mustn't close."""

    def __init__(self, channel: ServerChannel) -> None:
        super().__init__(channel._raw, channel._adders, channel._deadline_s)

    async def close(self, grace: float | None = None) -> None:
        """Leave it open."""


@asynccontextmanager
async def fake_services(scheduler: FakeScheduler, blobs: MemoryBlobService) -> AsyncIterator[ServerChannel]:
    """Serve both on one port."""
    async with running_server(scheduler, blobs) as channel:
        yield channel
