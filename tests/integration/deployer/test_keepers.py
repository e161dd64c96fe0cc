"""Services that keep files for tenants see the tenant they act for, and pin what their resources need."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from libs.common.blobs import BlobClient, BlobRef
from libs.common.errors import Error, Forbidden, Invalid, NotFound
from libs.common.retry import RetryPolicy
from libs.common.testing import FakeClock
from services.deployer.testing import Running, refused, running_deployer

CONTENT = bytes(range(256)) * 4096 * 2  # 2 MiB
JOB = "tenants/acme/jobs/train"
GRACE = timedelta(days=1)


def blobs(running: Running, service: str = "scheduler-runner", resource: str = JOB) -> BlobClient:
    """Return the blob client of a service that acts for a resource."""
    return BlobClient(running.keeper(service, resource), policy=RetryPolicy(attempts=1))


async def test_a_service_and_its_tenant_see_the_same_files(running: Running, tmp_path: Path) -> None:
    mine = await running.client().upload(CONTENT)
    ref = BlobRef(mine.digest, mine.size_bytes)
    await blobs(running).download(ref, tmp_path / "got")
    assert await asyncio.to_thread((tmp_path / "got").read_bytes) == CONTENT
    made = await blobs(running, resource="tenants/acme").upload(b"artefact")
    assert await running.client().read(made.digest) == b"artefact"


async def test_a_service_sees_no_other_tenants_files(running: Running) -> None:
    ref = await blobs(running).upload(CONTENT)
    other = blobs(running, resource="tenants/other/jobs/train")
    with pytest.raises(NotFound):
        await other.read(ref, len(CONTENT))
    with pytest.raises(NotFound):
        await other.pin(ref, "tenants/other/jobs/train")
    with refused(NotFound):
        await running.client("other").read(ref.digest)


@pytest.mark.parametrize(
    "resource", ["", "acme", "tenants", "tenants/", "tenants/A", "nodes/n1", "/tenants/a"]
)
async def test_a_service_must_say_for_whom_it_acts(running: Running, resource: str) -> None:
    with pytest.raises(Invalid, match="on_behalf_of"):
        await blobs(running, resource=resource).upload(b"artefact")


async def test_what_a_job_pins_stays_until_the_job_lets_go(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running_deployer(tmp_path, clock=clock) as running:
        runner, scheduler = (blobs(running, name) for name in ("scheduler-runner", "scheduler"))
        kept, loose = await runner.upload(b"kept"), await runner.upload(b"loose")
        await runner.pin(kept, JOB)
        await runner.pin(kept, JOB)
        await runner.pin(kept, "tenants/acme/jobs/other")
        clock.advance(2 * GRACE.total_seconds())
        await running.deployer.blobs.collect(GRACE)
        assert await runner.read(kept, 10) == b"kept"
        with pytest.raises(NotFound):
            await runner.read(loose, 10)

        assert await scheduler.unpin(JOB) == 1
        assert await scheduler.unpin(JOB) == 0
        assert await scheduler.unpin("tenants/acme/jobs/other") == 1
        await running.deployer.blobs.collect(GRACE)
        assert await runner.read(kept, 10) == b"kept"
        clock.advance(GRACE.total_seconds() + 1)
        await running.deployer.blobs.collect(GRACE)
        with pytest.raises(NotFound):
            await runner.read(kept, 10)


@pytest.mark.parametrize(
    ("service", "resource"),
    [
        ("scheduler-runner", "tenants/acme/models/click/versions/1"),
        ("engine", "tenants/acme/jobs/train"),
        ("scheduler-runner", "tenants/other/jobs/train"),
        ("scheduler-runner", "tenants/acme/jobs"),
        ("scheduler-runner", "tenants/acme/jobs/"),
        ("scheduler-runner", "tenants/acme/jobs/a/../../../x"),
        ("scheduler-runner", "tenants/acme/jobs/" + "a/" * 100),
        ("scheduler-runner", "tenants/acme/jobs/" + "/".join(["a" * 128] * 3)),
        ("scheduler-runner", "tenants/acme/tasks/t/versions/1"),
        ("scheduler-runner", ""),
    ],
)
async def test_a_service_pins_only_for_what_it_keeps(running: Running, service: str, resource: str) -> None:
    client = blobs(running, service)
    ref = await client.upload(b"artefact")
    calls: list[Callable[[], object]] = [
        lambda: client.pin(ref, resource),
        lambda: client.unpin(resource),
    ]
    for call in calls:
        with pytest.raises(Invalid) as caught:
            await call()  # type: ignore[misc]
        assert (caught.value.reason, caught.value.metadata["field"]) == ("BAD_NAME", "resource")


async def test_the_scheduler_only_ends_pins(running: Running) -> None:
    ref = await blobs(running).upload(b"artefact")
    scheduler = blobs(running, "scheduler")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: scheduler.upload(b"more"),
        lambda: scheduler.read(ref, 10),
        lambda: scheduler.stat(ref.digest),
        lambda: scheduler.pin(ref, JOB),
    ]
    for call in calls:
        with pytest.raises(Forbidden):
            await call()
    with pytest.raises(Invalid, match="keeps for this tenant"):
        await scheduler.unpin("tenants/other/jobs/train")
    assert await scheduler.unpin(JOB) == 0


async def test_the_engine_pins_for_models(running: Running) -> None:
    engine = blobs(running, "engine", "tenants/acme")
    ref = await engine.upload(b"plan")
    await engine.pin(ref, "tenants/acme/models/click/versions/1.0")
    assert await engine.unpin("tenants/acme/models/click/versions/1.0") == 1


async def test_pinning_what_isnt_there_is_refused(running: Running) -> None:
    with pytest.raises(Error) as caught:
        await blobs(running).pin(BlobRef.of(b"nowhere"), JOB)
    assert caught.value.reason == "NO_BLOB"
