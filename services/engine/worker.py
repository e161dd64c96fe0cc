"""The process that makes one plan: `python -m services.engine.worker FOLDER`.

It works on a file that anybody may have made, with parsers written in C++: so it is a process of its own,
with bounds on memory, processor time and the files it writes, that dies with its parent. FOLDER holds
`model.onnx`, `job.json` and, in `data`, the files that the model keeps its data in; the plan is left in
`plan.bin`, and what happens is told as lines of JSON on standard output, which `services.engine.crew` reads
and doesn't trust.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from libs.common import errors
from libs.common.sizes import size_text
from services.engine.domain.model import Stage, Verdict

MODEL, DATA, JOB, PLAN = "model.onnx", "data", "job.json", "plan.bin"
_PR_SET_PDEATHSIG = 1
_MOST_FILE_BYTES = 1 << 30


def main(folder: Path) -> int:
    """Make the plan that `folder` asks for; return the exit status, 0 also for a model that was refused."""
    job = json.loads((folder / JOB).read_bytes())
    _confine(job["parent"], job["memory_bytes"], job["cpu_s"])
    try:
        _tell({"result": _make(folder, job)})
    except errors.Exhausted as error:
        # Coming back later doesn't help: it is this model that takes too much.
        _refuse(error.message, "MODEL_TOO_LARGE")
    except errors.Error as error:
        _tell(
            {
                "error": type(error).__name__ if type(error).__module__ == errors.__name__ else "Internal",
                "message": error.message,
                "reason": error.reason,
                "metadata": dict(error.metadata),
            }
        )
    except (MemoryError, RecursionError):
        text = f"the model takes more than {size_text(job['memory_bytes'])} of memory to work on"
        _refuse(text, "MODEL_TOO_LARGE")
    return 0


def _make(folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    # Only now: what these import takes memory and time that should count.
    from libs.runtime.codec import encode
    from services.engine.domain.origins_json import origins_to_json
    from services.engine.peers import Peer
    from services.engine.pipeline import Stages, compile_model
    from services.engine.verify import verify

    data = (folder / MODEL).read_bytes()
    stages = Stages(_tell_stage)
    dimensions = {name: (low, high) for name, (low, high) in job["dimensions"].items()}
    beside = folder / DATA if (folder / DATA).is_dir() else None
    compiled = compile_model(data, dimensions, job["producer"], stages, beside, sizes=job["sizes"])
    verdict: Verdict | None = None
    if job["verify"]:
        seed = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
        peer = Peer(data, beside)
        verdict = stages.run(
            "verify",
            lambda: verify(compiled.plan, peer.run, seed, peer.second_opinion),
            lambda found: (
                f"{found.comparisons} comparisons with {peer.name}, largest error {found.max_error:.1e}"
                + (f"; overruled in {found.overruled} by a second opinion" if found.overruled else "")
            ),
        )
    plan = encode(compiled.plan)
    (folder / PLAN).write_bytes(plan)
    return {
        "origins": origins_to_json(compiled.origins),
        "max_error": verdict.max_error if verdict else 0.0,
        "comparisons": verdict.comparisons if verdict else 0,
        "plan_bytes": len(plan),
    }


def _refuse(message: str, reason: str) -> None:
    _tell({"error": "Invalid", "message": message, "reason": reason, "metadata": {}})


def _tell_stage(stage: Stage) -> None:
    _tell({"stage": stage.name, "elapsed_s": stage.elapsed_s, "summary": stage.summary})


def _tell(line: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _confine(parent: int, memory_bytes: int, cpu_s: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        # It died before we asked to go with it.
        os._exit(1)
    for kind, limit, grace in (
        (resource.RLIMIT_AS, memory_bytes, 0),
        # At the harder limit Linux sends SIGKILL alone, which wouldn't say why.
        (resource.RLIMIT_CPU, cpu_s, 1),
        (resource.RLIMIT_FSIZE, _MOST_FILE_BYTES, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        _, most = resource.getrlimit(kind)
        if most == resource.RLIM_INFINITY:
            most = limit + grace
        resource.setrlimit(kind, (min(limit, most), min(limit + grace, most)))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
