"""Serving and the tuner for tests of the command, as far as a client sees them; `testing` has the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from inference import open_inference_pb2, open_inference_pb2_grpc
from isthmus.serving.v1 import model_pb2, model_pb2_grpc
from isthmus.tuner.v1 import tuner_pb2, tuner_pb2_grpc

Context = grpc.ServicerContext
CREATE_TIME = Timestamp(seconds=1_800_000_000)
_Tensor = open_inference_pb2.ModelMetadataResponse.TensorMetadata
_AWAY = "the service can't be reached; it may be restarting: try again"


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _abort(context: Context, code: grpc.StatusCode, text: str) -> NoReturn:
    context.abort(code, text)
    raise AssertionError


class FakeServing:
    """Models that are kept, and tensors that come back as they are told.

    Attributes:
        models: by id.
        versions: by the model's id, newest first.
        inputs: what every model takes, but for versions in `inputs_of`; outputs: what it gives.
        refused: why no file can be loaded, or "".
        restarts: of so many calls of models and versions every second one, the first one too, finds it away.
        cuts: how often a new version is kept and the answer lost.
        states: states that a version has when it is looked at, before it is ready.
        answer: what ModelInfer answers.
        statistics: what ModelStatistics says.
        requests: every request so far, in order.
    """

    def __init__(self) -> None:
        self.models: dict[str, model_pb2.Model] = {}
        self.versions: dict[str, list[model_pb2.ModelVersion]] = {}
        self.inputs = [_Tensor(name="x", datatype="FP32", shape=[-1, 2])]
        self.inputs_of: dict[str, list[_Tensor]] = {}
        self.outputs = [_Tensor(name="y", datatype="FP32", shape=[-1])]
        self.refused = ""
        self.cuts = 0
        self.restarts = 0
        self.states: deque[model_pb2.ModelVersion.State.ValueType] = deque()
        self.answer = open_inference_pb2.ModelInferResponse()
        self.statistics = open_inference_pb2.ModelStatisticsResponse()
        self.requests: list[Any] = []

    def asked(self, kind: type[Any]) -> list[Any]:
        """Return the requests of a kind."""
        return [request for request in self.requests if isinstance(request, kind)]

    def find(self, name: str, context: Context) -> model_pb2.Model:
        """Return a model by its name, or end the call."""
        found = self.models.get(_last(name))
        return found or _abort(context, grpc.StatusCode.NOT_FOUND, f"there is no model {_last(name)!r}")

    def away(self, context: Context) -> None:
        """End a call as by a service that restarts; see `restarts`."""
        if self.restarts:
            self.restarts -= 1
            if self.restarts % 2:
                _abort(context, grpc.StatusCode.UNAVAILABLE, _AWAY)

    def add_to(self, server: grpc.Server) -> None:
        """Serve both services."""
        model_pb2_grpc.add_ModelServiceServicer_to_server(_Models(self), server)
        open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Inference(self), server)  # type: ignore[abstract]


class _Models(model_pb2_grpc.ModelServiceServicer):
    def __init__(self, serving: FakeServing) -> None:
        self._serving = serving

    def PutModel(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._serving.requests.append(request)
        self._serving.away(context)
        name = _last(request.model.name)
        found = self._serving.models.get(name, model_pb2.Model(create_time=CREATE_TIME, etag="0"))
        if request.model.etag not in ("", found.etag):
            _abort(context, grpc.StatusCode.ABORTED, f"{request.model.name}: was written by somebody else")
        made = model_pb2.Model(name=request.model.name, config=request.model.config)
        made.live_version = request.model.live_version or found.live_version
        made.create_time.CopyFrom(CREATE_TIME)
        made.etag = str(int(found.etag) + 1)
        # The defaults that serving fills in.
        made.config.max_batch_rows = made.config.max_batch_rows or 64
        made.config.instance_count = made.config.instance_count or 1
        made.config.intra_op_thread_count = made.config.intra_op_thread_count or 1
        if not request.validate_only:
            self._serving.models[name] = made
            self._serving.versions.setdefault(name, [])
        return model_pb2.PutModelResponse(model=made)

    def GetModel(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._serving.away(context)
        return model_pb2.GetModelResponse(model=self._serving.find(request.name, context))

    def ListModels(self, request: Any, context: Context) -> Any:  # noqa: N802
        found = [self._serving.models[name] for name in sorted(self._serving.models)]
        return model_pb2.ListModelsResponse(models=found)

    def DeleteModel(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._serving.requests.append(request)
        del self._serving.models[_last(self._serving.find(request.name, context).name)]
        return model_pb2.DeleteModelResponse()

    def CreateModelVersion(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._serving.requests.append(request)
        self._serving.away(context)
        if self._serving.refused:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, self._serving.refused)
        if request.validate_only:
            checked = model_pb2.ModelVersion(name=f"{request.parent}/versions/{request.version_id}")
            return model_pb2.CreateModelVersionResponse(version=checked)
        model = self._serving.find(request.parent, context)
        made = model_pb2.ModelVersion(
            name=f"{request.parent}/versions/{request.version_id}",
            platform=request.version.platform,
            blob=request.version.blob,
            state=model_pb2.ModelVersion.STATE_READY,
        )
        kept = self._serving.versions[_last(request.parent)]
        if all(each.name != made.name for each in kept):
            kept.insert(0, made)
            model.live_version = request.version_id
        if self._serving.cuts:
            self._serving.cuts -= 1
            _abort(context, grpc.StatusCode.UNAVAILABLE, _AWAY)
        if self._serving.states:
            made.state = self._serving.states.popleft()
        return model_pb2.CreateModelVersionResponse(version=made)

    def ListModelVersions(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._serving.away(context)
        self._serving.find(request.parent, context)
        kept = self._serving.versions[_last(request.parent)]
        if kept and self._serving.states:
            kept[0].state = self._serving.states.popleft()
            kept[0].message = "it says why"
        elif kept:
            kept[0].state = model_pb2.ModelVersion.STATE_READY
        return model_pb2.ListModelVersionsResponse(versions=kept)

    def DeleteModelVersion(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._serving.requests.append(request)
        return model_pb2.DeleteModelVersionResponse()


class _Inference(open_inference_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, serving: FakeServing) -> None:
        self._serving = serving

    def ModelMetadata(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._serving.away(context)
        version = request.version or self._serving.find(request.name, context).live_version
        return open_inference_pb2.ModelMetadataResponse(
            name=request.name,
            inputs=self._serving.inputs_of.get(version, self._serving.inputs),
            outputs=self._serving.outputs,
        )

    def ModelInfer(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._serving.requests.append(request)
        return self._serving.answer

    def ModelStatistics(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._serving.requests.append(request)
        return self._serving.statistics

    def RepositoryIndex(self, request: Any, context: Context) -> Any:  # noqa: N802
        index = open_inference_pb2.RepositoryIndexResponse()
        for name, versions in self._serving.versions.items():
            for each in versions:
                index.models.add(name=name, version=_last(each.name), state="READY")
        return index


class FakeTuner:
    """Experiments that do as they are told.

    Attributes:
        experiments: by id.
        trials: by the experiment's id.
        history: what WatchExperiment brings, one list for each stream; None cuts one off as by a tuner that
            was killed. Without one, a stream brings the experiment with its trials as they are.
        on_apply: what ApplyExperiment does to an experiment.
        requests: every request so far, in order.
    """

    def __init__(self) -> None:
        self.experiments: dict[str, tuner_pb2.Experiment] = {}
        self.trials: dict[str, list[tuner_pb2.Trial]] = {}
        self.history: deque[list[tuner_pb2.WatchExperimentResponse | None]] = deque()
        self.on_apply: Callable[[tuner_pb2.Experiment, int], None] = lambda experiment, trial: None
        self.requests: list[Any] = []

    def asked(self, kind: type[Any]) -> list[Any]:
        """Return the requests of a kind."""
        return [request for request in self.requests if isinstance(request, kind)]

    def add_to(self, server: grpc.Server) -> None:
        """Serve it."""
        tuner_pb2_grpc.add_ExperimentServiceServicer_to_server(_Experiments(self), server)


class _Experiments(tuner_pb2_grpc.ExperimentServiceServicer):
    def __init__(self, tuner: FakeTuner) -> None:
        self._tuner = tuner

    def _find(self, name: str, context: Context) -> tuner_pb2.Experiment:
        found = self._tuner.experiments.get(_last(name))
        return found or _abort(context, grpc.StatusCode.NOT_FOUND, f"{name}: not found")

    def CreateExperiment(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._tuner.requests.append(request)
        name = request.experiment_id or "e-chosen"
        made = tuner_pb2.Experiment(
            name=f"{request.parent}/experiments/{name}",
            spec=request.spec,
            state=tuner_pb2.Experiment.STATE_RUNNING,
            create_time=CREATE_TIME,
            version=f"{request.spec.model}/versions/v1",
        )
        # The defaults that the tuner fills in.
        made.spec.max_trial_count = made.spec.max_trial_count or 20
        made.spec.load.concurrency = made.spec.load.concurrency or 8
        made.spec.load.rows_per_request = made.spec.load.rows_per_request or 1
        if not request.validate_only:
            self._tuner.experiments[name] = made
        return tuner_pb2.CreateExperimentResponse(experiment=made)

    def GetExperiment(self, request: Any, context: Context) -> Any:  # noqa: N802
        return tuner_pb2.GetExperimentResponse(experiment=self._find(request.name, context))

    def ListExperiments(self, request: Any, context: Context) -> Any:  # noqa: N802
        found = [self._tuner.experiments[name] for name in sorted(self._tuner.experiments)]
        return tuner_pb2.ListExperimentsResponse(experiments=found)

    def ListTrials(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._find(request.parent, context)
        return tuner_pb2.ListTrialsResponse(trials=self._tuner.trials.get(_last(request.parent), []))

    def WatchExperiment(self, request: Any, context: Context) -> Iterator[Any]:  # noqa: N802
        self._tuner.requests.append(request)
        if not self._tuner.history:
            found = self._find(request.name, context)
            trials = self._tuner.trials.get(_last(request.name), [])
            yield tuner_pb2.WatchExperimentResponse(experiment=found, trials=trials)
            return
        for each in self._tuner.history.popleft():
            if each is None:
                _abort(context, grpc.StatusCode.UNAVAILABLE, _AWAY)
            yield each

    def CancelExperiment(self, request: Any, context: Context) -> Any:  # noqa: N802
        found = self._find(request.name, context)
        found.state = tuner_pb2.Experiment.STATE_CANCELLED
        return tuner_pb2.CancelExperimentResponse(experiment=found)

    def ApplyExperiment(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._tuner.requests.append(request)
        found = self._find(request.name, context)
        self._tuner.on_apply(found, request.trial)
        return tuner_pb2.ApplyExperimentResponse(experiment=found)

    def DeleteExperiment(self, request: Any, context: Context) -> Any:  # noqa: N802
        self._tuner.requests.append(request)
        del self._tuner.experiments[_last(self._find(request.name, context).name)]
        return tuner_pb2.DeleteExperimentResponse()
