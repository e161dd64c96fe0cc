"""`isthmus task`: write a task, check it, publish versions of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path

import click

from isthmus.deployer.v1 import manifest_pb2, task_pb2, task_pb2_grpc
from libs.cli.asked_models import warn_of_models
from libs.cli.blobs import blob_of, upload
from libs.cli.folder import read_task
from libs.cli.groups.trust import AUTHOR_KEY
from libs.cli.main import Group
from libs.cli.output import as_dict, counted, human_bytes, human_time
from libs.cli.preflight import preflight_text, preflight_word
from libs.cli.session import Session, Settings, says_when_unknown, with_session
from libs.cli.trial import try_task
from libs.cli.values import version_name
from libs.common.errors import Invalid, NotFound, Precondition
from libs.common.names import check_id
from libs.task.event import MAX_RECORDING_BYTES
from libs.task.manifest import CheckedManifest
from libs.task.source import FILE_NAME
from libs.trust.keys import SigningKey
from libs.trust.signing import sign_message

_FOLDER = click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())

# A simulation may take a minute, and its files must get there: longer than the deployer waits for it.
_SIMULATION_S = 240.0

_TEMPLATE = {
    "task": "",
    "version": "1.0.0",
    "phases": [{"kind": "post", "script": "main.py", "entry_point": "run"}],
    "trigger": {"sequence": [{"event": "click"}]},
    "pipeline": {
        "clicks": {
            "source": {"event": "click"},
            "ops": [{"window": {"size": "1d", "max_events": 1000}}, {"reduce": {"count": {"fn": "count"}}}],
        }
    },
    "uploads": {"clicks": {"count": "number"}},
    "health": {"confirm_run_count": 1, "confirm_idle_time": "10m", "max_failure_count": 3},
}

_SCRIPT = '''\
"""Counts a user's clicks of the last day."""

from isthmus.task import Context


def run(context: Context) -> dict[str, object]:
    """Return the count as the local result; send it up at every tenth click."""
    count = context.features["clicks"]["count"]
    if count % 10 == 0:
        context.send("clicks", {"count": count})
    return {"count": count}
