"""What the ground costs: the gateway's hop, an empty task, a hint, an agent's memory, the stack's cold start.

`python -m benchmarks.foundation [--quick]`. Everything is real: a local stack of its own on moved ports, its
API key, an enrolled agent, a published and released task. The gateway is timed in pairs, one call straight to
the deployer and one through the gateway in turn, by one caller; the figure is the difference of the medians.
It moves with the machine: `bare_proxy_added_p50_ms` is what a proxy that does nothing costs in the same run,
the least that grpc.aio can do, and `gateway_over_bare_proxy` is how many times that the gateway adds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import psutil

from benchmarks.report import show
from deploy.local.stack import Stack
from examples.demo.cloud import Cloud
from examples.demo.devices import Device
from isthmus.deployer.v1 import task_pb2, task_pb2_grpc
from isthmus.device_agent.v1 import device_agent_pb2
from libs.common.clock import SystemClock
from libs.common.identity import IDENTITY_HEADER, Identity, IdentityIssuer
from libs.common.keys import load_key
from libs.task.profile import DIGEST_BYTES, parse_profile_header, profile_header
from services.gateway.domain.push_index import Change, Fingerprints, PushIndex

Metadata = tuple[tuple[str, str], ...]
Way = tuple[str, Callable[[], Metadata]]

TASK = Path(__file__).with_name("tasks") / "noop"
BESIDE_THE_GROUND = ("prometheus", "grafana", "engine", "scheduler", "serving", "simulator")
TARGETS = {
    "gateway_added_p50_ms": 0.9,
    "noop_task_p50_ms": 5.0,
    "hint_us": 20.0,
    "agent_rss_mib": 80.0,
}


def main() -> int:
    """Run the benchmark and return 0; a target that isn't met is shown, not hidden."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.foundation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer calls: done within 50 s")
    parser.add_argument("--port-offset", type=int, default=20_000, help="added to every port of the stack")
    options = parser.parse_args()
    calls, runs, entries = (500, 200, 100_000) if options.quick else (4000, 1500, 1_000_000)
    values = {"hint_us": hint_us(entries)}
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as folder:
        home = Path(folder)
        stack = Stack(home / "stack", options.port_offset, without=BESIDE_THE_GROUND)
        started = time.perf_counter()
        with stack:
            stack.up()
            values["stack_cold_s"] = time.perf_counter() - started
            cloud = Cloud(
                ["--gateway", stack.endpoints["gateway"], "--api-key-file", str(stack.admin_key_file)]
            )
            cloud.isthmus("trust", "init", "--keys", str(home / "keys"))
            cloud.isthmus("task", "publish", str(TASK), "--keys", str(home / "keys"))
            values |= gateway_hop(stack, calls)
            values |= agent(stack, cloud, home, runs)
    show(values, TARGETS)
    return 0


