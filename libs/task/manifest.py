"""The manifest: what a task version is, checked once and then held in plain types.

`check_manifest` is the one place where limits and defaults live; deployer, agent and command line call it,
so what one publishes the other runs. Paths in messages are those of the `TaskManifest` message.
"""

import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from isthmus.deployer.v1 import manifest_pb2
from libs.common.errors import Invalid, Precondition
from libs.common.names import check_id, check_version
from libs.common.suggest import did_you_mean
from libs.task import script as scripts
from libs.task.endpoints import ENDPOINT_AGENT_VERSION, Endpoint, check_endpoints
from libs.task.jsontext import fault, show
from libs.task.paths import check_path, check_tree
from libs.task.pipeline import Pipeline, parse_pipeline
from libs.task.trigger import Trigger, parse_trigger
from libs.task.uploads import (
    DEFAULT_FIELD_BYTES,
    FIELD_TYPES,
    MAX_FIELD_BYTES,
    UploadField,
    UploadStream,
    check_field_name,
)
from libs.task.versions import check_oldest_agent, check_python_version, parse_agent_version

MAX_BYTES = 1024 * 1024
MAX_RESOURCES = 256
MAX_RESOURCE_BYTES = 1024**3
MAX_PLANS = 16
MAX_PLAN_BYTES = 256 * 1024**2
MODEL_AGENT_VERSION = "0.2.0"
"""The first agent that runs models."""
MAX_STREAMS = 16
MAX_STREAM_FIELDS = 64
MAX_PYTHON_VERSIONS = 16

MIB = 1024**2
DEFAULT_WALL_TIME_S, MAX_WALL_TIME_S = 1.0, 60.0
DEFAULT_MEMORY_BYTES, MIN_MEMORY_BYTES, MAX_MEMORY_BYTES = 256 * MIB, 64 * MIB, 4096 * MIB
DEFAULT_PENDING, MAX_PENDING = 64, 4096
DEFAULT_CONFIRM_RUNS, MAX_CONFIRM_RUNS = 1, 1000
DEFAULT_CONFIRM_IDLE_S, MAX_CONFIRM_IDLE_S = 3600.0, 30 * 86400.0
DEFAULT_MAX_FAILURES, MAX_MAX_FAILURES = 3, 1000

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_KINDS = {
    manifest_pb2.Phase.KIND_PRE: "pre",
    manifest_pb2.Phase.KIND_MODEL: "model",
    manifest_pb2.Phase.KIND_POST: "post",
}
_SHARING = {
    manifest_pb2.Resource.SHARING_SHARED: "shared",
    manifest_pb2.Resource.SHARING_EXCLUSIVE: "exclusive",
}


