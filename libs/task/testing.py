"""Builders for tests: events, files and manifests that keep every rule until a test breaks one."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from isthmus.deployer.v1 import manifest_pb2
from libs.common.errors import Invalid
from libs.task.event import Event
from libs.task.manifest import MODEL_AGENT_VERSION

T = TypeVar("T")

SCRIPT = b"def pre(context):\n    return {'count': len(context.events)}\n"


def make_event(
    type: str = "rate",
    time_s: float = 1000.0,
    *,
    event_id: str = "",
    page: str = "",
    user: str = "u1",
    **fields: object,
) -> Event:
    """Return an event; keywords become its fields."""
    return Event(event_id, type, page, user, time_s, fields)


def blob_ref(content: bytes) -> manifest_pb2.BlobRef:
    """Return the reference to a file with this content."""
    return manifest_pb2.BlobRef(
        digest="sha256:" + hashlib.sha256(content).hexdigest(), size_bytes=len(content)
    )


def trigger_json(*events: str, within: str | None = None) -> str:
    """Return a trigger on events of these types, one right after the other."""
    value: dict[str, object] = {"sequence": [{"event": event} for event in events]}
    return json.dumps(value if within is None else {**value, "within": within})


def make_manifest(
    task: str = "genres",
    version: str = "1.0.0",
    *,
    script: bytes = SCRIPT,
    trigger: str = "",
    pipeline: str = "",
    resources: Mapping[str, bytes] | None = None,
    uploads: Mapping[str, Iterable[tuple[str, str]]] | None = None,
    wall_time_s: float = 0,
) -> manifest_pb2.TaskManifest:
    """Return a manifest with one `pre` phase, triggered by each `rate` event unless told otherwise.

    `resources` are contents by path; `uploads` are (field, type such as `number_map`) pairs by stream.
    """
    manifest = manifest_pb2.TaskManifest(
        task=task,
        version=version,
        phases=[
            manifest_pb2.Phase(
                kind=manifest_pb2.Phase.KIND_PRE,
                script=blob_ref(script),
                entry_point="pre",
                path="pre.py",
            )
        ],
        trigger_json=trigger or trigger_json("rate"),
        pipeline_json=pipeline,
        isolation=manifest_pb2.ISOLATION_PROCESS,
    )
    for path, content in (resources or {}).items():
        manifest.resources.add(
            blob=blob_ref(content), path=path, sharing=manifest_pb2.Resource.SHARING_SHARED
        )
    for stream, fields in (uploads or {}).items():
        added = manifest.uploads.add(stream=stream)
        for name, kind in fields:
            added.fields.add(name=name, type=manifest_pb2.UploadField.Type.Value(f"TYPE_{kind.upper()}"))
    if wall_time_s:
        duration = Duration()
        duration.FromNanoseconds(round(wall_time_s * 1e9))
        manifest.limits.wall_time.CopyFrom(duration)
    return manifest


def add_model(manifest: manifest_pb2.TaskManifest, plan: bytes, path: str = "model.plan") -> None:
    """Put a model phase behind the phases that there are, and in front of a `post`."""
    manifest.plans.add(blob=blob_ref(plan), path=path, sharing=manifest_pb2.Resource.SHARING_SHARED)
    manifest.min_agent_version = MODEL_AGENT_VERSION
    phases = [*manifest.phases, manifest_pb2.Phase(kind=manifest_pb2.Phase.KIND_MODEL, path=path)]
    del manifest.phases[:]
    manifest.phases.extend(sorted(phases, key=lambda phase: phase.kind))


def attempt(
    call: Callable[..., T], *arguments: object, **keywords: object
) -> tuple[T | None, Invalid | None]:
    """Return what a call returns, or the Invalid that it raises: for properties over input of either kind.

    Any other exception passes through and fails the test.
    """
    try:
        return call(*arguments, **keywords), None
    except Invalid as error:
        return None, error
