"""The Open Inference Protocol's messages and the data plane's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inference import open_inference_pb2 as pb
from libs.common.errors import Invalid
from libs.common.names import check_id, check_version, shown
from services.serving import convert_tensors
from services.serving.domain.dataplane import InferRequest, InferResult
from services.serving.domain.deployment import Deployment
from services.serving.domain.model import Condition, ModelKey, Platform, State
from services.serving.domain.statistics import Statistics, Total
from services.serving.domain.tensors import TensorSpec

PLATFORMS: Mapping[Platform, str] = {Platform.ONNX: "onnxruntime_onnx", Platform.PLAN: "isthmus_plan"}
BACKENDS: Mapping[Platform, str] = {Platform.ONNX: "onnxruntime", Platform.PLAN: "isthmus_runtime"}
_STATES: Mapping[State, str] = {
    State.LOADING: "LOADING",
    State.READY: "READY",
    State.DRAINING: "UNLOADING",
    State.UNLOADED: "UNAVAILABLE",
    State.FAILED: "UNAVAILABLE",
}
_NUMBERS: Mapping[str, str] = {"BYTES": "STRING"}
_TIMEOUT = "timeout"
# Extensions of Triton that other servers answer with something else than plain tensors.
_UNSUPPORTED: Mapping[str, str] = {
    "shared_memory_region": "send tensors in the message",
    "classification": "take the output itself, and sort it",
    "sequence_id": "models keep no state between requests",
}


def model_key(tenant: str, name: str, field: str = "model_name") -> ModelKey:
    """Return whose model is meant; raise Invalid for what is no id."""
    return ModelKey(tenant, check_id(name, field))


def version_name(version: str, field: str = "model_version") -> str:
    """Return a version, or "" for the live one; raise Invalid for what is none."""
    return check_version(version, field) if version else ""


def infer_request(tenant: str, request: pb.ModelInferRequest, deadline: float | None) -> InferRequest:
    """Return the domain's request; raise Invalid naming what is wrong."""
    _check_extensions(request)
    return InferRequest(
        model_key(tenant, request.model_name),
        version_name(request.model_version),
        convert_tensors.inputs(request),
        tuple(output.name for output in request.outputs),
        request.ByteSize(),
        deadline,
        _timeout_s(request),
    )


def _check_extensions(request: pb.ModelInferRequest) -> None:
    """Raise Invalid for what would change the answer and isn't supported: it must not be passed over."""
    for field, each in (
        ("parameters", request.parameters),
        *((f"inputs: {shown(tensor.name)}", tensor.parameters) for tensor in request.inputs),
        *((f"outputs: {shown(output.name)}", output.parameters) for output in request.outputs),
    ):
        for name in each:
            if name in _UNSUPPORTED:
                raise Invalid(
                    f"{field}: {name} isn't supported; {_UNSUPPORTED[name]}",
                    reason="BAD_PARAMETER",
                    metadata={"field": field.partition(":")[0]},
                )


def _timeout_s(request: pb.ModelInferRequest) -> float | None:
    if _TIMEOUT not in request.parameters:
        return None
    parameter = request.parameters[_TIMEOUT]
    kind = parameter.WhichOneof("parameter_choice")
    value = parameter.int64_param if kind == "int64_param" else parameter.uint64_param
    if kind not in ("int64_param", "uint64_param") or value < 0:
        raise Invalid(
            "parameters: timeout is not a number of microseconds; give it as int64_param, 0 for none",
            reason="BAD_PARAMETER",
            metadata={"field": "parameters"},
        )
    return value / 1e6 or None


def infer_response(request: pb.ModelInferRequest, result: InferResult) -> pb.ModelInferResponse:
    """Return the answer, in the form of the request: raw or typed."""
    response = pb.ModelInferResponse(
        model_name=request.model_name, model_version=result.version, id=request.id
    )
    convert_tensors.fill(response, result.outputs, bool(request.raw_input_contents))
    return response


def metadata(name: str, deployment: Deployment, versions: Sequence[str]) -> pb.ModelMetadataResponse:
    """Return what a model takes and gives."""
    signature = deployment.backend.signature
    return pb.ModelMetadataResponse(
        name=name,
        versions=versions,
        platform=PLATFORMS[deployment.platform],
        inputs=[_tensor_metadata(spec) for spec in signature.inputs],
        outputs=[_tensor_metadata(spec) for spec in signature.outputs],
    )