@dataclass(frozen=True, slots=True)
class Blob:
    """A content-addressed file: `sha256:<hex>` and its size."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckedPhase:
    """A step of a run that is a script."""

    kind: str
    """`pre` or `post`."""
    script: Blob
    entry_point: str
    path: str
    argument_count: int
    """1 for the first phase, which takes the context; 2 for a later one, which takes a value too."""

    def compile(self, source: bytes) -> None:
        """Raise Invalid unless `source` compiles and holds the entry point (see `libs.task.script`)."""
        scripts.compile_script(source, self.path, self.entry_point, self.argument_count)


@dataclass(frozen=True, slots=True)
class CheckedResource:
    """A file beside the scripts."""

    blob: Blob
    path: str
    sharing: str
    """`shared` or `exclusive`."""


@dataclass(frozen=True, slots=True)
class CheckedLimits:
    """What one run may use, defaults applied."""

    wall_time_s: float = DEFAULT_WALL_TIME_S
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    pending_count: int = DEFAULT_PENDING


@dataclass(frozen=True, slots=True)
class CheckedHealth:
    """How a device decides that the version is well, defaults applied."""

    confirm_run_count: int = DEFAULT_CONFIRM_RUNS
    confirm_idle_s: float = DEFAULT_CONFIRM_IDLE_S
    max_failure_count: int = DEFAULT_MAX_FAILURES


@dataclass(frozen=True, slots=True)
class CheckedManifest:
    """A manifest that keeps every rule."""

    task: str
    version: str
    phases: tuple[CheckedPhase, ...]
    """The scripts, in the order they run."""
    model: CheckedResource | None
    """The plan that runs between them, or alone; None without a model phase."""
    plans: tuple[CheckedResource, ...]
    resources: tuple[CheckedResource, ...]
    trigger: Trigger
    pipeline: Pipeline
    isolation: str
    """Always `process` for now."""
    limits: CheckedLimits
    uploads: Mapping[str, UploadStream]
    endpoints: Mapping[str, Endpoint]
    """By model."""
    health: CheckedHealth
    min_agent_version: tuple[int, int, int]
    """(0, 0, 0) for any."""
    python_versions: tuple[str, ...]
    """`MAJOR.MINOR`; empty for any."""

    @property
    def key(self) -> str:
        """`task@version`, as in the profile."""
        return f"{self.task}@{self.version}"

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Every file the version needs, each once, scripts first."""
        return tuple(dict.fromkeys(self.files.values()))

    @property
    def files(self) -> Mapping[str, Blob]:
        """Every file by its path: scripts, resources, plans."""
        files = {phase.path: phase.script for phase in self.phases}
        return files | {resource.path: resource.blob for resource in (*self.resources, *self.plans)}

    def check_runs_on(self, agent_version: str, python_version: str) -> None:
        """Raise Precondition, reason AGENT_TOO_OLD or PYTHON_UNSUPPORTED, unless it runs there.

        Raises Invalid for a malformed `agent_version` (`MAJOR.MINOR.PATCH`) or `python_version`
        (`MAJOR.MINOR`).
        """
        if parse_agent_version(agent_version, "agent_version") < self.min_agent_version:
            needed = ".".join(map(str, self.min_agent_version))
            text = f"{self.key} needs agent {needed} or newer; this one is {agent_version}"
            raise Precondition(text, reason="AGENT_TOO_OLD")
        check_python_version(python_version, "python_version")
        if self.python_versions and python_version not in self.python_versions:
            known = ", ".join(self.python_versions)
            text = f"{self.key} runs on Python {known}; this one is {python_version}"
            raise Precondition(text, reason="PYTHON_UNSUPPORTED")


def check_manifest(manifest: manifest_pb2.TaskManifest) -> CheckedManifest:
    """Check a whole manifest and apply its defaults.

    Raises Invalid for the first fault, with the field's path, the value and what is allowed. The scripts
    themselves aren't here: see `CheckedPhase.compile`.
    """
    if manifest.ByteSize() > MAX_BYTES:
        raise Invalid(f"manifest has {manifest.ByteSize()} bytes, more than {MAX_BYTES}", reason="TOO_LARGE")
    task = check_id(manifest.task, "task")
    version = check_version(manifest.version, "version")
    plans = _resources(manifest.plans, "plans", MAX_PLANS, MAX_PLAN_BYTES)
    phases, model = _phases(manifest.phases, plans)
    resources = _resources(manifest.resources, "resources", MAX_RESOURCES, MAX_RESOURCE_BYTES)
    _check_files(phases, resources, plans)
    if not manifest.trigger_json:
        raise fault("trigger_json", "is missing: nothing would ever run the task")
    trigger = parse_trigger(manifest.trigger_json)
    pipeline = parse_pipeline(manifest.pipeline_json) if manifest.pipeline_json else Pipeline()
    known = (manifest_pb2.ISOLATION_UNSPECIFIED, manifest_pb2.ISOLATION_PROCESS)
    if manifest.isolation not in known:
        raise fault("isolation", f"value {manifest.isolation} is unknown; a newer agent may be needed")
    endpoints = check_endpoints(manifest.endpoints)
    oldest = check_oldest_agent(
        manifest.min_agent_version,
        {MODEL_AGENT_VERSION: "run no model phase"} if model is not None else {},
        {ENDPOINT_AGENT_VERSION: "ask no model in the cloud"} if endpoints else {},
    )
    return CheckedManifest(
        task=task,
        version=version,
        phases=phases,
        model=model,
        plans=plans,
        resources=resources,
        trigger=trigger,
        pipeline=pipeline,
        isolation="process",
        limits=_limits(manifest.limits),
        uploads=_uploads(manifest.uploads),
        endpoints=endpoints,
        health=_health(manifest.health),
        min_agent_version=oldest,
        python_versions=_python_versions(manifest.python_versions),
    )


