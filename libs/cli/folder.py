"""A task's folder: read and checked here, before anything is sent."""

from __future__ import annotations

import stat
from pathlib import Path

from isthmus.deployer.v1 import manifest_pb2
from libs.cli.blobs import blob_of
from libs.cli.files import error_from_os
from libs.cli.output import human_bytes
from libs.common.errors import Invalid
from libs.runtime.loading import load_plan
from libs.task import script, source
from libs.task.manifest import MAX_PLAN_BYTES, MAX_RESOURCE_BYTES, Blob, CheckedManifest, check_manifest
from libs.task.source import FILE_NAME, TaskSource, read_task_json


def read_task(folder: Path) -> tuple[TaskSource, manifest_pb2.TaskManifest, CheckedManifest]:
    """Read and check a task's folder, scripts and plans included; nothing is sent.

    Raises:
        Invalid: for the first fault in task.json, a script, a plan, or a file that can't be given to devices.
        NotFound: when a file isn't there.
    """
    try:
        _check_file(folder, folder / FILE_NAME, source.MAX_BYTES)
        read = read_task_json((folder / FILE_NAME).read_bytes(), folder)
        limits = dict.fromkeys(read.plans, MAX_PLAN_BYTES) | dict.fromkeys(read.scripts, script.MAX_BYTES)
        blobs = {}
        for file in read.files:
            # Its size first: digesting what is too large anyway would take long, or never end.
            _check_file(folder, file, limits.get(file, MAX_RESOURCE_BYTES))
            blob = blob_of(file)
            blobs[file] = Blob(blob.digest, blob.size_bytes)
        manifest = read.manifest(blobs)
        checked = check_manifest(manifest)
        for phase in checked.phases:
            phase.compile((folder / phase.path).read_bytes())
        for plan in checked.plans:
            load_plan((folder / plan.path).read_bytes(), plan.path)
    except OSError as error:
        raise error_from_os(error) from error
    return read, manifest, checked


def _check_file(folder: Path, file: Path, most: int) -> None:
    """Refuse a file that is none, is too large, or lies elsewhere.

    Raises:
        Invalid: naming it and what to do.
        OSError: when it isn't there or can't be looked at.
    """
    try:
        real = file.resolve(strict=True)
    except RuntimeError as error:
        raise Invalid(f"{file}: is a link that leads back to itself", reason="BAD_FILE") from error
    if not real.is_relative_to(folder.resolve()):
        raise Invalid(
            f"{file}: is a link to {real}, outside the task's folder; put a copy into the folder",
            reason="OUTSIDE_FOLDER",
        )
    found = real.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, device or socket"
        raise Invalid(f"{file}: is {kind}; only plain files go to devices", reason="BAD_FILE")
    if found.st_size > most:
        raise Invalid(
            f"{file}: has {human_bytes(found.st_size)}, more than {human_bytes(most)}", reason="TOO_LARGE"
        )
