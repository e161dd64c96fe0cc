"""What the `isthmus` command asks of the engine on this machine: `python -m services.engine.local`.

A job comes as one JSON object on the standard input, and the answer goes as one to the standard output:

    {"command": "inspect", "file": ..., "is_plan": false, "dimensions": {"batch": [1, 64]},
     "sizes": {"batch": 8}}
    {"command": "explain", ...the same}
    {"command": "compare", "left": {"file": ..., "is_plan": ...}, "right": {...}, "dimensions": ...,
     "sizes": ..., "run": true, "seed": 0}

A refusal is {"error": <class of libs.common.errors>, "message": ..., "reason": ..., "metadata": ...}. It is a
process of its own since it works on files of anybody's making with parsers written in C++.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Set before numpy is loaded; a command shares the machine with others.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from google.protobuf.json_format import MessageToDict

from libs.common import errors
from libs.common.errors import Exhausted, Invalid, NotFound
from libs.common.sizes import size_text
from libs.runtime.loading import load_plan
from libs.runtime.plan import Plan
from libs.runtime.program import Program
from services.engine.comparison import Outcome, Side, run_both
from services.engine.convert_explanation import explanation
from services.engine.domain.explain import explain
from services.engine.domain.explanation import Explanation, Origins
from services.engine.domain.limits import MAX_MODEL_BYTES, MAX_PLAN_BYTES, check_dimensions
from services.engine.domain.sizing import sizes_of
from services.engine.peers import Feed, Peer, Run
from services.engine.pipeline import Stages, compile_model
from services.engine.reading.inspection import inspect_model

Job = Mapping[str, Any]
_PRODUCER = "isthmus-engine local"


def main() -> int:
    """Do the job; return the exit status, 0 also for what was refused."""
    job = json.loads(sys.stdin.buffer.read())
    try:
        answer = _COMMANDS[job["command"]](job)
    except errors.Error as error:
        answer = {
            "error": type(error).__name__ if type(error).__module__ == errors.__name__ else "Internal",
            "message": error.message,
            "reason": error.reason,
            "metadata": dict(error.metadata),
        }
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    return 0


def _inspect(job: Job) -> dict[str, Any]:
    if job["is_plan"]:
        return _explain(job)
    path, dimensions = Path(job["file"]), _dimensions(job)
    with _named(job["file"]):
        found = inspect_model(_content(path, MAX_MODEL_BYTES), dimensions, path.parent)
    return {"inspection": asdict(found)}


def _explain(job: Job) -> dict[str, Any]:
    dimensions = _dimensions(job)
    with _named(job["file"]):
        plan, origins = _plan(job, job["sizes"], dimensions)
        return {"explanation": _message(explain(plan, origins, job["sizes"]))}


def _compare(job: Job) -> dict[str, Any]:
    dimensions = _dimensions(job)
    left, right = (_side(job, job[name], dimensions) for name in ("left", "right"))
    known = {*left.explanation.sizes, *right.explanation.sizes}
    for name in job["sizes"]:
        if name not in known:
            sizes_of(left.plan, {name: job["sizes"][name]})
    outcome = None
    if job["run"]:
        with _named(f"{job['left']['file']} and {job['right']['file']}"):
            outcome = run_both(left, right, job["seed"], left.explanation.sizes)
    return {
        "left": _message(left.explanation),
        "right": _message(right.explanation),
        "outcome": None if outcome is None else _outcome(outcome),
    }


@contextmanager
def _named(file: str) -> Iterator[None]:
    """Let what is refused in the block begin with the file's name, once."""
    try:
        yield
    except errors.Error as error:
        if not error.message.startswith(f"{file}: "):
            error.message = f"{file}: {error.message}"
        raise
    except (MemoryError, RecursionError):
        text = f"{file}: takes more memory than there is"
        raise Exhausted(text, reason="MODEL_TOO_LARGE") from None


def _side(job: Job, subject: Job, dimensions: Mapping[str, tuple[int, int]]) -> Side:
    with _named(subject["file"]):
        return _read_side(job, subject, dimensions)


def _read_side(job: Job, subject: Job, dimensions: Mapping[str, tuple[int, int]]) -> Side:
    plan, origins = _plan(subject, {}, dimensions)
    known = explain(plan).sizes
    sizes = {name: size for name, size in job["sizes"].items() if name in known}
    if sizes and not subject["is_plan"]:
        plan, origins = _plan(subject, sizes, dimensions)
    path = Path(subject["file"])
    run: Run = _not_run
    if job["run"]:
        # A model is run by ONNX Runtime: what its plan makes of it is another question.
        peer = None if subject["is_plan"] else Peer(_content(path, MAX_MODEL_BYTES), path.parent)
        run = Program(plan, max_bindings=1).run if peer is None else peer.run
    return Side(plan, explain(plan, origins, sizes), run)


def _not_run(feed: Feed) -> Mapping[str, Any]:
    raise AssertionError("nothing is to be run")


def _plan(
    subject: Job, sizes: Mapping[str, int], dimensions: Mapping[str, tuple[int, int]]
) -> tuple[Plan, Origins | None]:
    path = Path(subject["file"])
    if subject["is_plan"]:
        return load_plan(_content(path, MAX_PLAN_BYTES), str(path)), None
    data = _content(path, MAX_MODEL_BYTES)
    found = compile_model(data, dimensions, _PRODUCER, Stages(lambda _: None), path.parent, sizes=sizes)
    return found.plan, found.origins


def _content(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        raise NotFound(f"{path}: there is no such file", reason="NO_FILE") from None
    except OSError as error:
        raise Invalid(f"{path}: can't be read: {error.strerror}", reason="BAD_FILE") from None
    if not data:
        raise Invalid(f"{path}: is empty", reason="BAD_FILE")
    if len(data) > most:
        raise Invalid(f"{path}: has more than {size_text(most)}", reason="MODEL_TOO_LARGE")
    return data


def _dimensions(job: Job) -> Mapping[str, tuple[int, int]]:
    return check_dimensions([(name, low, high) for name, (low, high) in job["dimensions"].items()])


def _message(found: Explanation) -> dict[str, Any]:
    return MessageToDict(explanation(found), preserving_proto_field_name=True)


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "is_random": outcome.is_random,
        # JSON has no infinity.
        "differences": [
            {
                "output": each.output,
                "largest": each.largest if each.largest < float("inf") else None,
                "text": each.text,
            }
            for each in outcome.differences
        ],
    }


_COMMANDS: Mapping[str, Callable[[Job], dict[str, Any]]] = {
    "inspect": _inspect,
    "explain": _explain,
    "compare": _compare,
}


if __name__ == "__main__":
    sys.exit(main())
