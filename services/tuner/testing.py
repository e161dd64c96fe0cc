"""For tests: builders, trials and an endpoint that do as they are told, and a tuner that serves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from prometheus_client import CollectorRegistry

from isthmus.serving.v1 import model_pb2
from isthmus.tuner.v1 import tuner_pb2 as pb
from isthmus.tuner.v1 import tuner_pb2_grpc
from libs.common.clock import Clock, SystemClock
from libs.common.errors import Conflict, Error, NotFound
from libs.common.identity import Identity
from libs.common.names import ExperimentName, ModelName, ModelVersionName
from libs.common.testing import START, FakeClock, FakeRandomness, ServerChannel, running_server
from services.tuner.access import ACCESS
from services.tuner.app import NAME, Tuner, build
from services.tuner.config import TunerConfig
from services.tuner.domain.model import (
    Experiment,
    ExperimentState,
    Load,
    Metric,
    Objective,
    Parameter,
    Point,
    SamplerKind,
    Served,
    Spec,
    Trial,
    TrialState,
)
from services.tuner.metrics import Metrics
from services.tuner.serving_client import with_point
from services.tuner.store import Store
from services.tuner.stores.memory import MemoryStore

MODEL = ModelName("acme", "Ranker.v2")
NAME_ = ExperimentName("acme", "e1")


def make_spec(**changes: object) -> Spec:
    """Return a specification of 12 points."""
    spec = Spec(
        MODEL,
        (Parameter("max_batch_rows", (1.0, 8.0, 64.0)), Parameter("instance_count", (1.0, 2.0, 3.0, 4.0))),
        SamplerKind.GRID,
        7,
        20,
        1,
        5,
        Objective("goodput_rps"),
        (),
        Load(duration_s=1.0),
        3600.0,
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def make_served(config: bytes | None = None) -> Served:
    """Return what a model is served as."""
    if config is None:
        config = model_pb2.ServingConfig(max_batch_rows=1, queue_capacity=77).SerializeToString()
    version = ModelVersionName(MODEL.tenant, MODEL.model, "1")
    return Served(version, "PLATFORM_ONNX", "sha256:" + "0" * 64, 10, config)


def make_experiment(name: ExperimentName = NAME_, **changes: object) -> Experiment:
    """Return an experiment that runs."""
    made = Experiment(name, make_spec(), make_served(), ExperimentState.RUNNING, START)
    return replace(made, **changes)  # type: ignore[arg-type]


def make_trial(number: int = 1, point: Point | None = None, **changes: object) -> Trial:
    """Return a trial that starts."""
    point = point if point is not None else {"max_batch_rows": 1.0, "instance_count": 1.0}
    return replace(Trial(NAME_, number, point, TrialState.STARTING, START), **changes)  # type: ignore[arg-type]


def metrics_of(goodput: float, p99_ms: float = 10.0, spread: float = 1.0) -> tuple[Metric, ...]:
    """Return metrics as of a run."""
    return (
        Metric("goodput_rps", goodput, goodput - spread, goodput + spread),
        Metric("throughput_rps", goodput, goodput - spread, goodput + spread),
        Metric("p50_ms", p99_ms / 2, p99_ms / 2, p99_ms / 2),
        Metric("p99_ms", p99_ms, p99_ms, p99_ms),
        Metric("cpu_us_per_request", 100.0, 99.0, 101.0),
        Metric("peak_memory_bytes", 1e8, 1e8, 1e8),
    )


def surface(point: Point) -> float:
    """Return a goodput with one optimum inside the space of `make_spec`: 8 rows, 3 instances."""
    rows = {1.0: 50.0, 8.0: 100.0, 64.0: 70.0}[point["max_batch_rows"]]
    return rows - 10.0 * abs(point["instance_count"] - 3.0)


@dataclass
class FakeTrials:
    """See `services.tuner.domain.ports.Trials`.

    Attributes:
        made: points in the order in which they were started.
        alive: numbers of trials that stand.
        most_alive: how many stood at once.
        broken: trials that can't start, with the error.
        stuck: trials that never end by themselves.
        loaded: set once any trial is under load.
        gate: holds every trial back while it isn't set.
    """

    made: list[Point] = field(default_factory=list)
    alive: set[int] = field(default_factory=set)
    most_alive: int = 0
    torn_down: int = 0
    sweeps: int = 0
    broken: Callable[[Point], Error | Exception | None] = lambda point: None
    stuck: Callable[[Point], bool] = lambda point: False
    result: Callable[[Point], tuple[Metric, ...]] = lambda point: metrics_of(surface(point))
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def sweep(self) -> None:
        """See `Trials`."""
        self.sweeps += 1

    async def measure(
        self,
        experiment: ExperimentName,
        number: int,
        served: Served,
        point: Point,
        load: Load,
        seed: int,
        on_loaded: Callable[[], Awaitable[None]],
    ) -> tuple[Metric, ...]:
        """See `Trials`."""
        self.made.append(point)
        self.alive.add(number)
        self.most_alive = max(self.most_alive, len(self.alive))
        try:
            fault = self.broken(point)
            if fault is not None:
                raise fault
            await on_loaded()
            self.loaded.set()
            await self.gate.wait()
            if self.stuck(point):
                await asyncio.Event().wait()
            return self.result(point)
        finally:
            self.alive.discard(number)
            self.torn_down += 1


@dataclass
class FakeEndpoint:
    """See `services.tuner.domain.ports.Endpoint`: one model.

    Attributes:
        current: its configuration.
        puts: configurations in the order in which they were put.
        result: what is measured of a configuration.
        hold: called with the number of each measurement, awaited before it.
    """

    current: bytes = make_served().config
    revision: int = 1
    version: str = "1"
    puts: list[bytes] = field(default_factory=list)
    result: Callable[[bytes], tuple[Metric, ...]] = lambda config: metrics_of(100.0)
    hold: Callable[[int], Awaitable[None]] | None = None
    measurements: int = 0
    put_fault: Callable[[bytes], Error | None] = lambda config: None

    async def served(self, model: ModelName) -> Served:
        """See `Endpoint`."""
        self._check(model)
        version = ModelVersionName(model.tenant, model.model, self.version)
        return replace(make_served(self.current), version=version)

    async def config(self, model: ModelName) -> tuple[bytes, str]:
        """See `Endpoint`."""
        self._check(model)
        return self.current, str(self.revision)

    async def put(self, model: ModelName, config: bytes, etag: str) -> str:
        """See `Endpoint`."""
        self._check(model)
        fault = self.put_fault(config)
        if fault is not None:
            raise fault
        if etag and etag != str(self.revision):
            raise Conflict("etag: is stale")
        self.current = config
        self.puts.append(config)
        self.revision += 1
        return str(self.revision)

    def with_point(self, config: bytes, point: Point) -> bytes:
        """See `Endpoint`."""
        return with_point(config, point)

    async def measure(self, model: ModelName, load: Load, seed: int) -> tuple[Metric, ...]:
        """See `Endpoint`."""
        self._check(model)
        self.measurements += 1
        if self.hold is not None:
            await self.hold(self.measurements)
        return self.result(self.current)

    def _check(self, model: ModelName) -> None:
        if model != MODEL:
            raise NotFound(f"{model}: not found")


def user(tenant: str = "acme", *scopes: str) -> Identity:
    """Return somebody of a tenant, who may do all with experiments and models unless told otherwise."""
    return Identity(tenant, "key-1", "user", frozenset(scopes or ("experiments:*", "models:*")), NAME)


class Client:
    """What a tenant's people do, in few words."""

    def __init__(self, channel: grpc.aio.Channel, tenant: str = "acme") -> None:
        self.parent = f"tenants/{tenant}"
        self.stub = tuner_pb2_grpc.ExperimentServiceStub(channel)

    async def create(self, experiment_id: str = "e1", **changes: object) -> pb.Experiment:
        """Start an experiment over a grid of 12 points."""
        request = pb.CreateExperimentRequest(
            parent=self.parent, experiment_id=experiment_id, spec=make_spec_message(**changes)
        )
        return (await self.stub.CreateExperiment(request)).experiment

    async def get(self, experiment_id: str = "e1") -> pb.Experiment:
        """Read an experiment."""
        request = pb.GetExperimentRequest(name=f"{self.parent}/experiments/{experiment_id}")
        return (await self.stub.GetExperiment(request)).experiment

    async def trials(self, experiment_id: str = "e1") -> list[pb.Trial]:
        """List every trial."""
        request = pb.ListTrialsRequest(parent=f"{self.parent}/experiments/{experiment_id}", page_size=1000)
        return list((await self.stub.ListTrials(request)).trials)

    async def ended(self, experiment_id: str = "e1") -> pb.Experiment:
        """Wait until nothing more becomes of an experiment; return it."""
        request = pb.WatchExperimentRequest(name=f"{self.parent}/experiments/{experiment_id}")
        last = pb.Experiment()
        async for response in self.stub.WatchExperiment(request, timeout=100):
            last = response.experiment
        return last

    async def apply(self, experiment_id: str = "e1", trial: int = 0) -> pb.Application:
        """Apply a trial; return what became of it."""
        name = f"{self.parent}/experiments/{experiment_id}"
        await self.stub.ApplyExperiment(pb.ApplyExperimentRequest(name=name, trial=trial))
        return (await self.ended(experiment_id)).application


