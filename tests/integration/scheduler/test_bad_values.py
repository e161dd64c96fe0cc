"""Values in etcd that somebody wrote by hand and nobody can read: they stop nothing else."""

import asyncio
from pathlib import Path

from libs.common.etcd.testing import EtcdServer, etcd_client
from services.scheduler.testing import etcd_store, running_scheduler
from services.scheduler.testing_runner import State


async def test_one_bad_value_stops_nothing_else(tmp_path: Path, etcd: EtcdServer) -> None:
    async with etcd_client(etcd) as client:
        for key in (
            "nodes/bad",
            "tenants/acme/jobs/bad",
            "tenants/acme/queues/bad",
            "tenants/acme/x/y",
            "%%",
        ):
            await client.put(f"/isthmus/{key}", b'{"spec": [')
        async with running_scheduler(tmp_path / "s", store=etcd_store(etcd.endpoints)) as running:
            bad, good = running.runner("bad"), running.runner("good")
            # The runner of the bad node isn't welcomed as long as its value is there; the other is.
            attaching = asyncio.create_task(bad.attach(within_s=60))
            await good.attach()
            user = running.client()
            await user.submit("job")
            await good.run("job")
            await client.put("/isthmus/tenants/acme/jobs/bad2", b"\xff\xfe")
            await good.exit("job")
            assert (await user.ended("job")).status.state == State.STATE_SUCCEEDED
            assert not attaching.done()
            await client.delete("/isthmus/nodes/bad")
            await attaching
            await bad.detach()
            await good.detach()


async def test_a_job_goes_on_while_its_nodes_value_is_spoilt(tmp_path: Path, etcd: EtcdServer) -> None:
    async with etcd_client(etcd) as client:
        store = etcd_store(etcd.endpoints)
        async with running_scheduler(tmp_path / "s", store=store) as running:
            runner, user = running.runner("spoilt"), running.client()
            await runner.attach()
            await user.submit("going")
            await runner.run("going")
            (before,) = (await client.range("/isthmus/nodes/spoilt")).items
            revision = await client.put(before.key, b"{")
            mirror = running.scheduler.mirror
            await mirror.reached(revision)
            assert mirror.snapshot.unreadable
            # It takes nothing new meanwhile, and what runs there goes on.
            await user.submit("other")
            await user.job_when(
                "other", lambda job: any(why.kind == why.KIND_LOST for why in job.status.pending)
            )
            assert (await user.job("going")).status.state == State.STATE_RUNNING
            await mirror.reached(await client.put(before.key, before.value))
            assert not mirror.snapshot.unreadable
            await runner.exit("going")
            assert (await user.ended("going")).status.state == State.STATE_SUCCEEDED
            await runner.run("other")
            await runner.exit("other")
            await user.ended("other")
            await runner.detach()
