"""`isthmus trust`: the tenant's signing keys and its root, which says whose signatures count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from isthmus.deployer.v1 import (
    manifest_pb2,
    release_pb2,
    release_pb2_grpc,
    task_pb2,
    task_pb2_grpc,
    trust_service_pb2,
    trust_service_pb2_grpc,
)
from isthmus.trust.v1 import trust_pb2
from libs.cli.main import Group
from libs.cli.output import human_time
from libs.cli.session import Session, with_session
from libs.cli.values import DURATION
from libs.common.errors import Invalid, NotFound, Precondition
from libs.common.names import VersionName
from libs.trust.errors import Untrusted
from libs.trust.keys import SigningKey, public_from_raw
from libs.trust.root import ROLES, Root, overlap, verify_first_root, verify_next_root
from libs.trust.signing import RoleKeys, verify

# Their versions still go to devices: those of the steps to come, and those that enrol later.
_IN_FORCE = (
    release_pb2.Release.STATE_RUNNING,
    release_pb2.Release.STATE_PAUSED,
    release_pb2.Release.STATE_SUCCEEDED,
)
ROOT_KEY, AUTHOR_KEY = "root.key", "author.key"
_LIFETIME_S = 365 * 86400.0

_KEYS = click.option(
    "--keys",
    "keys_dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the signing keys; default: from the settings file.",
)


@click.group(cls=Group)
def trust() -> None:
    """Keep the tenant's signing keys and trust root."""


def _stub(session: Session) -> trust_service_pb2_grpc.TrustServiceStub:
    return trust_service_pb2_grpc.TrustServiceStub(session.channel)


def _chain(session: Session) -> list[trust_pb2.Signed]:
    request = trust_service_pb2.ListRootsRequest(parent=str(session.tenant))
    return [root for page in session.pages(_stub(session).ListRoots, request) for root in page.roots]


def newest_root(session: Session) -> Root:
    """Return the tenant's newest root, its whole chain verified.

    Raises:
        NotFound: when the tenant has none yet.
        Untrusted: when the chain doesn't hold.
    """
    chain = _chain(session)
    if not chain:
        raise NotFound(f"{session.tenant} has no trust root yet; make one with `isthmus trust init`")
    root = verify_first_root(chain[0])
    for signed in chain[1:]:
        root = verify_next_root(root, signed)
    return root


def _show(session: Session, root: Root, orphans: Sequence[_Orphan] = ()) -> None:
    roles = [(name, root.role(name)) for name in ROLES]
    session.output.message(
        root.to_proto(),
        [
            ("root", f"version {root.version} of tenants/{root.tenant}"),
            ("expires", human_time(root.expire_time)),
            *(
                (f"{name} keys", f"{' '.join(sorted(role.keys))}  (any {role.threshold})")
                for name, role in roles
                if role.keys
            ),
        ],
        more={"unverifiable_releases": [asdict(found) for found in orphans]} if orphans else None,
    )


def _install(
    session: Session, root: Root, signers: Sequence[SigningKey], orphans: Sequence[_Orphan] = ()
) -> None:
    request = trust_service_pb2.InstallRootRequest(parent=str(session.tenant), root=root.sign(signers))
    session.call(_stub(session).InstallRoot, request)
    _show(session, root, orphans)


@dataclass(frozen=True, slots=True)
class _Orphan:
    """A release in force whose version too few authors have signed."""

    release: str
    version: str
    """`task@version`."""


def _orphans(session: Session, author: RoleKeys) -> list[_Orphan]:
    """Return the releases in force whose version wouldn't verify under an author role.

    Of a task a device gets the newest release that selects it, so one behind another for the same devices is
    in force no more.
    """
    releases = release_pb2_grpc.ReleaseServiceStub(session.channel)
    tasks = task_pb2_grpc.TaskServiceStub(session.channel)
    request = release_pb2.ListReleasesRequest(parent=str(session.tenant))
    verifies: dict[str, bool] = {}
    found: list[_Orphan] = []
    settled: set[tuple[str, str]] = set()
    for page in session.pages(releases.ListReleases, request):
        for release in page.releases:
            task = release.version.rpartition("/versions/")[0]
            if release.state not in _IN_FORCE or {(task, ""), (task, release.policy_json)} & settled:
                continue
            if release.state == release_pb2.Release.STATE_SUCCEEDED and release.steps_percent[-1:] == [100.0]:
                settled.add((task, release.policy_json))
            if release.version not in verifies:
                version = session.call(
                    tasks.GetVersion, task_pb2.GetVersionRequest(name=release.version)
                ).version
                verifies[release.version] = _is_signed(version.manifest, author)
            if not verifies[release.version]:
                name = VersionName.parse(release.version)
                found.append(_Orphan(release.name, f"{name.task}@{name.version}"))
    return found


