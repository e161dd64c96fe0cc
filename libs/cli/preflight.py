"""How a version did in its pre-flight, for people."""

from __future__ import annotations

from isthmus.deployer.v1 import preflight_pb2, task_pb2
from libs.cli.output import counted, human_bytes, human_seconds

_WORDS = {
    preflight_pb2.Preflight.STATE_PASSED: "passed",
    preflight_pb2.Preflight.STATE_FAILED: "failed",
    preflight_pb2.Preflight.STATE_SKIPPED: "skipped",
}


def preflight_word(version: task_pb2.Version) -> str:
    """Return the verdict in a word; "-" for a version from before there were pre-flights."""
    if not version.HasField("preflight"):
        return "-"
    return _WORDS.get(version.preflight.state, "unknown")


def preflight_text(version: task_pb2.Version) -> str:
    """Return the verdict and its figures in a line."""
    word, found = preflight_word(version), version.preflight
    if word == "-":
        return word
    if found.state == preflight_pb2.Preflight.STATE_SKIPPED:
        return "skipped: this cloud has no simulator"
    if found.state == preflight_pb2.Preflight.STATE_FAILED:
        return f"failed with {found.reason}: {found.message}"
    if not found.HasField("events"):
        return f"{word}: it loads; without events nothing ran (--events)"
    parts = [f"{word}: {counted(found.run_count, 'run')} over {counted(found.event_count, 'event')}"]
    if found.run_count:
        p50, p99 = (
            human_seconds(each.ToTimedelta().total_seconds())
            for each in (found.p50_run_time, found.p99_run_time)
        )
        parts.append(f"p50 {p50}, p99 {p99}")
    parts.append(f"{counted(found.frame_count, 'frame')} ({human_bytes(found.frame_bytes)}) would be sent")
    if found.refused_frame_count:
        parts.append(f"{found.refused_frame_count:,} refused")
    if found.asked_count:
        parts.append(f"asked models {counted(found.asked_count, 'time')}")
    return "; ".join(parts)