'''


@click.group(cls=Group)
def task() -> None:
    """Write tasks, check them and publish their versions."""


@task.command()
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to; default: a new folder NAME here.")
@click.pass_obj
def init(settings: Settings, name: str, folder: Path | None) -> None:
    """Make a folder with a small working task NAME."""
    check_id(name, "NAME")
    where = folder or Path(name)
    if (where / FILE_NAME).exists():
        raise Precondition(f"{where / FILE_NAME} is there already", reason="EXISTS")
    where.mkdir(parents=True, exist_ok=True)
    (where / FILE_NAME).write_text(json.dumps(_TEMPLATE | {"task": name}, indent=2) + "\n", encoding="utf-8")
    (where / "main.py").write_text(_SCRIPT, encoding="utf-8")
    settings.output.values(
        {"folder": str(where)}, f"{where}/: {FILE_NAME}, main.py", f"next: isthmus task check {where}"
    )


@task.command("try")
@_FOLDER
@click.option(
    "--events",
    required=True,
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Recorded events, one JSON object a line; - is the standard input.",
)
@click.option("--limit", type=click.IntRange(1), default=None, help="Take only the first LIMIT events.")
@click.pass_obj
def try_(settings: Settings, folder: Path, events: str, limit: int | None) -> None:
    """Run the task in FOLDER here over recorded events, as a device would: no cloud, no keys.

    Shows each run's result or failure, the frames that it would send and those that would be refused, and a
    summary. Exit 1 if a run failed.
    """
    read_task(folder)
    try_task(settings.output, folder, events, limit or 0)


def _total_bytes(checked: CheckedManifest) -> int:
    return sum(blob.size_bytes for blob in checked.blobs)


@task.command()
@_FOLDER
@click.pass_obj
def check(settings: Settings, folder: Path) -> None:
    """Check the task in FOLDER here, without a cloud: task.json, trigger, pipeline, scripts."""
    _, _, checked = read_task(folder)
    size = _total_bytes(checked)
    settings.output.values(
        {"task": checked.task, "version": checked.version, "total_bytes": size},
        f"{checked.key} is well formed: {counted(len(checked.blobs), 'file')}, {human_bytes(size)}",
    )


@task.command()
@_FOLDER
@click.option(
    "--keys",
    "keys_dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the signing keys; default: from the settings file.",
)
@click.option(
    "--key", "more_keys", multiple=True, type=click.Path(path_type=Path), help="Another author key; repeat."
)
@click.option(
    "--events",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Recorded events, one JSON object a line, to try the version over in the cloud; default: those of "
    "the newest version that had some.",
)
@click.option("--dry-run", is_flag=True, help="Let the deployer check and try it; keep only the files.")
@with_session
def publish(
    session: Session,
    folder: Path,
    keys_dir: Path | None,
    more_keys: tuple[Path, ...],
    events: Path | None,
    dry_run: bool,
) -> None:
    """Upload the files of FOLDER, sign its manifest as author and publish the version.

    A simulator in the cloud tries it first; one that fails there isn't published.
    """
    source, manifest, checked = read_task(folder)
    recording = _recording(events)
    author = (keys_dir or session.settings.keys_dir) / AUTHOR_KEY
    try:
        signers = [SigningKey.load(path) for path in (author, *more_keys)]
    except FileNotFoundError as error:
        raise NotFound(f"no author key at {error.filename}; make one with `isthmus trust init`") from error
    stub = task_pb2_grpc.TaskServiceStub(session.channel)
    parent = f"{session.tenant}/tasks/{checked.task}"
    with says_when_unknown(f"{checked.key} was not published; run it again, no file is sent twice"):
        for file in source.files:
            upload(session, file)
        _make_task(session, checked.task, parent)
        before = _there(session, f"{parent}/versions/{checked.version}")
    signed = sign_message(manifest, signers)
    publication = task_pb2.PublishVersionRequest(parent=parent, manifest=signed, validate_only=dry_run)
    if recording is not None:
        publication.events.CopyFrom(upload(session, recording))
    if before is None:
        session.output.note(f"simulating {checked.key} …")
    waiting_s = max(_SIMULATION_S, session.settings.timeout_s)
    unknown = f"whether {checked.key} was published isn't known; run it again, publishing twice is safe"
    with says_when_unknown("--dry-run published nothing; run it again" if dry_run else unknown):
        version = session.call(stub.PublishVersion, publication, timeout_s=waiting_s).version
    kept = {signature.key_id for signature in version.manifest.signatures}
    missing = [signer.key_id for signer in signers if signer.key_id not in kept]
    if missing and not dry_run:
        raise Precondition(
            f"{checked.key} was there already, signed by {' '.join(sorted(kept))}; no signature of "
            f"{' '.join(missing)} was added: is that an author key of the root? (`isthmus trust show`)",
            reason="SIGNATURES_NOT_ADDED",
        )
    if before is None:
        outcome = "checked" if dry_run else "published"
    elif {signer.key_id for signer in signers} <= {each.key_id for each in before.manifest.signatures}:
        outcome = "already_published"
    else:
        outcome = "checked" if dry_run else "signatures_added"
    _show_version(session, version, {"outcome": outcome})
    warn_of_models(session, checked.endpoints)


def _recording(events: Path | None) -> Path | None:
    """Return a file of events that can be uploaded; raise before anything is."""
    if events is None:
        return None
    size = blob_of(events).size_bytes
    if size > MAX_RECORDING_BYTES:
        raise Invalid(
            f"--events: {events} has {human_bytes(size)}, more than {human_bytes(MAX_RECORDING_BYTES)}; "
            "give a shorter recording",
            reason="TOO_LARGE",
        )
    return events


def _make_task(session: Session, task_id: str, name: str) -> None:
    """Make the task unless it is there."""
    stub = task_pb2_grpc.TaskServiceStub(session.channel)
    try:
        session.call(stub.GetTask, task_pb2.GetTaskRequest(name=name))
    except NotFound:
        request = task_pb2.CreateTaskRequest(
            parent=str(session.tenant), task_id=task_id, request_id=str(uuid.uuid4())
        )
        session.call(stub.CreateTask, request)


def _there(session: Session, name: str) -> task_pb2.Version | None:
    stub = task_pb2_grpc.TaskServiceStub(session.channel)
    try:
        return session.call(stub.GetVersion, task_pb2.GetVersionRequest(name=name)).version
    except NotFound:
        return None


def _show_version(session: Session, found: task_pb2.Version, more: Mapping[str, object]) -> None:
    published = f"{human_time(found.create_time.ToDatetime(tzinfo=UTC))} by {found.publisher}"
    session.output.message(
        found,
        [
            ("version", found.name),
            ("manifest", found.manifest_digest),
            ("size", human_bytes(found.total_bytes)),
            {
                "checked": ("checked", "all is well; not published: --dry-run only checks"),
                "signatures_added": ("published", f"{published}; it was there already, now signed anew"),
                "already_published": ("published", f"{published}; it was there already, nothing changed"),
            }.get(str(more.get("outcome")), ("published", published)),
            ("pre-flight", preflight_text(found)),
        ],
        more=more,
    )


@task.command("list")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@with_session
def list_(session: Session, limit: int | None) -> None:
    """List the tenant's tasks."""
    stub = task_pb2_grpc.TaskServiceStub(session.channel)
    request = task_pb2.ListTasksRequest(parent=str(session.tenant))
    found = [each for page in session.pages(stub.ListTasks, request, limit) for each in page.tasks]
    session.output.messages(
        found,
        ("TASK", "FOR PEOPLE", "MADE"),
        (
            (
                each.name.rpartition("/")[2],
                each.description,
                human_time(each.create_time.ToDatetime(tzinfo=UTC)),
            )
            for each in found
        ),
    )


@task.command()
@click.argument("name", metavar="TASK")
@click.option("--limit", type=click.IntRange(1), help="Show at most this many; default: all.")
@with_session
def versions(session: Session, name: str, limit: int | None) -> None:
    """List the versions of TASK, newest first."""
    stub = task_pb2_grpc.TaskServiceStub(session.channel)
    request = task_pb2.ListVersionsRequest(parent=session.name("tasks", name))
    found = [each for page in session.pages(stub.ListVersions, request, limit) for each in page.versions]
    session.output.messages(
        found,
        ("VERSION", "SIZE", "PRE-FLIGHT", "PUBLISHED", "BY"),
        (
            (
                each.name.rpartition("/")[2],
                human_bytes(each.total_bytes),
                preflight_word(each),
                human_time(each.create_time.ToDatetime(tzinfo=UTC)),
                each.publisher,
            )
            for each in found
        ),
    )


@task.command()
@click.argument("version", metavar="TASK[@VERSION]")
@with_session
def get(session: Session, version: str) -> None:
    """Show a published version, the newest unless one is named, and its manifest."""
    stub = task_pb2_grpc.TaskServiceStub(session.channel)
    if "@" in version:
        request = task_pb2.GetVersionRequest(name=str(version_name(session.tenant, version)))
        found = session.call(stub.GetVersion, request).version
    else:
        name = session.name("tasks", version)
        newest = task_pb2.ListVersionsRequest(parent=name, page_size=1)
        versions = session.call(stub.ListVersions, newest).versions
        if not versions:
            raise NotFound(f"{name} has no version yet; publish one with `isthmus task publish`")
        found = versions[0]
    manifest = manifest_pb2.TaskManifest.FromString(found.manifest.payload)
    _show_version(session, found, {"task_manifest": as_dict(manifest)})
    session.output.say(*str(manifest).splitlines())
