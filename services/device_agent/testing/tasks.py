"""Task versions for tests, built rather than spelt out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from isthmus.deployer.v1 import manifest_pb2
from libs.task.endpoints import ENDPOINT_AGENT_VERSION
from libs.task.testing import add_model
from libs.trust.digests import sha256_of
from libs.trust.keys import SigningKey


@dataclass(slots=True)
class TaskVersion:
    """A version to publish."""

    manifest: manifest_pb2.TaskManifest
    blobs: dict[str, bytes]
    author: SigningKey | None = None
    """Who signs it, if not the tenant's author."""

    @property
    def key(self) -> str:
        """`task@version`."""
        return f"{self.manifest.task}@{self.manifest.version}"


ECHO = """
def run(context):
    event = context.events[-1]
    return {"user": event.user, "type": event.type}
"""


def task(
    name: str = "hello",
    version: str = "1",
    source: str = ECHO,
    *,
    trigger: Mapping[str, object] | None = None,
    pipeline: Mapping[str, object] | None = None,
    uploads: Mapping[str, Mapping[str, tuple[str, int]]] | None = None,
    resources: Mapping[str, bytes] | None = None,
    plan: bytes | None = None,
    confirm_runs: int = 1,
    confirm_idle_s: float = 0.0,
    max_failures: int = 3,
    pending: int = 0,
    wall_s: float = 10.0,
    python_versions: tuple[str, ...] = (),
    endpoints: Mapping[str, Mapping[str, tuple[str, int]]] | None = None,
) -> TaskVersion:
    """Build a version with one script whose function `run` is called for every "go" event.

    With a `plan`, its model runs on what the script returns.
    `endpoints` maps model → input → (datatype, most elements).
    `uploads` maps stream → field → (type, such as "NUMBER", and max_bytes).
    """
    script = source.encode()
    blobs = {sha256_of(script): script}
    manifest = manifest_pb2.TaskManifest(
        task=name,
        version=version,
        phases=[
            manifest_pb2.Phase(
                kind=manifest_pb2.Phase.KIND_PRE,
                script=_ref(script),
                entry_point="run",
                path="run.py",
            )
        ],
        trigger_json=json.dumps(trigger or {"sequence": [{"event": "go"}]}),
        pipeline_json=json.dumps(pipeline) if pipeline else "",
        limits=manifest_pb2.Limits(wall_time=_duration(wall_s), pending_count=pending),
        health=manifest_pb2.Health(
            confirm_run_count=confirm_runs,
            confirm_idle_time=_duration(confirm_idle_s),
            max_failure_count=max_failures,
        ),
        uploads=[
            manifest_pb2.UploadStream(
                stream=stream,
                fields=[
                    manifest_pb2.UploadField(
                        name=f, type=manifest_pb2.UploadField.Type.Value(f"TYPE_{kind}"), max_bytes=size
                    )
                    for f, (kind, size) in fields.items()
                ],
            )
            for stream, fields in (uploads or {}).items()
        ],
        python_versions=python_versions,
        endpoints=[
            manifest_pb2.Endpoint(
                model=model,
                inputs=[
                    manifest_pb2.EndpointInput(name=name, datatype=kind, max_element_count=most)
                    for name, (kind, most) in inputs.items()
                ],
            )
            for model, inputs in (endpoints or {}).items()
        ],
        min_agent_version=ENDPOINT_AGENT_VERSION if endpoints else "",
    )
    for path, content in (resources or {}).items():
        blobs[sha256_of(content)] = content
        manifest.resources.add(blob=_ref(content), path=path, sharing=manifest_pb2.Resource.SHARING_SHARED)
    if plan is not None:
        blobs[sha256_of(plan)] = plan
        add_model(manifest, plan)
    return TaskVersion(manifest, blobs)


def _ref(content: bytes) -> manifest_pb2.BlobRef:
    return manifest_pb2.BlobRef(digest=sha256_of(content), size_bytes=len(content))


def _field(name: str, kind: str, max_bytes: int) -> manifest_pb2.UploadField:
    type_ = manifest_pb2.UploadField.Type.Value(f"TYPE_{kind}")
    return manifest_pb2.UploadField(name=name, type=type_, max_bytes=max_bytes)


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