def _phases(
    phases: Iterable[manifest_pb2.Phase], plans: tuple[CheckedResource, ...]
) -> tuple[tuple[CheckedPhase, ...], CheckedResource | None]:
    checked: list[CheckedPhase] = []
    model: CheckedResource | None = None
    last = 0
    for index, phase in enumerate(phases):
        where = f"phases[{index}]"
        if phase.kind not in _KINDS:
            raise fault(f"{where}.kind", f"must be {' or '.join(_KINDS.values())}, not {phase.kind}")
        if phase.kind <= last:
            raise fault(f"{where}.kind", "phases run in the order pre, model, post, each at most once")
        last = phase.kind
        if phase.kind == manifest_pb2.Phase.KIND_MODEL:
            model = _model(phase, plans, where)
            continue
        blob = _blob(phase.script, f"{where}.script", scripts.MAX_BYTES)
        checked.append(
            CheckedPhase(
                kind=_KINDS[phase.kind],
                script=blob,
                entry_point=check_entry_point(phase.entry_point, f"{where}.entry_point"),
                path=check_path(phase.path, f"{where}.path"),
                argument_count=1 if index == 0 else 2,
            )
        )
    if not checked and model is None:
        raise fault("phases", "a task needs at least one phase")
    return tuple(checked), model


def _model(phase: manifest_pb2.Phase, plans: tuple[CheckedResource, ...], where: str) -> CheckedResource:
    if phase.HasField("script") or phase.entry_point:
        raise fault(where, "is a model: it has a plan, and neither script nor entry point")
    for plan in plans:
        if plan.path == phase.path:
            return plan
    names = [plan.path for plan in plans]
    known = f"there are: {', '.join(names)[:200] or 'none'}{did_you_mean(phase.path, names)}"
    raise fault(f"{where}.path", f"must be the path of one of plans, not {show(phase.path)}; {known}")


def check_entry_point(value: object, where: str) -> str:
    """Return `value` if it can name a Python function; raise Invalid naming `where`."""
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value) or keyword.iskeyword(value):
        raise fault(where, f"must be the name of a top-level function, not {show(value)}")
    return value


def _resources(
    resources: Iterable[manifest_pb2.Resource], field: str, most: int, most_bytes: int
) -> tuple[CheckedResource, ...]:
    checked: list[CheckedResource] = []
    for index, resource in enumerate(resources):
        where = f"{field}[{index}]"
        if index >= most:
            raise fault(field, f"a task has at most {most} {field}")
        if resource.sharing not in _SHARING:
            allowed = " or ".join(_SHARING.values())
            raise fault(f"{where}.sharing", f"must be {allowed}, not {resource.sharing}")
        path = check_path(resource.path, f"{where}.path")
        blob = _blob(resource.blob, f"{where}.blob", most_bytes)
        checked.append(CheckedResource(blob, path, _SHARING[resource.sharing]))
    _unique(field, "path", [resource.path for resource in checked])
    return tuple(checked)


def _check_files(
    phases: tuple[CheckedPhase, ...],
    resources: tuple[CheckedResource, ...],
    plans: tuple[CheckedResource, ...],
) -> None:
    """Both phases may share a script; else one path is one file, and one digest has one size."""
    others = {phase.path for phase in phases} | {resource.path for resource in resources}
    for index, plan in enumerate(plans):
        if plan.path in others:
            raise fault(f"plans[{index}].path", f"{show(plan.path)} names another file already")
    blobs: dict[str, Blob] = {}
    sizes: dict[str, int] = {}
    files = [(phase.path, phase.script, f"phases[{i}]") for i, phase in enumerate(phases)]
    files += [(resource.path, resource.blob, f"resources[{i}]") for i, resource in enumerate(resources)]
    files += [(plan.path, plan.blob, f"plans[{i}]") for i, plan in enumerate(plans)]
    for path, blob, where in files:
        if blobs.setdefault(path, blob) != blob:
            raise fault(f"{where}.path", f"{show(path)} names another file already")
        if sizes.setdefault(blob.digest, blob.size_bytes) != blob.size_bytes:
            raise fault(where, f"gives {blob.digest} another size than before")
    check_tree((path, f"{where}.path") for path, _, where in files)


