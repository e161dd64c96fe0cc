"""For tests: a user of a scheduler, and a runner that starts nothing but says what it is told to."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from isthmus.scheduler.v1 import object_pb2 as pb
from isthmus.scheduler.v1 import runner_pb2 as wire
from isthmus.scheduler.v1 import runner_pb2_grpc, scheduler_pb2_grpc
from isthmus.scheduler.v1 import scheduler_pb2 as api
from libs.common.client import Channel, rpc_errors
from libs.common.errors import Error
from libs.common.streams import send

GIB = 2**30
State = pb.JobStatus.State
WorkerState = pb.Worker.State
_HEARTBEAT_S = 0.5
_ENDED = (State.STATE_SUCCEEDED, State.STATE_FAILED, State.STATE_CANCELLED)


class Client:
    """What a tenant's people do, in few words."""

    def __init__(self, channel: Channel, tenant: str) -> None:
        self.tenant, self.parent = tenant, f"tenants/{tenant}"
        self.jobs = scheduler_pb2_grpc.JobServiceStub(channel)
        self.queues = scheduler_pb2_grpc.QueueServiceStub(channel)
        self.nodes = scheduler_pb2_grpc.NodeServiceStub(channel)

    async def submit(
        self,
        job_id: str = "",
        *command: str,
        workers: int = 1,
        cpus: float = 1,
        memory: int = GIB,
        gpus: int = 0,
        deadline_s: float = 0,
        request_id: str = "",
        validate_only: bool = False,
        **spec: object,
    ) -> pb.Job:
        """Submit a job; `spec` sets further fields of its spec."""
        made = pb.JobSpec(
            command=command or ("python", "train.py"),
            worker_count=workers,
            resources=pb.Resources(cpu_millis=round(cpus * 1000), memory_bytes=memory, gpu_count=gpus),
            **spec,  # type: ignore[arg-type]
        )
        if deadline_s:
            made.deadline.CopyFrom(Duration(seconds=int(deadline_s)))
        request = api.CreateJobRequest(
            parent=self.parent,
            job_id=job_id,
            job=pb.Job(spec=made),
            request_id=request_id,
            validate_only=validate_only,
        )
        return (await self.jobs.CreateJob(request)).job

    async def job(self, job_id: str) -> pb.Job:
        """Read a job."""
        return (await self.jobs.GetJob(api.GetJobRequest(name=f"{self.parent}/jobs/{job_id}"))).job

    async def cancel(self, job_id: str) -> pb.Job:
        """Ask for a job's end."""
        return (await self.jobs.CancelJob(api.CancelJobRequest(name=f"{self.parent}/jobs/{job_id}"))).job

    async def explain(self, job_id: str) -> api.ExplainJobResponse:
        """Ask why."""
        return await self.jobs.ExplainJob(api.ExplainJobRequest(name=f"{self.parent}/jobs/{job_id}"))

    async def job_when(
        self, job_id: str, condition: Callable[[pb.Job], bool], *, within_s: float = 30.0
    ) -> pb.Job:
        """Watch a job until a condition holds; AssertionError when it ends first."""
        name = f"{self.parent}/jobs/{job_id}"
        last = None
        async with asyncio.timeout(within_s):
            call = self.jobs.WatchJob(api.WatchJobRequest(name=name), timeout=within_s + 5)
            async for answer in call:
                last = answer.job
                if condition(last):
                    call.cancel()
                    return last
        raise AssertionError(f"{name} ended before: {last}")

    async def job_in(self, job_id: str, *states: State.ValueType, within_s: float = 30.0) -> pb.Job:
        """Watch a job until it is in one of these states."""
        return await self.job_when(job_id, lambda job: job.status.state in states, within_s=within_s)

    async def ended(self, job_id: str, *, within_s: float = 30.0) -> pb.Job:
        """Watch a job until it has ended."""
        return await self.job_in(job_id, *_ENDED, within_s=within_s)

    async def node(self, name: str = "n0") -> pb.Node:
        """Read a node."""
        return (await self.nodes.GetNode(api.GetNodeRequest(name=f"nodes/{name}"))).node

    async def reservations(self) -> Sequence[pb.Reservation]:
        """List the tenant's reservations."""
        return (
            await self.jobs.ListReservations(api.ListReservationsRequest(parent=self.parent))
        ).reservations

    async def log(self, job_id: str, rank: int = 0, *, attempt: int = 0, follow: bool = False) -> bytes:
        """Read a worker's log."""
        request = api.ReadLogsRequest(
            name=f"{self.parent}/jobs/{job_id}", rank=rank, attempt=attempt, follow=follow
        )
        return b"".join([part.data async for part in self.jobs.ReadLogs(request)])


