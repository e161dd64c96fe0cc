"""The process of one simulation. It says one line of JSON on the standard output: the verdict, or an error.

It works in its folder, which holds `manifest`, `blobs/<hex>` and, if there are events, `events.jsonl`.
"""

import asyncio
import json
import logging
import os
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

from isthmus.deployer.v1 import manifest_pb2
from libs.common.errors import Error, Exhausted, Internal, Invalid, Precondition, Unavailable
from libs.common.fsio import FULL
from libs.common.rand import SystemRandomness
from libs.task.manifest import check_manifest
from services.device_agent.simulator.recording import read_recording
from services.device_agent.simulator.verdict import TIMEOUT, Verdict, failed, judge
from services.device_agent.trial import LocalFiles, Tally, run_trial

MANIFEST, BLOBS, EVENTS, HOME = "manifest", "blobs", "events.jsonl", "agent"
_KINDS = (Invalid, Exhausted, Unavailable, Internal)
# Below this an agent waits for room rather than fail, so that its time runs out for that.
_ROOM_BYTES = 8 * 1024 * 1024


async def simulate(folder: Path, deadline_s: float, demanded: Collection[str]) -> Verdict:
    """Run what is in `folder` and return the verdict; `demanded` must hold in its task VM.

    Raises:
        Internal: when it doesn't.
        Invalid: when a line of the events is none.
        Exhausted: when the disk is full.
    """
    payload = (folder / MANIFEST).read_bytes()
    manifest = check_manifest(manifest_pb2.TaskManifest.FromString(payload))
    files = LocalFiles(
        {blob.digest: folder / BLOBS / blob.digest.removeprefix("sha256:") for blob in manifest.blobs}
    )
    events = folder / EVENTS if (folder / EVENTS).exists() else None
    recording = await asyncio.to_thread(read_recording, events) if events is not None else None
    count = len(recording.lines) if recording is not None else 0
    tally = Tally()
    try:
        async with asyncio.timeout(deadline_s):
            outcome = await run_trial(
                folder / HOME,
                payload,
                manifest,
                files,
                events,
                SystemRandomness(),
                tally=tally,
                socket=Path("s"),
                demanded=demanded,
            )
    except TimeoutError:
        if shutil.disk_usage(folder).free < _ROOM_BYTES:
            raise Exhausted(
                f"the simulator has no room: {FULL}", reason="DISK_FULL", retry_after_s=30.0
            ) from None
        return failed(
            TIMEOUT,
            f"wasn't through after {deadline_s:g} s and {tally.runs:,} runs over {count:,} events; "
            "make runs shorter, or give fewer events",
            count,
            tally,
        )
    except Precondition as error:
        # It doesn't load, or wants another agent or Python.
        return failed(error.reason, error.message)
    return judge(outcome, recording)


def main(folder: str, deadline_s: float, demanded: Collection[str]) -> int:
    """Run a simulation as a process; return its exit status, 0 when it said something."""
    logging.basicConfig(level=logging.ERROR)
    # The agent's socket is named relative to here: a socket's path must be short.
    os.chdir(folder)
    os.umask(0o077)
    said: dict[str, object]
    try:
        said = {"verdict": asyncio.run(simulate(Path(folder), deadline_s, demanded)).to_json()}
    except Error as error:
        kind = next((base.__name__ for base in _KINDS if isinstance(error, base)), Internal.__name__)
        said = {"error": {"class": kind, "reason": error.reason, "message": error.message}}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    return 0