def hint_us(entries: int) -> float:
    """Return the median time in µs of deciding about one hint, in process, in an index of `entries` devices.

    Decoding the request's header is in it; the device's fingerprint is computed once per session and isn't.
    """
    fingerprints = Fingerprints(bytes(range(32)))
    index = PushIndex(fingerprints)
    names = [f"tenants/t/devices/d{number}" for number in range(entries)]
    for name in names:
        index.apply(Change(name, name.encode()[-DIGEST_BYTES:].rjust(DIGEST_BYTES, b"\0")))
    header = profile_header(bytes(DIGEST_BYTES))
    prints = [fingerprints.of(name) for name in names[:: max(1, entries // 10_000)]]

    def decide(fingerprint: bytes) -> bool:
        return index.differs(fingerprint, parse_profile_header(header))

    taken = []
    for fingerprint in prints:
        start = time.perf_counter_ns()
        differs = decide(fingerprint)
        taken.append(time.perf_counter_ns() - start)
        if not differs:
            raise SystemExit("the index doesn't answer: nothing was measured")
    return statistics.median(taken) / 1e3


def gateway_hop(stack: Stack, calls: int) -> dict[str, float]:
    """Return what the gateway adds to a GetTask, in ms, and what a proxy that does nothing adds."""
    issuer = IdentityIssuer("gateway", load_key(stack.layout.identity_dir / "gateway.key"), SystemClock())
    identity = Identity(
        tenant="default", principal="benchmark", kind="user", scopes=frozenset({"*"}), issuer="gateway"
    )
    key = (("authorization", f"Bearer {stack.admin_key}"),)

    def token() -> Metadata:
        # The issuer hands out one token until half its life, as the gateway's does.
        return ((IDENTITY_HEADER, issuer.mint(identity, "deployer")),)

    straight: Way = (stack.endpoints["deployer"], token)
    door: Way = (stack.endpoints["gateway"], lambda: key)
    direct, through = _in_turn([straight, door], calls)
    with _bare_proxy(stack.endpoints["deployer"]) as bare:
        # All three in turn, since the machine is never as fast as a minute ago.
        beside, again, through_bare = _in_turn([straight, door, (bare, token)], calls // 2)
    return {
        "direct_p50_ms": direct,
        "through_gateway_p50_ms": through,
        "gateway_added_p50_ms": through - direct,
        "bare_proxy_added_p50_ms": through_bare - beside,
        "gateway_over_bare_proxy": (again - beside) / (through_bare - beside),
    }


def _in_turn(ways: Sequence[Way], calls: int) -> list[float]:
    """Return the median times in ms of a GetTask at each endpoint, called in turn by one caller."""
    request = task_pb2.GetTaskRequest(name="tenants/default/tasks/noop")
    with ExitStack() as stack:
        channels = [stack.enter_context(grpc.insecure_channel(endpoint)) for endpoint, _ in ways]
        turns = [
            (task_pb2_grpc.TaskServiceStub(channel).GetTask, metadata, list[float]())
            for channel, (_, metadata) in zip(channels, ways, strict=True)
        ]
        first, *others = (call(request, metadata=metadata(), timeout=10) for call, metadata, _ in turns)
        if any(other != first for other in others):
            raise SystemExit("the ways answer differently: nothing was measured")
        for number in range(calls + calls // 10):
            for call, metadata, taken in turns:
                start = time.perf_counter()
                call(request, metadata=metadata(), timeout=10)
                if number >= calls // 10:  # the first tenth warms up
                    taken.append(time.perf_counter() - start)
    return [statistics.median(taken) * 1e3 for _, _, taken in turns]


@contextmanager
def _bare_proxy(target: str) -> Iterator[str]:
    """Run the least that grpc.aio can do as a proxy, and yield its endpoint."""
    command = [sys.executable, "-m", "benchmarks.bare_proxy", target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            endpoint = process.stdout.readline().strip()
            if not endpoint:
                raise SystemExit("the bare proxy didn't start: nothing was measured")
            yield endpoint
        finally:
            process.kill()


def agent(stack: Stack, cloud: Cloud, home: Path, runs: int) -> dict[str, float]:
    """Return an empty task's time from the app's event to the app's result, and the agent's memory."""
    token = cloud.isthmus("device", "token")["token"]
    device = Device("bench", home / "d", stack.endpoints["gateway"], str(token), {}, [])
    device.start()
    try:
        deadline = time.monotonic() + 60
        cloud.isthmus("release", "create", "noop@1.0.0")
        while not any(task.state in ("ACTIVE", "CONFIRMED") for task in device.status(30.0).tasks):
            if time.monotonic() > deadline or not device.alive():
                raise SystemExit(f"the agent never ran the task:\n{device.log.read_text()[-2000:]}")
            time.sleep(0.1)
        taken = _round_trips(device, runs)
        process = psutil.Process(device.pid)
        return {
            "noop_task_p50_ms": statistics.median(taken) * 1e3,
            "noop_task_p99_ms": statistics.quantiles(taken, n=100)[98] * 1e3,
            "agent_rss_mib": process.memory_info().rss / 2**20,
            "agent_worker_rss_mib": sum(c.memory_info().rss for c in process.children(recursive=True))
            / 2**20,
        }
    finally:
        device.stop()


def _round_trips(device: Device, runs: int) -> list[float]:
    """Send one event at a time and wait for its result, as an app would."""
    stub = device.stub()
    results = stub.WatchResults(device_agent_pb2.WatchResultsRequest())
    arrived = threading.Semaphore(0)
    failures: list[str] = []

    def read() -> None:
        try:
            for result in results:
                if result.failure_reason:
                    failures.append(f"{result.failure_reason}: {result.failure_message}")
                arrived.release()
        except grpc.RpcError:
            return  # cancelled below

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    taken = []
    for number in range(runs + runs // 10):
        event = device_agent_pb2.Event(event_id=f"tick-{number}", type="tick", user="u", fields_json="{}")
        start = time.perf_counter()
        stub.SendEvents(device_agent_pb2.SendEventsRequest(events=[event]), timeout=10)
        if not arrived.acquire(timeout=30):
            raise SystemExit(f"no result of event {number} within 30 s")
        if number >= runs // 10:
            taken.append(time.perf_counter() - start)
    results.cancel()
    reader.join(timeout=10)
    if failures:
        raise SystemExit(f"{len(failures)} runs failed, the first with {failures[0]}")
    return taken


if __name__ == "__main__":
    sys.exit(main())
