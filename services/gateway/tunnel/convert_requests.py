"""Between a device's requests, the domain, and the Open Inference Protocol."""

from google.protobuf.duration_pb2 import Duration

from inference import open_inference_pb2
from isthmus.tunnel.v1 import tunnel_pb2
from libs.common.errors import Internal
from services.gateway.tunnel.domain.checks import MAX_RANK, MAX_TENSORS
from services.gateway.tunnel.domain.requests import Answer, Prediction, Request, Tensor

_NS = 10**9


def from_request(request: tunnel_pb2.Request) -> Request:
    """Convert a request, whatever it says: the domain checks it.

    Of lists that are too long, no more is converted than the domain needs to see that.
    """
    return Request(
        id=request.id,
        model=request.model,
        timeout_s=_seconds(request.timeout),
        inputs=tuple(_from_tensor(tensor) for tensor in request.inputs[: MAX_TENSORS + 1]),
        outputs=tuple(request.outputs[: MAX_TENSORS + 1]),
        traceparent=request.traceparent,
    )


def _seconds(duration: Duration) -> float:
    """Return a positive duration in seconds; 0, which no request may have, for a malformed one."""
    whole = duration.seconds >= 0 and 0 <= duration.nanos < _NS
    return duration.seconds + duration.nanos / _NS if whole else 0.0


def _from_tensor(tensor: tunnel_pb2.Tensor) -> Tensor:
    return Tensor(tensor.name, tensor.datatype, tuple(tensor.shape[: MAX_RANK + 1]), tensor.content)


def to_answer(answer: Answer) -> tunnel_pb2.Answer:
    """Convert an answer."""
    prediction = answer.prediction
    if prediction is None:
        return tunnel_pb2.Answer(
            id=answer.id, failure_reason=answer.failure_reason, failure_message=answer.failure_message
        )
    return tunnel_pb2.Answer(
        id=answer.id,
        model_version=prediction.version,
        outputs=[
            tunnel_pb2.Tensor(
                name=tensor.name, datatype=tensor.datatype, shape=tensor.shape, content=tensor.content
            )
            for tensor in prediction.outputs
        ],
    )


def to_infer_request(request: Request) -> open_inference_pb2.ModelInferRequest:
    """Convert a checked request for serving, with raw contents."""
    message = open_inference_pb2.ModelInferRequest(
        model_name=request.model, raw_input_contents=[tensor.content for tensor in request.inputs]
    )
    for tensor in request.inputs:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    for name in request.outputs:
        message.outputs.add(name=name)
    return message


def from_infer_response(response: open_inference_pb2.ModelInferResponse) -> Prediction:
    """Convert what serving answered.

    Raises:
        Internal: when it isn't raw, as the request was.
    """
    if len(response.raw_output_contents) != len(response.outputs):
        raise Internal("serving answered in another form than it was asked in", reason="BAD_ANSWER")
    return Prediction(
        response.model_version,
        tuple(
            Tensor(output.name, output.datatype, tuple(output.shape), content)
            for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
        ),
    )
