"""What compute costs: a plan's call, a job's start, a watch over restarts; and what decomposition saves.

`python -m benchmarks.compute [--quick]`. Everything is real: plans by the engine's own pipeline, beside ONNX
Runtime on one thread in the same run; an etcd that is killed while it is written and watched; a local stack
of its own on moved ports, jobs submitted through its gateway by key.

* `runtime_call_added_us`: a whole call of a plan of one step that does nothing, an identity of one number.
* `submit_to_start_p50_ms`: from the call of CreateJob to the moment when its caller, who watches the job,
  sees that the worker's program runs. That is later than the moment the runner started it, which the job's
  status holds: `submit_to_program_p50_ms`.
* `etcd_watch_lost`: writes that were acknowledged and that a watch, begun before the first, never brought.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.report import show
from deploy.local.stack import Stack
from isthmus.scheduler.v1 import object_pb2, scheduler_pb2, scheduler_pb2_grpc
from libs.common.clock import SystemClock
from libs.common.errors import Unavailable
from libs.common.etcd.client import EtcdClient
from libs.common.etcd.testing import EtcdServer
from libs.common.rand import SystemRandomness
from libs.runtime.atomic import ATOMICS, HOST
from libs.runtime.program import Program
from libs.runtime.testing import PlanBuilder
from libs.runtime.workload import workload
from services.engine.domain.registry import REGISTRY
from services.engine.pipeline import Stages, compile_model

TARGETS = {"runtime_call_added_us": 50.0, "submit_to_start_p50_ms": 200.0, "etcd_watch_lost": 0.0}
FILMS, GENRES = 1683, 19
"""As many as MovieLens-100K has: the size of the demo's model."""
BACKENDS = (1, 2, 4, 8, 16)
_State = object_pb2.JobStatus
_SERVICES_UNUSED = ("prometheus", "grafana")


def main() -> int:
    """Run the benchmark and return 0; a target that isn't met is shown, not hidden."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compute", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="fewer calls: done within 50 s")
    parser.add_argument("--port-offset", type=int, default=21_000, help="added to every port of the stack")
    options = parser.parse_args()
    calls, writes, jobs = (300, 1500, 20) if options.quick else (3000, 20_000, 100)
    values = {"runtime_call_added_us": noop_us(calls * 10)}
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as folder:
        home = Path(folder)
        values |= click_model(home, calls)
        values |= asyncio.run(watch(home, writes, kills=2 if options.quick else 10))
        values |= job_starts(home / "stack", options.port_offset, jobs)
    show_workload()
    show(values, TARGETS)
    return 0


def noop_us(calls: int) -> float:
    """Return the median time in µs of a call of a plan that copies one number."""
    plan = PlanBuilder()
    plan.output("y", plan.raster([plan.region(plan.input("x", [1]), [1])], [1]))
    program = Program(plan.build())
    inputs = {"x": np.ones(1, np.float32)}
    if program.run(inputs)["y"].tolist() != [1.0]:
        raise SystemExit("the plan doesn't compute: nothing was measured")
    return _medians_us({"plan": lambda: program.run(inputs)}, calls)["plan"]


def click_model(home: Path, calls: int) -> dict[str, float]:
    """Return the times of the demo's model as a plan and in ONNX Runtime, at batches of 1 and 64."""
    model = _click_onnx(home / "click.onnx")
    started = time.perf_counter()
    compiled = compile_model(model, {"batch": (1, 64)}, "benchmark", Stages(lambda stage: None))
    values = {
        "click_compile_ms": (time.perf_counter() - started) * 1e3,
        "click_rasters_before": float(compiled.origins.rasters),
        "click_steps": float(len(compiled.plan.steps)),
    }
    import onnxruntime  # here: a second to import, and only this part takes it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    program = Program(compiled.plan)
    random = np.random.default_rng(1)
    for batch in (1, 64):
        inputs = {
            "item": random.integers(0, FILMS, batch),
            "history": random.integers(0, FILMS, (batch, 50)),
            "ratings": random.integers(0, 6, (batch, 50)).astype(np.float32),
        }
        (expected,) = session.run(["click"], inputs)
        if np.abs(program.run(inputs)["click"] - expected).max() > 1e-4:
            raise SystemExit("plan and ONNX Runtime disagree: nothing was measured")
        ways: dict[str, Callable[[], object]] = {
            "plan": lambda inputs=inputs: program.run(inputs),  # type: ignore[misc]
            "onnxruntime": lambda inputs=inputs: session.run(["click"], inputs),  # type: ignore[misc]
        }
        taken = _medians_us(ways, calls)
        values[f"click_batch_{batch}_plan_us"] = taken["plan"]
        values[f"click_batch_{batch}_onnxruntime_us"] = taken["onnxruntime"]
        values[f"click_batch_{batch}_ratio"] = taken["plan"] / taken["onnxruntime"]
    return values


def _click_onnx(path: Path) -> bytes:
    """Return the demo's network as ONNX, with the weights it begins with: time doesn't depend on them."""
    from examples.training.click_model.export import export
    from examples.training.click_model.network import ClickNetwork

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export(ClickNetwork(np.zeros((FILMS, GENRES + 1), np.float32)), path)
    return path.read_bytes()


