"""What the command shows of model endpoints, and how it finds what one is to serve."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.duration_pb2 import Duration

from inference import open_inference_pb2, open_inference_pb2_grpc
from isthmus.deployer.v1 import manifest_pb2
from isthmus.scheduler.v1 import scheduler_pb2
from isthmus.serving.v1 import model_pb2, model_pb2_grpc
from libs.cli import jobs
from libs.cli.blobs import stat, upload
from libs.cli.inference import tensor_text
from libs.cli.jobs import last_part, moment
from libs.cli.output import as_dict, counted, human_bytes, human_seconds
from libs.cli.session import Session
from libs.common.errors import Error, Invalid, NotFound
from libs.common.names import check_model

_DIGEST = "sha256:"
_SHORT_DIGEST = len(_DIGEST) + 12
_BLOB = "blob: "
_ARTEFACT = re.compile(r"((?:tenants/[^/]+/jobs/)?[^/]+)/([^/]+)")
_Version = model_pb2.ModelVersion


def models(session: Session) -> model_pb2_grpc.ModelServiceStub:
    """Return the service of models and versions."""
    return model_pb2_grpc.ModelServiceStub(session.channel)


def inference(session: Session) -> open_inference_pb2_grpc.GRPCInferenceServiceStub:
    """Return the service that infers."""
    return open_inference_pb2_grpc.GRPCInferenceServiceStub(session.channel)


def model_name(session: Session, endpoint: str) -> str:
    """Return the resource name of an endpoint's model; raise Invalid for what can be none."""
    name = session.name("models", endpoint)
    check_model(last_part(name), "ENDPOINT")
    return name


def get_model(session: Session, name: str) -> model_pb2.Model:
    """Return a model; raise NotFound when there is none."""
    return session.call(models(session).GetModel, model_pb2.GetModelRequest(name=name)).model


def list_versions(session: Session, name: str, limit: int | None = None) -> list[model_pb2.ModelVersion]:
    """Return a model's versions, newest first."""
    request = model_pb2.ListModelVersionsRequest(parent=name)
    pages = session.pages(models(session).ListModelVersions, request, limit)
    return [each for page in pages for each in page.versions]


def metadata(session: Session, name: str, version: str = "") -> open_inference_pb2.ModelMetadataResponse:
    """Return what a model takes and gives; "" is the live version's.

    Raises:
        Error: when it isn't loaded.
    """
    request = open_inference_pb2.ModelMetadataRequest(name=last_part(name), version=version)
    return session.call(inference(session).ModelMetadata, request)


# ---- what to serve ----


@dataclass(frozen=True, slots=True)
class Source:
    """A file that is to be served."""

    blob: manifest_pb2.BlobRef
    platform: model_pb2.ModelVersion.Platform.ValueType


def find_source(session: Session, subject: str, *, is_plan: bool) -> Source:
    """Return the blob of a file, which is uploaded, of a digest, or of an artefact that a job kept.

    Args:
        session: where to.
        subject: a path, "sha256:…", or JOB/ARTEFACT.
        is_plan: whether it is a plan; a path that ends with .plan is one anyway.

    Raises:
        NotFound: when there is no such thing, saying what can be given.
    """
    platform = _Version.PLATFORM_PLAN if is_plan or subject.endswith(".plan") else _Version.PLATFORM_ONNX
    if subject.startswith(_DIGEST):
        return Source(stat(session, subject), platform)
    path = Path(subject)
    if path.exists():
        return Source(upload(session, path), platform)
    match = _ARTEFACT.fullmatch(subject)
    if match is not None:
        try:
            return Source(_artefact(session, match[1], match[2]), platform)
        except NotFound as error:
            raise NotFound(
                f"{subject}: there is no such file, and {error.message}", reason="NO_FILE"
            ) from error
    raise NotFound(
        f"{subject}: there is no such file, and it is no digest ({_DIGEST}...) nor a job's artefact "
        "(JOB/ARTEFACT)",
        reason="NO_FILE",
    )


def _artefact(session: Session, job: str, artefact: str) -> manifest_pb2.BlobRef:
    request = scheduler_pb2.GetJobRequest(name=jobs.job_name(session, job))
    found = session.call(jobs.stub(session).GetJob, request).job
    return jobs.kept_artefact(found, artefact).blob