def _is_signed(manifest: trust_pb2.Signed, author: RoleKeys) -> bool:
    try:
        verify(manifest, manifest_pb2.TaskManifest.DESCRIPTOR.full_name, author)
    except Untrusted:
        return False
    return True


@trust.command()
@_KEYS
@click.option(
    "--lifetime", type=DURATION, default=_LIFETIME_S, help="How long the root is good for; default 365d."
)
@with_session
def init(session: Session, keys_dir: Path | None, lifetime: float) -> None:
    """Make a root key and an author key here, and install the tenant's first root. Safe to repeat."""
    folder = keys_dir or session.settings.keys_dir
    try:
        present = newest_root(session)
    except NotFound:
        present = None
    if present is not None:
        author = folder / AUTHOR_KEY
        if not author.exists() or SigningKey.load(author).key_id not in present.author.keys:
            raise Precondition(
                f"{session.tenant} has a root already (version {present.version}) that doesn't name the "
                f"author key in {folder}; bring that key here, or let a root key's holder run "
                "`isthmus trust rotate`",
                reason="ROOT_EXISTS",
            )
        _show(session, present)
        return
    root_key = SigningKey.load_or_create(folder / ROOT_KEY)
    author_key = SigningKey.load_or_create(folder / AUTHOR_KEY)
    answer = session.call(_stub(session).GetDeployerKeys, trust_service_pb2.GetDeployerKeysRequest())
    now = datetime.now(UTC)
    root = Root(
        tenant=session.tenant.tenant,
        version=1,
        create_time=now,
        expire_time=now + timedelta(seconds=lifetime),
        root=RoleKeys.of([root_key.public]),
        author=RoleKeys.of([author_key.public]),
        deployer=RoleKeys.of(public_from_raw(key.public_key) for key in answer.keys),
    )
    session.output.note(f"keys are in {folder}; keep {ROOT_KEY} offline in production")
    _install(session, root, [root_key])


@trust.command()
@with_session
def show(session: Session) -> None:
    """Show the newest root, after checking the whole chain."""
    _show(session, newest_root(session))


@trust.command()
@click.argument("role", type=click.Choice(["root", "author", "deployer"]))
@_KEYS
@click.option(
    "--add",
    "added",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Key file to add to the role; made when it isn't there. Not for the deployer.",
)
@click.option("--retire", "retired", multiple=True, help="Key id to take out of the role; repeat.")
@click.option(
    "--lifetime", type=DURATION, default=_LIFETIME_S, help="How long the root is good for; default 365d."
)
@click.option("--yes", is_flag=True, help="Go on though released versions no longer verify.")
@with_session
def rotate(
    session: Session,
    role: str,
    keys_dir: Path | None,
    added: Path | None,
    retired: tuple[str, ...],
    lifetime: float,
    yes: bool,
) -> None:
    """Install the next root, with keys of ROLE added and retired.

    Add first, retire in a later root: what either key signed holds in between. For the deployer its current
    keys are taken. Retiring an author key with which released versions would lose their last good signature
    needs --yes.
    """
    folder = keys_dir or session.settings.keys_dir
    current = newest_root(session)
    signers = [SigningKey.load(folder / ROOT_KEY)]
    keys = current.role(role)
    if role == "deployer":
        if added:
            raise click.UsageError("the deployer holds its own keys; leave --add out")
        answer = session.call(_stub(session).GetDeployerKeys, trust_service_pb2.GetDeployerKeysRequest())
        offered = RoleKeys.of(public_from_raw(key.public_key) for key in answer.keys)
        keys = RoleKeys({**keys.keys, **offered.keys}, keys.threshold)
        keys = overlap(keys, retire=retired)
    else:
        new = [SigningKey.load_or_create(added)] if added else []
        keys = overlap(keys, add=new, retire=retired)
        signers += new if role == "root" else []
    if keys.keys == current.role(role).keys:
        raise Invalid(f"nothing changes in the {role} role; give --add or --retire", reason="NO_CHANGE")
    root = current.successor(datetime.now(UTC), timedelta(seconds=lifetime), {role: keys})
    orphans = _orphans(session, root.author) if role == "author" and retired else []
    if orphans and not yes:
        listed = ", ".join(f"{found.release} ({found.version})" for found in orphans)
        raise Precondition(
            f"with the new root the versions of these releases no longer verify, so no further device takes "
            f"them: {listed}; first sign them with a key that stays as well (`isthmus task publish` again), "
            "or go on with --yes",
            reason="VERSIONS_ORPHANED",
            metadata={"releases": ",".join(found.release for found in orphans)},
        )
    for found in orphans:
        session.output.note(
            f"warning: {found.release}: {found.version} no longer verifies on further devices"
        )
    _install(session, root, signers, orphans)
