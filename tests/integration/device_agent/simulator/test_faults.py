"""A real simulator under faults: full, killed, given up; it goes on, and leaves nothing behind."""

import os
import signal
from pathlib import Path

import pytest

from isthmus.deployer.v1 import preflight_pb2
from isthmus.device_agent.v1 import simulator_pb2, simulator_pb2_grpc
from libs.common.errors import Exhausted, Forbidden, Internal, Invalid, NotFound, Unauthenticated, Unavailable
from libs.common.status import rpc_errors
from libs.task.testing import make_manifest
from services.device_agent.simulator.testing import Bench, lines, running_bench
from services.device_agent.vm.testing import until
from tests.integration.device_agent.simulator.endless import ENDLESS, alive, children, endless

State = preflight_pb2.Preflight.State
FINE = "def pre(context): return {}\n"


async def gone(bench: Bench, processes: list[int]) -> None:
    await until(lambda: not any(map(alive, processes)), "the simulation's processes are gone")
    await until(lambda: bench.simulator.scratch == [], "the simulation's folder is gone")


async def test_a_call_given_up_takes_its_processes_and_folder_along(bench: Bench) -> None:
    async with endless(bench) as (call, processes):
        assert not call.done()
        assert len(bench.simulator.scratch) == 1
        call.cancel()
        await gone(bench, processes)
    found = await bench.simulate(FINE, lines(1))
    assert found.state == State.STATE_PASSED


async def test_a_callers_deadline_ends_its_simulation(bench: Bench) -> None:
    recording, manifest = bench.recording(lines(1)), bench.version(ENDLESS, wall_time_s=60)
    with pytest.raises(Unavailable):
        await bench.caller.simulate(manifest, recording, timeout_s=2)
    await until(lambda: not children(bench.simulator.pid), "its process is gone")
    await until(lambda: bench.simulator.scratch == [], "its folder is gone")


async def test_the_death_of_a_simulations_process_is_said_and_harms_nobody(bench: Bench) -> None:
    async with endless(bench) as (call, processes):
        os.kill(processes[0], signal.SIGKILL)
        with pytest.raises(Internal, match="ended without a verdict"):
            await call
        await gone(bench, processes)
    assert (await bench.simulate(FINE, lines(1))).state == State.STATE_PASSED


async def test_a_killed_simulator_takes_its_processes_along_and_starts_clean(bench: Bench) -> None:
    async with endless(bench) as (call, processes):
        await bench.simulator.stop()
        with pytest.raises(Unavailable):
            await call
        await until(lambda: not any(map(alive, processes)), "what it had started is gone")
    assert len(bench.simulator.scratch) == 1
    await bench.simulator.start(bench.deployer_target)
    assert bench.simulator.scratch == []
    assert (await bench.simulate(FINE, lines(1))).state == State.STATE_PASSED


async def test_one_told_to_stop_ends_what_it_has_in_hand(tmp_path: Path) -> None:
    async with (
        running_bench(tmp_path, "--shutdown-grace-s=0.2") as bench,
        endless(bench) as (call, processes),
    ):
        await bench.simulator.stop(signal.SIGTERM)
        with pytest.raises(Unavailable):
            await call
        await gone(bench, processes)


async def test_more_than_it_may_are_refused_with_a_hint(tmp_path: Path) -> None:
    async with running_bench(tmp_path, "--max-simulations=1") as bench:
        async with endless(bench) as (call, processes):
            with pytest.raises(Exhausted, match="as many as it may") as refused:
                await bench.simulate(FINE, lines(1))
            assert (refused.value.reason, refused.value.retry_after_s) == ("SIMULATOR_BUSY", 5.0)
            call.cancel()
            await gone(bench, processes)
        assert (await bench.simulate(FINE, lines(1))).state == State.STATE_PASSED


async def test_without_room_on_the_disk_it_takes_nothing(tmp_path: Path) -> None:
    async with running_bench(tmp_path, f"--disk-reserve-bytes={1 << 62}") as bench:
        with pytest.raises(Exhausted, match="must stay free: let its operator") as refused:
            await bench.simulate(FINE, lines(1))
        assert refused.value.reason == "DISK_FULL"
        assert bench.simulator.scratch == []


async def test_scripts_that_fill_the_disk_are_stopped(tmp_path: Path) -> None:
    script = """
import os
def pre(context):
    for number in range(64):
        with open(f"{os.environ['TMPDIR']}/{number}", "wb") as file:
            file.write(bytes(1 << 20))
    while True:
        pass
"""
    async with running_bench(tmp_path, f"--scratch-bytes={16 << 20}") as bench:
        found = await bench.simulate(script, lines(1), wall_time_s=60)
        assert (found.state, found.reason) == (State.STATE_FAILED, "SCRATCH_FULL")
        assert "16 MiB" in found.message
        assert bench.simulator.scratch == []


async def test_what_takes_too_long_fails_with_what_it_came_to(tmp_path: Path) -> None:
    script = "import time\ndef pre(context):\n    time.sleep(0.4)\n    return {}\n"
    async with running_bench(tmp_path, "--deadline-s=4") as bench:
        found = await bench.simulate(script, lines(*range(1000)))
        assert (found.state, found.reason) == (State.STATE_FAILED, "SIMULATION_TIMEOUT")
        assert found.run_count < 1000
        assert f"after 4 s and {found.run_count} runs over 1,000 events" in found.message


async def test_only_the_deployer_may_and_only_for_its_tenant(bench: Bench) -> None:
    request = simulator_pb2.SimulateRequest(
        parent="tenants/acme/tasks/genres", manifest=make_manifest().SerializeToString()
    )
    for resource, kind in (("tenants/other", NotFound), ("", NotFound)):
        async with bench.caller.channel(resource) as channel:
            stub = simulator_pb2_grpc.SimulatorServiceStub(channel)
            with pytest.raises(kind), rpc_errors():
                await stub.Simulate(request, timeout=30)
    async with bench.caller.channel("tenants/acme") as channel:
        stub = simulator_pb2_grpc.SimulatorServiceStub(channel)
        for wrong in (b"\xff", make_manifest("other").SerializeToString(), b""):
            request.manifest = wrong
            with pytest.raises(Invalid), rpc_errors():
                await stub.Simulate(request, timeout=30)
    async with bench.stranger() as channel:
        stub = simulator_pb2_grpc.SimulatorServiceStub(channel)
        with pytest.raises(Unauthenticated), rpc_errors():
            await stub.Simulate(request, timeout=30)
    async with bench.caller.channel("tenants/acme", service="engine") as channel:
        stub = simulator_pb2_grpc.SimulatorServiceStub(channel)
        with pytest.raises(Forbidden), rpc_errors():
            await stub.Simulate(request, timeout=30)