def next_version(versions: Iterable[model_pb2.ModelVersion]) -> str:
    """Return a name for another version: "v" and the number after the largest such."""
    numbers = [
        int(match[1]) for each in versions if (match := re.fullmatch(r"v([0-9]{1,9})", last_part(each.name)))
    ]
    return f"v{max(numbers, default=0) + 1}"


@contextmanager
def naming(subject: str) -> Iterator[None]:
    """Let what is said of a blob name the file that it was made of."""
    try:
        yield
    except Error as error:
        if error.message.startswith(_BLOB):
            error.message = f"{subject}: {error.message.removeprefix(_BLOB)}"
        raise


# ---- how it is shown ----


def short_digest(digest: str) -> str:
    """Return the beginning of a digest, which tells one from another: "sha256:3f5a9c01d2e4…"."""
    return digest if len(digest) <= _SHORT_DIGEST else f"{digest[:_SHORT_DIGEST]}…"


def state_text(version: model_pb2.ModelVersion) -> str:
    """Return a version's state for people."""
    return _Version.State.Name(version.state).removeprefix("STATE_")


def platform_text(version: model_pb2.ModelVersion) -> str:
    """Return what a version's file is, for people."""
    return {_Version.PLATFORM_ONNX: "ONNX", _Version.PLATFORM_PLAN: "plan"}.get(version.platform, "-")


def seconds_of(duration: Duration) -> float:
    """Return a duration in seconds."""
    return duration.seconds + duration.nanos / 1e9


def model_rows(model: model_pb2.Model) -> list[tuple[str, object]]:
    """Return what people see of a model."""
    config = model.config
    batch = (
        "off"
        if config.max_batch_rows == 1
        else f"{config.max_batch_rows} rows at most, held back {_held(config.max_batch_delay)}"
    )
    return [
        ("endpoint", model.name),
        ("live version", model.live_version or "none yet: isthmus endpoint deploy"),
        *([("unloaded", "yes: it answers nothing until it is loaded")] if model.unloaded else []),
        ("batching", batch),
        ("instances", f"{config.instance_count}, {_threads(config.intra_op_thread_count)} each"),
        (
            "queue",
            f"{counted(config.queue_capacity, 'request')}, "
            f"{human_seconds(seconds_of(config.queue_timeout))} at most",
        ),
        ("kept loaded", f"the live version and {config.kept_version_count} before it"),
        ("made", moment(model.create_time)),
        ("etag", model.etag or "-"),
    ]


def _held(delay: Duration) -> str:
    seconds = seconds_of(delay)
    return f"{human_seconds(seconds)} at most" if seconds else "never"


def tensors_rows(found: open_inference_pb2.ModelMetadataResponse) -> list[tuple[str, object]]:
    """Return what people see of what a model takes and gives."""
    return [
        ("inputs", tuple(map(tensor_text, found.inputs))),
        ("outputs", tuple(map(tensor_text, found.outputs))),
    ]


def signature(session: Session, name: str) -> str:
    """Return in a line what a model's live version takes and gives; "" where it can't be asked."""
    try:
        found = metadata(session, name)
    except Error:
        return ""
    return ", ".join(map(tensor_text, found.inputs)) + " -> " + ", ".join(map(tensor_text, found.outputs))


def tensors_json(found: open_inference_pb2.ModelMetadataResponse) -> dict[str, object]:
    """Return what programs see of what a model takes and gives."""
    return {
        "inputs": [as_dict(each) for each in found.inputs],
        "outputs": [as_dict(each) for each in found.outputs],
    }


def version_rows(version: model_pb2.ModelVersion) -> list[tuple[str, object]]:
    """Return what people see of a version."""
    return [
        ("version", version.name),
        ("state", state_text(version)),
        *([("why", version.message)] if version.message else []),
        ("file", f"{platform_text(version)}, {human_bytes(version.blob.size_bytes)}, {version.blob.digest}"),
    ]


def check_version_name(name: str, flag: str) -> str:
    """Return the id of a version, given as such or in full.

    Raises:
        Invalid: when it is another name.
    """
    if "/" not in name:
        return name
    match = re.fullmatch(r"tenants/[^/]+/models/[^/]+/versions/([^/]+)", name)
    if match is None:
        raise Invalid(f"{flag}: {name!r} names no version; write its id", reason="BAD_NAME")
    return match[1]


def _threads(count: int) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"
