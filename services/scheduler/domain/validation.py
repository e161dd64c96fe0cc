"""What may be asked for: bounds and forms, with errors that name the field, the value and the remedy."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NoReturn

from libs.common.errors import Invalid
from libs.common.names import check_id, shown
from services.scheduler.domain.objects import Facts, Gpu, JobSpec, Resources

MAX_WORDS, MAX_WORDS_BYTES = 256, 64 * 1024
MAX_VARIABLES, MAX_VARIABLES_BYTES = 128, 64 * 1024
MAX_FILES, MAX_PATH_BYTES = 256, 1024
MAX_FILE_BYTES = 4 * 2**30
MAX_ARTEFACTS = 64
MAX_STORED_BYTES = 448 * 1024
MAX_WORKERS = 1024
MAX_PRIORITY = 1000
MAX_RETRIES = 100
MAX_GPUS = 64
MAX_LEVELS = 8
MAX_LABELS = 64
_MOST = 2**60
_RESERVED = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})
_RESERVED_PREFIX = "ISTHMUS_"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9._/-]{1,63}", re.ASCII)
_LABEL_VALUE = re.compile(r"[A-Za-z0-9._/-]{0,63}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_LEVEL = re.compile(r"[A-Za-z0-9._-]{1,63}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9.:%_-]{1,253}", re.ASCII)


def bad(field: str, text: str, reason: str = "INVALID") -> NoReturn:
    """Raise Invalid for a field."""
    raise Invalid(f"{field}: {text}", reason=reason, metadata={"field": field})


def check_job_spec(spec: JobSpec, tenant: str) -> None:
    """Check what a job of a tenant is to run; raise Invalid for the first fault."""
    if spec.queue.tenant != tenant:
        bad("spec.queue", f"{spec.queue} is another tenant's; use one of tenants/{tenant}")
    _check_command(spec.command)
    _check_environment(spec.environment)
    if len(spec.files) > MAX_FILES:
        bad("spec.files", f"{len(spec.files)} are given; at most {MAX_FILES} may be")
    _check_paths("spec.files", [file.path for file in spec.files])
    for i, file in enumerate(spec.files):
        if not _DIGEST.fullmatch(file.blob.digest):
            bad(
                f"spec.files[{i}].blob.digest",
                f"{shown(file.blob.digest)} is not of the form sha256: and 64 hexadecimal digits",
                "BAD_DIGEST",
            )
        _within(f"spec.files[{i}].blob.size_bytes", file.blob.size_bytes, 0, MAX_FILE_BYTES)
    _within("spec.worker_count", spec.worker_count, 1, MAX_WORKERS)
    check_amounts("spec.resources", spec.resources)
    _within("spec.resources.gpu_count", spec.resources.gpus, 0, MAX_GPUS)
    _within("spec.priority", spec.priority, -MAX_PRIORITY, MAX_PRIORITY)
    _check_bandwidth("spec.placement.min_gpu_bandwidth_gbps", spec.nearness.min_gpu_bandwidth_gbps)
    _within("spec.placement.level", spec.nearness.level, 0, MAX_LEVELS)
    _span("spec.deadline", spec.deadline, timedelta(seconds=1), timedelta(days=30), "1 s to 30 days")
    _within("spec.retry_count", spec.retry_count, 0, MAX_RETRIES)
    if len(spec.retry_exit_codes) > 255 or any(not 1 <= code <= 255 for code in spec.retry_exit_codes):
        bad("spec.retry_exit_codes", "hold exit codes from 1 to 255, each once")
    _span("spec.grace_time", spec.grace, timedelta(0), timedelta(minutes=10), "at most 10 min")
    _span("spec.retention_time", spec.retention, timedelta(0), timedelta(days=365), "at most 365 days")
    if len(spec.artefacts) > MAX_ARTEFACTS:
        bad("spec.artefacts", f"{len(spec.artefacts)} are given; at most {MAX_ARTEFACTS} may be")
    for i, artefact in enumerate(spec.artefacts):
        check_id(artefact.id, f"spec.artefacts[{i}].id")
    _unique("spec.artefacts", [artefact.id for artefact in spec.artefacts])
    _check_paths("spec.artefacts", [artefact.path for artefact in spec.artefacts])
    _check_stored_size(spec)


def check_labels(labels: Mapping[str, str]) -> None:
    """Check labels; raise Invalid."""
    if len(labels) > MAX_LABELS:
        bad("metadata.labels", f"{len(labels)} are given; at most {MAX_LABELS} may be")
    for key, value in labels.items():
        if not _LABEL.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            bad(
                "metadata.labels",
                f"{shown(key)}: {shown(value)} is not a label; use at most 63 of A-Z, a-z, 0-9 and '._/-'",
            )


def check_queue_spec(quota: Resources, priority: int) -> None:
    """Check what a queue may take; raise Invalid."""
    check_amounts("spec.quota", quota)
    _within("spec.priority", priority, -MAX_PRIORITY, MAX_PRIORITY)


def check_amounts(field: str, amounts: Resources) -> None:
    """Check amounts; raise Invalid."""
    _within(f"{field}.cpu_millis", amounts.cpu_millis, 0, _MOST)
    _within(f"{field}.memory_bytes", amounts.memory_bytes, 0, _MOST)
    _within(f"{field}.gpu_count", amounts.gpus, 0, _MOST)


def check_facts(facts: Facts) -> None:
    """Check what a runner says of its node; raise Invalid."""
    check_amounts("status.capacity", facts.capacity)
    if len(facts.gpus) > MAX_GPUS:
        bad("status.gpus", f"{len(facts.gpus)} are given; at most {MAX_GPUS} may be")
    indexes = [gpu.index for gpu in facts.gpus]
    _unique("status.gpus", [str(index) for index in indexes])
    _check_gpus(facts.gpus)
    if facts.capacity.gpus > len(indexes):
        bad("status.capacity.gpu_count", f"{facts.capacity.gpus} is more than the {len(indexes)} GPUs listed")
    for i, link in enumerate(facts.links):
        if link.first >= link.second or not {link.first, link.second} <= set(indexes):
            bad(f"status.links[{i}]", f"{link.first}–{link.second} are not two GPUs of the node, lower first")
        _check_bandwidth(f"status.links[{i}].bandwidth_gbps", link.bandwidth_gbps)
    _unique("status.links", [f"{link.first}-{link.second}" for link in facts.links])
    if len(facts.topology) > MAX_LEVELS or not all(_LEVEL.fullmatch(level) for level in facts.topology):
        bad("status.topology", f"use at most {MAX_LEVELS} names of A-Z, a-z, 0-9, '.', '_' and '-'")
    if not _HOST.fullmatch(facts.host):
        bad("status.host", f"{shown(facts.host)} is not a host's name or address")
    first, last = facts.ports
    if not 1 <= first <= last <= 65_535:
        bad("status.first_port", f"{first} to {last} is not a range of ports; use 1 to 65535, lower first")
    if len(facts.runner_version) > 128:
        bad("status.runner_version", "is longer than 128 characters")


def _check_gpus(gpus: Iterable[Gpu]) -> None:
    for i, gpu in enumerate(gpus):
        _within(f"status.gpus[{i}].index", gpu.index, 0, 1023)
        if len(gpu.model) > 128 or not gpu.model.isprintable():
            bad(f"status.gpus[{i}].model", "use at most 128 printable characters")
        _within(f"status.gpus[{i}].memory_bytes", gpu.memory_bytes, 0, _MOST)


def _check_command(words: tuple[str, ...]) -> None:
    if not words or not words[0]:
        bad("spec.command", "is empty; give a program and its arguments, such as python train.py")
    if len(words) > MAX_WORDS:
        bad("spec.command", f"has {len(words)} words; at most {MAX_WORDS} may be given")
    size = sum(len(word.encode()) for word in words)
    if size > MAX_WORDS_BYTES:
        bad("spec.command", f"has {size} bytes; at most {MAX_WORDS_BYTES} may be given")
    if any("\0" in word for word in words):
        bad("spec.command", "holds a NUL character; leave it out")


def _check_environment(variables: Mapping[str, str]) -> None:
    if len(variables) > MAX_VARIABLES:
        bad("spec.environment", f"has {len(variables)} variables; at most {MAX_VARIABLES} may be given")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in variables.items())
    if size > MAX_VARIABLES_BYTES:
        bad("spec.environment", f"has {size} bytes; at most {MAX_VARIABLES_BYTES} may be given")
    for key, value in variables.items():
        if not _VARIABLE.fullmatch(key):
            bad("spec.environment", f"{shown(key)} is not a variable's name; use A-Z, a-z, 0-9 and '_'")
        if key in _RESERVED or key.startswith(_RESERVED_PREFIX):
            bad("spec.environment", f"{key} is set by the runner; leave it out")
        if "\0" in value:
            bad("spec.environment", f"{key} holds a NUL character; leave it out")


def _check_stored_size(spec: JobSpec) -> None:
    """Refuse what would be within the other bounds and yet fill a transaction: escapes take six bytes."""
    texts = [*spec.command, *spec.environment, *spec.environment.values()]
    texts += [file.path for file in spec.files] + [artefact.path for artefact in spec.artefacts]
    size = len(json.dumps(texts, ensure_ascii=False).encode())
    if size > MAX_STORED_BYTES:
        bad(
            "spec",
            f"takes {size} bytes as JSON; at most {MAX_STORED_BYTES} may be: put some of it into a file",
        )


def _check_paths(field: str, paths: list[str]) -> None:
    for i, path in enumerate(paths):
        parts = path.split("/")
        if not path or len(path.encode()) > MAX_PATH_BYTES or "\0" in path or {"", ".", ".."} & set(parts):
            bad(
                f"{field}[{i}].path",
                f"{shown(path)} is not a relative path with '/' and without '.' and '..'",
                "BAD_PATH",
            )
    _unique(field, paths)
    whole = set(paths)
    for path in paths:
        parts = path.split("/")
        inside = next((p for n in range(1, len(parts)) if (p := "/".join(parts[:n])) in whole), None)
        if inside is not None:
            bad(field, f"{shown(inside)} is a file, and {shown(path)} needs it to be a folder", "BAD_PATH")


def _unique(field: str, values: list[str]) -> None:
    seen = set()
    for value in values:
        if value in seen:
            bad(field, f"{shown(value)} comes twice; each may come once", "DUPLICATE")
        seen.add(value)


def _within(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        bad(field, f"{value} is out of range; use {low} to {high}", "OUT_OF_BOUNDS")


def _span(field: str, value: timedelta, low: timedelta, high: timedelta, text: str) -> None:
    if not low <= value <= high:
        bad(field, f"{value.total_seconds():g} s is out of range; use {text}", "OUT_OF_BOUNDS")


def _check_bandwidth(field: str, value: float) -> None:
    if not math.isfinite(value) or not 0 <= value <= 1e6:
        bad(field, f"{value} is not a bandwidth; use 0 to 1000000 GB/s", "OUT_OF_BOUNDS")