def _tensor_metadata(spec: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(
        name=spec.name, datatype=spec.datatype, shape=_dims(spec.shape)
    )


def _dims(shape: Sequence[int | str]) -> list[int]:
    return [dim if isinstance(dim, int) else -1 for dim in shape]


def model_config(name: str, deployment: Deployment) -> pb.ModelConfigResponse:
    """Return how a model is served, in the words of Triton."""
    config, signature = deployment.config, deployment.backend.signature
    batched = deployment.max_rows > 1
    start = 1 if batched else 0
    made = pb.ModelConfig(
        name=name,
        platform=PLATFORMS[deployment.platform],
        backend=BACKENDS[deployment.platform],
        max_batch_size=deployment.max_rows if batched else 0,
        input=[
            pb.ModelInput(name=spec.name, data_type=_number(spec), dims=_dims(spec.shape[start:]))
            for spec in signature.inputs
        ],
        output=[
            pb.ModelOutput(name=spec.name, data_type=_number(spec), dims=_dims(spec.shape[start:]))
            for spec in signature.outputs
        ],
        instance_group=[
            pb.ModelInstanceGroup(name=name, count=config.instance_count, kind=pb.ModelInstanceGroup.KIND_CPU)
        ],
    )
    made.parameters["intra_op_thread_count"].string_value = str(config.intra_op_thread_count)
    if batched:
        made.dynamic_batching.max_queue_delay_microseconds = round(config.max_batch_delay_s * 1e6)
        policy = made.dynamic_batching.default_queue_policy
        policy.default_timeout_microseconds = round(config.queue_timeout_s * 1e6)
        policy.allow_timeout_override = True
        policy.max_queue_size = config.queue_capacity
    return pb.ModelConfigResponse(config=made)


def _number(spec: TensorSpec) -> pb.DataType.ValueType:
    return pb.DataType.Value(f"TYPE_{_NUMBERS.get(spec.datatype, spec.datatype)}")


def statistics(found: Sequence[tuple[str, str, Statistics]]) -> pb.ModelStatisticsResponse:
    """Return what versions did."""
    return pb.ModelStatisticsResponse(model_stats=[_statistics(*each) for each in found])


def _statistics(name: str, version: str, of: Statistics) -> pb.ModelStatistics:
    return pb.ModelStatistics(
        name=name,
        version=version,
        last_inference=of.last_ms,
        inference_count=of.rows,
        execution_count=of.executions,
        inference_stats=pb.InferStatistics(
            success=_total(of.success),
            fail=_total(of.fail),
            queue=_total(of.queue),
            compute_input=_total(of.input),
            compute_infer=_total(of.infer),
            compute_output=_total(of.output),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=rows,
                compute_input=_total(batch.input),
                compute_infer=_total(batch.infer),
                compute_output=_total(batch.output),
            )
            for rows, batch in sorted(of.batches.items())
        ],
    )


def _total(total: Total) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=total.count, ns=total.ns)


def index(found: Sequence[tuple[str, str, Condition]]) -> pb.RepositoryIndexResponse:
    """Return every version with its state."""
    return pb.RepositoryIndexResponse(
        models=[
            pb.RepositoryIndexResponse.ModelIndex(
                name=name, version=version, state=_STATES[condition.state], reason=condition.message
            )
            for name, version, condition in found
        ]
    )


def check_repository(name: str) -> None:
    """Raise Invalid for a repository that isn't the one there is."""
    if name:
        raise Invalid(
            f"repository_name: {shown(name)} isn't there; leave it empty",
            reason="BAD_REPOSITORY",
            metadata={"field": "repository_name"},
        )


def check_load_parameters(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> None:
    """Raise Invalid for parameters of a load: they would change what isn't stored."""
    if parameters:
        raise Invalid(
            f"parameters: {shown(min(parameters))} isn't taken; put the configuration by "
            "isthmus.serving.v1.ModelService.PutModel",
            reason="BAD_PARAMETER",
            metadata={"field": "parameters"},
        )


def check_unload_parameters(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> None:
    """Raise Invalid for parameters other than Triton's `unload_dependents`, which changes nothing here."""
    check_load_parameters({name: value for name, value in parameters.items() if name != "unload_dependents"})