def _medians_us(ways: Mapping[str, Callable[[], object]], calls: int) -> dict[str, float]:
    """Return the median time in µs of each way, called in turn."""
    taken: dict[str, list[int]] = {name: [] for name in ways}
    for number in range(calls + calls // 10):
        for name, call in ways.items():
            start = time.perf_counter_ns()
            call()
            if number >= calls // 10:  # the first tenth warms up
                taken[name].append(time.perf_counter_ns() - start)
    return {name: statistics.median(each) / 1e3 for name, each in taken.items()}


async def watch(folder: Path, writes: int, kills: int) -> dict[str, float]:
    """Write keys while etcd is killed and stopped again and again; return what a watch brought of them."""
    server = EtcdServer(folder)
    came: dict[str, int] = {}
    async with server, _client(server) as writer, _client(server) as watcher:
        first = await writer.revision() + 1
        end = asyncio.Event()

        async def read() -> None:
            async for batch in watcher.watch("/benchmark/", first):
                for event in batch.events:
                    came[event.kv.key] = came.get(event.kv.key, 0) + 1
                    if event.kv.key == "/benchmark/end":
                        end.set()
                        return

        async def restart(number: int) -> None:
            (server.stop if number % 2 else server.kill)()  # in turn by SIGKILL and in order
            await server.start()

        reader = asyncio.create_task(read())
        restarting = asyncio.create_task(server.wait())
        acknowledged = []
        between = writes // (kills + 1)
        for number in range(writes):
            if number % between == between - 1 and number // between < kills:
                await restarting
                restarting = asyncio.create_task(restart(number // between))
            key = f"/benchmark/{number:08}"
            try:
                await writer.put(key, b"x" * 64)
                acknowledged.append(key)
            except Unavailable:
                await restarting  # it may have been written or not: nothing was promised
        await restarting
        await writer.put("/benchmark/end", b"")
        try:
            async with asyncio.timeout(60):
                await end.wait()
        except TimeoutError:
            pass  # what is missing is counted below
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
    if len(acknowledged) < writes // 2:
        raise SystemExit("etcd took less than half of the writes: nothing was measured")
    return {
        "etcd_watch_writes": float(len(acknowledged)),
        "etcd_watch_restarts": float(kills),
        "etcd_watch_lost": float(sum(1 for key in acknowledged if key not in came)),
        "etcd_watch_twice": float(sum(1 for count in came.values() if count > 1)),
    }


def _client(server: EtcdServer) -> EtcdClient:
    return EtcdClient(server.endpoints, clock=SystemClock(), randomness=SystemRandomness())


def job_starts(home: Path, port_offset: int, jobs: int) -> dict[str, float]:
    """Return how long jobs take from their submission until their program runs, one after another."""
    stack = Stack(home, port_offset, without=_SERVICES_UNUSED)
    with stack:
        stack.up()
        key = (("authorization", f"Bearer {stack.admin_key}"),)
        seen: list[float] = []
        started: list[float] = []
        ended: list[float] = []
        with grpc.insecure_channel(stack.endpoints["gateway"]) as channel:
            stub = scheduler_pb2_grpc.JobServiceStub(channel)
            for number in range(jobs + 3):
                found = _one_job(stub, key)
                if number >= 3:  # the first ones warm up
                    for values, value in zip((seen, started, ended), found, strict=True):
                        values.append(value)
    return {
        "submit_to_start_p50_ms": statistics.median(seen) * 1e3,
        "submit_to_start_p99_ms": statistics.quantiles(seen, n=100)[98] * 1e3,
        "submit_to_program_p50_ms": statistics.median(started) * 1e3,
        "submit_to_end_p50_ms": statistics.median(ended) * 1e3,
    }


def _one_job(
    stub: scheduler_pb2_grpc.JobServiceStub, key: tuple[tuple[str, str], ...]
) -> tuple[float, float, float]:
    """Run a job; return the seconds until its start was seen, its program started, and its end was seen."""
    request = scheduler_pb2.CreateJobRequest(parent="tenants/default", request_id=str(uuid.uuid4()))
    request.job.spec.command.extend(["sleep", "0.3"])
    request.job.spec.resources.cpu_millis = 100
    request.job.spec.resources.memory_bytes = 64 * 2**20
    wall, start = time.time(), time.perf_counter()
    made = stub.CreateJob(request, metadata=key, timeout=30).job
    seen = 0.0
    watching = scheduler_pb2.WatchJobRequest(name=made.metadata.name)
    for answer in stub.WatchJob(watching, metadata=key, timeout=60):
        status = answer.job.status
        if not seen and status.state in (
            _State.STATE_RUNNING,
            _State.STATE_SUCCEEDED,
        ):
            seen = time.perf_counter() - start
        if status.state == _State.STATE_SUCCEEDED:
            program = status.workers[0].start_time.ToMicroseconds() / 1e6 - wall
            return seen, program, time.perf_counter() - start
        if status.state in (_State.STATE_FAILED, _State.STATE_CANCELLED):
            raise SystemExit(f"{made.metadata.name} failed: {status.reason}: {status.message}")
    raise SystemExit(f"the watch of {made.metadata.name} ended before the job did")


def show_workload() -> None:
    """Print the kernels that backends take before and after decomposition, counted from the registry."""
    table = Table("BACKENDS", "KERNELS BEFORE", "AFTER", "SAVED", box=None, header_style="bold")
    for backends in BACKENDS:
        found = workload((operator.kind for operator in REGISTRY.values()), len(ATOMICS), len(HOST), backends)
        table.add_row(str(backends), f"{found.before:,}", f"{found.after:,}", f"{100 * found.saved:.0f} %")
    one = workload((operator.kind for operator in REGISTRY.values()), len(ATOMICS), len(HOST), 1)
    console = Console(width=100, highlight=False)
    console.print(
        f"{len(REGISTRY)} ONNX operators: {one.atomic} atomic, {one.transform} that move data, "
        f"{one.composite} composite; {one.atoms} atomic operators and the raster in plans"
    )
    console.print(table)
    console.print()


if __name__ == "__main__":
    sys.exit(main())