def make_spec_message(**changes: object) -> pb.ExperimentSpec:
    """Return a specification of 12 points as a message."""
    message = pb.ExperimentSpec(
        model=str(MODEL),
        parameters=[
            pb.Parameter(name="max_batch_rows", values=[1, 8, 64]),
            pb.Parameter(name="instance_count", values=[1, 2, 3, 4]),
        ],
        sampler=pb.ExperimentSpec.SAMPLER_GRID,
        objective=pb.Objective(metric="goodput_rps"),
        load=pb.Load(duration=Duration(seconds=1)),
    )
    message.MergeFrom(pb.ExperimentSpec(**changes))  # type: ignore[arg-type]
    return message


@dataclass(frozen=True, slots=True)
class Running:
    """A tuner that serves."""

    tuner: Tuner
    channel: ServerChannel

    def client(self, tenant: str = "acme", *scopes: str) -> Client:
        """Return a client that calls as a user of a tenant."""
        return Client(self.channel.acting_as(user(tenant, *scopes)), tenant)


@contextlib.asynccontextmanager
async def running_tuner(
    store: Store,
    trials: FakeTrials,
    endpoint: FakeEndpoint,
    *,
    clock: Clock | None = None,
    most_trials: int = 16,
    start_s: float = 60.0,
    most_running: int = 8,
) -> AsyncIterator[Running]:
    """Serve a tuner on a free port."""
    clock = clock or SystemClock()
    config = TunerConfig(
        port=0,
        metrics_port=-1,
        identity_trust_dir=Path(),
        most_trials=most_trials,
        start_s=start_s,
        most_running=most_running,
    )
    tuner = build(config, store, endpoint, trials, Metrics(CollectorRegistry()), clock, FakeRandomness())
    async with (
        tuner.running(),
        running_server(
            tuner.service, identity=None, audience=NAME, access=ACCESS, clock=clock, config=config
        ) as channel,
    ):
        yield Running(tuner, channel)


