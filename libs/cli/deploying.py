"""How `isthmus endpoint deploy` brings a version to an endpoint, and waits until it answers."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from functools import partial

from isthmus.serving.v1 import model_pb2
from libs.cli.endpoints import Source, get_model, list_versions, models, next_version, state_text
from libs.cli.following import Patience
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


def deploy(
    session: Session,
    patience: Patience,
    name: str,
    source: Source,
    version: str,
    *,
    dry_run: bool = False,
    any_signature: bool = False,
) -> Deployed:
    """Serve a file as a model's live version; the version before answers until the new one is loaded.

    The model is made when it isn't there, once the file is known to be sound. A file that is served already
    isn't loaded again. Services may restart meanwhile: every call is repeated.

    Args:
        session: where to.
        patience: makes the calls.
        name: the model.
        source: the file.
        version: the version's id; "" chooses one.
        dry_run: load it once and forget it.
        any_signature: whether it may take and give other tensors than the live version.

    Raises:
        AlreadyExists: when there is a version of that id with another file.
        Error: why it can't be loaded or doesn't fit; nothing has changed then.
    """
    model, versions = patience(lambda: _there(session, name))
    before = model.live_version
    found = _same(versions, source, version, before)
    if found is not None and not dry_run:
        served = last_part(found.name)
        outcome = "unchanged" if served == before else "switched"
        if outcome == "switched":
            model = switch(session, patience, name, served)
        return Deployed(_ready(session, patience, found, model), before, outcome, model)
    request = model_pb2.CreateModelVersionRequest(
        parent=name,
        version_id=version or next_version(versions),
        version=_Version(platform=source.platform, blob=source.blob),
        request_id=str(uuid.uuid4()),
        validate_only=True,
        allow_other_signature=any_signature,
    )
    stub = models(session)

    def create() -> model_pb2.ModelVersion:
        return session.call(stub.CreateModelVersion, request, timeout_s=_LOAD_S).version

    made = bool(model.create_time.ToNanoseconds())
    if dry_run or not made:
        checked = patience(create)
        if dry_run:
            return Deployed(checked, before, "checked", model)
    if not made:
        put = model_pb2.PutModelRequest(model=model_pb2.Model(name=name))
        patience(lambda: session.call(stub.PutModel, put))
    # Asked again, serving finds by the request's id what the first one did.
    request.validate_only = False
    created = patience(create)
    model = patience(lambda: get_model(session, name))
    return Deployed(_ready(session, patience, created, model), before, "deployed", model)


def _there(session: Session, name: str) -> tuple[model_pb2.Model, list[model_pb2.ModelVersion]]:
    """Return a model and its versions; one without a create_time when it isn't there."""
    try:
        return get_model(session, name), list_versions(session, name)
    except NotFound:
        return model_pb2.Model(name=name), []


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


def _ready(
    session: Session, patience: Patience, version: model_pb2.ModelVersion, model: model_pb2.Model
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
        version = patience(partial(_found, session, model.name, version.name))
    return version


def _found(session: Session, model: str, name: str) -> model_pb2.ModelVersion:
    for each in list_versions(session, model):
        if each.name == name:
            return each
    raise NotFound(f"{name}: was removed while it was waited for", reason="VERSION_NOT_FOUND")


def switch(session: Session, patience: Patience, name: str, version: str) -> model_pb2.Model:
    """Give a model's traffic to a version, loaded before it does; return the model."""

    def put() -> model_pb2.Model:
        # Read anew each time: where an answer was lost, it is done.
        model = get_model(session, name)
        if model.live_version == version:
            return model
        wanted = model_pb2.Model(name=name, config=model.config, live_version=version, etag=model.etag)
        request = model_pb2.PutModelRequest(model=wanted)
        return session.call(models(session).PutModel, request, timeout_s=_LOAD_S).model

    return patience(put)
