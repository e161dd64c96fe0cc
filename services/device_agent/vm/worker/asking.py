"""How a script's `context.ask` reaches the agent in the middle of a run, and how arrays become tensors.

What a script asks is converted here, in its own process and time. Whether it may leave the device the agent
decides, by the signed manifest; this process only knows the datatypes to convert to.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

# ruff: noqa: TID252
from .failed import Failed
from .framing import read_frame, write_frame

if TYPE_CHECKING:
    from numpy import ndarray

REFUSED = "BAD_REQUEST"
_MAX_CONTENT = 256 * 1024
_MAX_SHOWN = 256
"""Characters of a name that go to the agent: one that is declared has fewer."""
_DTYPES = {
    "BOOL": "?",
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
# What numpy calls the elements that scripts give.
_KINDS = {
    "b": "True and False",
    "i": "whole numbers",
    "u": "whole numbers",
    "f": "numbers with fractions",
    "c": "complex numbers",
    "U": "texts",
    "S": "bytes",
    "M": "dates",
    "m": "durations",
}


class Arrays:
    """Converts between a script's values and tensors, by numpy; `prepare` comes first."""

    def __init__(self, held: Callable[[], int]) -> None:
        """Take what tells how much memory this process holds more than at its start."""
        self._held = held
        self._numpy: Any = None
        self.fault = ""
        """Why there is no numpy."""
        self.held_bytes = 0

    def prepare(self) -> None:
        """Import numpy unless that is done: outside a task's limits, so that it counts for none."""
        if self._numpy is not None:
            return
        before = self._held()
        try:
            import numpy
        except ImportError as error:
            self.fault = f"this device can't ask models: {error}"[:1000]
        else:
            self._numpy = numpy
        self.held_bytes = max(0, self._held() - before)

    def encode(self, name: str, value: object, datatype: str) -> dict[str, object]:
        """Return a tensor for the agent; raise Failed for a value that isn't of the datatype."""
        np = self._numpy
        try:
            array = np.asarray(value)
        except Exception as error:  # a value may be an object of the script's own
            text = f"is no array: {type(error).__name__}: {error}"[:200]
            if isinstance(error, ValueError) and "inhomogeneous" in str(error):
                text = "is no array: its lists aren't equally long and deep"
            raise _bad(name, text) from None
        converted = array if array.dtype == _DTYPES[datatype] else self._convert(name, array, datatype)
        if converted.nbytes > _MAX_CONTENT:
            raise _bad(name, f"has {converted.nbytes} bytes; all inputs together have at most {_MAX_CONTENT}")
        return _tensor(name, datatype, list(converted.shape), converted.tobytes())

    def _convert(self, name: str, array: Any, datatype: str) -> Any:
        np, wanted = self._numpy, np_dtype(self._numpy, datatype)
        kind = array.dtype.kind
        if kind not in "biuf" or (wanted.kind == "b" and array.size):
            raise _bad(name, f"holds {_said(array)}, which is no {datatype}")
        if not array.size:
            return array.astype(wanted)
        if wanted.kind in "iu":
            least, most = int(np.iinfo(wanted).min), int(np.iinfo(wanted).max)
            if kind == "f":
                whole = (array == np.trunc(array)) & (array >= float(least)) & (array < float(most) + 1.0)
                fits = bool(whole.all())
            else:
                fits = int(array.min()) >= least and int(array.max()) <= most
            if not fits:
                raise _bad(name, f"holds a value that no {datatype} is")
            return array.astype(wanted)
        with np.errstate(all="ignore"):
            converted = array.astype(wanted)
        # What is infinite or no number to begin with may stay so.
        if not bool((np.isfinite(converted) | ~np.isfinite(array)).all()):
            raise _bad(name, f"holds a value too large for {datatype}")
        return converted

    def decode(self, tensors: Sequence[Mapping[str, Any]]) -> dict[str, ndarray]:
        """Return an answer's outputs as arrays that the script may change."""
        np = self._numpy
        return {
            tensor["name"]: np.frombuffer(
                bytearray(base64.b64decode(tensor["content"])), dtype=np_dtype(np, tensor["datatype"])
            ).reshape(tensor["shape"])
            for tensor in tensors
        }