def node_status(
    *,
    cpus: float = 8,
    memory: int = 32 * GIB,
    gpus: int = 0,
    topology: Sequence[str] = (),
    bandwidth: Sequence[Sequence[float]] = (),
) -> pb.NodeStatus:
    """Return what a runner says of its node."""
    return pb.NodeStatus(
        capacity=pb.Resources(cpu_millis=round(cpus * 1000), memory_bytes=memory, gpu_count=gpus),
        gpus=[pb.Gpu(index=i, model="simulated", memory_bytes=16 * GIB) for i in range(gpus)],
        links=[
            pb.GpuLink(first=i, second=j, bandwidth_gbps=bandwidth[i][j])
            for i in range(len(bandwidth))
            for j in range(i + 1, len(bandwidth))
        ],
        topology=topology,
        runner_version="fake",
    )


class FakeRunner:
    """A runner whose workers do what the test says; it remembers them over connections, as a real one does.

    Attributes:
        workers: the last report of each worker, by (job id, attempt, rank).
        told: everything that it was told, in order.
        starts: how often each worker was asked to be started over connections, by the same key.
    """

    def __init__(self, channel: Channel, node: str = "n0", status: pb.NodeStatus | None = None) -> None:
        self.node = f"nodes/{node}"
        self._stub = runner_pb2_grpc.RunnerServiceStub(channel)
        self._status = status or node_status()
        self.workers: dict[tuple[str, int, int], wire.WorkerReport] = {}
        self.told: list[wire.AttachResponse] = []
        self.acknowledged: dict[tuple[str, int, int], int] = {}
        self._changed = asyncio.Condition()
        self._outbox: asyncio.Queue[wire.AttachRequest] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None
        self.error: Error | None = None

    async def attach(self, *, within_s: float = 30.0) -> None:
        """Connect and say hello; return once welcomed."""
        self._outbox = asyncio.Queue()
        self.error = None
        welcomed = asyncio.Event()
        hello = wire.Hello(node=self.node, status=self._status, workers=self.workers.values())
        self._outbox.put_nowait(wire.AttachRequest(hello=hello))
        self._reading = asyncio.create_task(self._read(welcomed))
        waiting = asyncio.create_task(welcomed.wait())
        async with asyncio.timeout(within_s):
            await asyncio.wait({self._reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not welcomed.is_set():
            raise self.error or AssertionError("the connection ended before the welcome")

    async def detach(self) -> None:
        """Hang up, as a killed runner would; the workers go on."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, welcomed: asyncio.Event) -> None:
        call = self._stub.Attach()
        writing = asyncio.create_task(self._write(call, self._outbox))
        try:
            with rpc_errors():
                async for answer in call:
                    async with self._changed:
                        self.told.append(answer)
                        self._take(answer, welcomed)
                        self._changed.notify_all()
        except Error as error:
            self.error = error
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            call.cancel()
        async with self._changed:
            self._changed.notify_all()

    async def _write(
        self,
        call: "grpc.aio.StreamStreamCall[wire.AttachRequest, wire.AttachResponse]",
        outbox: "asyncio.Queue[wire.AttachRequest]",
    ) -> None:
        while True:
            try:
                async with asyncio.timeout(_HEARTBEAT_S):
                    message = await outbox.get()
            except TimeoutError:
                message = wire.AttachRequest(heartbeat=wire.Heartbeat())
            # What breaks here, reading tells.
            with suppress(grpc.RpcError):
                await send(call, message.SerializeToString())

    def _take(self, answer: wire.AttachResponse, welcomed: asyncio.Event) -> None:
        kind = answer.WhichOneof("message")
        if kind == "welcome":
            welcomed.set()
        elif kind == "start":
            key = _key(answer.start.id)
            if key not in self.workers:
                starting = pb.Worker(rank=key[2], node=self.node, state=WorkerState.STATE_STARTING)
                self.workers[key] = wire.WorkerReport(id=answer.start.id, worker=starting)
        elif kind == "stop" and _key(answer.stop.id) not in self.workers:
            self.workers[_key(answer.stop.id)] = wire.WorkerReport(id=answer.stop.id)
            self._report(_key(answer.stop.id), WorkerState.STATE_FAILED, reason="LOST")
        elif kind == "forget":
            self.workers.pop(_key(answer.forget.id), None)
        elif kind == "acknowledge":
            self.acknowledged[_key(answer.acknowledge.id)] = answer.acknowledge.sequence

    async def until(self, condition: Callable[[], bool], *, within_s: float = 30.0) -> None:
        """Wait until something that the runner was told makes a condition hold."""
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(condition)

    async def started(self, job: str, rank: int = 0, attempt: int = 1) -> wire.StartWorker:
        """Wait until a worker was asked to be started, and return the order."""
        key = (job, attempt, rank)
        await self.until(lambda: any(_key(start.id) == key for start in self._starts()))
        return next(start for start in self._starts() if _key(start.id) == key)

    async def stopped(self, job: str, rank: int = 0, attempt: int = 1) -> wire.StopWorker:
        """Wait until a worker was asked to be ended, and return the order."""

        def orders() -> list[wire.StopWorker]:
            stops = (answer.stop for answer in self.told if answer.HasField("stop"))
            return [stop for stop in stops if _key(stop.id) == (job, attempt, rank)]

        await self.until(lambda: bool(orders()))
        return orders()[0]

    def start_count(self, job: str, rank: int = 0, attempt: int = 1) -> int:
        """Return how often a worker was asked to be started."""
        return sum(_key(start.id) == (job, attempt, rank) for start in self._starts())

    def _starts(self) -> list[wire.StartWorker]:
        return [answer.start for answer in self.told if answer.HasField("start")]

    async def run(self, job: str, rank: int = 0, attempt: int = 1) -> None:
        """Say that a worker runs, once it was asked for."""
        await self.started(job, rank, attempt)
        await self.report(job, rank, attempt)

    async def exit(self, job: str, rank: int = 0, attempt: int = 1, code: int = 0) -> None:
        """Say that a worker has exited."""
        await self.report(job, rank, attempt, WorkerState.STATE_EXITED, exit_code=code)

    async def report(
        self,
        job: str,
        rank: int = 0,
        attempt: int = 1,
        state: WorkerState.ValueType = WorkerState.STATE_RUNNING,
        artefacts: Sequence[pb.KeptArtefact] = (),
        *,
        durable: bool = True,
        **worker: object,
    ) -> None:
        """Say how a worker is; return once that is acknowledged, unless `durable` is False."""
        key = (job, attempt, rank)
        sequence = self._report(key, state, artefacts, **worker)
        if durable:
            await self.until(lambda: self.acknowledged.get(key, 0) >= sequence)

    def _report(
        self,
        key: tuple[str, int, int],
        state: WorkerState.ValueType,
        artefacts: Sequence[pb.KeptArtefact] = (),
        **worker: object,
    ) -> int:
        now = Timestamp()
        now.FromDatetime(datetime.now(UTC))
        report = self.workers[key]
        report.sequence += 1
        report.worker.CopyFrom(
            pb.Worker(rank=key[2], node=self.node, state=state, **worker)  # type: ignore[arg-type]
        )
        report.worker.start_time.CopyFrom(now)
        if state in (WorkerState.STATE_EXITED, WorkerState.STATE_FAILED):
            report.worker.end_time.CopyFrom(now)
        report.artefacts.extend(artefacts)
        self._outbox.put_nowait(wire.AttachRequest(report=report))
        return report.sequence

    async def write(
        self, start: wire.StartWorker, data: bytes, offset: int = 0, *, last: bool = False
    ) -> int:
        """Send a piece of a worker's log; return how much is durable."""
        answer = await self._stub.AppendLog(
            wire.AppendLogRequest(id=start.id, offset_bytes=offset, data=data, last=last)
        )
        return answer.offset_bytes


def _key(worker: wire.WorkerId) -> tuple[str, int, int]:
    return worker.job.rpartition("/")[2], worker.attempt, worker.rank
