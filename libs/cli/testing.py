"""A cloud for tests of the command: what is behind the gateway, as far as a client sees it.

It keeps what it is sent, does nothing with it, and is set by hand: `cloud.jobs["j"].status.state = ...`.
Whoever wants a real one starts the local stack.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from isthmus.deployer.v1 import blob_pb2, blob_pb2_grpc, manifest_pb2
from isthmus.engine.v1 import engine_pb2, engine_pb2_grpc
from isthmus.scheduler.v1 import object_pb2, scheduler_pb2, scheduler_pb2_grpc
from libs.cli.testing_serving import FakeServing, FakeTuner
from libs.cli.testing_tasks import FakeTasks

Context = grpc.ServicerContext
KEY = f"isk_{'0' * 16}_{'0' * 64}"
"""An API key that looks like one."""


class FakeCloud:
    """What is there, and what was asked.

    Attributes:
        target: where it listens.
        jobs: by id; likewise queues and nodes.
        requests: every request so far, in order.
        history: what WatchJob says of a job, one list for each stream; the last one of each ends it. A stream
            whose list ends with None is cut off as by a service that was killed.
        logs: what ReadLogs says of each (job, rank), in pieces; None as above.
        blobs: content by digest.
        stages: what Optimize says before its result.
        result: its result.
        explanation: what Explain says.
        engine_refusal: what Optimize and Explain refuse everything with, or "".
        outputs: what Infer says.
        operators: what ListOperators says.
        serving: models behind endpoints.
        tuner: experiments.
        tasks: tasks and versions.
    """

    def __init__(self) -> None:
        self.target = ""
        self.jobs: dict[str, object_pb2.Job] = {}
        self.queues: dict[str, object_pb2.Queue] = {}
        self.nodes: dict[str, object_pb2.Node] = {}
        self.requests: list[Any] = []
        self.history: deque[list[object_pb2.Job | None]] = deque()
        self.logs: dict[tuple[str, int], list[bytes | None]] = {}
        self.explained = scheduler_pb2.ExplainJobResponse()
        self.pending = [object_pb2.PendingReason(kind=object_pb2.PendingReason.KIND_CPU)]
        """Why new jobs wait."""
        self.blobs: dict[str, bytes] = {}
        self.stages: list[engine_pb2.Stage] = []
        self.result = engine_pb2.OptimizeResult()
        self.explanation = engine_pb2.Explanation()
        self.engine_refusal = ""
        self.outputs: list[engine_pb2.InferTensor] = []
        self.operators = engine_pb2.ListOperatorsResponse()
        self.serving = FakeServing()
        self.tuner = FakeTuner()
        self.tasks = FakeTasks()
        self._lock = threading.Lock()
        self._revision = 0

    def asked(self, kind: type[Any]) -> list[Any]:
        """Return the requests of a kind."""
        return [request for request in self.requests if isinstance(request, kind)]

    def keep(self, request: Any) -> None:
        """Note a request."""
        with self._lock:
            copy = type(request)()
            copy.CopyFrom(request)
            self.requests.append(copy)

    def etag(self) -> str:
        """Return the next etag."""
        with self._lock:
            self._revision += 1
            return str(self._revision)

    def put(self, data: bytes) -> manifest_pb2.BlobRef:
        """Keep a blob; return what names it."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return manifest_pb2.BlobRef(digest=digest, size_bytes=len(data))


def _missing(context: Context, name: str) -> NoReturn:
    context.abort(grpc.StatusCode.NOT_FOUND, f"{name}: not found")
    raise AssertionError


def _cut(context: Context) -> NoReturn:
    context.abort(
        grpc.StatusCode.UNAVAILABLE, "the service can't be reached; it may be restarting: try again"
    )
    raise AssertionError


