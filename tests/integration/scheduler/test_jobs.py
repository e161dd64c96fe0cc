"""A job's life over gRPC, with a runner that does what the test says."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from isthmus.deployer.v1 import manifest_pb2
from isthmus.scheduler.v1 import object_pb2 as pb
from isthmus.scheduler.v1 import scheduler_pb2 as api
from libs.common.client import rpc_errors
from libs.common.errors import AlreadyExists, Invalid, NotFound, Precondition
from services.scheduler.testing import Running
from services.scheduler.testing_runner import FakeRunner, State, WorkerState, node_status

Kind = pb.PendingReason.Kind


@pytest.fixture
async def runner(running: Running) -> AsyncIterator[FakeRunner]:
    made = running.runner()
    await made.attach()
    yield made
    await made.detach()


async def test_a_job_runs_to_its_end_and_gives_its_room_back(running: Running, runner: FakeRunner) -> None:
    client = running.client()
    job = await client.submit("train", workers=2, cpus=2)
    assert job.status.state in (State.STATE_PENDING, State.STATE_STARTING)
    await runner.run("train", 0)
    assert (await client.job("train")).status.state == State.STATE_STARTING
    await runner.run("train", 1)
    job = await client.job_in("train", State.STATE_RUNNING)
    (reservation,) = await client.reservations()
    assert job.status.reservation == reservation.metadata.name
    assert [placement.rank for placement in reservation.spec.placements] == [0, 1]
    node = await client.node()
    assert node.status.state == pb.NodeStatus.State.STATE_READY
    assert node.status.allocated.cpu_millis == 4000
    await runner.exit("train", 0)
    await runner.exit("train", 1)
    job = await client.ended("train")
    assert job.status.state == State.STATE_SUCCEEDED
    assert [worker.state for worker in job.status.workers] == [WorkerState.STATE_EXITED] * 2
    assert not await client.reservations()
    assert not (await client.node()).status.holdings
    await runner.until(lambda: not runner.workers)


async def test_workers_of_a_gang_are_told_where_to_meet(running: Running, runner: FakeRunner) -> None:
    await running.client().submit("gang", workers=2)
    first, second = await runner.started("gang", 0), await runner.started("gang", 1)
    assert (first.master_host, first.master_port) == (second.master_host, second.master_port)
    assert first.master_port
    assert (first.local_rank, second.local_rank) == (0, 1)
    assert first.deadline_time.seconds


async def test_a_failing_worker_ends_its_siblings_and_the_job(running: Running, runner: FakeRunner) -> None:
    client = running.client()
    await client.submit("gang", workers=2)
    await runner.run("gang", 0)
    await runner.run("gang", 1)
    await runner.exit("gang", 1, code=3)
    stop = await runner.stopped("gang", 0)
    assert stop.reason == "SIBLING_FAILED"
    assert (await client.job("gang")).status.state == State.STATE_STOPPING
    await runner.report("gang", 0, state=WorkerState.STATE_EXITED, exit_code=143, reason="SIBLING_FAILED")
    job = await client.ended("gang")
    assert (job.status.state, job.status.reason) == (State.STATE_FAILED, "EXIT_CODE")
    assert job.status.message == "worker 1 on nodes/n0 exited with 3"
    assert not await client.reservations()


@pytest.mark.parametrize(
    ("code", "listed", "attempts"),
    [
        pytest.param(3, (), 1, id="1 to 127 are permanent"),
        pytest.param(3, (3,), 2, id="unless they are listed"),
        pytest.param(137, (), 2, id="signals are repeated"),
    ],
)
async def test_exit_codes_say_whether_an_attempt_is_repeated(
    running: Running, runner: FakeRunner, code: int, listed: tuple[int, ...], attempts: int
) -> None:
    client = running.client()
    await client.submit("job", retry_count=1, retry_exit_codes=listed)
    for attempt in range(1, attempts + 1):
        await runner.run("job", attempt=attempt)
        await runner.exit("job", attempt=attempt, code=code)
    job = await client.ended("job")
    assert (job.status.state, job.status.attempt_count) == (State.STATE_FAILED, attempts)
    assert not await client.reservations()


async def test_a_second_attempt_may_succeed(running: Running, runner: FakeRunner) -> None:
    client = running.client()
    await client.submit("job", retry_count=1)
    await runner.run("job")
    await runner.exit("job", code=137)
    waiting = await client.job_when("job", lambda job: job.status.state == State.STATE_PENDING)
    assert waiting.status.pending[0].kind == Kind.KIND_BACKOFF
    await runner.run("job", attempt=2)
    await runner.exit("job", attempt=2)
    job = await client.ended("job")
    assert (job.status.state, job.status.attempt_count) == (State.STATE_SUCCEEDED, 2)


async def test_cancelling_a_pending_job_ends_it_at_once(running: Running) -> None:
    client = running.client()
    await client.submit("job")
    await client.cancel("job")
    job = await client.ended("job")
    assert (job.status.state, job.status.attempt_count) == (State.STATE_CANCELLED, 0)
    again = await client.cancel("job")
    assert again.status == job.status, "a job that has ended stays as it is"


async def test_cancelling_a_running_job_ends_its_workers_first(running: Running, runner: FakeRunner) -> None:
    client = running.client()
    await client.submit("job")
    await runner.run("job")
    await client.cancel("job")
    assert (await runner.stopped("job")).reason == "CANCELLED"
    assert (await client.node()).status.holdings, "the room is taken as long as the work may run"
    await runner.report("job", state=WorkerState.STATE_EXITED, exit_code=143, reason="CANCELLED")
    job = await client.ended("job")
    assert (job.status.state, job.status.reason) == (State.STATE_CANCELLED, "CANCELLED")
    assert not (await client.node()).status.holdings


async def test_a_deadline_ends_a_job_for_good(running: Running, runner: FakeRunner) -> None:
    client = running.client()
    await client.submit("job", deadline_s=1, retry_count=5)
    await runner.run("job")
    assert (await runner.stopped("job")).reason == "DEADLINE"
    await runner.report("job", state=WorkerState.STATE_EXITED, exit_code=143, reason="DEADLINE")
    job = await client.ended("job")
    assert (job.status.state, job.status.reason) == (State.STATE_FAILED, "DEADLINE")
    assert job.status.attempt_count == 1


async def test_artefacts_are_kept_and_a_missing_one_is_a_failure(
    running: Running, runner: FakeRunner
) -> None:
    client = running.client()
    wanted = [pb.Artefact(id="model", path="model.onnx"), pb.Artefact(id="metrics", path="metrics.json")]
    model = pb.KeptArtefact(id="model", blob=manifest_pb2.BlobRef(digest="sha256:" + "a" * 64, size_bytes=7))
    await client.submit("job", artefacts=wanted)
    await runner.run("job")
    await runner.report("job", state=WorkerState.STATE_EXITED, artefacts=[model])
    job = await client.ended("job")
    assert (job.status.state, job.status.reason) == (State.STATE_FAILED, "ARTEFACT_MISSING")
    assert "metrics" in job.status.message
    assert list(job.status.artefacts) == [model]


async def test_a_submission_is_repeated_by_its_id(running: Running) -> None:
    client = running.client()
    first = await client.submit(request_id="3f0c")
    again = await client.submit(request_id="3f0c")
    assert again.metadata.uid == first.metadata.uid
    with pytest.raises(AlreadyExists, match="3f0c"), rpc_errors():
        await client.submit("other", request_id="3f0c")
    with pytest.raises(AlreadyExists, match="choose another"), rpc_errors():
        await client.submit(first.metadata.name.rpartition("/")[2])


async def test_validate_only_stores_nothing(running: Running) -> None:
    client = running.client()
    job = await client.submit("job", validate_only=True)
    assert job.spec.queue == "tenants/acme/queues/default"
    assert job.spec.grace_time.seconds == 10
    with pytest.raises(NotFound), rpc_errors():
        await client.job("job")
    with pytest.raises(Invalid, match=r"spec\.command"), rpc_errors():
        await client.submit("job", "", validate_only=True)


async def test_an_unknown_queue_is_named_with_the_nearest(running: Running) -> None:
    client = running.client()
    await client.queues.CreateQueue(api.CreateQueueRequest(parent=client.parent, queue_id="training"))
    ending = r"the default one; did you mean 'tenants/acme/queues/training'\?$"
    with pytest.raises(NotFound, match=ending), rpc_errors():
        await client.submit(queue="tenants/acme/queues/trainig")


async def test_deleting_takes_a_job_that_has_ended_and_its_etag(running: Running, runner: FakeRunner) -> None:
    client = running.client()
    await client.submit("job")
    name = f"{client.parent}/jobs/job"
    with pytest.raises(Precondition, match="cancel it"), rpc_errors():
        await client.jobs.DeleteJob(api.DeleteJobRequest(name=name))
    start = await runner.started("job")
    await runner.write(start, b"hello\n", last=True)
    await runner.run("job")
    await runner.exit("job")
    job = await client.ended("job")
    assert await client.log("job") == b"hello\n"
    await client.jobs.DeleteJob(api.DeleteJobRequest(name=name, etag=job.metadata.etag))
    with pytest.raises(NotFound), rpc_errors():
        await client.job("job")
    again = await client.submit("job")
    assert again.metadata.uid != job.metadata.uid


async def test_explain_says_what_each_node_lacks(running: Running, runner: FakeRunner) -> None:
    other = running.runner("n1", node_status(cpus=2))
    await other.attach()
    client = running.client()
    await client.submit("busy", cpus=6)
    await runner.run("busy")
    await client.submit("wide", cpus=4)
    explained = await client.explain("wide")
    assert {verdict.node: verdict.fitting_worker_count for verdict in explained.nodes} == {
        "nodes/n0": 0,
        "nodes/n1": 0,
    }
    texts = {verdict.node: verdict.reasons[0].message for verdict in explained.nodes}
    assert texts["nodes/n0"] == "needs 4 CPUs; 2 of 8 are free"
    assert "tenants/acme/jobs/wide waits" in explained.summary
    await client.submit("next", cpus=4)
    assert list((await client.explain("next")).ahead) == ["tenants/acme/jobs/wide"]
    running_one = await client.explain("busy")
    assert running_one.summary == "tenants/acme/jobs/busy is running on nodes/n0: 1 of 1 workers run."
    await client.cancel("wide")
    await client.ended("wide")
    cancelled = "tenants/acme/jobs/wide was cancelled. Cancelled while it waited."
    assert (await client.explain("wide")).summary == cancelled
    await runner.exit("busy", code=3)
    await client.ended("busy")
    failed = "tenants/acme/jobs/busy has failed. Worker 0 on nodes/n0 exited with 3."
    assert (await client.explain("busy")).summary == failed


async def test_lists_are_paged_by_name(running: Running) -> None:
    client = running.client()
    for name in ("c", "a", "b"):
        await client.submit(name)
    first = await client.jobs.ListJobs(api.ListJobsRequest(parent=client.parent, page_size=2))
    assert [job.metadata.name[-1] for job in first.jobs] == ["a", "b"]
    rest = await client.jobs.ListJobs(
        api.ListJobsRequest(parent=client.parent, page_size=2, page_token=first.next_page_token)
    )
    assert [job.metadata.name[-1] for job in rest.jobs] == ["c"]
    assert not rest.next_page_token


async def test_tenants_never_see_each_other(running: Running, runner: FakeRunner) -> None:
    await running.client("acme").submit("secret")
    await runner.run("secret")
    job = await running.client("acme").job_in("secret", State.STATE_RUNNING)
    queue = pb.Queue(metadata=pb.Metadata(name="tenants/acme/queues/default"))
    other = running.client("rival")
    for call in (
        lambda: other.jobs.GetJob(api.GetJobRequest(name="tenants/acme/jobs/secret")),
        lambda: other.jobs.CancelJob(api.CancelJobRequest(name="tenants/acme/jobs/secret")),
        lambda: other.jobs.ExplainJob(api.ExplainJobRequest(name="tenants/acme/jobs/secret")),
        lambda: other.jobs.ListJobs(api.ListJobsRequest(parent="tenants/acme")),
        lambda: other.jobs.ListReservations(api.ListReservationsRequest(parent="tenants/acme")),
        lambda: other.jobs.GetReservation(api.GetReservationRequest(name=job.status.reservation)),
        lambda: other.jobs.DeleteJob(api.DeleteJobRequest(name="tenants/acme/jobs/secret")),
        lambda: other.jobs.CreateJob(api.CreateJobRequest(parent="tenants/acme")),
        lambda: anext(aiter(other.jobs.WatchJob(api.WatchJobRequest(name="tenants/acme/jobs/secret")))),
        lambda: anext(aiter(other.jobs.ReadLogs(api.ReadLogsRequest(name="tenants/acme/jobs/secret")))),
        lambda: other.queues.CreateQueue(api.CreateQueueRequest(parent="tenants/acme", queue_id="q")),
        lambda: other.queues.GetQueue(api.GetQueueRequest(name="tenants/acme/queues/default")),
        lambda: other.queues.ListQueues(api.ListQueuesRequest(parent="tenants/acme")),
        lambda: other.queues.UpdateQueue(api.UpdateQueueRequest(queue=queue)),
        lambda: other.queues.DeleteQueue(api.DeleteQueueRequest(name="tenants/acme/queues/default")),
    ):
        with pytest.raises(NotFound), rpc_errors():
            await call()
    node = await other.node()
    assert node.status.allocated.cpu_millis == 1000
    assert not node.status.holdings, "whose work it is, is not for others"
    with pytest.raises(Invalid, match="another tenant's"), rpc_errors():
        await other.submit(queue="tenants/acme/queues/default")


async def test_concurrent_repetitions_make_one_job(running: Running) -> None:
    client = running.client()
    made = await asyncio.gather(*(client.submit(request_id="same") for _ in range(20)))
    assert len({job.metadata.uid for job in made}) == 1
    others = await asyncio.gather(*(client.submit() for _ in range(20)))
    assert len({job.metadata.name for job in (*made, *others)}) == 21
