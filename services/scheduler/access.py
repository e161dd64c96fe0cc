"""Who may call what. A method without an entry is refused."""

from libs.common.access import Access

RUNNER = "scheduler-runner"
_RUNNER = Access(kinds=frozenset(), callers=frozenset({RUNNER}))

_BY_SERVICE: dict[str, dict[str, Access]] = {
    "JobService": {
        "CreateJob": Access("jobs:write"),
        "GetJob": Access("jobs:read"),
        "ListJobs": Access("jobs:read"),
        "CancelJob": Access("jobs:write"),
        "DeleteJob": Access("jobs:write"),
        "WatchJob": Access("jobs:read"),
        "ReadLogs": Access("jobs:read"),
        "ExplainJob": Access("jobs:read"),
        "GetReservation": Access("jobs:read"),
        "ListReservations": Access("jobs:read"),
    },
    "QueueService": {
        "CreateQueue": Access("queues:write"),
        "GetQueue": Access("queues:read"),
        "ListQueues": Access("queues:read"),
        "UpdateQueue": Access("queues:write"),
        "DeleteQueue": Access("queues:write"),
    },
    # Changing nodes takes a key of the operator's tenant as well: see `domain.nodes`.
    "NodeService": {
        "GetNode": Access("nodes:read"),
        "ListNodes": Access("nodes:read"),
        "UpdateNode": Access("nodes:write"),
        "DeleteNode": Access("nodes:write"),
    },
    "RunnerService": {"Attach": _RUNNER, "AppendLog": _RUNNER},
}

ACCESS: dict[str, Access] = {
    f"/isthmus.scheduler.v1.{service}/{method}": access
    for service, methods in _BY_SERVICE.items()
    for method, access in methods.items()
}
