"""The `task.json` that a person writes, and the manifest it becomes (docs/task-format.md).

Trigger and pipeline stand in it as JSON, sizes and times with their units, files by path. What it becomes
has no blobs yet: whoever uploads the files gives their digests to `TaskSource.manifest`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.duration_pb2 import Duration

from isthmus.deployer.v1 import manifest_pb2
from libs.common.errors import Invalid
from libs.common.names import check_id, check_version
from libs.common.suggest import did_you_mean
from libs.task import jsontext
from libs.task.duration import format_duration, parse_duration
from libs.task.endpoints import ENDPOINT_AGENT_VERSION, endpoints_from_value
from libs.task.jsontext import check_int, check_list, check_object, check_text, child, fault, show
from libs.task.manifest import (
    MAX_CONFIRM_IDLE_S,
    MAX_CONFIRM_RUNS,
    MAX_MAX_FAILURES,
    MAX_MEMORY_BYTES,
    MAX_PENDING,
    MAX_PYTHON_VERSIONS,
    MAX_RESOURCES,
    MAX_WALL_TIME_S,
    MIB,
    MIN_MEMORY_BYTES,
    MODEL_AGENT_VERSION,
    Blob,
    check_entry_point,
)
from libs.task.paths import check_path
from libs.task.pipeline import pipeline_from_value
from libs.task.trigger import trigger_from_value
from libs.task.uploads import DEFAULT_FIELD_BYTES, FIELD_TYPES, MAX_FIELD_BYTES, check_field_name
from libs.task.versions import check_python_version, parse_agent_version

FILE_NAME = "task.json"
MAX_BYTES = 1024 * 1024

_PHASE_KINDS = {
    "pre": manifest_pb2.Phase.KIND_PRE,
    "model": manifest_pb2.Phase.KIND_MODEL,
    "post": manifest_pb2.Phase.KIND_POST,
}
_MODEL = manifest_pb2.Phase.KIND_MODEL
_SHARING = {
    "shared": manifest_pb2.Resource.SHARING_SHARED,
    "exclusive": manifest_pb2.Resource.SHARING_EXCLUSIVE,
}


@dataclass(frozen=True, slots=True)
class TaskSource:
    """A read `task.json`: a manifest that lacks its blobs, and the files that they are to be."""

    base: Path
    """The folder against which the file's paths are read."""
    draft: manifest_pb2.TaskManifest

    @property
    def scripts(self) -> tuple[Path, ...]:
        """The script files, each once, in the order of the phases."""
        paths = (phase.path for phase in self.draft.phases if phase.kind != _MODEL)
        return tuple(dict.fromkeys(self.base / path for path in paths))

    @property
    def plans(self) -> tuple[Path, ...]:
        """The files of plans, each once."""
        return tuple(dict.fromkeys(self.base / plan.path for plan in self.draft.plans))

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file to upload, each once, scripts first."""
        resources = (self.base / resource.path for resource in self.draft.resources)
        return tuple(dict.fromkeys([*self.scripts, *resources, *self.plans]))

    def manifest(self, blobs: Mapping[Path, Blob]) -> manifest_pb2.TaskManifest:
        """Return the whole manifest, to be checked, given the blob of each of `files`.

        Raises Invalid naming a file that has none.
        """
        whole = manifest_pb2.TaskManifest()
        whole.CopyFrom(self.draft)
        for phase in whole.phases:
            if phase.kind != _MODEL:
                phase.script.CopyFrom(_blob(blobs, self.base / phase.path))
        for resource in (*whole.resources, *whole.plans):
            resource.blob.CopyFrom(_blob(blobs, self.base / resource.path))
        return whole


def read_task_json(text: str | bytes, base: Path) -> TaskSource:
    """Read the text of a `task.json` that stands in the folder `base`; no file is opened.

    Raises Invalid with line, column and JSON path, and a suggestion for a misspelt key.
    """
    # Some editors begin UTF-8 with a mark of it; it is no part of the text.
    text = text.removeprefix("\ufeff") if isinstance(text, str) else text.removeprefix(b"\xef\xbb\xbf")
    value = jsontext.load(text, what=FILE_NAME, max_bytes=MAX_BYTES)
    with jsontext.positions(text, what=FILE_NAME):
        return manifest_from_dict(value, base)


def manifest_from_dict(value: object, base: Path) -> TaskSource:
    """Build a task from the value of a `task.json`; raise Invalid with the JSON path of the first fault."""
    keys = check_object(
        value,
        "$",
        required=("task", "version", "phases", "trigger"),
        optional=(
            "resources",
            "pipeline",
            "limits",
            "uploads",
            "endpoints",
            "health",
            "min_agent_version",
            "python_versions",
        ),
    )
    trigger = trigger_from_value(keys["trigger"], "$.trigger")
    draft = manifest_pb2.TaskManifest(
        task=_named(check_id, keys["task"], "$.task"),
        version=_named(check_version, keys["version"], "$.version"),
        resources=_resources(keys.get("resources", [])),
        trigger_json=jsontext.canonical(trigger.to_json()),
        isolation=manifest_pb2.ISOLATION_PROCESS,
        uploads=_uploads(keys.get("uploads", {})),
        endpoints=endpoints_from_value(keys.get("endpoints", {}), "$.endpoints"),
        python_versions=_python_versions(keys.get("python_versions", [])),
    )
    if "pipeline" in keys:
        pipeline = pipeline_from_value(keys["pipeline"], "$.pipeline")
        draft.pipeline_json = jsontext.canonical(pipeline.to_json())
    if "limits" in keys:
        draft.limits.CopyFrom(_limits(keys["limits"]))
    if "health" in keys:
        draft.health.CopyFrom(_health(keys["health"]))
    _add_phases(draft, keys["phases"])
    draft.min_agent_version = _oldest_agent(draft, keys)
    return TaskSource(base, draft)


def _oldest_agent(draft: manifest_pb2.TaskManifest, keys: Mapping[str, object]) -> str:
    """Return the version of the oldest agent that can run it; "" for any."""
    needs, needed = "", ""
    if draft.plans:
        needs, needed = "a model phase", MODEL_AGENT_VERSION
    if draft.endpoints:
        needs, needed = "asking endpoints", ENDPOINT_AGENT_VERSION
    if "min_agent_version" not in keys:
        return needed
    where = "$.min_agent_version"
    text = check_text(keys["min_agent_version"], where)
    named = parse_agent_version(text, where)
    if needed and named < parse_agent_version(needed, ""):
        raise fault(where, f'{needs} needs "{needed}" or newer, not {show(text)}')
    return text


def _add_phases(draft: manifest_pb2.TaskManifest, value: object) -> None:
    last = 0
    for index, item in enumerate(check_list(value, "$.phases", least=1, most=len(_PHASE_KINDS))):
        at = child("$.phases", index)
        if isinstance(item, dict) and "kind" in item:
            # What else may be there follows from it.
            _one_of(item["kind"], child(at, "kind"), tuple(_PHASE_KINDS))
        is_model = isinstance(item, dict) and item.get("kind") == "model"
        known = ("plan", "sharing") if is_model else ("script", "entry_point")
        keys = check_object(item, at, required=("kind", known[0]), optional=known[1:])
        kind = _one_of(keys["kind"], child(at, "kind"), tuple(_PHASE_KINDS))
        if _PHASE_KINDS[kind] <= last:
            raise fault(child(at, "kind"), "phases run in the order pre, model, post, each at most once")
        last = _PHASE_KINDS[kind]
        phase = draft.phases.add(kind=_PHASE_KINDS[kind])
        if is_model:
            phase.path = check_path(keys["plan"], child(at, "plan"))
            draft.plans.add(path=phase.path, sharing=_sharing(keys, at))
        else:
            phase.path = check_path(keys["script"], child(at, "script"))
            phase.entry_point = check_entry_point(keys.get("entry_point", kind), child(at, "entry_point"))


def _resources(value: object) -> list[manifest_pb2.Resource]:
    resources = []
    for index, item in enumerate(check_list(value, "$.resources", most=MAX_RESOURCES)):
        at = child("$.resources", index)
        keys = check_object(item, at, required=("path",), optional=("sharing",))
        path = check_path(keys["path"], child(at, "path"))
        resources.append(manifest_pb2.Resource(path=path, sharing=_sharing(keys, at)))
    return resources


def _sharing(keys: Mapping[str, object], at: str) -> manifest_pb2.Resource.Sharing.ValueType:
    return _SHARING[_one_of(keys.get("sharing", "shared"), child(at, "sharing"), tuple(_SHARING))]


def _limits(value: object) -> manifest_pb2.Limits:
    at = "$.limits"
    keys = check_object(value, at, optional=("wall_time", "memory_mib", "pending_count"))
    limits = manifest_pb2.Limits()
    if "wall_time" in keys:
        limits.wall_time.CopyFrom(_duration(keys["wall_time"], child(at, "wall_time"), MAX_WALL_TIME_S))
    if "memory_mib" in keys:
        least, most = MIN_MEMORY_BYTES // MIB, MAX_MEMORY_BYTES // MIB
        mebibytes = check_int(keys["memory_mib"], child(at, "memory_mib"), least=least, most=most)
        limits.memory_bytes = mebibytes * MIB
    if "pending_count" in keys:
        pending = check_int(keys["pending_count"], child(at, "pending_count"), least=1, most=MAX_PENDING)
        limits.pending_count = pending
    return limits


def _health(value: object) -> manifest_pb2.Health:
    at = "$.health"
    counts = {"confirm_run_count": MAX_CONFIRM_RUNS, "max_failure_count": MAX_MAX_FAILURES}
    keys = check_object(value, at, optional=(*counts, "confirm_idle_time"))
    health = manifest_pb2.Health()
    for name, most in counts.items():
        if name in keys:
            setattr(health, name, check_int(keys[name], child(at, name), least=1, most=most))
    if "confirm_idle_time" in keys:
        idle = _duration(keys["confirm_idle_time"], child(at, "confirm_idle_time"), MAX_CONFIRM_IDLE_S)
        health.confirm_idle_time.CopyFrom(idle)
    return health


def _uploads(value: object) -> list[manifest_pb2.UploadStream]:
    if not isinstance(value, dict):
        raise fault("$.uploads", f"must be an object from stream names to their fields, not {show(value)}")
    streams = []
    for stream, members in value.items():
        at = child("$.uploads", stream)
        if not isinstance(members, dict) or not members:
            raise fault(at, f"must be an object from field names to types, not {show(members)}")
        fields = [_field(name, field, child(at, name)) for name, field in members.items()]
        streams.append(manifest_pb2.UploadStream(stream=_named(check_id, stream, at), fields=fields))
    return streams


def _field(name: str, value: object, path: str) -> manifest_pb2.UploadField:
    """Read a field: a type's name, or an object with the type and a bound."""
    keys = value if isinstance(value, dict) else {"type": value}
    check_object(keys, path, required=("type",), optional=("max_bytes",))
    at = child(path, "type") if isinstance(value, dict) else path
    kind = FIELD_TYPES.index(_one_of(keys["type"], at, FIELD_TYPES)) + 1
    most = keys.get("max_bytes", DEFAULT_FIELD_BYTES)
    return manifest_pb2.UploadField(
        name=check_field_name(name, path),
        type=manifest_pb2.UploadField.Type.ValueType(kind),
        max_bytes=check_int(most, child(path, "max_bytes"), least=1, most=MAX_FIELD_BYTES),
    )


