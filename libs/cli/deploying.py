"""How `isthmus endpoint deploy` brings a version to an endpoint, and waits until it answers."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from isthmus.serving.v1 import model_pb2
from libs.cli.endpoints import Source, get_model, list_versions, models, next_version, state_text
from libs.cli.following import resuming
from libs.cli.jobs import last_part
from libs.cli.session import Session
from libs.common.errors import AlreadyExists, NotFound, Precondition, Unavailable

# A large model is read, compared with its digest, loaded and warmed.
_LOAD_S = 900.0
_PAUSE_S = 0.5
_Version = model_pb2.ModelVersion


@dataclass(frozen=True, slots=True)
class Deployed:
    """What became of it.

    Attributes:
        version: the version, which has the traffic.
        before: the version that had it, or "".
        outcome: "deployed"; "switched" when the version was there and now has the traffic; "unchanged"; or
            "checked" for a dry run.
        model: the model as it is now.
    """

    version: model_pb2.ModelVersion
    before: str
    outcome: str
    model: model_pb2.Model


def deploy(session: Session, name: str, source: Source, version: str, *, dry_run: bool) -> Deployed:
    """Serve a file as a model's live version; the version before answers until the new one is loaded.

    The model is made when it isn't there. A file that is served already isn't loaded again.

    Args:
        session: where to.
        name: the model.
        source: the file.
        version: the version's id; "" chooses one.
        dry_run: load it once and forget it.

    Raises:
        AlreadyExists: when there is a version of that id with another file.
        Error: why it can't be loaded; nothing has changed then.
    """
    model = _made(session, name, dry_run=dry_run)
    before = model.live_version
    versions = list_versions(session, name) if model.create_time.ToNanoseconds() else []
    found = _same(versions, source, version, before)
    if found is not None and not dry_run:
        served = last_part(found.name)
        outcome = "unchanged" if served == before else "switched"
        if outcome == "switched":
            model = switch(session, model, served)
        return Deployed(_ready(session, name, found, model), before, outcome, model)
    request = model_pb2.CreateModelVersionRequest(
        parent=name,
        version_id=version or next_version(versions),
        version=_Version(platform=source.platform, blob=source.blob),
        request_id=str(uuid.uuid4()),
        validate_only=dry_run,
    )
    if dry_run:
        call = models(session).CreateModelVersion
        return Deployed(session.call(call, request, timeout_s=_LOAD_S).version, before, "checked", model)
    made = _created(session, request)
    model = get_model(session, name)
    return Deployed(_ready(session, name, made, model), before, "deployed", model)


def _made(session: Session, name: str, *, dry_run: bool) -> model_pb2.Model:
    """Return the model, which is made with the defaults when it isn't there."""
    try:
        return get_model(session, name)
    except NotFound:
        if dry_run:
            raise Precondition(
                f"{name}: isn't there yet, and files are checked by an endpoint; make it with "
                f"`isthmus endpoint put {last_part(name)}`",
                reason="NO_ENDPOINT",
            ) from None
        request = model_pb2.PutModelRequest(model=model_pb2.Model(name=name))
        return session.call(models(session).PutModel, request).model


def _same(
    versions: list[model_pb2.ModelVersion], source: Source, version: str, live: str
) -> model_pb2.ModelVersion | None:
    """Return the version that is this file already: the one asked for, or else the live one."""
    wanted = version or live
    for each in versions:
        if last_part(each.name) != wanted:
            continue
        if (each.platform, each.blob.digest) == (source.platform, source.blob.digest):
            return each
        if version:
            raise AlreadyExists(
                f"{each.name}: is there with another file, {each.blob.digest}; versions never change, give "
                "another --version",
                reason="VERSION_EXISTS",
            )
    return None


def _created(session: Session, request: model_pb2.CreateModelVersionRequest) -> model_pb2.ModelVersion:
    """Add a version; where serving goes away meanwhile, ask again, which finds what the first one did."""
    call = models(session).CreateModelVersion
    answers = resuming(session, lambda: iter([session.call(call, request, timeout_s=_LOAD_S)]), came=True)
    return next(answers).version


def _ready(
    session: Session, name: str, version: model_pb2.ModelVersion, model: model_pb2.Model
) -> model_pb2.ModelVersion:
    """Return a version once it answers, which it does at once but after a restart of serving.

    Raises:
        Precondition: when it can't be loaded.
        NotFound: when somebody removes it meanwhile.
        Unavailable: when it isn't loaded in a long time.
    """
    deadline = time.monotonic() + _LOAD_S
    while version.state != _Version.STATE_READY and not model.unloaded:
        if version.state == _Version.STATE_FAILED:
            raise Precondition(f"{version.name}: can't be loaded: {version.message}", reason="NOT_LOADED")
        if time.monotonic() > deadline:
            raise Unavailable(f"{version.name}: is still {state_text(version)}", reason="NOT_LOADED")
        time.sleep(_PAUSE_S)
        version = _found(session, name, version.name)
    return version


def _found(session: Session, model: str, name: str) -> model_pb2.ModelVersion:
    for each in list_versions(session, model):
        if each.name == name:
            return each
    raise NotFound(f"{name}: was removed while it was waited for", reason="VERSION_NOT_FOUND")


def switch(session: Session, model: model_pb2.Model, version: str) -> model_pb2.Model:
    """Give the traffic to a version, loaded before it does; return the model."""
    wanted = model_pb2.Model(name=model.name, config=model.config, live_version=version, etag=model.etag)
    request = model_pb2.PutModelRequest(model=wanted)
    return session.call(models(session).PutModel, request, timeout_s=_LOAD_S).model