def points(trials: Sequence[pb.Trial]) -> list[dict[str, float]]:
    """Return what was tried."""
    return [dict(trial.point) for trial in trials]


class World:
    """A tuner over fakes that serves nobody: what its domain does, on a clock of the test's own."""

    def __init__(self, store: MemoryStore | None = None, **settings: Any) -> None:
        """Keep everything in `store`; `settings` are the configuration's."""
        self.store = store if store is not None else MemoryStore()
        self.trials = FakeTrials()
        self.endpoint = FakeEndpoint()
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        config = TunerConfig(identity_trust_dir=Path(), **{"most_trials": 16, **settings})
        metrics = Metrics(self.registry)
        self.tuner = build(
            config, self.store, self.endpoint, self.trials, metrics, self.clock, FakeRandomness()
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        """Run what works in the background inside the block."""
        async with asyncio.timeout(60), self.tuner.running():
            yield self

    async def create(self, **changes: Any) -> Experiment:
        """Start an experiment over a grid of 12 points."""
        seen = await self.tuner.experiments.create("acme", "e1", make_spec(**changes), None)
        return seen.experiment

    async def ended(self, name: ExperimentName = NAME_) -> Experiment:
        """Wait until nothing more becomes of an experiment; return it."""
        last: Experiment | None = None
        async for change in self.tuner.experiments.watch(name):
            last = change.seen.experiment
        assert last is not None, "a watch tells what there is first"
        return last

    async def all_trials(self, name: ExperimentName = NAME_) -> Sequence[Trial]:
        """Return every trial."""
        return await self.store.trials(name, 0, 1000)
