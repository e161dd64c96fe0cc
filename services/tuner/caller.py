"""The process that makes load: `python -m services.tuner.caller KEY_FILE`.

It speaks the Open Inference Protocol, in a process of its own so that the tuner's event loop neither slows it
nor waits for it. A job comes as one JSON object on standard input; metrics or an error go as one to standard
output. Inputs are made by what the model says of itself: the first dimension, where it is open, has the rows
asked for; others that are open have size 1; numbers are drawn from a standard normal distribution, whole ones
are 0 or 1, for what looks things up.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from inference import open_inference_pb2 as oip
from inference import open_inference_pb2_grpc as oip_grpc
from libs.common.client import (
    ServiceIdentity,
    client_credentials,
    create_channel,
    on_behalf_of,
    rpc_errors,
)
from libs.common.clock import SystemClock
from libs.common.errors import Error, Internal, Invalid
from libs.common.identity import IdentityIssuer, load_or_create_key
from services.tuner.domain.load import CALL_S, drive
from services.tuner.domain.model import Load
from services.tuner.domain.statistics import summarise
from services.tuner.processes import cpu_clock, peak_memory

MESSAGE_BYTES = 256 * 1024 * 1024
_FLOATS = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
_WHOLE = {f"{sign}INT{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}


def request_for(meta: oip.ModelMetadataResponse, version: str, rows: int, seed: int) -> oip.ModelInferRequest:
    """Return a request for a model, by its metadata.

    Raises:
        Invalid: for an input whose type can't be made up, or that is too large.
    """
    request = oip.ModelInferRequest(model_name=meta.name, model_version=version)
    chance, total = np.random.default_rng(seed), 0
    for spec in meta.inputs:
        shape = [size if size >= 0 else (rows if axis == 0 else 1) for axis, size in enumerate(spec.shape)]
        total += 8 * math.prod(shape)
        if total > MESSAGE_BYTES // 2:
            raise Invalid(f"input {spec.name!r}: {shape} is too large for a trial; ask for fewer rows")
        if spec.datatype in _FLOATS:
            data = chance.standard_normal(shape).astype(_FLOATS[spec.datatype])
        elif spec.datatype in _WHOLE:
            data = chance.integers(0, 2, shape).astype(_WHOLE[spec.datatype])
        elif spec.datatype == "BOOL":
            data = chance.integers(0, 2, shape).astype(np.bool_)
        else:
            raise Invalid(
                f"input {spec.name!r}: values of type {spec.datatype} can't be made up; "
                "trials work with numbers and BOOL",
                reason="NO_INPUTS",
            )
        request.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
        request.raw_input_contents.append(data.tobytes())
    return request


async def measure(key_file: Path, job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Do a job as the service that has this private key; return the metrics."""
    clock = SystemClock()
    issuer = IdentityIssuer("tuner", load_or_create_key(key_file), clock)
    tls = job.get("tls")
    credentials = client_credentials(*(Path(name) if name else None for name in tls)) if tls else None  # type: ignore[arg-type]
    channel = create_channel(
        job["target"],
        credentials=credentials,
        identity=ServiceIdentity(issuer, "serving"),
        default_deadline_s=CALL_S,
        max_message_bytes=MESSAGE_BYTES,
    )
    load = Load(**job["load"])
    pid = job.get("pid", 0)
    async with channel:
        stub = oip_grpc.GRPCInferenceServiceStub(channel)
        with on_behalf_of(job["on_behalf_of"]):
            with rpc_errors():
                meta = await stub.ModelMetadata(
                    oip.ModelMetadataRequest(name=job["model"], version=job["version"])
                )
            request = request_for(meta, job["version"], load.rows, job["seed"])

            async def call() -> None:
                with rpc_errors():
                    await stub.ModelInfer(request)

            run = await drive(
                call,
                load,
                job["seed"],
                clock,
                cpu_clock(pid) if pid else None,
                peak_memory(pid) if pid else None,
            )
    return [
        {"name": metric.name, "value": metric.value, "low": metric.low, "high": metric.high}
        for metric in summarise(run, job["seed"])
    ]


def main() -> int:
    """Do the job on standard input."""
    answer: dict[str, Any]
    try:
        answer = {"metrics": asyncio.run(measure(Path(sys.argv[1]), json.loads(sys.stdin.buffer.read())))}
    except Error as error:
        answer = {"error": type(error).__name__, "message": error.message, "reason": error.reason}
    except FileNotFoundError as error:
        # Of all files, only those of the server's process in /proc are looked at.
        gone = Internal(f"the server ended under load ({error.filename} is gone)", reason="SERVER_ENDED")
        answer = {"error": "Internal", "message": gone.message, "reason": gone.reason}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