def _blob(blob: manifest_pb2.BlobRef, where: str, most: int) -> Blob:
    if not _DIGEST.fullmatch(blob.digest):
        allowed = '"sha256:" and 64 lower-case hex digits'
        raise fault(f"{where}.digest", f"must be {allowed}, not {show(blob.digest)}")
    if blob.size_bytes > most:
        raise fault(f"{where}.size_bytes", f"must be at most {most}, not {blob.size_bytes}")
    return Blob(blob.digest, blob.size_bytes)


def _limits(limits: manifest_pb2.Limits) -> CheckedLimits:
    wall = _duration(limits.wall_time, "limits.wall_time", DEFAULT_WALL_TIME_S, MAX_WALL_TIME_S)
    memory = limits.memory_bytes or DEFAULT_MEMORY_BYTES
    _in_range("limits.memory_bytes", memory, MIN_MEMORY_BYTES, MAX_MEMORY_BYTES)
    pending = limits.pending_count or DEFAULT_PENDING
    _in_range("limits.pending_count", pending, 1, MAX_PENDING)
    return CheckedLimits(wall, memory, pending)


def _health(health: manifest_pb2.Health) -> CheckedHealth:
    runs = health.confirm_run_count or DEFAULT_CONFIRM_RUNS
    _in_range("health.confirm_run_count", runs, 1, MAX_CONFIRM_RUNS)
    where = "health.confirm_idle_time"
    idle = _duration(health.confirm_idle_time, where, DEFAULT_CONFIRM_IDLE_S, MAX_CONFIRM_IDLE_S)
    failures = health.max_failure_count or DEFAULT_MAX_FAILURES
    _in_range("health.max_failure_count", failures, 1, MAX_MAX_FAILURES)
    return CheckedHealth(runs, idle, failures)


def _uploads(streams: Iterable[manifest_pb2.UploadStream]) -> Mapping[str, UploadStream]:
    checked: list[UploadStream] = []
    for index, stream in enumerate(streams):
        where = f"uploads[{index}]"
        if index >= MAX_STREAMS:
            raise fault("uploads", f"a task has at most {MAX_STREAMS} streams")
        check_id(stream.stream, f"{where}.stream")
        if not 1 <= len(stream.fields) <= MAX_STREAM_FIELDS:
            raise fault(f"{where}.fields", f"must be 1 to {MAX_STREAM_FIELDS}, not {len(stream.fields)}")
        fields = [_field(field, f"{where}.fields[{i}]") for i, field in enumerate(stream.fields)]
        _unique(f"{where}.fields", "name", [field.name for field in fields])
        checked.append(UploadStream(stream.stream, {field.name: field for field in fields}))
    _unique("uploads", "stream", [stream.stream for stream in checked])
    return {stream.stream: stream for stream in checked}


def _field(field: manifest_pb2.UploadField, where: str) -> UploadField:
    check_field_name(field.name, f"{where}.name")
    if not 1 <= field.type <= len(FIELD_TYPES):
        raise fault(f"{where}.type", f"must be one of {', '.join(FIELD_TYPES)}, not {field.type}")
    most = field.max_bytes or DEFAULT_FIELD_BYTES
    _in_range(f"{where}.max_bytes", most, 1, MAX_FIELD_BYTES)
    return UploadField(field.name, FIELD_TYPES[field.type - 1], most)


def _python_versions(versions: Iterable[str]) -> tuple[str, ...]:
    checked = tuple(versions)
    if len(checked) > MAX_PYTHON_VERSIONS:
        raise fault("python_versions", f"has {len(checked)} entries, more than {MAX_PYTHON_VERSIONS}")
    for index, version in enumerate(checked):
        check_python_version(version, f"python_versions[{index}]")
    _unique("python_versions", "", checked)
    return checked


def _duration(duration: Duration, where: str, default: float, most: float) -> float:
    if not duration.seconds and not duration.nanos:
        return default
    seconds = duration.seconds + duration.nanos / 1e9
    if not (0 < seconds <= most and -1_000_000_000 < duration.nanos < 1_000_000_000):
        raise fault(where, f"must be more than 0 and at most {most:g} seconds, not {seconds:g}")
    return seconds


def _in_range(where: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise fault(where, f"must be from {least} to {most}, not {value}")


def _unique(where: str, member: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            suffix = f".{member}" if member else ""
            raise fault(f"{where}[{index}]{suffix}", f"{show(value)} is there already")
        seen.add(value)
