"""Between the tunnel's requests and answers and what the agent knows of them."""

from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration

from isthmus.tunnel.v1 import tunnel_pb2
from libs.task.tensor import MAX_ANSWER_BYTES, MAX_NAME_BYTES, MAX_OUTPUTS, Tensor, tensor_fault

_MAX_SHOWN = 200


def to_request(
    number: int, model: str, inputs: Sequence[Tensor], left_s: float, traceparent: str
) -> tunnel_pb2.ConnectRequest:
    """Return the message of a request that waits for `left_s` more."""
    timeout = Duration()
    timeout.FromMicroseconds(max(1, round(left_s * 1e6)))
    tensors = [
        tunnel_pb2.Tensor(
            name=tensor.name, datatype=tensor.datatype, shape=tensor.shape, content=tensor.content
        )
        for tensor in inputs
    ]
    # All outputs are asked for: names of wanted ones would be text that no manifest declares.
    request = tunnel_pb2.Request(
        id=number, model=model, timeout=timeout, inputs=tensors, traceparent=traceparent
    )
    return tunnel_pb2.ConnectRequest(request=request)


def from_answer(answer: tunnel_pb2.Answer) -> tuple[tuple[Tensor, ...] | None, str]:
    """Return an answer's outputs, or None and why there are none."""
    if answer.failure_reason:
        text = f"{answer.failure_reason[:64]}: {answer.failure_message[:_MAX_SHOWN]}"
        return None, text.removesuffix(": ")
    if len(answer.outputs) > MAX_OUTPUTS:
        return None, f"the answer has more than {MAX_OUTPUTS} outputs"
    outputs = tuple(
        Tensor(output.name, output.datatype, tuple(output.shape), output.content) for output in answer.outputs
    )
    if not outputs:
        return None, "the answer has no outputs"
    if sum(len(output.content) for output in outputs) > MAX_ANSWER_BYTES:
        return None, f"the answer has more than {MAX_ANSWER_BYTES} bytes"
    if len({output.name for output in outputs}) < len(outputs):
        return None, "the answer has two outputs of one name"
    for output in outputs:
        if len(output.name.encode()) > MAX_NAME_BYTES:
            return None, f"an output has a name of more than {MAX_NAME_BYTES} bytes"
        wrong = tensor_fault(output)
        if wrong:
            return None, f"output {output.name[:64]!r} {wrong}"
    return outputs, ""
