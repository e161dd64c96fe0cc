"""Requests to a worker, what its runs ask, outcomes from its replies. Pure; what it sends is untrusted."""

import base64
import json
import math
from typing import Any

from libs.common.errors import Invalid
from libs.task.jsontext import is_deeper
from libs.task.tensor import (
    MAX_CONTENT_BYTES,
    MAX_DIMENSIONS,
    MAX_INPUTS,
    MAX_OUTPUTS,
    MAX_TIMEOUT_S,
    Tensor,
)
from services.device_agent.vm.model import (
    Ask,
    Execution,
    LoadedTask,
    Outcome,
    Reason,
    Reply,
    Sent,
    VmConfig,
)

MAX_REPLY_DEPTH = 64
"""Levels of a reply: twice what `worker.values` lets a result have."""
_FAILURES = frozenset(
    {
        Reason.EXCEPTION,
        Reason.MEMORY,
        Reason.BAD_INPUT,
        Reason.BAD_REQUEST,
        Reason.BAD_RESULT,
        Reason.LOAD_ERROR,
    }
)


class ProtocolFault(Exception):
    """The process has sent what isn't the answer."""


def load_request(task: LoadedTask, config: VmConfig) -> bytes:
    """Return the request that loads `task`. Raises Invalid beyond `max_request_bytes`."""
    request: dict[str, object] = {
        "op": "load",
        "key": task.key,
        "task": task.task,
        "version": task.version,
        "scripts": [
            {
                "phase": script.phase.value,
                "path": script.path,
                "entry_point": script.entry_point,
                "digest": script.digest,
                "source": base64.b64encode(script.source).decode(),
            }
            for script in task.scripts
        ],
        "plan": None if task.model is None else {"path": task.model.path, "digest": task.model.digest},
        "root": None if task.resource_root is None else str(task.resource_root),
        "resources": list(task.resources),
        "endpoints": {model: dict(inputs) for model, inputs in task.endpoints.items()},
        "memory_bytes": task.limits.memory_bytes,
        "wall_s": config.load_timeout_s,
    }
    return _encode(request, f"the scripts of {task.key}", config)


def run_request(task: LoadedTask, execution: Execution, config: VmConfig) -> bytes:
    """Return the request that runs `task`. Raises Invalid for what isn't JSON or is too large."""
    request: dict[str, object] = {
        "op": "run",
        "key": task.key,
        "events": [event.to_json() for event in execution.events],
        "features": dict(execution.features),
        "memory_bytes": task.limits.memory_bytes,
        "wall_s": task.limits.wall_time_s,
    }
    return _encode(request, f"events and features of a run of {task.key}", config)


def unload_request(key: str) -> bytes:
    """Return the request that makes a worker forget the task `key`."""
    return json.dumps({"op": "unload", "key": key}).encode()


def _encode(request: dict[str, object], what: str, config: VmConfig) -> bytes:
    try:
        body = json.dumps(request, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"{what} are no JSON: {error}") from error
    if len(body) > config.max_request_bytes:
        raise Invalid(
            f"{what} take {len(body)} bytes as JSON, more than {config.max_request_bytes}", reason="TOO_LARGE"
        )
    return body


def parse_reply(body: bytes) -> dict[str, Any]:
    """Return the object that a frame from a worker holds, of what JSON can write again and nothing else.

    Raises ProtocolFault: for anything but an object, for what `json.loads` takes beyond JSON (NaN, numbers
    too large for a float, halves of surrogate pairs), and for nesting that could break whoever walks it.
    """
    try:
        reply = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
        if b"\\ud" in body or b"\\uD" in body:
            json.dumps(reply, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ProtocolFault(f"not JSON: {error}") from error
    if not isinstance(reply, dict):
        raise ProtocolFault(f"not an object: {reply!r:.50}")
    if is_deeper(reply, MAX_REPLY_DEPTH):
        raise ProtocolFault(f"nested deeper than {MAX_REPLY_DEPTH} levels")
    return reply


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text[:40]} is too large")
    return value


def outcome_from(reply: dict[str, Any]) -> Outcome:
    """Read a reply. Raises ProtocolFault for anything that `worker.main` doesn't send."""
    try:
        logs = tuple(_text(line) for line in reply.get("logs", ()))
        cpu_s, peak = float(reply.get("cpu_s", 0)), int(reply.get("peak_rss_bytes", 0))
        if reply["ok"] is True:
            value = reply.get("value", {})
            if not isinstance(value, dict):
                raise ProtocolFault("the value is no object")
            sends = tuple(_sent(pair) for pair in reply.get("sends", ()))
            return Outcome(value, sends=sends, logs=logs, cpu_s=cpu_s, peak_rss_bytes=peak)
        reason = Reason(reply["reason"])
        if reason not in _FAILURES:
            raise ProtocolFault(f"a worker can't report {reason}")
        return Outcome(None, reason, _text(reply["message"]), logs=logs, cpu_s=cpu_s, peak_rss_bytes=peak)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolFault(f"malformed reply: {type(error).__name__} {error}") from error


def parse_ask(reply: dict[str, Any]) -> Ask:
    """Read what a run asks, out of a frame with "ask" in it. Raises ProtocolFault for what no worker sends.

    It is bounded here; whether its tensors are whole and declared, the manifest's check says.
    """
    ask = reply["ask"]
    try:
        timeout_s = float(ask["timeout_s"])
        inputs = tuple(_tensor(value) for value in _some(ask["inputs"], MAX_INPUTS))
        outputs = tuple(_text(name) for name in _some(ask["outputs"], MAX_OUTPUTS))
        model = _text(ask["model"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolFault(f"malformed ask: {type(error).__name__} {error}") from error
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise ProtocolFault(f"an ask of {timeout_s} s")
    return Ask(model, inputs, timeout_s, outputs)


def reply_to_ask(call: int, reply: Reply) -> bytes:
    """Return the frame that answers what the run `call` asked."""
    answer: dict[str, object]
    if reply.refusal:
        answer = {"refused": reply.refusal}
    elif reply.outputs is None:
        answer = {"why": reply.why}
    else:
        outputs = [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
                "content": base64.b64encode(tensor.content).decode(),
            }
            for tensor in reply.outputs
        ]
        answer = {"outputs": outputs}
    return json.dumps({"id": call, "answer": answer}, separators=(",", ":")).encode()


def _some(values: Any, most: int) -> list[Any]:
    if not isinstance(values, list) or len(values) > most:
        raise ProtocolFault(f"a list of at most {most} expected")
    return values


def _tensor(value: Any) -> Tensor:
    shape = _some(value["shape"], MAX_DIMENSIONS + 56)  # numpy's most; the check names what is too many
    if not all(type(extent) is int and 0 <= extent < 2**63 for extent in shape):
        raise ProtocolFault("a shape that no array has")
    content = base64.b64decode(_text(value["content"]), validate=True)
    if len(content) > MAX_CONTENT_BYTES:
        raise ProtocolFault(f"a tensor of {len(content)} bytes")
    return Tensor(_text(value["name"]), _text(value["datatype"]), tuple(shape), content)


def _sent(pair: Any) -> Sent:
    stream, fields = pair
    if not isinstance(fields, dict):
        raise ProtocolFault("a frame's fields are no object")
    return Sent(_text(stream), fields)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ProtocolFault(f"text expected, not {type(value).__name__}")
    return value