def _named(check: Callable[[str, str], str], value: object, path: str) -> str:
    """Apply a check of `libs.common.names`, which knows no JSON paths."""
    text = check_text(value, path)
    try:
        return check(text, path)
    except Invalid as error:
        raise fault(path, error.message.removeprefix(f"{path}: "), reason=error.reason) from None


def _one_of(value: object, path: str, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise fault(path, f"must be one of {', '.join(known)}, not {show(value)}{hint}")
    return value


def _python_versions(value: object) -> list[str]:
    path = "$.python_versions"
    items = check_list(value, path, most=MAX_PYTHON_VERSIONS)
    return [check_python_version(item, child(path, index)) for index, item in enumerate(items)]


def _duration(value: object, path: str, most_s: float) -> Duration:
    seconds = parse_duration(value, path)
    if seconds > most_s:
        raise fault(path, f'must be at most "{format_duration(most_s)}", not {show(value)}')
    duration = Duration()
    duration.FromMilliseconds(round(seconds * 1000))
    return duration


def _blob(blobs: Mapping[Path, Blob], path: Path) -> manifest_pb2.BlobRef:
    blob = blobs.get(path)
    if blob is None:
        raise Invalid(f"file {path} has not been uploaded", reason="BLOB_MISSING")
    return manifest_pb2.BlobRef(digest=blob.digest, size_bytes=blob.size_bytes)
