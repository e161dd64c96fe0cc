"""The engine on this machine, without a service: a process that looks at one file, and says what it found."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from libs.common import errors
from libs.common.errors import Error, Internal, Invalid, Precondition

PLAN_SUFFIX = ".plan"
_NEEDED = ("numpy", "onnx", "onnxruntime")
_HEAD_BYTES = 256
_KINDS: Mapping[str, type[Error]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, Error) and kind is not Error
}


def looks_like_plan(path: Path) -> bool:
    """Tell whether a file is a plan rather than an ONNX model: by its name, or else by how it begins.

    Both are protobuf. A plan begins with two small numbers and the digest of its model.
    """
    if path.name.endswith(PLAN_SUFFIX):
        return True
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    at = 0
    while at + 1 < len(head) and head[at] in (0x08, 0x10):  # fields 1 and 2, numbers
        at += 2
    return head[at : at + 1] == b"\x1a" and head[at + 2 : at + 9] == b"sha256:"


def ask_engine(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `services.engine.local` answers to a job; see there.

    Raises:
        Precondition: NO_ENGINE where what it needs isn't installed.
        Error: what it refuses, and MODEL_CRASHES where the file makes it crash.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing or find_spec("services.engine") is None:
        raise Precondition(
            f"models are looked at by the engine, and {', '.join(missing) or 'it'} isn't installed here: "
            "pip install 'isthmus[engine]', or ask the service (`isthmus model explain` without --local)",
            reason="NO_ENGINE",
        )
    with subprocess.Popen(
        [sys.executable, "-m", "services.engine.local"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        try:
            out, said = child.communicate(json.dumps(job).encode())
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise _crashed(job, child.returncode, said)
    answer = json.loads(out)
    if "error" in answer:
        kind = _KINDS.get(answer["error"], Internal)
        raise kind(answer["message"], reason=answer["reason"], metadata=answer["metadata"])
    return dict(answer)


def _crashed(job: Mapping[str, Any], status: int, said: bytes) -> Error:
    if status < 0:
        name = signal.Signals(-status).name
        files = [each["file"] for each in (job, job.get("left"), job.get("right")) if each and "file" in each]
        where = f"{' or '.join(files)}: " if files else ""
        return Invalid(
            f"{where}the file makes the engine crash ({name}); is it whole?", reason="MODEL_CRASHES"
        )
    last = said.decode(errors="replace").strip().splitlines()[-1:]
    return Internal(f"the engine failed: {' '.join(last) or status}", reason="ENGINE_FAILED")
