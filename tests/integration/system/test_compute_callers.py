"""Who uses jobs and models through the door: keys by their scopes, each tenant its own, devices nothing."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from deploy.local.stack import Stack
from isthmus.engine.v1 import engine_pb2
from isthmus.scheduler.v1 import scheduler_pb2
from tests.integration.system.wire import Handset, bearer, call, refusal, upload
from tests.integration.system.world import Cloud, CommandFailed, running_stack

JOBS = "/isthmus.scheduler.v1.JobService/"
QUEUES = "/isthmus.scheduler.v1.QueueService/"
NODES = "/isthmus.scheduler.v1.NodeService/"
ENGINE = "/isthmus.engine.v1.EngineService/"
OURS = "tenants/ours"
FORBIDDEN, NOT_FOUND = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A stack with all services."""
    with running_stack() as stack:
        yield stack


@pytest.fixture(scope="module")
def requests(cloud: Cloud) -> dict[str, Message]:
    """What people call, about a job, a queue and a model of the first tenant, by method."""
    cloud.isthmus("queue", "create", "ours")
    # It waits: the queue takes no work.
    cloud.isthmus("queue", "pause", "ours")
    cloud.isthmus("job", "submit", "--id", "ours", "--queue", "ours", "true")
    model = upload(cloud, b"a model of ours")
    job, queue = {"name": f"{OURS}/jobs/ours"}, {"name": f"{OURS}/queues/ours"}
    create = scheduler_pb2.CreateJobRequest(parent=OURS, job_id="more")
    create.job.spec.command.append("true")
    update = scheduler_pb2.UpdateQueueRequest()
    update.queue.metadata.name = queue["name"]
    return {
        JOBS + "CreateJob": create,
        JOBS + "GetJob": scheduler_pb2.GetJobRequest(**job),
        JOBS + "ListJobs": scheduler_pb2.ListJobsRequest(parent=OURS),
        JOBS + "WatchJob": scheduler_pb2.WatchJobRequest(**job),
        JOBS + "ReadLogs": scheduler_pb2.ReadLogsRequest(**job),
        JOBS + "ExplainJob": scheduler_pb2.ExplainJobRequest(**job),
        JOBS + "CancelJob": scheduler_pb2.CancelJobRequest(**job),
        JOBS + "DeleteJob": scheduler_pb2.DeleteJobRequest(**job),
        JOBS + "ListReservations": scheduler_pb2.ListReservationsRequest(parent=OURS),
        QUEUES + "CreateQueue": scheduler_pb2.CreateQueueRequest(parent=OURS, queue_id="more"),
        QUEUES + "GetQueue": scheduler_pb2.GetQueueRequest(**queue),
        QUEUES + "ListQueues": scheduler_pb2.ListQueuesRequest(parent=OURS),
        QUEUES + "UpdateQueue": update,
        QUEUES + "DeleteQueue": scheduler_pb2.DeleteQueueRequest(**queue),
        ENGINE + "Optimize": engine_pb2.OptimizeRequest(parent=OURS, model=model),
        ENGINE + "Explain": engine_pb2.ExplainRequest(parent=OURS, model=model),
        ENGINE + "Infer": engine_pb2.InferRequest(parent=OURS, plan=model),
    }


def test_a_tenant_reaches_no_job_queue_or_model_of_another(
    stack: Stack, cloud: Cloud, theirs: Cloud, requests: dict[str, Message]
) -> None:
    key = bearer(theirs.key)
    found = {
        method: refusal(stack.gateway, method, request.SerializeToString(), key).code
        for method, request in requests.items()
    }
    assert found == dict.fromkeys(requests, NOT_FOUND)
    # Naming the model as a blob of its own helps no tenant either.
    for method in ("Optimize", "Explain"):
        request = type(requests[ENGINE + method])()
        request.CopyFrom(requests[ENGINE + method])
        request.parent = "tenants/theirs"  # type: ignore[attr-defined]
        assert refusal(stack.gateway, ENGINE + method, request.SerializeToString(), key).code is NOT_FOUND
    with pytest.raises(CommandFailed) as refused:
        theirs.isthmus("job", "submit", "--queue", f"{OURS}/queues/ours", "true")
    assert refused.value.status != 0
    (job,) = cloud.isthmus("job", "get", "ours")
    assert job["status"]["state"] == "STATE_PENDING"
    assert len(cloud.isthmus("job", "list")[0]) == 1


def test_a_device_uses_neither_jobs_nor_models(
    stack: Stack, cloud: Cloud, handset: Handset, requests: dict[str, Message]
) -> None:
    nodes = {NODES + "ListNodes": scheduler_pb2.ListNodesRequest()}
    everything = requests | nodes | {ENGINE + "ListOperators": engine_pb2.ListOperatorsRequest()}
    found = {
        method: refusal(stack.gateway, method, request.SerializeToString(), handset.metadata).code
        for method, request in everything.items()
    }
    assert found == dict.fromkeys(everything, FORBIDDEN)


@pytest.mark.parametrize(
    ("method", "scope"),
    [
        (JOBS + "ListJobs", "jobs:read"),
        (JOBS + "CreateJob", "jobs:write"),
        (QUEUES + "GetQueue", "queues:read"),
        (QUEUES + "UpdateQueue", "queues:write"),
        (ENGINE + "Explain", "models:read"),
        (ENGINE + "Optimize", "models:write"),
    ],
)
def test_a_key_does_no_more_than_its_scopes(
    stack: Stack, cloud: Cloud, requests: dict[str, Message], tmp_path: Path, method: str, scope: str
) -> None:
    cloud.isthmus("key", "create", "--scope", "tasks:read", "--out", str(tmp_path / "key"))
    key = bearer((tmp_path / "key").read_text())
    refused = refusal(stack.gateway, method, requests[method].SerializeToString(), key)
    assert refused.code is FORBIDDEN
    assert scope in refused.text


def test_a_tenant_that_runs_no_machines_changes_none(stack: Stack, cloud: Cloud) -> None:
    # It may look, since it asks why its jobs wait.
    listed = scheduler_pb2.ListNodesResponse.FromString(
        call(
            stack.gateway,
            NODES + "ListNodes",
            scheduler_pb2.ListNodesRequest().SerializeToString(),
            bearer(cloud.key),
        )
    )
    assert [node.metadata.name for node in listed.nodes] == ["nodes/local"]
    update = scheduler_pb2.UpdateNodeRequest()
    update.node.metadata.name = "nodes/local"
    update.node.spec.cordoned = True
    delete = scheduler_pb2.DeleteNodeRequest(name="nodes/local")
    for method, request in (("UpdateNode", update), ("DeleteNode", delete)):
        refused = refusal(stack.gateway, NODES + method, request.SerializeToString(), bearer(cloud.key))
        assert refused.code is FORBIDDEN, refused