class _Jobs(scheduler_pb2_grpc.JobServiceServicer):
    def __init__(self, cloud: FakeCloud) -> None:
        self._cloud = cloud

    def _find(self, name: str, context: Context) -> object_pb2.Job:
        return self._cloud.jobs.get(name.rpartition("/")[2]) or _missing(context, name)

    def CreateJob(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._cloud.keep(request)
        job = object_pb2.Job()
        job.CopyFrom(request.job)
        job_id = request.job_id or f"job-{len(self._cloud.jobs) + 1}"
        # The defaults that a scheduler fills in.
        job.spec.worker_count = job.spec.worker_count or 1
        job.spec.queue = job.spec.queue or f"{request.parent}/queues/default"
        if not request.validate_only:
            if job_id in self._cloud.jobs:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{job_id}: is there already")
            job.metadata.name = f"{request.parent}/jobs/{job_id}"
            job.metadata.etag = self._cloud.etag()
            job.status.state = object_pb2.JobStatus.STATE_PENDING
            job.status.pending.extend(self._cloud.pending)
            self._cloud.jobs[job_id] = job
        return scheduler_pb2.CreateJobResponse(job=job)

    def GetJob(self, request: Any, context: Context) -> Any:  # noqa: N802
        return scheduler_pb2.GetJobResponse(job=self._find(request.name, context))

    def ListJobs(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._cloud.keep(request)
        found = [self._cloud.jobs[name] for name in sorted(self._cloud.jobs)]
        start = int(request.page_token or 0)
        end = start + request.page_size
        token = str(end) if end < len(found) else ""
        return scheduler_pb2.ListJobsResponse(jobs=found[start:end], next_page_token=token)

    def CancelJob(self, request: Any, context: Context) -> Any:  # noqa: N802
        job = self._find(request.name, context)
        job.spec.cancelled = True
        job.status.state = object_pb2.JobStatus.STATE_STOPPING
        return scheduler_pb2.CancelJobResponse(job=job)

    def DeleteJob(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._cloud.keep(request)
        self._find(request.name, context)
        del self._cloud.jobs[request.name.rpartition("/")[2]]
        return scheduler_pb2.DeleteJobResponse()

    def WatchJob(self, request: Any, context: Context) -> Iterator[Any]:  # noqa: N802
        self._cloud.keep(request)
        if not self._cloud.history:
            yield scheduler_pb2.WatchJobResponse(job=self._find(request.name, context))
            return
        for job in self._cloud.history.popleft():
            if job is None:
                _cut(context)
            yield scheduler_pb2.WatchJobResponse(job=job)

    def ReadLogs(self, request: Any, context: Context) -> Iterator[Any]:  # noqa: N802
        self._cloud.keep(request)
        name = request.name.rpartition("/")[2]
        pieces = self._cloud.logs.get((name, request.rank))
        if pieces is None:
            _missing(context, f"{name}, rank {request.rank}")
        offset = 0
        for number, data in enumerate(pieces):
            if data is None:
                del pieces[number]  # the next stream gets past it
                _cut(context)
            if offset >= request.offset_bytes:
                yield scheduler_pb2.ReadLogsResponse(data=data, offset_bytes=offset)
            offset += len(data)

    def ExplainJob(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._cloud.explained.job.CopyFrom(self._find(request.name, context))
        return self._cloud.explained


class _Queues(scheduler_pb2_grpc.QueueServiceServicer):
    def __init__(self, cloud: FakeCloud) -> None:
        self._cloud = cloud

    def _find(self, name: str, context: Context) -> object_pb2.Queue:
        return self._cloud.queues.get(name.rpartition("/")[2]) or _missing(context, name)

    def CreateQueue(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._cloud.keep(request)
        queue = object_pb2.Queue()
        queue.CopyFrom(request.queue)
        queue.metadata.name = f"{request.parent}/queues/{request.queue_id}"
        if not request.validate_only:
            queue.metadata.etag = self._cloud.etag()
            self._cloud.queues[request.queue_id] = queue
        return scheduler_pb2.CreateQueueResponse(queue=queue)

    def GetQueue(self, request: Any, context: Context) -> Any:  # noqa: N802
        return scheduler_pb2.GetQueueResponse(queue=self._find(request.name, context))

    def ListQueues(self, request: Any, context: Context) -> Any:  # noqa: N802
        found = [self._cloud.queues[name] for name in sorted(self._cloud.queues)]
        return scheduler_pb2.ListQueuesResponse(queues=found)

    def UpdateQueue(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._cloud.keep(request)
        found = self._find(request.queue.metadata.name, context)
        if request.queue.metadata.etag not in ("", found.metadata.etag):
            context.abort(grpc.StatusCode.ABORTED, f"{found.metadata.name}: was written by somebody else")
        changed = object_pb2.Queue()
        changed.CopyFrom(found)
        changed.spec.CopyFrom(request.queue.spec)
        changed.metadata.labels.clear()
        changed.metadata.labels.update(request.queue.metadata.labels)
        if not request.validate_only:
            changed.metadata.etag = self._cloud.etag()
            self._cloud.queues[found.metadata.name.rpartition("/")[2]] = changed
        return scheduler_pb2.UpdateQueueResponse(queue=changed)

    def DeleteQueue(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._cloud.keep(request)
        self._find(request.name, context)
        del self._cloud.queues[request.name.rpartition("/")[2]]
        return scheduler_pb2.DeleteQueueResponse()


class _Nodes(scheduler_pb2_grpc.NodeServiceServicer):
    def __init__(self, cloud: FakeCloud) -> None:
        self._cloud = cloud

    def _find(self, name: str, context: Context) -> object_pb2.Node:
        return self._cloud.nodes.get(name.rpartition("/")[2]) or _missing(context, name)

    def GetNode(self, request: Any, context: Context) -> Any:  # noqa: N802
        return scheduler_pb2.GetNodeResponse(node=self._find(request.name, context))

    def ListNodes(self, request: Any, context: Context) -> Any:  # noqa: N802
        found = [self._cloud.nodes[name] for name in sorted(self._cloud.nodes)]
        return scheduler_pb2.ListNodesResponse(nodes=found)

    def UpdateNode(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._cloud.keep(request)
        found = self._find(request.node.metadata.name, context)
        if not request.validate_only:
            found.spec.CopyFrom(request.node.spec)
        return scheduler_pb2.UpdateNodeResponse(node=found)

    def DeleteNode(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._cloud.keep(request)
        self._find(request.name, context)
        del self._cloud.nodes[request.name.rpartition("/")[2]]
        return scheduler_pb2.DeleteNodeResponse()


class _Engine(engine_pb2_grpc.EngineServiceServicer):
    def __init__(self, cloud: FakeCloud) -> None:
        self._cloud = cloud

    def Optimize(self, request: Any, context: Context) -> Iterator[Any]:  # noqa: N802
        self._cloud.keep(request)
        self._refuse(context)
        for stage in self._cloud.stages:
            yield engine_pb2.OptimizeResponse(stage=stage)
        yield engine_pb2.OptimizeResponse(result=self._cloud.result)

    def Explain(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._cloud.keep(request)
        self._refuse(context)
        return engine_pb2.ExplainResponse(explanation=self._cloud.explanation)

    def Infer(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._cloud.keep(request)
        return engine_pb2.InferResponse(outputs=self._cloud.outputs)

    def _refuse(self, context: Context) -> None:
        if self._cloud.engine_refusal:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, self._cloud.engine_refusal)

    def ListOperators(self, request: Any, context: Context) -> Any:  # noqa: N802
        return self._cloud.operators


class _Blobs(blob_pb2_grpc.BlobServiceServicer):
    def __init__(self, cloud: FakeCloud) -> None:
        self._cloud = cloud
        self._uploads: dict[str, bytes] = {}

    def BeginBlob(self, request: Any, context: Context) -> Any:  # noqa: N802
        digest = request.blob.digest
        if digest in self._cloud.blobs:
            return blob_pb2.BeginBlobResponse(committed=True)
        self._uploads.setdefault(digest, b"")
        return blob_pb2.BeginBlobResponse(upload_id=digest, offset_bytes=len(self._uploads[digest]))

    def WriteBlob(self, request: Any, context: Context) -> Any:  # noqa: N802
        written = self._uploads[request.upload_id][: request.offset_bytes] + request.data
        self._uploads[request.upload_id] = written
        return blob_pb2.WriteBlobResponse(offset_bytes=len(written))

    def CommitBlob(self, request: Any, context: Context) -> Any:  # noqa: N802
        return blob_pb2.CommitBlobResponse(blob=self._cloud.put(self._uploads.pop(request.upload_id)))

    def StatBlob(self, request: Any, context: Context) -> Any:  # noqa: N802
        if request.digest not in self._cloud.blobs:
            _missing(context, request.digest)
        data = self._cloud.blobs[request.digest]
        ref = manifest_pb2.BlobRef(digest=request.digest, size_bytes=len(data))
        return blob_pb2.StatBlobResponse(blob=ref)

    def ReadBlob(self, request: Any, context: Context) -> Iterator[Any]:  # noqa: N802
        if request.digest not in self._cloud.blobs:
            _missing(context, request.digest)
        yield blob_pb2.ReadBlobResponse(data=self._cloud.blobs[request.digest])


@contextmanager
def fake_cloud() -> Iterator[FakeCloud]:
    """Serve a cloud on a free port of the loopback until the block ends."""
    cloud = FakeCloud()
    server = grpc.server(ThreadPoolExecutor(8))
    scheduler_pb2_grpc.add_JobServiceServicer_to_server(_Jobs(cloud), server)  # type: ignore[abstract]
    scheduler_pb2_grpc.add_QueueServiceServicer_to_server(_Queues(cloud), server)
    scheduler_pb2_grpc.add_NodeServiceServicer_to_server(_Nodes(cloud), server)
    engine_pb2_grpc.add_EngineServiceServicer_to_server(_Engine(cloud), server)
    blob_pb2_grpc.add_BlobServiceServicer_to_server(_Blobs(cloud), server)  # type: ignore[abstract]
    cloud.serving.add_to(server)
    cloud.tuner.add_to(server)
    cloud.tasks.add_to(server)
    healthy = health.HealthServicer()
    healthy.set("gateway", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    cloud.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield cloud
    finally:
        server.stop(None).wait()
