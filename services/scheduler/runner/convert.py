"""Between the messages of `RunnerService` and what the runner works with."""

from google.protobuf.message import DecodeError

from isthmus.scheduler.v1 import object_pb2, runner_pb2
from libs.common.errors import Invalid
from libs.common.names import JobName, NodeName
from services.scheduler import convert, convert_job
from services.scheduler.domain.lifecycle import Report
from services.scheduler.domain.objects import Facts, Worker, WorkerId, WorkerPlacement, WorkerState
from services.scheduler.runner.assignment import Assignment


def worker_id(message: runner_pb2.WorkerId) -> WorkerId:
    """Read which worker is meant; raise Invalid."""
    return WorkerId(JobName.parse(message.job, "id.job"), message.job_uid, message.attempt, message.rank)


def worker_id_message(value: WorkerId) -> runner_pb2.WorkerId:
    """Write which worker is meant."""
    return runner_pb2.WorkerId(
        job=str(value.job), job_uid=value.job_uid, attempt=value.attempt, rank=value.rank
    )


def assignment(message: runner_pb2.StartWorker) -> Assignment:
    """Read what to start; raise Invalid."""
    worker, placed = worker_id(message.id), message.placement
    has_deadline = message.HasField("deadline_time")
    return Assignment(
        worker,
        convert_job.job_spec(message.spec, worker.job.tenant),
        WorkerPlacement(
            worker.rank,
            NodeName.parse(placed.node, "placement.node"),
            convert.resources(placed.resources),
            tuple(placed.gpu_indexes),
        ),
        message.master_host,
        message.master_port,
        message.local_rank,
        convert.time_of(message.deadline_time, "deadline_time") if has_deadline else None,
    )


def stored_assignment(data: bytes) -> Assignment:
    """Read what was asked for before a restart; raise Invalid."""
    try:
        return assignment(runner_pb2.StartWorker.FromString(data))
    except DecodeError:
        raise Invalid("start: isn't what this runner wrote", reason="BAD_RECORD") from None


def report_message(report: Report) -> runner_pb2.WorkerReport:
    """Write what happens to a worker."""
    return runner_pb2.WorkerReport(
        id=worker_id_message(report.id),
        worker=convert_job.worker_message(report.worker),
        artefacts=[
            object_pb2.KeptArtefact(id=kept.id, blob=convert.blob_message(kept.blob))
            for kept in report.artefacts
        ],
        sequence=report.sequence,
    )


def starting(worker: WorkerId, node: NodeName) -> Report:
    """Return what is said of a worker of which there is nothing to say yet."""
    return Report(worker, Worker(worker.rank, node, WorkerState.STARTING))


def node_status(facts: Facts) -> object_pb2.NodeStatus:
    """Write what this node is."""
    return object_pb2.NodeStatus(
        state=object_pb2.NodeStatus.STATE_READY,
        capacity=convert.resources_message(facts.capacity),
        gpus=[
            object_pb2.Gpu(index=gpu.index, model=gpu.model, memory_bytes=gpu.memory_bytes)
            for gpu in facts.gpus
        ],
        links=[
            object_pb2.GpuLink(first=link.first, second=link.second, bandwidth_gbps=link.bandwidth_gbps)
            for link in facts.links
        ],
        topology=facts.topology,
        runner_version=facts.runner_version,
        host=facts.host,
        first_port=facts.ports[0],
        last_port=facts.ports[1],
    )