class Asker:
    """Carries one run's requests to the agent, one at a time, whatever threads the script has."""

    def __init__(
        self, fd: int, call: int, endpoints: Mapping[str, Mapping[str, str]], arrays: Arrays, max_answer: int
    ) -> None:
        self._fd = fd
        self._call = call
        self._endpoints = endpoints
        self._arrays = arrays
        self._max_answer = max_answer
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._open = True
        self._waiting = False
        self.refusal = ""
        """Why the run has failed, whatever the script makes of it."""

    def __call__(
        self, model: str, inputs: Mapping[str, Any], timeout_s: float, outputs: Sequence[str]
    ) -> tuple[dict[str, ndarray] | None, str]:
        """Ask; see `isthmus.task.Context.ask`."""
        with self._lock:
            if os.getpid() != self._pid:
                os._exit(0)  # a script has forked where nothing forbids it
            if not self._open or self._waiting:
                return None, "the run is over" if not self._open else "an earlier request was broken off"
            if self.refusal:
                raise Failed(REFUSED, self.refusal)
            try:
                ask = {
                    "model": _name(model),
                    "inputs": self._encode(model, inputs),
                    "timeout_s": timeout_s,
                    "outputs": [_name(name) for name in outputs],
                }
                reply = self._exchange(ask)
                if "refused" in reply:
                    raise Failed(REFUSED, reply["refused"])
            except Failed as error:
                self.refusal = error.message
                raise
            if reply.get("outputs") is None:
                return None, reply["why"]
            return self._arrays.decode(reply["outputs"]), ""

    @property
    def broken(self) -> bool:
        """Whether an answer may still come that nobody waits for."""
        return self._waiting

    def close(self) -> None:
        """Let nothing be asked any more; waits for a request of another thread."""
        with self._lock:
            self._open = False

    def _encode(self, model: str, inputs: Mapping[str, Any]) -> list[dict[str, object]]:
        declared = self._endpoints.get(model, {})
        tensors: list[dict[str, object]] = []
        room = _MAX_CONTENT
        for name, value in inputs.items():
            if name not in declared:
                # Without its value: the agent will refuse it, and knows what to say.
                tensors.append(_tensor(name, "", [], b""))
                continue
            tensor = self._arrays.encode(name, value, declared[name])
            tensors.append(tensor)
            room -= len(str(tensor["content"])) * 3 // 4
            if room < -2 * len(tensors):  # what base64 rounds up
                raise Failed(REFUSED, f"the inputs have more than {_MAX_CONTENT} bytes together")
        return tensors

    def _exchange(self, ask: dict[str, object]) -> dict[str, Any]:
        body = json.dumps({"id": self._call, "ask": ask}, separators=(",", ":")).encode()
        # A signal handler of the script's may raise in here: what comes after it is no answer of ours.
        self._waiting = True
        write_frame(self._fd, body)
        frame = read_frame(self._fd, self._max_answer)
        self._waiting = False
        if frame is None:
            os._exit(0)  # the agent has gone
        reply: dict[str, Any] = json.loads(frame)["answer"]
        return reply


def np_dtype(np: Any, datatype: str) -> Any:
    """Return numpy's type for a datatype."""
    return np.dtype(_DTYPES[datatype])


def _tensor(name: str, datatype: str, shape: list[int], content: bytes) -> dict[str, object]:
    encoded = base64.b64encode(content).decode()
    return {"name": _name(name), "datatype": datatype, "shape": shape, "content": encoded}


def _name(text: str) -> str:
    return text[:_MAX_SHOWN].encode("utf-8", "replace").decode()


def _said(array: Any) -> str:
    """Return what an array holds that can't be converted, in the script's words rather than numpy's."""
    if array.dtype.kind != "O":
        return _KINDS.get(array.dtype.kind, str(array.dtype))
    odd = [each for each in array.flat if not isinstance(each, (bool, int, float))][:1]
    if not odd:
        # numpy has no type for them.
        return "a whole number of more than 64 bits"
    return "None" if odd[0] is None else f"an object of the type {type(odd[0]).__name__}"[:80]


def _bad(name: str, text: str) -> Failed:
    return Failed(REFUSED, f"input {_name(name)[:64]!r} {text}")
