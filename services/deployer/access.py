"""Who may call what. A method without an entry is refused."""

from libs.common.access import Access
from services.deployer.domain.blobs import PINNERS

_DEVICE = Access(kinds=frozenset({"device"}))
_EVERYONE = frozenset({"user", "device"})
# Each acts on behalf of a tenant, and sees that tenant's blobs.
_KEEPERS = frozenset({"engine", "scheduler-runner", "serving"})
# The tuner gives its trials the model that is served; the simulator tries versions before they are published.
_READERS = _KEEPERS | {"tuner", "simulator"}
# The scheduler moves no files; it only ends what the jobs that it removes have pinned.
_UNPINNERS = frozenset(PINNERS)


def _user(scope: str) -> Access:
    return Access(scope)


_BY_SERVICE: dict[str, dict[str, Access]] = {
    "TaskService": {
        "CreateTask": _user("tasks:write"),
        "GetTask": _user("tasks:read"),
        "ListTasks": _user("tasks:read"),
        "PublishVersion": _user("tasks:write"),
        "GetVersion": _user("tasks:read"),
        "ListVersions": _user("tasks:read"),
    },
    # What a digest gives a device is its own tenant's anyway; what it runs, its signed set says.
    "BlobService": {
        "BeginBlob": Access("blobs:write", callers=_KEEPERS),
        "WriteBlob": Access("blobs:write", callers=_KEEPERS),
        "CommitBlob": Access("blobs:write", callers=_KEEPERS),
        "StatBlob": Access("blobs:read", kinds=_EVERYONE, callers=_READERS),
        "ReadBlob": Access("blobs:read", kinds=_EVERYONE, callers=_READERS),
        "PinBlob": Access(kinds=frozenset(), callers=_KEEPERS),
        "UnpinBlobs": Access(kinds=frozenset(), callers=_UNPINNERS),
    },
    "TrustService": {
        "GetDeployerKeys": _user("tasks:read"),
        "InstallRoot": _user("trust:write"),
        "ListRoots": Access("tasks:read", kinds=_EVERYONE),
    },
    "DeviceService": {
        "CreateEnrolmentToken": _user("devices:write"),
        "GetDevice": _user("devices:read"),
        "ListDevices": _user("devices:read"),
        "UpdateDevice": _user("devices:write"),
        "RevokeDevice": _user("devices:write"),
    },
    # The token and the proof inside are its authentication.
    "EnrolmentService": {"Enrol": Access(public=True), "RenewCredential": _DEVICE},
    "ReleaseService": {
        "CreateRelease": _user("releases:write"),
        "GetRelease": _user("releases:read"),
        "ListReleases": _user("releases:read"),
        "WatchRelease": _user("releases:read"),
        "PauseRelease": _user("releases:write"),
        "ResumeRelease": _user("releases:write"),
        "RollBackRelease": _user("releases:write"),
    },
    "PullService": {"Plan": _DEVICE, "Report": _DEVICE},
    "PushIndexService": {"Watch": Access(kinds=frozenset(), callers=frozenset({"gateway"}))},
    "AuditService": {"ListAuditEntries": _user("audit:read")},
}

ACCESS: dict[str, Access] = {
    f"/isthmus.deployer.v1.{service}/{method}": access
    for service, methods in _BY_SERVICE.items()
    for method, access in methods.items()
}
