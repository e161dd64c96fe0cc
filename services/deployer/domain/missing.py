"""What to say of a name that isn't there: which one near it is. Only the same tenant's are looked at."""

from libs.common.errors import NotFound
from libs.common.names import ReleaseName, TaskName, VersionName
from libs.common.suggest import did_you_mean
from services.deployer.store import Tx

_LOOKED_AT = 200


def not_found(name: object, hint: str = "") -> NotFound:
    """Return the error for a resource that isn't there, or is another tenant's."""
    return NotFound(f"{name}: not found{hint}", reason="NOT_FOUND", metadata={"resource": str(name)})


def no_task(tx: Tx, name: TaskName) -> NotFound:
    """Return the error for a task that isn't there."""
    known = [task.name.task for task in tx.list_tasks(name.tenant, "", _LOOKED_AT)]
    return not_found(name, did_you_mean(name.task, known))


def no_version(tx: Tx, name: VersionName) -> NotFound:
    """Return the error for a version that isn't there; that of its task when that isn't either."""
    if tx.get_task(name.parent) is None:
        return no_task(tx, name.parent)
    known = [version.name.version for version in tx.list_versions(name.parent, None, _LOOKED_AT)]
    if not known:
        return not_found(name, "; the task has no versions yet, so publish one first")
    newest = f"; the newest is {known[0]!r}"
    return not_found(name, did_you_mean(name.version, known) or newest)


def no_release(tx: Tx, name: ReleaseName) -> NotFound:
    """Return the error for a release that isn't there."""
    known = [release.name.release for release in tx.list_releases(name.tenant, None, _LOOKED_AT)]
    return not_found(name, did_you_mean(name.release, known))
